//! `cargo xtask dist`: each package is installed into an empty place, and the first screen of the README is run with
//! the installed program. The binary under test stands in for a release build, so that nothing is built twice.

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use common::page::{Page, repository, run};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_store::MonotonicClock;

/// Folder with the files of the distribution, below the target folder. The next run replaces them.
static FILES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Files of packages must not depend on the umask of their author.
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(cargo);
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

/// Returns the one command of a page that starts with some words, without its comment.
fn command(page: &str, words: &str) -> String {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    let found: Vec<_> = text.lines().filter(|line| line.starts_with(words)).collect();
    let [line] = found.as_slice() else { panic!("{page}: {words}: {found:?}") };
    line.split("  #").next().unwrap_or_default().trim_end().to_owned()
}

/// Returns the command of docs/install.md that starts with some words. That of the README is the same,
/// apart from what follows it.
fn install_command(words: &str) -> String {
    let (short, long) = (command("README.md", words), command("docs/install.md", words));
    let rest = long.strip_prefix(&short);
    let is_same = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" && "));
    assert!(is_same, "README.md: {short}\ndocs/install.md: {long}");
    long
}

/// Runs commands of a page in a folder that has the files of the distribution in `target/dist`.
fn run_commands(commands: &str, folder: &Path, shell: &mut Command) {
    let target = folder.join("target");
    if !target.exists() {
        std::fs::create_dir(&target).expect("a folder");
        symlink(&*FILES, target.join("dist")).expect("a link");
    }
    let script = format!("set -e\nsudo() {{ \"$@\"; }}\n{commands}");
    succeed(shell.args(["-c", &script]).current_dir(folder));
}

/// Runs the work and returns its result with its time.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Span) {
    let clock = MonotonicClock::new();
    let began = clock.now();
    let result = work();
    (result, clock.now().since(began))
}

/// Runs the first screen of the README with the `sluicegate` in the folder `bin`, after some commands.
/// Prints how long it took after `installing`.
#[expect(clippy::print_stdout, reason = "docs/install.md has a table of these times")]
fn first_screen(
    (name, installing): (&str, Span),
    before: &str,
    bin: &Path,
    change: impl Fn(&str) -> String,
) {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("the README");
    let end = readme.find("\n## Your own limits").expect("the second screen");
    let page = Page::read(&readme[..end]).expect("a page");
    assert!(page.blocks >= 3, "{}", page.script);
    let script = format!("{before}\ncommand -v sluicegate\n{}", change(&page.script));
    let (printed, took) = timed(|| run("the first screen", &script, bin));
    let printed = printed.unwrap_or_else(|error| panic!("{error}"));
    let seconds = |span: Span| span.as_micros() as f64 / 1e6;
    let (installing, took) = (seconds(installing), seconds(took));
    println!("{name}: installed in {installing:.1} s, first screen of the README in {took:.1} s");
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
    tar.arg("-xzf").arg(file("-linux.tar.gz")).args(["--strip-components=1", "-C"]);
    let (_, took) = timed(|| succeed(tar.arg(folder.path())));
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
    first_screen(("archive", took), "", &folder.path().join("bin"), str::to_owned);
    // The commands of the documentation, with an empty folder in place of /usr/local.
    let [unpack, copy] = ["tar -xzf target/dist/", "sudo cp -r sluicegate-"]
        .map(|words| command("docs/install.md", words));
    let script = format!(
        "mount -t tmpfs tmpfs /usr/local\n{unpack}\n{copy}\n/usr/local/bin/sluicegate --version\n\
         test -s /usr/local/share/man/man1/sluicegate.1"
    );
    run_commands(&script, folder.path(), Command::new("unshare").args(["--mount", "bash"]));
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
    // C sources that are compiled into the program.
    for name in ["sqlite", "mimalloc"] {
        let purl = format!("pkg:generic/{name}@3.");
        let is_listed = |component: &serde_json::Value| {
            component["purl"].as_str().is_some_and(|found| found.starts_with(&purl))
        };
        assert!(components.iter().any(is_listed), "{purl}");
    }
    assert!(licenses.contains("Daan Leijen"), "the notice of mimalloc is missing");
}

#[test]
fn the_wheel_works_in_an_empty_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(folder.path()));
    let path = std::env::var("PATH").expect("PATH");
    let mut shell = Command::new("bash");
    shell.env("PATH", format!("{}:{path}", folder.path().join("bin").display()));
    shell.env("PIP_NO_INDEX", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    let install = install_command("pip install target/dist/");
    let (_, took) = timed(|| run_commands(&install, folder.path(), &mut shell));
    first_screen(("wheel", took), "", &folder.path().join("bin"), str::to_owned);
}

#[test]
fn the_npm_package_works_in_an_empty_project() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shell = Command::new("bash");
    shell.env("npm_config_offline", "true").env("npm_config_audit", "false");
    let install = install_command("npm install ./target/dist/");
    let (_, took) = timed(|| run_commands(&install, folder.path(), &mut shell));
    first_screen(
        ("npm package", took),
        "",
        &folder.path().join("node_modules/.bin"),
        str::to_owned,
    );
}

#[test]
fn the_debian_package_works_on_a_fresh_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap.args(["--quiet", "--variant=essential", "--include=apt,passwd", "bookworm"]);
    succeed(debootstrap.arg(&root));
    let package = file(".deb");
    let name = package.file_name().expect("a name");
    std::fs::create_dir_all(root.join("target/dist")).expect("a folder");
    std::fs::copy(&package, root.join("target/dist").join(name)).expect("a file");
    std::fs::copy(&package, root.join("package.deb")).expect("a file");
    let chroot = |arguments: &[&str]| succeed(Command::new("chroot").arg(&root).args(arguments));
    let install = install_command("sudo apt install ./target/dist/");
    let mut shell = Command::new("chroot");
    shell.arg(&root).arg("bash");
    let (_, took) = timed(|| run_commands(&install, &root, &mut shell));
    assert!(chroot(&["id", "sluicegate"]).contains("(sluicegate)"));
    assert!(
        chroot(&["ls", "-l", "/etc/sluicegate/sluicegate.yaml"])
            .starts_with("-rw-r----- 1 root sluicegate")
    );
    for path in ["usr/lib/systemd/system/sluicegate.service", "etc/logrotate.d/sluicegate"] {
        assert!(chroot(&["ls", "-l", path]).starts_with("-rw-r--r-- 1 root root"), "{path}");
    }
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
    first_screen(("Debian package", took), &enter, &bin, |script| {
        script.replace("verify decisions", "verify /tmp/decisions")
    });
    // An upgrade keeps what the administrator has changed, also a file that is gone.
    let file_name = "/etc/sluicegate/sluicegate.yaml";
    let upgrade = || chroot(&["dpkg", "--install", "/package.deb"]);
    chroot(&["chown", "sluicegate:root", file_name]);
    chroot(&["chmod", "600", file_name]);
    upgrade();
    assert!(chroot(&["ls", "-l", file_name]).starts_with("-rw------- 1 sluicegate root"));
    chroot(&["rm", file_name]);
    upgrade();
    assert!(!root.join(&file_name[1..]).exists());
    chroot(&["dpkg", "--purge", "sluicegate"]);
    assert!(!root.join("usr/bin/sluicegate").exists());
}

/// A store of container images below a temporary folder. It needs no daemon and no kernel module.
struct ImageStore {
    folder: tempfile::TempDir,
}

impl ImageStore {
    /// Returns a command of buildah on this store.
    fn buildah(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command.args(self.options()).args(arguments).env("BUILDAH_ISOLATION", "chroot");
        command
    }

    fn options(&self) -> [String; 2] {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        [format!("--root={}", path("images")), format!("--runroot={}", path("run"))]
    }

    fn run(&self, arguments: &[&str]) -> String {
        succeed(&mut self.buildah(arguments)).trim().to_owned()
    }
}

/// Returns the Dockerfile with the program in place of the stage that compiles it.
fn dockerfile_without_build() -> String {
    let path = repository().join("deploy/docker/Dockerfile");
    let text = std::fs::read_to_string(path).expect("the Dockerfile");
    let (build, image) = text.split_once("\nFROM debian:").expect("the stage of the image");
    let (arguments, build) = build.split_once("\nFROM rust:").expect("the stage of the build");
    assert!(build.contains(" AS build\n") && build.contains(" /out/sluicegate"), "{build}");
    format!(
        "{arguments}\nFROM scratch AS build\nCOPY sluicegate /out/sluicegate\n\nFROM debian:{image}"
    )
}

/// Builds the image of `deploy/docker` with the binary under test, on a Debian that mmdebstrap made,
/// and runs it as its own user: the first screen of the README, and with a read-only root.
#[test]
fn the_container_image_serves_without_root() {
    let store = ImageStore { folder: tempfile::tempdir().expect("a folder") };
    let folder = store.folder.path();
    let base = folder.join("base.tar");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap.args(["--quiet", "--variant=essential", "--include=apt,passwd", "bookworm"]);
    succeed(debootstrap.arg(&base));
    let container = store.run(&["from", "scratch"]);
    store.run(&["add", &container, &base.display().to_string(), "/"]);
    store.run(&["commit", "--quiet", "--rm", &container, "docker.io/library/debian:bookworm-slim"]);
    let context = folder.join("context");
    std::fs::create_dir(&context).expect("a folder");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(file("-linux.tar.gz")).args(["--strip-components=2", "-C"]).arg(&context);
    succeed(tar.args(["--wildcards", "*/bin/sluicegate"]));
    std::fs::write(folder.join("Dockerfile"), dockerfile_without_build()).expect("a file");
    let mut build = store.buildah(&["build", "--quiet", "--pull=never", "--format=docker"]);
    build.args(["--tag", "sluicegate", "--file"]).arg(folder.join("Dockerfile"));
    let (_, took) = timed(|| succeed(build.arg(&context)));

    let inspected = store.run(&["inspect", "--type=image", "sluicegate"]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).expect("JSON");
    let config = &inspected["Docker"]["config"];
    assert_eq!(config["User"], "10001", "{config}");
    assert_eq!(config["Entrypoint"], serde_json::json!(["sluicegate"]), "{config}");
    assert_eq!(config["Cmd"], serde_json::json!(["serve"]), "{config}");
    let health = &config["Healthcheck"]["Test"];
    assert_eq!(*health, serde_json::json!(["CMD", "sluicegate", "health"]), "{config}");

    // The program of this folder runs the one of the image, as the user and in the folder of the image.
    let container = store.run(&["from", "--pull=never", "sluicegate"]);
    assert_eq!(store.run(&["run", &container, "--", "id", "-u"]), "10001");
    let root = store.run(&["mount", &container]);
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    let options = store.options().join(" ");
    // The image names a file that users mount; the first screen has none.
    let wrapper = format!(
        "#!/bin/sh\nexport BUILDAH_ISOLATION=chroot\nexec buildah {options} run \
         --volume \"$PWD:/data:ro\" {container} -- env -u SLUICEGATE_CONFIG sluicegate \"$@\"\n"
    );
    std::fs::write(bin.join("sluicegate"), wrapper).expect("a file");
    succeed(Command::new("chmod").arg("755").arg(bin.join("sluicegate")));
    // buildah does not pass signals on to the program.
    let stop = "for p in /proc/[0-9]*; do
  if grep -qsx sluicegate $p/comm; then kill \"${p#/proc/}\"; fi
done";
    first_screen(("container image", took), "", &bin, |script| {
        assert!(script.contains("\nkill $SERVICE\n"), "{script}");
        let script = script.replace("\nkill $SERVICE\n", &format!("\n{stop}\n"));
        script.replace("verify decisions", "verify /data/decisions")
    });

    let script = format!(
        "mount --bind {root} {root}
mount -o remount,bind,ro {root}
chroot --userspec=10001:10001 {root} sluicegate serve > decisions.log 2> service.log &
until chroot --userspec=10001:10001 {root} sluicegate health; do sleep 0.1; done
chroot --userspec=10001:10001 {root} sluicegate allow userId=u1 modelId=gpt4
! touch {root}/etc/written"
    );
    run("a read-only root", &script, &bin).unwrap_or_else(|error| panic!("{error}"));
}
