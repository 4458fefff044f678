//! Checks the ports of all listeners and the number of files that the process may open.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use sluicegate_config::{Address, Config, Listener};
use ureq::tls::TlsConfig;

use super::{Finding, listeners};

/// Files besides connections: logs, queues, Redis, upstreams.
const OTHER_FILES: u64 = 256;

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let listeners = listeners(config);
    let mut findings: Vec<_> =
        listeners.iter().map(|(option, listener)| port(option, listener)).collect();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(open_max) = open_files_max(&limits) {
        findings.push(open_files(open_max, config.server.connections_max));
    }
    findings
}

/// Compares the number of files that the process may open with the number of connections.
fn open_files(open_max: u64, connections_max: usize) -> Finding {
    let needed = connections_max as u64 + OTHER_FILES;
    match open_max >= needed {
        true => Finding::ok("open files", format!("{open_max} open files are allowed")),
        false => Finding::warning(
            "open files",
            format!(
                "{open_max} open files are allowed, a listener with server.connections_max connections needs {needed}"
            ),
            format!(
                "set LimitNOFILE={needed} in the systemd unit, run `ulimit -n {needed}`, or lower \
                 server.connections_max"
            ),
        ),
    }
}

fn port(option: &str, listener: &Listener) -> Finding {
    let address = &listener.address;
    match TcpListener::bind((address.host.as_str(), address.port)) {
        Ok(_) => Finding::ok("port", format!("{option}: {address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_sluicegate(listener) => {
            Finding::warning(
                "port",
                format!("{option}: a Sluicegate listens on {address} already"),
                "this is fine if it is the service of this configuration",
            )
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse && asks_for_certificates(listener) => {
            Finding::warning(
                "port",
                format!(
                    "{option}: {address} is in use, by this service or another program: `doctor` has no \
                     client certificate to ask it"
                ),
                format!("find the program with `ss -ltnp 'sport = :{}'`", address.port),
            )
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::problem(
            "port",
            format!("{option}: {address} is in use by another program"),
            format!("find it with `ss -ltnp 'sport = :{}'`, or change {option}", address.port),
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::problem(
            "port",
            format!("{option}: this user may not listen on {address}"),
            "use a port above 1023, or set AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit",
        ),
        Err(error) => Finding::problem(
            "port",
            format!("{option}: can't listen on {address}: {error}"),
            format!("change {option} to an address of this machine, such as 127.0.0.1 or 0.0.0.0"),
        ),
    }
}

/// Returns true if the listener accepts only clients with a certificate.
fn asks_for_certificates(listener: &Listener) -> bool {
    listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
}

/// Returns true if the health probe of Sluicegate answers at the address of a listener.
fn is_sluicegate(listener: &Listener) -> bool {
    // The certificate need not name the address that is asked here, and no secret is sent.
    let tls = TlsConfig::builder().disable_verification(true).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(Duration::from_secs(1)))
        .http_status_as_error(false)
        .build()
        .into();
    let response = agent.get(health_url(listener)).call();
    let body = response.ok().and_then(|mut response| response.body_mut().read_to_string().ok());
    body.is_some_and(|body| body.contains("\"status\":\"healthy\""))
}

/// Returns the URL of the health probe of a listener, on this machine.
fn health_url(listener: &Listener) -> String {
    let scheme = if listener.tls.is_some() { "https" } else { "http" };
    let Address { host, port } = &listener.address;
    // The addresses of all interfaces.
    let host = match host.as_str() {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    let address = Address { host: host.to_owned(), port: *port };
    format!("{scheme}://{address}/health")
}

/// Returns the soft limit of open files in the text of `/proc/self/limits`.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_is_read() {
        for (text, expected) in [
            (
                "Max processes 7 7 processes\nMax open files            1024   4096  files\n",
                Some(1024),
            ),
            ("Max open files  unlimited unlimited files", Some(u64::MAX)),
            ("", None),
        ] {
            assert_eq!(open_files_max(text), expected, "{text}");
        }
    }

    #[test]
    fn too_few_open_files_are_a_warning_with_the_number_that_is_needed() {
        let enough = open_files(10_256, 10_000);
        assert_eq!(enough.severity, Severity::Ok, "{enough:?}");
        let few = open_files(1_024, 10_000);
        assert_eq!(few.severity, Severity::Warning, "{few:?}");
        let text = few.json();
        assert!(
            text.contains("1024 open files are allowed") && text.contains("needs 10256"),
            "{text}"
        );
        assert!(text.contains("LimitNOFILE=10256"), "{text}");
    }
}
