//! The Python wheel and the npm package, which carry the binary and no other code.

use anyhow::Context;
use serde_json::json;

use super::{Distribution, run_or_fail, text};

impl Distribution {
    /// Returns the oldest version of the C library that the binary runs with: the newest one that it
    /// asks for.
    pub(super) fn libc_min(&self) -> anyhow::Result<String> {
        let binary = std::fs::read(self.tree.join("bin/sluicegate"))?;
        let version = libc_of(&binary).context("the binary names no version of glibc")?;
        Ok(format!("{}.{}", version.0, version.1))
    }
}

/// Returns the newest `GLIBC_x.y` in a binary.
fn libc_of(binary: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    let starts = binary.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let versions = starts.filter_map(|(start, _)| {
        let rest = &binary[start + PREFIX.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (major, minor) = std::str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max()
}

/// Builds a wheel with Python's own `zipfile`, in the layout of maturin's `bindings = "bin"`: pip puts
/// files below `.data/scripts` into the folder of programs.
pub(super) fn wheel(distribution: &Distribution) -> anyhow::Result<()> {
    let libc = distribution.libc_min()?.replace('.', "_");
    let tag = format!("py3-none-manylinux_{libc}_{}", distribution.arch);
    let program = text(&distribution.tree.join("bin/sluicegate"));
    let output = text(&distribution.output);
    run_or_fail(&[
        "python3",
        "xtask/src/dist/wheel.py",
        &distribution.version,
        &tag,
        &program,
        &output,
    ])
}

pub(super) fn npm(distribution: &Distribution) -> anyhow::Result<()> {
    let package = distribution.output.join("npm");
    std::fs::create_dir_all(package.join("bin"))?;
    std::fs::copy(distribution.tree.join("bin/sluicegate"), package.join("bin/sluicegate"))?;
    std::fs::copy("LICENSE", package.join("LICENSE"))?;
    let cpu = if distribution.arch == "aarch64" { "arm64" } else { "x64" };
    let manifest = json!({
        "name": "sluicegate-cli",
        "version": distribution.version,
        "description": "Rate limiter for APIs, AI models and queues: the sluicegate command",
        "license": "Apache-2.0",
        "bin": { "sluicegate": "bin/sluicegate" },
        "files": ["bin/sluicegate", "LICENSE"],
        "os": ["linux"],
        "cpu": [cpu],
        "libc": ["glibc"],
    });
    std::fs::write(package.join("package.json"), format!("{manifest:#}\n"))?;
    let readme = "# sluicegate-cli\n\nThe `sluicegate` command: `npx sluicegate --help`.\n";
    std::fs::write(package.join("README.md"), readme)?;
    distribution.tar(
        &package,
        "package",
        &format!("sluicegate-cli-{}.tgz", distribution.version),
    )?;
    std::fs::remove_dir_all(&package)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_library_version_is_found() {
        let binary = b"..GLIBC_2.4\0x\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_PRIVATE\0";
        assert_eq!(libc_of(binary), Some((2, 34)));
        assert_eq!(libc_of(b"static"), None);
    }
}
