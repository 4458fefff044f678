//! The first step, identify: finds the caller and the route of a request.
//!
//! Requests that proxies are known to interpret differently are rejected here, before anything else
//! is read.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use percent_encoding::percent_decode_str;
use sluicegate_config::{HeaderDimension, PathPattern, RouteOptions};
use sluicegate_http::listener::AmbiguousLength;
use sluicegate_http::tokens::{Caller, Tokens};

use crate::forward::tunnel;
use crate::refusal::Refusal;

/// Methods that a route accepts if it lists none.
///
/// Others, such as those of WebDAV, are accepted as well, except [`NEEDS_LISTING`] and [`NEVER`].
const USUAL: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// Methods that only a route that lists them accepts: the upstream returns the request with the
/// credentials that the gateway added.
const NEEDS_LISTING: [&str; 2] = ["TRACE", "TRACK"];
/// Method of forward proxies, which no route accepts.
const NEVER: &str = "CONNECT";

/// Rejects a request whose framing or target proxies interpret differently.
pub(crate) fn check_form(parts: &Parts) -> Result<(), Refusal> {
    let http1 = parts.version < Version::HTTP_2;
    // Upstreams may ignore the case of a method.
    if parts.method.as_str().eq_ignore_ascii_case(NEVER) {
        return Err(Refusal::Method(USUAL.to_owned()));
    }
    if http1 && (parts.uri.scheme().is_some() || parts.uri.authority().is_some()) {
        return Err(Refusal::BadRequest("an absolute URI is for forward proxies: send a path"));
    }
    if !parts.uri.path().starts_with('/') {
        return Err(Refusal::BadRequest("send a path that begins with /"));
    }
    // hyper drops the header field that it does not use, so the listener marks such requests.
    if parts.extensions.get::<AmbiguousLength>().is_some() {
        return Err(Refusal::BadRequest("send either Content-Length or Transfer-Encoding"));
    }
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next().map(|value| value.as_bytes());
    let odd = coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"chunked"));
    if odd || codings.next().is_some() {
        return Err(Refusal::BadRequest("the only Transfer-Encoding is chunked"));
    }
    check_host(parts)
}

/// Rejects a request without a host, with several, or with an invalid one: upstreams use it in
/// links, redirects and cache keys.
fn check_host(parts: &Parts) -> Result<(), Refusal> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    // HTTP/2 has the host in `:authority`, HTTP/1.0 may have none.
    if hosts.next().is_some() || host.is_none() && parts.version == Version::HTTP_11 {
        return Err(Refusal::BadRequest("send exactly one Host header"));
    }
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    if !host.into_iter().chain(authority).all(is_host) {
        return Err(Refusal::BadRequest("the host is invalid: send a name or an address"));
    }
    match host.zip(authority) {
        Some((host, authority)) if !host.eq_ignore_ascii_case(authority) => {
            Err(Refusal::BadRequest("Host and :authority differ: send only one of them"))
        }
        _ => Ok(()),
    }
}

/// Returns true for the name or address of a host, with or without a port.
fn is_host(host: &[u8]) -> bool {
    let (name_is_valid, rest) = match host.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let address = std::str::from_utf8(&rest[..end]).unwrap_or_default();
            (address.parse::<Ipv6Addr>().is_ok(), &rest[end + 1..])
        }
        None => {
            let end = host.iter().position(|byte| *byte == b':').unwrap_or(host.len());
            let (name, rest) = host.split_at(end);
            let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
            let has_empty_label = name.starts_with(b".") || name.windows(2).any(|two| two == b"..");
            (!name.is_empty() && name.iter().all(allowed) && !has_empty_label, rest)
        }
    };
    let port_is_valid = match rest.strip_prefix(b":") {
        None => rest.is_empty(),
        Some(port) => {
            let number = std::str::from_utf8(port).ok().and_then(|port| port.parse::<u16>().ok());
            port.is_empty() || port.iter().all(u8::is_ascii_digit) && number.is_some()
        }
    };
    name_is_valid && port_is_valid
}

/// Authentication of callers by token.
pub(crate) struct CallerAuth {
    /// Header field that contains the token.
    pub(crate) header: HeaderName,
    /// Accepted tokens.
    pub(crate) tokens: Arc<Tokens>,
}

/// Returns the caller that the token of a request belongs to.
pub(crate) fn caller(auth: Option<&CallerAuth>, headers: &HeaderMap) -> Result<Caller, Refusal> {
    let Some(CallerAuth { header, tokens }) = auth else { return Ok(Caller::anonymous()) };
    let refuse = |why| Err(Refusal::Unauthorized(why, header.to_string()));
    let mut values = headers.get_all(header).iter();
    let Some(value) = values.next() else { return refuse("a token is required") };
    if values.next().is_some() {
        return refuse("more than one token");
    }
    let token = value.as_bytes();
    // Some clients can send tokens only as `Authorization: Bearer`.
    let token = match header == header::AUTHORIZATION {
        true => strip_bearer(token),
        false => token,
    };
    match tokens.holder(token) {
        Some(caller) => Ok(caller.clone()),
        None => refuse("unknown token"),
    }
}

fn strip_bearer(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => value,
    }
}

/// Returns the first route that matches the path, and the part of the path after the match.
pub(crate) fn route<'r, 'p, R>(
    routes: &'r [R],
    options: impl Fn(&R) -> &RouteOptions,
    path: &'p str,
) -> Result<(&'r R, &'p str), Refusal> {
    let found = routes.iter().find_map(|route| Some((route, options(route).path.rest(path)?)));
    let (route, rest) = found.ok_or(Refusal::NoRoute)?;
    // The upstream would resolve them to a path outside of the route's prefix.
    if matches!(options(route).path, PathPattern::Prefix(_)) && has_dots(path) {
        return Err(Refusal::BadRequest("the path has . or .. segments: send the resolved path"));
    }
    Ok((route, rest))
}

/// Rejects a request without a required dimension, and one with two values of a dimension: it would
/// bypass the limits by that dimension, because the upstream may use the value that is not counted.
pub(crate) fn check_dimensions(
    dimensions: &BTreeMap<String, HeaderDimension>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let is_twice = |of: &HeaderDimension| headers.get_all(&of.header).iter().nth(1).is_some();
    if dimensions.values().any(is_twice) {
        let why = "a header field that limits are counted by is there twice: send it once";
        return Err(Refusal::BadRequest(why));
    }
    let missing = |(_, of): &(_, &HeaderDimension)| of.required && value(of, headers).is_none();
    match dimensions.iter().find(missing) {
        None => Ok(()),
        Some((name, HeaderDimension { header, .. })) => {
            Err(Refusal::MissingHeader { header: header.to_string(), dimension: name.clone() })
        }
    }
}

/// Returns the value of a dimension, or `None` if the header field is missing, empty or not ASCII.
pub(crate) fn value<'h>(dimension: &HeaderDimension, headers: &'h HeaderMap) -> Option<&'h str> {
    headers.get(&dimension.header)?.to_str().ok().filter(|value| !value.is_empty())
}

fn has_dots(path: &str) -> bool {
    let decoded = percent_decode_str(path).collect::<Vec<u8>>();
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| matches!(part, b"." | b".."))
}

/// Rejects a request whose method, size or upgrade the route does not allow.
pub(crate) fn check_route(route: &RouteOptions, parts: &Parts) -> Result<(), Refusal> {
    let needs_listing =
        || NEEDS_LISTING.iter().any(|name| parts.method.as_str().eq_ignore_ascii_case(name));
    let listed = route.methods.contains(&parts.method);
    if !listed && (!route.methods.is_empty() || needs_listing()) {
        let methods: Vec<_> = route.methods.iter().map(Method::as_str).collect();
        let methods = if methods.is_empty() { USUAL.to_owned() } else { methods.join(", ") };
        return Err(Refusal::Method(methods));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|length| length.parse::<u64>().ok()) > Some(route.body_limit.0) {
        return Err(Refusal::TooLarge(route.body_limit.0));
    }
    if tunnel::requested_protocol(parts).is_some() && !route.upgrades {
        return Err(Refusal::Upgrade);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    #[track_caller]
    fn check(request: axum::http::request::Builder, ok: bool) {
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        if parts.version < Version::HTTP_2 && !parts.headers.contains_key(header::HOST) {
            parts.headers.insert(header::HOST, HeaderValue::from_static("here"));
        }
        assert_eq!(check_form(&parts).is_ok(), ok, "{parts:?}");
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        check(Request::get("/a"), true);
        check(Request::get("http://elsewhere/a"), false);
        check(Request::get("http://here/a").version(Version::HTTP_2), true);
        check(Request::options("*"), false);
        check(Request::connect("here:80"), false);
        check(Request::post("/").header("transfer-encoding", "chunked"), true);
        check(Request::post("/").header("transfer-encoding", "Chunked"), true);
        for odd in ["gzip, chunked", "chunked, chunked", "identity", " chunked;q=1", "xchunked"] {
            check(Request::post("/").header("transfer-encoding", odd), false);
        }
        let twice = Request::post("/").header("transfer-encoding", "chunked");
        check(twice.header("transfer-encoding", "chunked"), false);
        check(Request::get("/").header("host", "a").header("host", "b"), false);
    }

    #[test]
    fn a_dimension_with_two_values_is_rejected() {
        let header = HeaderName::from_static("x-tenant");
        let of = |required| HeaderDimension { header: header.clone(), required };
        let mut headers = HeaderMap::new();
        headers.append(&header, HeaderValue::from_static("decoy"));
        for required in [false, true] {
            let dimensions = BTreeMap::from([("tenant".to_owned(), of(required))]);
            assert!(check_dimensions(&dimensions, &headers).is_ok());
        }
        headers.append(&header, HeaderValue::from_static("victim"));
        for required in [false, true] {
            let dimensions = BTreeMap::from([("tenant".to_owned(), of(required))]);
            let refused = check_dimensions(&dimensions, &headers);
            assert!(matches!(refused, Err(Refusal::BadRequest(_))));
        }
    }

    #[test]
    fn hosts_are_names_and_addresses_with_or_without_a_port() {
        for host in ["a", "a.b.", "a-1_b.example:80", "a:", "127.0.0.1:65535", "[::1]", "[::1]:80"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "", ":80", "x/../y", "a/b", "a b", "a,b", "a@b", "a?b", "a#b", "a\\b", "a..b", ".a",
            "a:b", "a:+1", "a:65536", "a:80:80", "[::1", "[x]", "[::1]x", "a%2fb", "é", "a\"b",
            "<a>",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn the_host_of_http2_is_in_its_authority() {
        let http2 = || Request::get("http://here/a").version(Version::HTTP_2);
        check(http2().header("host", "HERE"), true);
        check(http2().header("host", "there"), false);
        check(Request::get("http://a@b/").version(Version::HTTP_2), false);
    }

    #[test]
    fn dot_segments_are_found_in_every_encoding() {
        for path in ["/a/../b", "/a/./b", "/a/%2e%2E/b", "/a%2f..%2fb", "/..", "/a\\..\\b"] {
            assert!(has_dots(path), "{path}");
        }
        for path in ["/", "/a/b..c", "/...", "/a.b"] {
            assert!(!has_dots(path), "{path}");
        }
    }
}
