//! A test that the Redis commands used by the scripts and by this folder are the ones that
//! `docs/configuration.md` tells users to permit.

use std::collections::BTreeSet;
use std::path::Path;

use sluicegate_testkit::redis::documented_commands;

/// Returns every text between `begin` and the next quote.
fn quoted<'a>(text: &'a str, begin: &'a str, quote: char) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(quote).next())
}

/// Returns the ACL entry of a command, with its subcommand where Redis distinguishes them.
fn command(word: &str) -> Option<String> {
    match word {
        "CLUSTER" => Some("+cluster|slots".to_owned()),
        "SCRIPT" => Some("+script|load".to_owned()),
        // This is sent to sentinels, which have their own login.
        "SENTINEL" => None,
        word => Some(format!("+{}", word.to_ascii_lowercase())),
    }
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        // Unit tests use further commands.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let words: Vec<&str> = match path.extension().and_then(|name| name.to_str()) {
            Some("lua") => quoted(text, "call('", '\'').collect(),
            Some("rs") if !path.ends_with("commands.rs") => {
                quoted(text, "cmd(\"", '"').chain(quoted(text, "command(\"", '"')).collect()
            }
            _ => continue,
        };
        found.extend(words.into_iter().filter_map(command));
    }
}

#[test]
fn the_documented_acl_is_what_is_used() {
    // The client library sends it after the login if a database is selected.
    let mut used = BTreeSet::from(["+select".to_owned()]);
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/redis")), &mut used);
    let documented: BTreeSet<_> = documented_commands().into_iter().collect();
    let missing: Vec<_> = used.difference(&documented).collect();
    let unused: Vec<_> = documented.difference(&used).collect();
    assert!(
        missing.is_empty() && unused.is_empty(),
        "docs/configuration.md does not list the commands {missing:?}, and lists {unused:?} without need"
    );
}
