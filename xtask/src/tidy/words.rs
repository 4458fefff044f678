//! Rules for the words of the project: the first word of doc comments, a banned word, and type
//! names that must be unique. `docs/STYLE.md` gives the reasons.
//!
//! Each rule has a limit, so that the text can improve step by step.

use std::collections::BTreeMap;

use super::{Files, Finding};

/// Maximum share of doc comments that begin with one of [`HEADLESS`].
const HEADLESS_PERCENT_MAX: usize = 2;
/// Maximum number of lines with [`BANNED`].
const BANNED_MAX: usize = 0;
/// Maximum number of public type names that are declared in two places.
const DUPLICATE_TYPES_MAX: usize = 0;

/// First words that make a doc comment a clause without a main verb.
const HEADLESS: [&str; 9] =
    ["What", "How", "Whether", concat!("Who", "ever"), "Where", "Who", "When", "Which", "Why"];

/// A word that hides who does something, in lower case.
const BANNED: &str = concat!("who", "ever");

/// Files that may contain [`BANNED`]: the history, the style guide that quotes it, and scripts of
/// an earlier version that a test keeps unchanged.
const BANNED_EXEMPT: [&str; 3] =
    ["CHANGELOG.md", "docs/STYLE.md", "crates/store/tests/redis/before/"];

/// The library for Rust programs. Its users see no other crate, so its types have the names of the
/// things that they wrap, such as `Limiter` and `Decision`.
const LIBRARY: &str = "crates/client/";

/// Type names that Rust crates conventionally declare once per module.
const CONVENTIONAL: [&str; 4] = ["Builder", "Error", "Metrics", "Options"];

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let mut findings = headless_comments(files, HEADLESS_PERCENT_MAX);
    findings.extend(banned_word(files, BANNED_MAX));
    findings.extend(duplicate_types(files, DUPLICATE_TYPES_MAX));
    findings
}

/// Finds too many doc comments that begin with a question word. The finding has the count of each
/// crate.
fn headless_comments(files: &Files, percent_max: usize) -> Vec<Finding> {
    let (mut comments, mut headless) = (0, 0);
    let mut by_crate: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let Some(name) = crate_of(path) else { continue };
        for first_line in doc_comments(text) {
            let word = first_line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            comments += 1;
            if HEADLESS.contains(&word) {
                headless += 1;
                *by_crate.entry(name).or_default() += 1;
            }
        }
    }
    // At the goal of 6, exactly 6 % is too much.
    if headless == 0 || headless * 100 < percent_max * comments {
        return Vec::new();
    }
    let counts: Vec<_> = by_crate.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let what = format!(
        "{headless} of {comments} doc comments begin with {}, not less than {percent_max} %: {}",
        HEADLESS.join("/"),
        counts.join(", ")
    );
    let remedy = "begin with a noun phrase for a type or field, with a verb for a function";
    vec![Finding::new("docs/STYLE.md", 1, what, remedy)]
}

/// Finds every use of the banned word, if there are too many.
fn banned_word(files: &Files, uses_max: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let is_checked = [".rs", ".lua", ".md"].iter().any(|end| path.ends_with(end));
        if !is_checked || BANNED_EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            if line.to_lowercase().contains(BANNED) {
                let remedy = "say who does it: the caller, the client, the node";
                findings.push(Finding::new(path, number, format!("the word {BANNED}"), remedy));
            }
        }
    }
    over(uses_max, findings)
}

/// Finds public types of one name that are declared in two places, if there are too many names.
fn duplicate_types(files: &Files, names_max: usize) -> Vec<Finding> {
    let mut places: BTreeMap<(bool, &str), Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        if !path.starts_with("crates/") || !path.contains("/src/") {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(name) = public_type(line).filter(|name| !CONVENTIONAL.contains(name)) {
                let key = (path.starts_with(LIBRARY), name);
                places.entry(key).or_default().push((path, number));
            }
        }
    }
    let findings =
        places.iter().filter(|(_, places)| places.len() > 1).map(|((_, name), places)| {
            let others = places[1..].iter().map(|(path, line)| format!("{path}:{line}"));
            let others = others.collect::<Vec<_>>().join(", ");
            let what = format!("public type {name} is also declared in {others}");
            Finding::new(places[0].0, places[0].1, what, "give each thing its own name")
        });
    over(names_max, findings.collect())
}

/// Returns the findings if there are more than `max`.
fn over(max: usize, findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() > max { findings } else { Vec::new() }
}

/// Returns the crate of a path: its folder under `crates/`, or the folder itself.
fn crate_of(path: &str) -> Option<&str> {
    let (folder, rest) = path.split_once('/')?;
    match folder {
        "crates" => rest.split('/').next(),
        "bench" | "examples" | "xtask" => Some(folder),
        _ => None,
    }
}

/// Returns the first line of every doc comment.
fn doc_comments(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = None;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        let is_first = mark.is_some() && mark != inside;
        inside = mark;
        is_first.then(|| line[3..].trim_start())
    })
}

/// Returns the name of the type that a line declares as `pub` without restriction.
fn public_type(line: &str) -> Option<&str> {
    let mut words = line.trim_start().splitn(3, ' ');
    if words.next() != Some("pub") {
        return None;
    }
    let keyword = words.next()?;
    if !["struct", "enum", "trait", "type"].contains(&keyword) {
        return None;
    }
    words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> Files {
        entries.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        let line =
            |finding: &Finding| format!("{}:{} {}", finding.path, finding.line, finding.what);
        findings.iter().map(line).collect()
    }

    #[test]
    fn doc_comments_that_begin_with_a_question_word_are_counted_by_crate() {
        let headless = "/// What it is.\n/// How it is.\nstruct A;\n    /// Which, of many.\n";
        let good = "//! The file.\n\n/// A thing.\n///\n/// What it does.\nstruct B;\n";
        let files = files(&[
            ("bench/src/main.rs", "//! Where it runs."),
            ("clients/a.rs", headless),
            ("crates/core/src/a.rs", headless),
            ("crates/core/tests/b.rs", good),
            ("xtask/src/main.rs", "//! When it runs.\n/// Whatever it is.\nstruct C;"),
        ]);
        let found = shown(&headless_comments(&files, 57));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("docs/STYLE.md:1 4 of 7 doc comments begin with What/How/"));
        assert!(found[0].ends_with("not less than 57 %: bench 1, core 2, xtask 1"), "{found:?}");
        assert!(headless_comments(&files, 58).is_empty());
    }

    #[test]
    fn a_banned_word_is_found_with_its_line() {
        let text = format!("a\n{} b\n", BANNED.to_uppercase());
        let found = |path| shown(&banned_word(&files(&[(path, &text)]), 0));
        let what = format!("2 the word {BANNED}");
        for path in ["crates/core/src/a.rs", "crates/store/src/a.lua", "docs/a.md"] {
            assert_eq!(found(path), [format!("{path}:{what}")]);
        }
        for path in ["CHANGELOG.md", "docs/STYLE.md", "deploy/a.yaml"] {
            assert!(found(path).is_empty(), "{path}");
        }
        assert!(banned_word(&files(&[("docs/a.md", &text)]), 1).is_empty(), "within the limit");
    }

    #[test]
    fn a_public_type_that_is_declared_twice_is_found() {
        let files = files(&[
            ("crates/core/src/a.rs", "pub struct Slot(u8);\npub enum Error {}\n"),
            ("crates/core/tests/a.rs", "pub struct Slot;"),
            ("crates/queue/src/a.rs", "pub(crate) struct Slot;\nstruct Slots;\npub enum Error {}"),
            ("crates/store/src/a.rs", "use b;\n    pub type Slot<T> = Vec<T>;\n"),
        ]);
        let expected =
            ["crates/core/src/a.rs:1 public type Slot is also declared in crates/store/src/a.rs:2"];
        assert_eq!(shown(&duplicate_types(&files, 0)), expected);
        assert!(duplicate_types(&files, 1).is_empty(), "within the limit");
    }
}
