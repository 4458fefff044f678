//! Atomic replacement of a file.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Replaces a file atomically: a reader, also after a power failure, finds either the old contents
/// or the new.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = File::create(&beside)?;
    write(&mut file)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
