//! Runs the commands of the documents: every block that is marked as `sh`, in the order of its page, in a private
//! network, so that the ports of the pages are free and nothing leaves the machine.
//!
//! | in a page | meaning |
//! |---|---|
//! | a block marked `sh` | commands; the first one that fails fails the test |
//! | `<!-- test` … `-->` | further commands, such as starting a server, that the page does not show |
//! | `<!-- file: NAME -->` before a block | the block is written to this file first |
//! | `<!-- not run: REASON -->` before a block | the commands are not run |

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use common::page::{Page, repository, run};

/// Creates a folder with the binary under test.
fn bin() -> tempfile::TempDir {
    let bin = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_sluicegate"), bin.path().join("sluicegate")).expect("a link");
    bin
}

/// Folders that contain no documents of ours.
const SKIPPED: [&str; 4] = ["target", "node_modules", ".git", ".venv"];

/// Pages whose commands need programs of the suite `examples`, which runs them.
const RUN_BY_EXAMPLES: [&str; 1] = ["examples/two-tier-dispatch/README.md"];

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
    for (name, page) in &scripts {
        let skipped = page.skipped.join("; ");
        if page.blocks + page.skipped.len() > 0 {
            println!(
                "{name}: {} blocks run, {} not run {skipped}",
                page.blocks,
                page.skipped.len()
            );
        }
    }
    let is_ours = |name: &str| !RUN_BY_EXAMPLES.contains(&name);
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

#[test]
fn every_code_has_a_page() {
    let root = repository();
    let mut codes = BTreeSet::new();
    let sources = [
        "crates/client/src/decision.rs",
        "crates/gateway/src/refusal.rs",
        "crates/server/src/rest/queues/refusal.rs",
        "crates/service/src/answer.rs",
    ];
    for path in sources {
        let text = std::fs::read_to_string(root.join(path)).expect("a source file");
        let text = text.split("#[cfg(test)]").next().expect("the part before the tests");
        let is_code = |word: &&str| {
            word.len() > 5 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
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
fn a_command_that_fails_is_found() {
    let bin = bin();
    let failure = run("page", "echo before\nfalse\necho after", bin.path());
    let failure = failure.expect_err("it fails");
    assert!(failure.contains("before") && !failure.contains("after"), "{failure}");
    let script = "sluicegate --version; python3 -c 'print(7)'";
    let ran = run("page", script, bin.path()).expect("it works");
    assert!(ran.contains("sluicegate ") && ran.contains("7\n"), "{ran}");
}
