//! `cargo xtask tidy`: checks the rules of this repository that neither the compiler nor clippy can
//! check.
//!
//! Each rule is a pure function of paths and texts, so that its tests can plant a violation. All
//! findings are printed at once, each with its location and a remedy.

mod manifest;
mod markdown;
mod source;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::fmt;

use crate::sh;

/// One violation of a rule, with its remedy.
#[derive(Debug, PartialEq)]
struct Finding {
    path: String,
    line: usize,
    what: String,
    remedy: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.what, self.remedy)
    }
}

/// The files of the repository by path, relative to its root.
type Files = BTreeMap<String, String>;

pub(crate) fn run() -> anyhow::Result<bool> {
    let files = read_files()?;
    let mut findings = check(&files);
    // An error here must not hide the findings above: a missing lockfile is one of them.
    let tree: Vec<_> = tree::COMMAND.split(' ').collect();
    match sh::read(&tree) {
        Ok(printed) => findings.extend(tree::native_crates(&printed)),
        Err(error) => findings.push(Finding::new(
            "Cargo.lock",
            1,
            format!("{error:#}"),
            "bring the lockfile up to date with `cargo check` and commit it",
        )),
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, findings: {}", files.len(), findings.len());
    Ok(findings.is_empty())
}

/// Reads every file that is tracked or untracked but not ignored: new files are checked before
/// their commit.
fn read_files() -> anyhow::Result<Files> {
    let listed =
        sh::read(&["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let mut files = Files::new();
    // Generated code follows its generator.
    for path in listed.split_terminator('\0').filter(|path| !path.contains("/generated/")) {
        // A file that is deleted but still in the index, or a link to a folder: nothing to check.
        let Ok(bytes) = std::fs::read(path) else {
            continue;
        };
        files.insert(path.to_owned(), String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(files)
}

/// Applies all rules to all files.
fn check(files: &Files) -> Vec<Finding> {
    let mut findings = lockfiles(files);
    findings.extend(words::check(files));
    for (path, text) in files {
        findings.extend(manifest::check(path, text));
        findings.extend(source::check(path, text));
        findings.extend(markdown::broken_links(path, text, files));
    }
    findings
}

/// Checks that both lockfiles exist, so that a build is the same tomorrow and on another machine.
fn lockfiles(files: &Files) -> Vec<Finding> {
    ["Cargo.lock", "bench/Cargo.lock"]
        .into_iter()
        .filter(|path| !files.contains_key(*path))
        .map(|path| Finding::new(path, 1, "lockfile is missing or ignored", "commit it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> Files {
        entries.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_missing_lockfile_is_found() {
        let found = lockfiles(&files(&[("Cargo.lock", "")]));
        let expected = "bench/Cargo.lock:1: lockfile is missing or ignored: commit it";
        assert_eq!(found.iter().map(Finding::to_string).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn findings_of_all_files_and_rules_are_shown_at_once() {
        let found = check(&files(&[
            ("README.md", "[guide](docs/guide.md)"),
            ("crates/core/Cargo.toml", "[package]\nname = 'sluicegate-core'"),
        ]));
        let places: Vec<_> = found.iter().map(|finding| finding.path.as_str()).collect();
        let expected = ["Cargo.lock", "bench/Cargo.lock", "README.md", "crates/core/Cargo.toml"];
        assert_eq!(places, expected);
    }
}
