//! The first step, identify: finds the caller and the route of a request.
//!
//! Requests that proxies are known to interpret differently are rejected here, before anything else
//! is read.

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Version, header};
use percent_encoding::percent_decode_str;
use sluicegate_http::listener::AmbiguousLength;
use sluicegate_http::tokens::Caller;

use crate::options::{Auth, DimensionSource, PathPattern, Route};
use crate::refusal::Refusal;

/// Rejects a request whose framing or target proxies interpret differently.
pub(crate) fn check_form(parts: &Parts) -> Result<(), Refusal> {
    let http1 = parts.version < Version::HTTP_2;
    if parts.method == Method::CONNECT {
        return Err(Refusal::BadRequest("CONNECT is for forward proxies: send the request itself"));
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
    if http1 && parts.headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Refusal::BadRequest("send exactly one Host header"));
    }
    Ok(())
}

/// Returns the caller that the token of a request belongs to.
pub(crate) fn caller(auth: Option<&Auth>, headers: &HeaderMap) -> Result<Caller, Refusal> {
    let Some(Auth { header, tokens }) = auth else { return Ok(Caller::anonymous()) };
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
    options: impl Fn(&R) -> &Route,
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

/// Rejects a request without a required dimension: it would bypass the limits by that dimension.
pub(crate) fn check_dimensions(
    dimensions: &[DimensionSource],
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let missing = |of: &&DimensionSource| of.required && of.value(headers).is_none();
    match dimensions.iter().find(missing) {
        None => Ok(()),
        Some(DimensionSource { name, header, .. }) => {
            Err(Refusal::MissingHeader { header: header.to_string(), dimension: name.clone() })
        }
    }
}

fn has_dots(path: &str) -> bool {
    let decoded = percent_decode_str(path).collect::<Vec<u8>>();
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| matches!(part, b"." | b".."))
}

/// Rejects a request whose method, size or upgrade the route does not allow.
pub(crate) fn check_route(route: &Route, parts: &Parts) -> Result<(), Refusal> {
    if !route.methods.is_empty() && !route.methods.contains(&parts.method) {
        let methods: Vec<_> = route.methods.iter().map(Method::as_str).collect();
        return Err(Refusal::Method(methods.join(", ")));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|length| length.parse::<u64>().ok()) > Some(route.body_limit) {
        return Err(Refusal::TooLarge(route.body_limit));
    }
    if parts.headers.contains_key(header::UPGRADE) && !route.upgrades {
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
        let (parts, ()) = request.body(()).unwrap().into_parts();
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
    fn dot_segments_are_found_in_every_encoding() {
        for path in ["/a/../b", "/a/./b", "/a/%2e%2E/b", "/a%2f..%2fb", "/..", "/a\\..\\b"] {
            assert!(has_dots(path), "{path}");
        }
        for path in ["/", "/a/b..c", "/...", "/a.b"] {
            assert!(!has_dots(path), "{path}");
        }
    }
}
