//! Checks that the service can write a file of the configuration, before it needs to.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An option with a file that this user can't write.
#[derive(Debug)]
pub(crate) struct UnwritableFile {
    option: &'static str,
    folder: PathBuf,
    error: io::Error,
}

impl UnwritableFile {
    /// Returns the step that solves the problem.
    pub(crate) fn remedy(&self) -> String {
        let option = self.option;
        format!("create the folder and give it to the user of the service, or change {option}")
    }
}

impl fmt::Display for UnwritableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, folder, error } = self;
        write!(f, "{option}: can't write to {}: {error}", folder.display())
    }
}

/// Returns the folder of a file, if this user can create files in it. Creates one and removes it:
/// permissions alone don't tell whether the file system is read-only.
pub(crate) fn check(option: &'static str, path: &Path) -> Result<PathBuf, UnwritableFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new(".")).to_owned();
    let probe = folder.join(format!(".sluicegate-probe-{}", std::process::id()));
    match std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        Ok(()) => Ok(folder),
        Err(error) => Err(UnwritableFile { option, folder, error }),
    }
}
