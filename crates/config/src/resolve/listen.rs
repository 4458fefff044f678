//! Reads `listen`: the listeners. Reports listeners that unauthenticated clients on other machines
//! could reach.

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Address, Listener, ListenerTls, Listeners};
use crate::raw::Value;
use crate::report::Report;

const PORTS: [(&str, u16); 3] = [("http", 8_080), ("grpc", 8_081), ("admin", 9_090)];

/// Reads the section `listen`. `authenticated` is true if callers present tokens.
pub(super) fn listen(
    item: Option<Item<'_>>,
    authenticated: bool,
    report: &mut Report,
) -> Listeners {
    let known = PORTS.map(|(key, _)| key);
    let fields = item.and_then(|item| Fields::open(item, &known, report));
    let listeners = PORTS.map(|(key, port)| {
        let default = Listener { address: Address::local(port), tls: None, insecure: false };
        let item = fields.as_ref().and_then(|fields| fields.get(key));
        let listener = item.as_ref().and_then(|item| listener(item, report));
        (key, item, listener.unwrap_or(default))
    });
    for (index, (key, item, listener)) in listeners.iter().enumerate() {
        if let Some(item) = item {
            check_access(item, listener, authenticated, report);
        }
        for (other_key, other_item, other) in &listeners[..index] {
            if listener.address.collides_with(&other.address) {
                // The error belongs to a listener that the file mentions.
                let (item, other) = match item {
                    Some(_) => (item, other_key),
                    None => (other_item, key),
                };
                if let Some(item) = item {
                    item.fail(
                        report,
                        format!("same address as listen.{other}"),
                        "give each listener its own port",
                    );
                }
            }
        }
    }
    let [(_, _, http), (_, _, grpc), (_, _, admin)] = listeners;
    Listeners { http, grpc, admin }
}

/// Reads one listener: an address, or a map with more options.
pub(super) fn listener(item: &Item<'_>, report: &mut Report) -> Option<Listener> {
    if !matches!(item.node.value, Value::Map(_)) {
        let address = scalar::address(item, report)?;
        return Some(Listener { address, tls: None, insecure: false });
    }
    let fields = Fields::open(item.clone(), &["address", "tls", "insecure"], report)?;
    let address = fields.require("address", "write host:port, such as 127.0.0.1:8080", report);
    Some(Listener {
        tls: fields.read_some("tls", report, tls),
        insecure: fields.read("insecure", false, report, scalar::boolean),
        address: scalar::address(&address?, report)?,
    })
}

fn tls(item: &Item<'_>, report: &mut Report) -> Option<ListenerTls> {
    let fields = Fields::open(item.clone(), &["cert", "key", "client_ca"], report)?;
    let cert = fields.require("cert", "write the path of the certificate chain, in PEM", report);
    let key = fields.require("key", "write the path of the private key, in PEM", report);
    let client_ca = fields.read_some("client_ca", report, scalar::path);
    let cert = cert.and_then(|cert| scalar::path(&cert, report));
    let key = key.and_then(|key| scalar::path(&key, report));
    Some(ListenerTls { cert: cert?, key: key?, client_ca })
}

/// Reports a listener that other machines can reach without authentication.
pub(super) fn check_access(
    item: &Item<'_>,
    listener: &Listener,
    authenticated: bool,
    report: &mut Report,
) {
    // An invalid client_ca is reported as such; it still means that clients need certificates.
    let tls = match &item.node.value {
        Value::Map(entries) => entries.iter().find(|(key, _)| key.text == "tls"),
        _ => None,
    };
    let asks_for_certificates = match tls.map(|(_, node)| &node.value) {
        Some(Value::Map(entries)) => entries.iter().any(|(key, _)| key.text == "client_ca"),
        other => other.is_some(),
    };
    let known = authenticated || asks_for_certificates || listener.insecure;
    if !known && !listener.address.is_loopback() {
        let remedy =
            "add auth.tokens or tls.client_ca, or write insecure: true next to the address";
        item.fail(report, "other machines can connect without authentication", remedy);
    }
}
