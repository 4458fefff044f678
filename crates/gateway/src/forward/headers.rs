//! Header fields that pass the proxy in either direction. Hop-by-hop fields are removed before the
//! gateway adds its own, so that no client can make it drop one of them.

use std::fmt::Write as _;
use std::net::IpAddr;

use axum::http::header::{
    CONNECTION, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Hop-by-hop header fields (RFC 9110, 7.6.1), removed whatever `Connection` lists.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes hop-by-hop header fields and those that `Connection` names.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // gRPC uses this field to ask for trailers, which the gateway forwards.
    let trailers = headers.get(TE).is_some_and(|te| te.as_bytes() == b"trailers");
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers && !named.contains(&TE) {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// The connection and the proxies that a request came through.
pub(crate) struct ClientConnection {
    /// IP address of the other end of the connection.
    pub(crate) peer: Option<IpAddr>,
    /// Number of trusted proxies in front of this one, the peer included.
    pub(crate) trusted_hops: usize,
    /// True if the request arrived over TLS.
    pub(crate) tls: bool,
    /// Host that the client asked for.
    pub(crate) host: Option<HeaderValue>,
}

/// Rewrites the header fields of a request for the upstream, all except its credentials.
pub(crate) fn for_upstream(
    headers: &mut HeaderMap,
    token: Option<&HeaderName>,
    client: ClientConnection,
) {
    strip(headers);
    if let Some(token) = token {
        headers.remove(token);
    }
    headers.remove(EXPECT);
    headers.remove(HOST);
    forwarded(headers, client);
}

fn forwarded(headers: &mut HeaderMap, client: ClientConnection) {
    let trusted = client.trusted_hops;
    let mut path = String::new();
    if trusted > 0 {
        let said = headers.get_all(FOR).iter().filter_map(|value| value.to_str().ok());
        let said: Vec<&str> = said.flat_map(|value| value.split(',')).map(str::trim).collect();
        // Each trusted proxy appended one address; a client may have forged all before them.
        path = said[said.len().saturating_sub(trusted)..].join(", ");
    } else {
        for name in [FORWARDED, PROTO, FORWARDED_HOST] {
            headers.remove(name);
        }
    }
    if let Some(peer) = client.peer {
        let comma = if path.is_empty() { "" } else { ", " };
        let _ = write!(path, "{comma}{}", peer.to_canonical());
    }
    match HeaderValue::try_from(path) {
        Ok(path) if !path.is_empty() => headers.insert(FOR, path),
        _ => headers.remove(FOR),
    };
    let proto = if client.tls { "https" } else { "http" };
    headers.entry(PROTO).or_insert(HeaderValue::from_static(proto));
    if let Some(host) = client.host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    /// Checks the header fields that the upstream receives.
    #[track_caller]
    fn check(trusted_hops: usize, sent: &[(&str, &str)], expected: &[&str]) {
        let mut headers = headers(sent);
        let peer = Some("10.0.0.9".parse().unwrap());
        let host = Some(HeaderValue::from_static("proxy.internal"));
        let client = ClientConnection { peer, trusted_hops, tls: false, host };
        for_upstream(&mut headers, Some(&HeaderName::from_static("x-internal-token")), client);
        assert_eq!(shown(&headers), expected);
    }

    const OURS: [&str; 3] = [
        "x-forwarded-for: 10.0.0.9",
        "x-forwarded-host: proxy.internal",
        "x-forwarded-proto: http",
    ];

    #[test]
    fn hop_by_hop_fields_are_not_forwarded() {
        for name in [
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "expect",
            "host",
            "x-internal-token",
        ] {
            check(0, &[(name, "x")], &OURS);
        }
        check(0, &[("connection", "close, X-Mine"), ("x-mine", "1")], &OURS);
        check(0, &[("connection", "a"), ("connection", "b"), ("a", "1"), ("b", "2")], &OURS);
    }

    #[test]
    fn a_client_can_not_remove_the_gateways_own_fields() {
        let nominated = [("connection", "x-forwarded-for, x-forwarded-proto, x-forwarded-host")];
        check(0, &nominated, &OURS);
    }

    #[test]
    fn grpc_may_ask_for_trailers() {
        let mut expected = vec!["te: trailers"];
        expected.extend(OURS);
        check(0, &[("te", "trailers")], &expected);
        check(0, &[("te", "trailers, deflate")], &OURS);
    }

    #[test]
    fn forwarded_fields_of_untrusted_clients_are_dropped() {
        let said = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=1.1.1.1"),
        ];
        check(0, &said, &OURS);
    }

    #[test]
    fn only_addresses_of_trusted_proxies_are_kept() {
        let said = [
            ("x-forwarded-for", "6.6.6.6, 1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
        ];
        check(
            2,
            &said,
            &[
                "x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.0.0.9",
                "x-forwarded-host: proxy.internal",
                "x-forwarded-proto: https",
            ],
        );
    }
}
