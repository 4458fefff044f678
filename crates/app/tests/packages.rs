//! Packages the Rust library as it would be published, and builds a project outside of the workspace
//! with it: every Rust block of the library's README is a program there, and runs.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::RunningService;
use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::redis::{RedisServer, Version};

/// The packages that would be published, lowest layer first.
const PACKAGES: [&str; 8] = [
    "sluicegate-core",
    "sluicegate-template",
    "sluicegate-store",
    "sluicegate-config",
    "sluicegate-http",
    "sluicegate-service",
    "sluicegate-pace",
    "sluicegate",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_project_outside_of_the_workspace_runs_the_examples_of_the_readme() {
    let folder = tempfile::tempdir().expect("a folder");
    let project = folder.path().join("project");
    let sources = project.join("src/bin");
    std::fs::create_dir_all(&sources).expect("a folder");
    let packages = package(folder.path());
    std::fs::write(project.join("Cargo.toml"), manifest(&packages)).expect("a manifest");
    // The versions that everything else is tested with, and that are there already.
    std::fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).expect("a lockfile");
    let readme = packages.join("sluicegate-0.1.0/README.md");
    let readme = std::fs::read_to_string(readme).expect("the package has a README");
    let limits = blocks(&readme, "yaml");
    std::fs::write(sources.join("limits.yaml"), &limits[0]).expect("a file");
    let programs: Vec<_> = blocks(&readme, "rust").into_iter().enumerate().collect();
    assert!(programs.len() >= 9, "the README has {} programs", programs.len());
    for (number, text) in &programs {
        std::fs::write(sources.join(format!("example{number}.rs")), text).expect("a program");
    }
    let target = root().join("target/outside");
    let mut build = cargo(&project);
    build.args(["build", "--bins", "--quiet"]).env("CARGO_TARGET_DIR", &target);
    assert!(build.status().expect("cargo runs").success(), "the examples do not compile");

    let redis = RedisServer::start(Version::System, &[]);
    let service = RunningService::start("");
    for (number, text) in programs {
        let mut program = Command::new(target.join(format!("debug/example{number}")));
        program
            .env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port))
            .env("SLUICEGATE_URL", &service.http);
        if text.contains("axum::serve") {
            serves(program);
        } else {
            let ran = program.output().expect("it runs");
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{text}\n{said}");
        }
    }
}

/// Packages the library and unpacks it, as a registry and cargo do. Returns the folder.
fn package(folder: &Path) -> PathBuf {
    let mut package = cargo(&root());
    package.args(["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir"]);
    package.arg(folder.join("target"));
    PACKAGES.iter().for_each(|name| {
        package.args(["--package", name]);
    });
    let said = package.output().expect("cargo runs");
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "cargo package: {text}");
    let packed = folder.join("target/package");
    for name in PACKAGES {
        let mut unpack = Command::new("tar");
        unpack.args(["-xzf", &format!("{name}-0.1.0.crate")]).current_dir(&packed);
        assert!(unpack.status().expect("tar runs").success(), "{name}");
    }
    packed
}

/// Returns the manifest of a project that takes the library from the unpacked packages.
fn manifest(packages: &Path) -> String {
    let path = |name: &str| format!("{{ path = {:?} }}", packages.join(format!("{name}-0.1.0")));
    let patches = PACKAGES.iter().map(|name| format!("{name} = {}\n", path(name)));
    format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nsluicegate = {{ version = \"0.1\", features = [\"full\"] }}\n\
         axum = \"0.8\"\ntokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n\
         tonic = {{ version = \"0.14\", default-features = false, features = [\"server\"] }}\n\n\
         [profile.dev]\ndebug = 0\n\n[patch.crates-io]\n{}",
        patches.collect::<String>()
    )
}

/// Returns a cargo command in a folder, without the settings of this test run.
fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder).env_remove("CARGO_TARGET_DIR").env_remove("CARGO_MANIFEST_DIR");
    cargo
}

/// Returns the contents of all fenced blocks of a language.
fn blocks(readme: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let texts = readme.split(&begin).skip(1);
    texts.map(|text| text.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Runs an example that serves HTTP, until it has answered with its header fields.
fn serves(mut program: Command) {
    struct Running(Child);
    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let port = free_port();
    program.env("PORT", port.to_string()).stdin(Stdio::null());
    let _running = Running(program.spawn().expect("it runs"));
    eventually(|| {
        let request = ureq::get(format!("http://127.0.0.1:{port}/")).header("x-user-id", "ann");
        let Ok(mut response) = request.call() else { return false };
        assert_eq!(response.body_mut().read_to_string().expect("a body"), "hello");
        assert_eq!(response.headers()["x-ratelimit-limit"], "10");
        true
    });
}
