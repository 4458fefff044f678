//! Checks the files of a configuration: TLS certificates and their expiry, and the folders that the
//! service writes to.

use std::path::Path;

use sluicegate_config::{Config, QueueBroker, StoreOptions};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_http::tls;
use sluicegate_queue::WallClock;

use super::{Finding, listeners};
use crate::{certificates, writable};

/// Time before its expiry from which a certificate is reported.
const RENEW_WITHIN: Span = Span::from_secs(30 * 86_400);

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = certificates::check(config) {
        let remedy =
            "correct the path, let this user read the file, or replace it with a valid one";
        let problems = format!("{error:#}");
        findings.extend(problems.lines().map(|line| Finding::problem("TLS", line, remedy)));
    }
    for (option, listener) in listeners(config) {
        let Some(files) = &listener.tls else { continue };
        findings.extend(expiry(&format!("{option}.tls.cert"), &files.cert));
        if let Some(path) = &files.client_ca {
            findings.extend(expiry(&format!("{option}.tls.client_ca"), path));
        }
    }
    if let StoreOptions::Memory { snapshot, overrides, .. } = &config.store {
        let snapshot = snapshot.as_ref().map(|file| ("store.snapshot.path", &*file.path));
        let overrides = overrides.as_ref().map(|path| ("store.overrides", &**path));
        let files = snapshot.into_iter().chain(overrides);
        findings.extend(files.map(|(option, path)| writable(option, path)));
    }
    if let Some(QueueBroker::Embedded { path }) = config.queue.as_ref().map(|queue| &queue.broker) {
        findings.push(writable("queue.path", path));
    }
    findings
}

/// Returns a finding about the validity of a certificate. A file that can't be read is reported by
/// [`certificates::check`] already.
fn expiry(option: &str, path: &Path) -> Option<Finding> {
    let expires = tls::expiry(path).ok()?;
    let (now, path) = (WallClock.now(), path.display());
    let remedy = "renew the certificate, then send `kill -HUP` or POST /reload";
    Some(if expires <= now {
        Finding::problem("TLS", format!("{option}: {path} expired at {expires}"), remedy)
    } else if expires <= now + RENEW_WITHIN {
        Finding::warning("TLS", format!("{option}: {path} expires at {expires}"), remedy)
    } else {
        Finding::ok("TLS", format!("{option}: {path} is valid until {expires}"))
    })
}

/// Checks that this user can create files in the folder of `path`.
fn writable(option: &'static str, path: &Path) -> Finding {
    match writable::check(option, path) {
        Ok(folder) => Finding::ok("folder", format!("{option}: {} is writable", folder.display())),
        Err(error) => Finding::problem("folder", error.to_string(), error.remedy()),
    }
}
