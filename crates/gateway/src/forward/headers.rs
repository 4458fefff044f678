//! Header fields that pass the proxy in either direction. Hop-by-hop fields are removed before the
//! gateway adds its own, so that no client can make it drop one of them.

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
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Settings of an upgrade to HTTP/2, which ends at this gateway.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Hop-by-hop header fields (RFC 9110, 7.6.1), removed whatever `Connection` lists.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HTTP2_SETTINGS,
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

/// Rewrites the header fields that say who sent a request.
///
/// | field | from untrusted clients | from trusted proxies |
/// |---|---|---|
/// | `X-Forwarded-For` | replaced by the peer | the entries of the proxies, then the peer |
/// | `Forwarded` | removed | the entries of the proxies, then the peer |
/// | `X-Forwarded-Proto`, `-Host` | replaced | kept, or added |
/// | other `X-Forwarded-*`, such as `-Port` | removed | kept |
/// | `X-Real-IP` | removed | replaced by the first address of `X-Forwarded-For` |
fn forwarded(headers: &mut HeaderMap, client: ClientConnection) {
    let trusted = client.trusted_hops;
    let proto = if client.tls { "https" } else { "http" };
    if trusted == 0 {
        let is_forged =
            |name: &&HeaderName| name.as_str().starts_with("x-forwarded-") || **name == REAL_IP;
        let forged: Vec<_> = headers.keys().filter(is_forged).cloned().collect();
        for name in forged.iter().chain([&FORWARDED]) {
            headers.remove(name);
        }
    }
    let peer = client.peer.map(|peer| peer.to_canonical());
    let mut path = last_entries(headers, FOR, trusted, |list| list.split(',').collect());
    path.extend(peer.map(|peer| peer.to_string()));
    if headers.contains_key(REAL_IP) {
        set_or_remove(headers, REAL_IP, path.first().cloned().unwrap_or_default());
    }
    set_or_remove(headers, FOR, path.join(", "));
    if headers.contains_key(FORWARDED) {
        let mut path = last_entries(headers, FORWARDED, trusted, unquoted_split);
        path.extend(peer.map(|peer| match peer {
            IpAddr::V4(peer) => format!("for={peer};proto={proto}"),
            IpAddr::V6(peer) => format!("for=\"[{peer}]\";proto={proto}"),
        }));
        set_or_remove(headers, FORWARDED, path.join(", "));
    }
    headers.entry(PROTO).or_insert(HeaderValue::from_static(proto));
    if let Some(host) = client.host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
}

/// Returns the last `count` entries of a header field. Each trusted proxy appended one; a client may
/// have forged all before them.
fn last_entries(
    headers: &HeaderMap,
    name: HeaderName,
    count: usize,
    split: impl Fn(&str) -> Vec<&str>,
) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let entries = values.flat_map(split).map(str::trim).filter(|entry| !entry.is_empty());
    let mut entries: Vec<String> = entries.map(str::to_owned).collect();
    entries.split_off(entries.len().saturating_sub(count))
}

/// Splits a list at its commas, except those in quotes. Returns nothing if a quote is not closed: a
/// client could hide the entries of proxies behind it.
fn unquoted_split(list: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let entries = list.split(|c: char| {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            _ => {}
        }
        c == ',' && !quoted
    });
    let entries: Vec<_> = entries.collect();
    if quoted { Vec::new() } else { entries }
}

fn set_or_remove(headers: &mut HeaderMap, name: HeaderName, value: String) {
    match HeaderValue::try_from(value) {
        Ok(value) if !value.is_empty() => headers.insert(name, value),
        _ => headers.remove(name),
    };
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
            "http2-settings",
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
            ("x-real-ip", "1.1.1.1"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-port", "8443"),
            ("x-forwarded-prefix", "/admin"),
            ("x-forwarded-client-cert", "Subject=admin"),
        ];
        check(0, &said, &OURS);
    }

    #[test]
    fn what_a_client_forged_before_trusted_proxies_is_dropped() {
        let said = [
            ("x-forwarded-for", "6.6.6.6, 1.1.1.1"),
            ("x-real-ip", "6.6.6.6"),
            ("forwarded", r#"for=6.6.6.6;by="a,b", for=1.1.1.1;proto=https"#),
            ("x-forwarded-port", "443"),
        ];
        check(
            1,
            &said,
            &[
                "forwarded: for=1.1.1.1;proto=https, for=10.0.0.9;proto=http",
                "x-forwarded-for: 1.1.1.1, 10.0.0.9",
                "x-forwarded-host: proxy.internal",
                "x-forwarded-port: 443",
                "x-forwarded-proto: http",
                "x-real-ip: 1.1.1.1",
            ],
        );
    }

    #[test]
    fn commas_in_quotes_do_not_split_an_entry() {
        for (list, expected) in [
            (r#"for="a,b", for=c"#, vec![r#"for="a,b""#, "for=c"]),
            (r#"for="a\",b",c"#, vec![r#"for="a\",b""#, "c"]),
            (r#"for="open, c"#, vec![]),
        ] {
            let found: Vec<_> = unquoted_split(list).into_iter().map(str::trim).collect();
            assert_eq!(found, expected, "{list}");
        }
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
