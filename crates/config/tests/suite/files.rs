//! Loads the configuration files of the tests.

use std::fs;
use std::path::{Path, PathBuf};

use sluicegate_config::{Diagnostics, LoadedConfig, load};

/// Returns the configurations in a folder next to the tests.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// Loads a file with the variables that it sets in its first lines.
pub(crate) fn load_file(path: &Path) -> Result<LoadedConfig, Diagnostics> {
    let text = fs::read_to_string(path).expect("a text");
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    load(&name, &text, &|name| variable(&text, name))
}

/// Returns the value of a variable from the lines `# env NAME=value` of a text.
pub(crate) fn variable(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix("# env "));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    pairs.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
}
