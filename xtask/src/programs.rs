//! [`Program`]: a test program of the workspace. One cargo command builds all of them, with one set
//! of features.
//!
//! Cargo compiles a crate again for every set of features. The alias `suite` in
//! `.cargo/config.toml` is the one set that all suites share: it builds the tests that need a
//! server as well, and each suite runs the programs that it names.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::sh::{self, Output};

/// The build command. It prints one JSON object per line on standard output, and compiler messages
/// as usual.
const BUILD: [&str; 4] = ["cargo", "suite", "--no-run", "--message-format=json-render-diagnostics"];

/// The command for documentation tests, which are compiled when they run.
pub(crate) const DOCUMENTATION: &str = "cargo suite --doc";

/// A test program that was built.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    /// Folder of its package and its target: `app/dispatch`.
    pub(crate) name: String,
    path: String,
    /// Working directory, the same as with cargo.
    folder: PathBuf,
}

impl Program {
    /// Runs the program as cargo would. Returns true if all its tests passed.
    pub(crate) fn run(
        &self,
        arguments: &[&str],
        env: &[(&str, &str)],
        output: &Output,
    ) -> anyhow::Result<bool> {
        let line = std::iter::once(self.path.as_str()).chain(arguments.iter().copied());
        sh::run_in(&self.folder, &line.collect::<Vec<_>>(), env, output)
    }
}

/// Builds the test programs with these targets, or all if none is given. Returns `None` if the
/// build fails.
pub(crate) fn build(targets: &[&str]) -> anyhow::Result<Option<Vec<Program>>> {
    let mut line = BUILD.to_vec();
    line.extend(targets.iter().flat_map(|target| ["--test", target]));
    let Some(printed) = sh::run_and_read(&line)? else { return Ok(None) };
    parse(&printed).map(Some)
}

/// Finds the test programs among the artifacts that cargo prints.
fn parse(printed: &str) -> anyhow::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in printed.lines() {
        let artifact: Value = serde_json::from_str(line)
            .with_context(|| format!("cargo did not print JSON: {line}"))?;
        // Binaries that tests start have an executable too, but are not tests.
        let (Some(path), true) =
            (artifact["executable"].as_str(), artifact["profile"]["test"] == true)
        else {
            continue;
        };
        let manifest = artifact["manifest_path"]
            .as_str()
            .context("cargo did not print the manifest of a test program")?;
        let folder = Path::new(manifest).parent().context("a manifest is in a folder")?;
        let package = folder.file_name().and_then(|name| name.to_str());
        let (Some(package), Some(target)) = (package, artifact["target"]["name"].as_str()) else {
            bail!("cargo did not print the package and target of a test program: {line}");
        };
        let name = format!("{package}/{target}");
        programs.push(Program { name, path: path.to_owned(), folder: folder.to_owned() });
    }
    // The order in which cargo runs them; the build order varies.
    programs.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.path.cmp(&b.path)));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Program {
        /// Returns a program of this name that was not built.
        pub(crate) fn named(name: &str) -> Self {
            Self { name: name.to_owned(), path: String::new(), folder: PathBuf::new() }
        }
    }

    const PRINTED: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/app/Cargo.toml","target":{"kind":["test"],"name":"serve"},"profile":{"test":true},"executable":"/r/target/debug/deps/serve-1"}
{"reason":"compiler-artifact","manifest_path":"/r/crates/app/Cargo.toml","target":{"kind":["bin"],"name":"sluicegate"},"profile":{"test":false},"executable":"/r/target/debug/sluicegate"}
{"reason":"compiler-artifact","manifest_path":"/r/crates/core/Cargo.toml","target":{"kind":["lib"],"name":"sluicegate_core"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/r/crates/app/Cargo.toml","target":{"kind":["test"],"name":"cli"},"profile":{"test":true},"executable":"/r/target/debug/deps/cli-1"}
{"reason":"build-finished","success":true}"#;

    #[test]
    fn only_test_programs_are_found_by_package_and_target() {
        let found = parse(PRINTED).unwrap();
        let names: Vec<_> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["app/cli", "app/serve"]);
        assert_eq!(found[1].folder, Path::new("/r/crates/app"));
    }

    #[test]
    fn a_line_that_is_no_json_is_shown() {
        let error = parse("warning: something").unwrap_err();
        assert_eq!(error.to_string(), "cargo did not print JSON: warning: something");
    }
}
