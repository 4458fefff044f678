//! Runs the commands of the documents: every block that is marked as `sh`, in the order of its page, in a private
//! network, so that the ports of the pages are free and nothing leaves the machine. Other tests parse the JSON blocks,
//! look up the anchors of links, and compare the table of all commands in docs/never-run.md.
//!
//! | in a page | meaning |
//! |---|---|
//! | a block marked `sh` | commands; the first one that fails fails the test |
//! | `<!-- test` … `-->` | further commands, such as starting a server, that the page does not show |
//! | `<!-- file: NAME -->` before a block | the block is written to this file first |
//! | `<!-- not run: REASON -->` before a block | the commands are not run |
//! | a block marked `json` | JSON values; `…` outside of a string stands for members that are left out |
//! | `<!-- excerpt: REASON -->` before a block | the JSON is not parsed |

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use common::page::{Page, anchors, links, parse_json, repository, run};

/// Creates a folder with the binary under test.
fn bin() -> tempfile::TempDir {
    let bin = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_sluicegate"), bin.path().join("sluicegate")).expect("a link");
    bin
}

/// Folders that contain no documents of ours.
const SKIPPED: [&str; 4] = ["target", "node_modules", ".git", ".venv"];

/// Pages whose commands need programs of another suite, which runs them: `examples` and `envoy`.
const RUN_BY_OTHERS: [&str; 3] =
    ["docs/grpc.md", "examples/crawler-queue/README.md", "examples/two-tier-dispatch/README.md"];

/// Returns every Markdown file below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name) {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_command_of_every_document_works() {
    let root = repository();
    let mut found = Vec::new();
    pages(&root, &mut found);
    let mut unmarked = Vec::new();
    let mut scripts = BTreeMap::new();
    for path in found {
        let name = path.strip_prefix(&root).expect("a page").display().to_string();
        let text = std::fs::read_to_string(&path).expect("a page");
        match Page::read(&text) {
            Ok(page) => drop(scripts.insert(name, page)),
            Err(error) => unmarked.push(format!("{name}: {error}")),
        }
    }
    assert!(unmarked.is_empty(), "{}", unmarked.join("\n"));
    let is_ours = |name: &str| !RUN_BY_OTHERS.contains(&name);
    let scripts = scripts.into_iter().filter(|(name, page)| page.blocks > 0 && is_ours(name));
    let waiting = Mutex::new(scripts);
    let (bin, failures) = (bin(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("the pages").next();
                    let Some((name, page)) = next else { return };
                    if let Err(failure) = run(&name, &page.script, bin.path()) {
                        failures.lock().expect("the failures").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("the failures");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Returns the table of all pages with commands: how many blocks are run, and why others are not.
fn table_of_commands() -> String {
    let root = repository();
    let mut rows = BTreeMap::new();
    for (path, text) in texts() {
        let name = path.strip_prefix(&root).expect("a page").display().to_string();
        let page = Page::read(&text).unwrap_or_default();
        if page.blocks + page.skipped.len() > 0 {
            let reasons = page.skipped.iter().filter_map(|reason| reason.split_once(": "));
            let mut reasons: Vec<_> = reasons.map(|(_, reason)| reason).collect();
            reasons.dedup();
            let (run, skipped) = (page.blocks, page.skipped.len());
            let row =
                format!("| [{name}](../{name}) | {run} | {skipped} | {} |\n", reasons.join("<br>"));
            rows.insert(name, row);
        }
    }
    let head = "| page | blocks run | not run | reasons |\n|---|---|---|---|\n".to_owned();
    rows.into_values().fold(head, |table, row| table + &row)
}

#[test]
fn the_table_of_commands_is_complete() {
    let page = std::fs::read_to_string(repository().join("docs/never-run.md")).expect("the page");
    let table = table_of_commands();
    assert!(page.contains(&table), "replace the table at the end of docs/never-run.md:\n{table}");
}

/// Returns the paths of all pages below a folder of the documentation, relative to it.
fn names(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    pages(folder, &mut found);
    let name = |path: &PathBuf| path.strip_prefix(folder).expect("a page").display().to_string();
    found.iter().map(name).collect()
}

#[test]
fn every_page_is_listed() {
    let docs = repository().join("docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("a list of pages");
    let (summary, overview) = (read("SUMMARY.md"), read("README.md"));
    let listed =
        |name: &str| [&summary, &overview].iter().any(|list| list.contains(&format!("({name})")));
    let mut pages = names(&docs);
    pages.retain(|name| !listed(name) && name != "SUMMARY.md");
    assert!(pages.is_empty(), "neither docs/SUMMARY.md nor docs/README.md lists {pages:?}");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for link in links {
        assert!(docs.join(link).exists(), "docs/SUMMARY.md lists {link}, which does not exist");
    }
}

/// Returns the text of every page of the repository, by path.
fn texts() -> BTreeMap<PathBuf, String> {
    let mut found = Vec::new();
    pages(&repository(), &mut found);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a page");
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// Looks up the anchor of a link in the page that it leads to. The error says what is wrong.
fn find_anchor(texts: &BTreeMap<PathBuf, String>, from: &Path, link: &str) -> Result<(), String> {
    // A colon means a URL scheme: links to the web are not checked.
    let Some((target, anchor)) = link.split_once('#').filter(|(target, _)| !target.contains(':'))
    else {
        return Ok(());
    };
    let mut page = from.to_owned();
    if !target.is_empty() {
        let path = from.parent().expect("a folder").join(target).canonicalize();
        page = path.map_err(|error| format!("{link}: {error}"))?;
    }
    if page.is_dir() {
        page.push("README.md");
    }
    let text = texts.get(&page).ok_or_else(|| format!("{link}: the target is not a page"))?;
    match anchors(text) {
        known if known.contains(anchor) => Ok(()),
        known => Err(format!("{link}: no heading has this anchor (known: {known:?})")),
    }
}

#[test]
fn every_anchor_exists() {
    let (texts, root) = (texts(), repository());
    let (mut checked, mut broken) = (0, Vec::new());
    for (path, text) in &texts {
        let name = path.strip_prefix(&root).expect("a page").display();
        for (line, link) in links(text) {
            checked += usize::from(link.contains('#'));
            if let Err(error) = find_anchor(&texts, path, &link) {
                broken.push(format!("{name}:{line}: {error}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(checked > 100, "only {checked} links with an anchor were found");
}

#[test]
fn every_json_block_is_valid() {
    let root = repository();
    let (mut checked, mut invalid) = (0, Vec::new());
    for (path, text) in texts() {
        let name = path.strip_prefix(&root).expect("a page").display();
        // The test of the commands reports a page that can't be read.
        for (line, block) in Page::read(&text).unwrap_or_default().json {
            checked += 1;
            if let Err(error) = parse_json(&block) {
                invalid.push(format!("{name}:{line}: {error}\n{block}"));
            }
        }
    }
    assert!(invalid.is_empty(), "{}", invalid.join("\n\n"));
    assert!(checked > 10, "only {checked} blocks were found");
}

/// Builds the site of the documentation and finds a page and its words in it.
#[test]
fn the_documentation_builds_into_a_searchable_site() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "docs"]).current_dir(repository());
    let output = command.output().expect("cargo runs");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}{err}");
    let site = repository().join("target/book");
    for page in ["docs/configuration.html", "docs/errors/HIT_LIMIT.html", "README.html"] {
        assert!(site.join(page).exists(), "{page}");
    }
    let entries =
        std::fs::read_dir(&site).expect("the site").map(|entry| entry.expect("a file").path());
    let is_index = |path: &PathBuf| path.display().to_string().contains("searchindex");
    let index: Vec<_> = entries.filter(is_index).collect();
    let text = index.iter().map(|path| std::fs::read_to_string(path).expect("the index"));
    assert!(text.collect::<String>().contains("HIT_TENANT_TIER_MODEL_LIMIT"), "{index:?}");
}

/// Returns every Rust source file below a folder, without generated ones and files of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !["generated", "tests"].contains(&name) {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Words in capitals that are no codes: methods of HTTP.
const METHODS: [&str; 2] = ["CONNECT", "DELETE"];

#[test]
fn every_code_has_a_page() {
    let root = repository();
    let mut found =
        ["client/src/decision.rs", "client/src/remote/client.rs", "service/src/answer.rs"]
            .map(|path| root.join("crates").join(path))
            .to_vec();
    sources(&root.join("crates/gateway/src"), &mut found);
    sources(&root.join("crates/server/src"), &mut found);
    let mut codes = BTreeSet::new();
    for path in found {
        let text = std::fs::read_to_string(path).expect("a source file");
        let text = text.split("#[cfg(test)]\nmod ").next().expect("the part before the tests");
        let is_code = |word: &&str| {
            word.len() > 5
                && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
                && !METHODS.contains(word)
        };
        codes.extend(text.split('"').filter(is_code).map(str::to_owned));
    }
    assert!(
        codes.contains("STORE_UNAVAILABLE") && codes.contains("LEASE_LOST") && codes.len() > 30,
        "{codes:?}"
    );
    let pages = names(&root.join("docs/errors"));
    for code in codes {
        // A denial is HIT_<RULE>_LIMIT or EXCEEDS_<RULE>_LIMIT.
        let page =
            if code == "EXCEEDS" { "EXCEEDS_LIMIT.md".to_owned() } else { format!("{code}.md") };
        assert!(pages.contains(&page), "docs/errors/{page} is missing");
    }
}

/// Looks up every method, field and value of the proto file in the page of the gRPC API.
#[test]
fn every_method_and_field_of_grpc_is_documented() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect("a file");
    let (page, proto) =
        (read("docs/grpc.md"), read("crates/server/proto/sluicegate/v1/rate_limiter.proto"));
    let mut names = BTreeSet::new();
    for line in proto.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(method) = line.strip_prefix("rpc ") {
            names.extend(method.split_once('(').map(|(name, _)| name));
        } else if let Some(message) = line.strip_prefix("message ") {
            names.extend(message.split(' ').next());
        } else if let Some((declaration, _)) = line.split_once(" = ") {
            names.extend(declaration.split(' ').next_back());
        }
    }
    // Only protobuf needs it: the first value of an enum is 0.
    names.remove("CLAIM_UNSPECIFIED");
    names.remove("syntax");
    assert!(names.contains("AllowRequest") && names.contains("userId"), "{names:?}");
    names.retain(|name| !page.contains(&format!("`{name}`")));
    assert!(names.is_empty(), "docs/grpc.md does not explain {names:?}");
}

#[test]
fn the_glossary_is_short() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the page");
    let (_, glossary) = text.split_once("## Glossary").expect("a glossary");
    let rows = glossary.lines().filter(|line| line.starts_with("| ")).count();
    assert!((2..=41).contains(&rows), "{} words, at most 40", rows - 1);
}

#[test]
fn a_page_is_read() {
    let text = "<!-- test\nstart\n-->\n\n```sh\none\ntwo\n```\n\n<!-- file: a.yaml -->\n\n```yaml\nx: 1\n```\n\n\
                <!-- not run: it takes an hour -->\n\n```sh\nslow\n```\n\n```json\n{}\n```\n";
    let page = Page::read(text).expect("a page");
    let script =
        "start\necho '== line 5'\none\ntwo\ncat > a.yaml <<'END OF FILE'\nx: 1\nEND OF FILE\n";
    assert_eq!((page.script.as_str(), page.blocks), (script, 1));
    assert_eq!(page.skipped, ["line 18: it takes an hour"]);
    let hidden = Page::read("```\n$ x\ncurl localhost\n```\n").expect_err("a command is hidden");
    assert_eq!(hidden, "line 1: mark the block with \"curl localhost\" as sh");
}

#[test]
fn json_with_omitted_members_is_parsed() {
    let text = "<!-- excerpt: half an answer -->\n\n```json\n{\n```\n\n```json\n{}\n```\n";
    assert_eq!(Page::read(text).expect("a page").json, [(7, "{}".to_owned())]);
    for (text, expected) in [
        (r#"{"a": 1}"#, r#"[{"a":1}]"#),
        ("{\"a\":\n 1}\n{}\n", r#"[{"a":1},{}]"#),
        (r#"{"a":[…],"b":{…}}"#, r#"[{"a":[],"b":{}}]"#),
        (r#"{…,"a":1,…,"b":2, …}"#, r#"[{"a":1,"b":2}]"#),
        (r#"{"a":"x\"…, …"}"#, r#"[{"a":"x\"…, …"}]"#),
    ] {
        let values = parse_json(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(serde_json::to_string(&values).expect("JSON"), expected, "{text}");
    }
    for text in [r#"{"a":1,}"#, r#"{"a" 1}"#, r#"{"a":…}"#, r#"{"a":1"#, "{'a': 1}", "[1,,…]"] {
        assert!(parse_json(text).is_err(), "{text}");
    }
}

#[test]
fn links_and_anchors_of_a_page_are_read() {
    let text = "# Title: a/b\n\n## The `code` (v1.0) – x_y\n\n## Twice\n\n### Twice\n\n## [Link](x.md#no) it\n\n\
                ####### seven\n\n#hash\n\n```sh\n# a comment\n```\n\n<!-- test\n# another\n-->\n";
    let expected = ["link-it", "the-code-v10--x_y", "title-ab", "twice", "twice-1"];
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    let text = "[a](#a) and [`b`](b.md#b \"title\") `[c](#c)`\n`code that\ncontinues` [d](d.md)\n\n\
                ```\n[e](#e)\n```\n\n[f]: f.md#f\n";
    let found = links(text).into_iter().map(|(line, link)| format!("{line} {link}"));
    assert_eq!(found.collect::<Vec<_>>(), ["1 #a", "1 b.md#b", "3 d.md", "9 f.md#f"]);
    let root = repository();
    let page = |name: &str, text: &str| (root.join(name), text.to_owned());
    let texts = BTreeMap::from([page("README.md", "# One"), page("docs/README.md", "# Two")]);
    let find = |link: &str| find_anchor(&texts, &root.join("README.md"), link);
    for link in ["#one", "docs/README.md#two", "docs#two", "docs", "https://example.com/#x"] {
        assert_eq!(find(link), Ok(()), "{link}");
    }
    for link in ["#two", "docs/README.md#one", "gone.md#one", "Cargo.toml#one"] {
        assert!(find(link).is_err(), "{link}");
    }
}

#[test]
fn a_command_that_fails_is_found() {
    let bin = bin();
    let failure = run("page", "echo before\nfalse\necho after", bin.path());
    let failure = failure.expect_err("it fails");
    assert!(failure.contains("before") && !failure.contains("after"), "{failure}");
    let script = "sluicegate --version; python3 -c 'print(7)'";
    let ran = run("page", script, bin.path()).expect("it works");
    assert!(ran.contains("sluicegate ") && ran.contains("7\n"), "{ran}");
}
