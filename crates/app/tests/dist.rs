//! `cargo xtask dist`: each package is installed into an empty place, and the first screen of the README is run with
//! the installed program. The binary under test stands in for a release build, so that nothing is built twice.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use common::page::{Page, repository, run};

/// Folder with the files of the distribution, below the target folder. The next run replaces them.
static FILES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "dist", "--binary"]);
    command.arg(env!("CARGO_BIN_EXE_sluicegate")).arg("--output").arg(&folder);
    succeed(command.current_dir(repository()));
    folder
});

/// Runs a command to its end; returns its standard output.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Returns the one file of the distribution with this ending.
fn file(ending: &str) -> PathBuf {
    let entries = std::fs::read_dir(&*FILES).expect("the files");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let found: Vec<_> = paths.filter(|path| path.display().to_string().ends_with(ending)).collect();
    let [path] = found.as_slice() else { panic!("{ending}: {found:?}") };
    path.clone()
}

/// Runs the first screen of the README with the `sluicegate` in the folder `bin`, after some commands.
fn first_screen(before: &str, bin: &Path, change: impl Fn(&str) -> String) {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("the README");
    let end = readme.find("\n## Your own limits").expect("the second screen");
    let page = Page::read(&readme[..end]).expect("a page");
    assert!(page.blocks >= 3, "{}", page.script);
    let script = format!("{before}\ncommand -v sluicegate\n{}", change(&page.script));
    let printed = run("the first screen", &script, bin).unwrap_or_else(|error| panic!("{error}"));
    let place = printed.lines().next().unwrap_or_default();
    assert!(place.starts_with(&bin.display().to_string()), "{place} is another program");
    assert!(printed.contains("HIT_USER_MODEL_LIMIT"), "{printed}");
    assert!(printed.contains("proven: 100 admissions on 1 counter under 1 limit"), "{printed}");
}

#[test]
fn the_archive_contains_program_manual_and_completions() {
    succeed(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&*FILES));
    let folder = tempfile::tempdir().expect("a folder");
    let mut tar = Command::new("tar");
    succeed(
        tar.arg("-xzf")
            .arg(file("-linux.tar.gz"))
            .args(["--strip-components=1", "-C"])
            .arg(folder.path()),
    );
    for path in [
        "share/man/man1/sluicegate.1",
        "share/man/man1/sluicegate-doctor.1",
        "share/bash-completion/completions/sluicegate",
        "share/zsh/vendor-completions/_sluicegate",
        "share/fish/vendor_completions.d/sluicegate.fish",
        "share/doc/sluicegate/THIRD-PARTY.txt",
        "share/doc/sluicegate/starters/ingestion-proxy.yaml",
    ] {
        let length = std::fs::metadata(folder.path().join(path)).map(|file| file.len());
        assert!(length.is_ok_and(|length| length > 100), "{path}");
    }
    first_screen("", &folder.path().join("bin"), str::to_owned);
}

#[test]
fn the_bill_of_materials_names_every_dependency() {
    let text = std::fs::read_to_string(file(".cdx.json")).expect("the SBOM");
    let sbom: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = sbom["components"].as_array().expect("components");
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    assert!(
        has("tokio") && has("redis") && has("sluicegate-core"),
        "{} components",
        components.len()
    );
    assert!(
        !has("proptest") && !has("sluicegate-testkit"),
        "dependencies of tests are not in the binary"
    );
    for component in components {
        let license = component["licenses"][0]["expression"].as_str().unwrap_or_default();
        assert!(!license.is_empty() && !license.contains('/'), "{component}");
    }
    let licenses = std::fs::read_to_string(file("THIRD-PARTY.txt")).expect("the licenses");
    assert!(licenses.contains("\ntokio ") && licenses.contains("Permission is hereby granted"));
}

#[test]
fn the_wheel_works_in_an_empty_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(folder.path()));
    let mut pip = Command::new(folder.path().join("bin/pip"));
    pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]);
    succeed(pip.arg(file(".whl")));
    first_screen("", &folder.path().join("bin"), str::to_owned);
}

#[test]
fn the_npm_package_works_in_an_empty_project() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut npm = Command::new("npm");
    npm.args(["install", "--offline", "--no-audit", "--no-fund", "--silent"]);
    succeed(npm.arg(file(".tgz")).current_dir(folder.path()));
    first_screen("", &folder.path().join("node_modules/.bin"), str::to_owned);
}

#[test]
fn the_debian_package_works_on_a_fresh_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap.args(["--quiet", "--variant=essential", "--include=passwd", "bookworm"]);
    succeed(debootstrap.arg(&root));
    std::fs::copy(file(".deb"), root.join("package.deb")).expect("a file");
    let chroot = |arguments: &[&str]| succeed(Command::new("chroot").arg(&root).args(arguments));
    chroot(&["dpkg", "--install", "/package.deb"]);
    assert!(chroot(&["id", "sluicegate"]).contains("(sluicegate)"));
    assert!(
        chroot(&["ls", "-l", "/etc/sluicegate/sluicegate.yaml"])
            .starts_with("-rw-r----- 1 root sluicegate")
    );
    assert!(root.join("usr/lib/systemd/system/sluicegate.service").exists());
    chroot(&["sluicegate", "check", "--strict", "/etc/sluicegate/sluicegate.yaml"]);
    // A program of this folder runs the one of the fresh system as its service user.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    let wrapper = format!(
        "#!/bin/sh\nexec chroot --userspec=sluicegate:sluicegate {root} /usr/bin/sluicegate \"$@\"\n",
        root = root.display()
    );
    std::fs::write(bin.join("sluicegate"), wrapper).expect("a file");
    succeed(Command::new("chmod").arg("755").arg(bin.join("sluicegate")));
    // The shell writes the log outside of the fresh system, in the folder that is its /tmp.
    let enter = format!("cd {}", root.join("tmp").display());
    first_screen(&enter, &bin, |script| {
        script.replace("verify decisions", "verify /tmp/decisions")
    });
    chroot(&["dpkg", "--purge", "sluicegate"]);
    assert!(!root.join("usr/bin/sluicegate").exists());
}
