//! Loads and checks the TLS files of a configuration: certificates, keys and CA files.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use sluicegate_config::{Config, HandlerAction, Listener, RequestBody};
use sluicegate_http::tls::Tls;
use sluicegate_http::upstream::{ClientOptions, Upstream};

/// Loads the certificate of a listener, if it has one. `option` is the listener's option name.
pub(crate) fn load(option: &str, listen: &Listener) -> anyhow::Result<Option<Tls>> {
    let Some(tls) = &listen.tls else { return Ok(None) };
    Tls::load(tls.clone()).map(Some).with_context(|| format!("{option}.tls"))
}

/// Loads every TLS file of the configuration; the error lists all problems.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    let listen = &config.listen;
    let mut checked = vec![
        load("listen.http", &listen.http).map(drop),
        load("listen.grpc", &listen.grpc).map(drop),
        load("listen.admin", &listen.admin).map(drop),
    ];
    for (number, gateway) in config.gateways.iter().enumerate() {
        let option = format!("gateways[{number}]");
        checked.push(load(&format!("{option}.listen"), &gateway.listen).map(drop));
        for (number, route) in gateway.routes.iter().enumerate() {
            checked
                .push(authorities(&format!("{option}.routes[{number}].ca"), route.ca.as_deref()));
        }
    }
    for (number, worker) in config.workers.iter().enumerate() {
        let HandlerAction::Http(http) = &worker.handler.action else { continue };
        let option = match http.content {
            RequestBody::Chat(_) => "ca",
            _ => "http.ca",
        };
        let option = format!("workers[{number}].handler.{option}");
        checked.push(authorities(&option, http.ca.as_deref()));
    }
    let wrong = checked.into_iter().filter_map(Result::err).map(|error| format!("{error:#}"));
    let wrong: Vec<_> = wrong.collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("{}", wrong.join("\n")),
    }
}

/// Checks the CA file that verifies the certificate of an upstream.
fn authorities(option: &str, ca: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = ca else { return Ok(()) };
    let ways = ClientOptions {
        connect_timeout: Duration::from_secs(1),
        http2_only: false,
        ca: Some(path.to_owned()),
    };
    Upstream::new(&ways).map(drop).with_context(|| option.to_owned())
}
