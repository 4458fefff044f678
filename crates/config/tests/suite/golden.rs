//! Golden tests: each file in `bad` and `warning` contains a mistake, and the messages about it are
//! in a `.txt` file next to it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p sluicegate-config golden` writes the expected texts again; read
//! the difference before you commit it. A line `# env NAME=value` at the top of a file sets a
//! variable.

use std::fs;
use std::path::Path;

use crate::files::{files, load_file};
use sluicegate_config::{Severity, load};

#[test]
fn every_bad_file_is_refused_with_its_message() {
    for path in files("bad") {
        let failed = load_file(&path).expect_err(&path.display().to_string());
        assert!(failed.iter().any(|diagnostic| diagnostic.severity == Severity::Error));
        check(&path, &failed.to_string());
    }
}

#[test]
fn every_file_with_warnings_is_loaded_with_its_warnings() {
    for path in files("warning") {
        let loaded = load_file(&path).unwrap_or_else(|errors| panic!("{errors}"));
        let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert!(!warnings.is_empty(), "{}", path.display());
        check(&path, &warnings.join("\n"));
    }
}

#[test]
fn every_good_file_is_loaded_without_warnings() {
    for path in files("good") {
        let loaded = load_file(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(loaded.warnings.is_empty(), "{}: {:?}", path.display(), loaded.warnings);
    }
}

#[test]
fn the_examples_of_the_documentation_are_loaded_without_warnings() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let tasks = fs::read_dir(docs.join("tasks")).expect("a folder");
    let tasks = tasks.map(|entry| entry.expect("an entry").path());
    let mut examples = 0;
    let pages = ["comparison.md", "configuration.md", "queues.md"].map(|name| docs.join(name));
    for path in tasks.chain(pages) {
        let page = fs::read_to_string(&path).expect("a page");
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for example in blocks {
            let env = |name: &str| name.ends_with("TOKEN").then(|| format!("the-value-of-{name}"));
            let name = path.display().to_string();
            let loaded = load(&name, example, &env);
            let loaded = loaded.unwrap_or_else(|errors| panic!("{example}\n{errors}"));
            assert!(loaded.warnings.is_empty(), "{example}\n{:?}", loaded.warnings);
            examples += 1;
        }
    }
    assert!(examples >= 9);
}

fn check(path: &Path, actual: &str) {
    let golden = path.with_extension("txt");
    let actual = format!("{actual}\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &actual).expect("the folder can be written to");
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(actual, expected, "{}", path.display());
}
