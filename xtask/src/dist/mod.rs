//! `cargo xtask dist`: makes the files that users install from one build of the binary.
//!
//! | file | contents |
//! |---|---|
//! | `sluicegate-<version>-<arch>-linux.tar.gz` | binary, manual pages, completions, starter files, license |
//! | `sluicegate_<version>_<arch>.deb` | the same, with a user, a systemd unit and `/etc/sluicegate` |
//! | `sluicegate_cli-<version>-….whl` | Python wheel with the binary |
//! | `sluicegate-cli-<version>.tgz` | npm package with the binary |
//! | `sluicegate-<version>.cdx.json`, `THIRD-PARTY.txt` | SBOM (CycloneDX), and the licenses of all dependencies |
//! | `SHA256SUMS` | checksums of all files |
//!
//! The names `sluicegate-cli` avoid the client packages, which are called `sluicegate`.

mod bill;
mod deb;
mod packages;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::sh;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use this binary instead of building one with the profile `dist`
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Folder for the files
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    output: PathBuf,
}

/// The parts that all packages have in common.
struct Distribution {
    version: String,
    /// Architecture as Rust names it: `x86_64` or `aarch64`.
    arch: &'static str,
    /// Folder of the files.
    output: PathBuf,
    /// Folder with `bin`, `share/man` and so on.
    tree: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            // Not below `target/dist`, which is the folder of the packages.
            run_or_fail(&[
                "cargo",
                "build",
                "--profile",
                "dist",
                "--target-dir",
                "target/dist-build",
                "--locked",
                "--package",
                "sluicegate-cli",
            ])?;
            PathBuf::from("target/dist-build/dist/sluicegate")
        }
    };
    if args.output.exists() {
        std::fs::remove_dir_all(&args.output).context("can't empty the output folder")?;
    }
    let tree = args.output.join("tree");
    let output = args.output.clone();
    let distribution =
        Distribution { version: version()?, arch: std::env::consts::ARCH, output, tree };
    distribution.fill_tree(&binary)?;
    distribution.tarball()?;
    deb::build(&distribution)?;
    packages::wheel(&distribution)?;
    packages::npm(&distribution)?;
    std::fs::remove_dir_all(&distribution.tree)?;
    distribution.checksums()?;
    for name in distribution.files()? {
        println!("{}", args.output.join(name).display());
    }
    Ok(true)
}

impl Distribution {
    /// Creates the folder tree that packages contain, and the lists of dependencies.
    fn fill_tree(&self, binary: &Path) -> anyhow::Result<()> {
        let bin = self.tree.join("bin");
        let man = self.tree.join("share/man/man1");
        let doc = self.tree.join("share/doc/sluicegate");
        let starters = doc.join("starters");
        for folder in [&bin, &man, &doc, &starters] {
            std::fs::create_dir_all(folder)?;
        }
        let program = bin.join("sluicegate");
        std::fs::copy(binary, &program)
            .with_context(|| format!("can't copy the binary {}", binary.display()))?;
        let program = text(&program);
        run_or_fail(&["strip", &program])?;
        run_or_fail(&["chmod", "u+x", &program])?;
        run_or_fail(&[&program, "man", &text(&man)])?;
        for (shell, path) in [
            ("bash", "share/bash-completion/completions/sluicegate"),
            ("zsh", "share/zsh/vendor-completions/_sluicegate"),
            ("fish", "share/fish/vendor_completions.d/sluicegate.fish"),
        ] {
            let path = self.tree.join(path);
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            std::fs::write(&path, sh::read(&[&program, "completions", shell])?)?;
        }
        let folder = Path::new("crates/app/src/cli/starter");
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            std::fs::copy(&path, starters.join(path.file_name().context("a file")?))?;
        }
        for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
            std::fs::copy(name, doc.join(name)).with_context(|| format!("no {name}"))?;
        }
        let dependencies = bill::Dependencies::read()?;
        let licenses = dependencies.licenses()?;
        std::fs::write(doc.join("THIRD-PARTY.txt"), &licenses)?;
        std::fs::write(self.output.join("THIRD-PARTY.txt"), licenses)?;
        let sbom = format!("sluicegate-{}.cdx.json", self.version);
        std::fs::write(self.output.join(sbom), dependencies.sbom(&self.version)?)?;
        Ok(())
    }

    fn tarball(&self) -> anyhow::Result<()> {
        let name = format!("sluicegate-{}-{}-linux", self.version, self.arch);
        self.tar(&self.tree, &name, &format!("{name}.tar.gz"))
    }

    /// Packs a folder under another name, with the same bytes for the same contents.
    fn tar(&self, folder: &Path, name: &str, file: &str) -> anyhow::Result<()> {
        set_modes(folder)?;
        let transform = format!("--transform=s,^\\.,{name},");
        let file = text(&self.output.join(file));
        let mut line = vec!["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0"];
        line.extend(["--numeric-owner", &transform, "-czf", &file, "-C"]);
        let folder = text(folder);
        line.extend([folder.as_str(), "."]);
        run_or_fail(&line)
    }

    /// Returns the names of the files, in order.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.output)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names: Vec<_> = names.collect::<anyhow::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    fn checksums(&self) -> anyhow::Result<()> {
        let files = self.files()?;
        let output = std::process::Command::new("sha256sum")
            .args(&files)
            .current_dir(&self.output)
            .output()
            .context("can't start sha256sum")?;
        ensure!(output.status.success(), "sha256sum failed");
        std::fs::write(self.output.join("SHA256SUMS"), output.stdout)?;
        Ok(())
    }
}

/// Returns the version of the workspace.
fn version() -> anyhow::Result<String> {
    let manifest: toml::Table = toml::from_str(&std::fs::read_to_string("Cargo.toml")?)?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has no version")?.to_owned())
}

fn run_or_fail(line: &[&str]) -> anyhow::Result<()> {
    ensure!(sh::run(line, &[])?, "`{}` failed", line.join(" "));
    Ok(())
}

/// Lets everybody read the files of a package, and execute its programs, whatever the umask was when they
/// were made.
fn set_modes(folder: &Path) -> anyhow::Result<()> {
    run_or_fail(&["chmod", "--recursive", "u=rwX,go=rX", &text(folder)])
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
