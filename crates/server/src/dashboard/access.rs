//! [`BrowserAccess`]: sessions of people who log in with a token, and the checks that keep other web
//! pages out of the admin listener.
//!
//! | request | is accepted if |
//! |---|---|
//! | with a bearer token | the token has the scope; nothing else, because no web page can make a browser send it |
//! | with a session cookie | the session is open, its token is still valid and has the scope; a change also needs an `Origin` of this host |
//! | without tokens in the configuration, from a browser | `Origin` and `Host` name this machine, so that no page of another host gets in, not even under a name that it points here (DNS rebinding) |
//! | the same, for the dashboard | the listener is also bound to a loopback address |

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use sluicegate_core::time::{Clock, Span, Timestamp};

use crate::auth::{AuthError, Caller, Tokens, hash};

/// Name of the cookie.
const COOKIE: &str = "sluicegate_session";
/// Length of a session.
const SESSION: Span = Span::from_secs(12 * 3_600);
/// Maximum number of open sessions; the one that ends first makes room.
const SESSIONS_MAX: usize = 1_000;

/// The browsers that may use the admin listener.
pub struct BrowserAccess {
    clock: Arc<dyn Clock>,
    /// True if the listener is bound to a loopback address.
    loopback: bool,
    /// True if the listener uses TLS, so that the cookie never travels without it.
    tls: bool,
    /// Sessions by the hash of their cookie.
    sessions: Mutex<HashMap<[u8; 32], Session>>,
}

struct Session {
    /// Hash of the token, so that the session ends with the token.
    token: [u8; 32],
    ends: Timestamp,
}

impl BrowserAccess {
    /// Creates the access of a listener on `host`.
    pub fn new(clock: impl Clock + 'static, host: &str, tls: bool) -> Self {
        let loopback = is_loopback(host);
        Self { clock: Arc::new(clock), loopback, tls, sessions: Mutex::default() }
    }

    /// Opens a session for a token. Returns the `Set-Cookie` header, or `None` if the system has no
    /// random numbers.
    pub(super) fn open(&self, token: &[u8]) -> Option<HeaderValue> {
        let mut random = [0_u8; 32];
        getrandom::fill(&mut random).ok()?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = self.clock.now();
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.ends > now);
        if sessions.len() == SESSIONS_MAX {
            let first = sessions.iter().min_by_key(|(_, session)| session.ends);
            if let Some(first) = first.map(|(id, _)| *id) {
                sessions.remove(&first);
            }
        }
        sessions.insert(hash(id.as_bytes()), Session { token: hash(token), ends: now + SESSION });
        self.set_cookie(&id, SESSION.as_secs_ceil())
    }

    /// Ends the session of a request. Returns the `Set-Cookie` header that removes the cookie.
    pub(super) fn close(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if let Some(id) = session_id(headers) {
            self.lock().remove(&hash(id.as_bytes()));
        }
        self.set_cookie("", 0)
    }

    fn set_cookie(&self, id: &str, seconds: u64) -> Option<HeaderValue> {
        let secure = if self.tls { "; Secure" } else { "" };
        let text =
            format!("{COOKIE}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
        HeaderValue::try_from(text).ok()
    }

    /// Returns the caller of a request with a session cookie; `Missing` if it has none.
    pub(crate) fn session_caller(
        &self,
        tokens: &Tokens,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Caller, AuthError> {
        let id = session_id(headers).ok_or(AuthError::Missing)?;
        let now = self.clock.now();
        let token = {
            let sessions = self.lock();
            let session = sessions.get(&hash(id.as_bytes())).filter(|session| session.ends > now);
            session.map(|session| session.token).ok_or(AuthError::SessionOver)?
        };
        let caller = tokens.holder_of_hash(&token).ok_or(AuthError::SessionOver)?;
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let origin = headers.get(header::ORIGIN);
        if origin.is_some_and(|origin| !is_same_host(origin, uri, headers))
            || !is_read && origin.is_none()
        {
            return Err(AuthError::CrossOrigin);
        }
        Ok(caller.clone())
    }

    /// Checks a request to a listener without tokens.
    pub(crate) fn check_anonymous(
        &self,
        path: &str,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), AuthError> {
        let origin = headers.get(header::ORIGIN);
        if origin.is_some_and(|origin| !is_same_host(origin, uri, headers)) {
            return Err(AuthError::CrossOrigin);
        }
        let dashboard = is_page(path) || path.starts_with("/v1/dashboard/");
        if dashboard && !self.loopback {
            return Err(AuthError::NotLocal);
        }
        if (dashboard || is_from_browser(headers)) && !names_loopback(uri, headers) {
            return Err(AuthError::CrossOrigin);
        }
        Ok(())
    }

    /// Checks a request to a listener without tokens and without a dashboard, for an endpoint that
    /// shows or changes the service. Refuses web pages of other hosts. On a loopback address it
    /// also refuses browsers that use another host name, against DNS rebinding.
    pub(crate) fn check_web_page(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AuthError> {
        if !is_own_page(uri, headers)
            || self.loopback && is_from_browser(headers) && !names_loopback(uri, headers)
        {
            return Err(AuthError::CrossOrigin);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints no session.
impl fmt::Debug for BrowserAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrowserAccess").field("loopback", &self.loopback).finish_non_exhaustive()
    }
}

/// Returns true for paths that contain no data: the page, its assets, logging in and out.
pub(crate) fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/login" | "/logout") || path.starts_with("/assets/")
}

/// Returns true unless the request comes from a web page of another host.
pub(super) fn is_own_page(uri: &Uri, headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_none_or(|origin| is_same_host(origin, uri, headers))
}

/// Returns true if a browser sent the request. Over plain HTTP, a rebound page of another host
/// sends neither `Origin` with a GET nor `Sec-Fetch-Site`. But browsers always send
/// `Accept-Language`, and other programs hardly ever do.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let is_browser = |agent: &HeaderValue| agent.as_bytes().starts_with(b"Mozilla/");
    ["origin", "sec-fetch-site", "accept-language"].iter().any(|name| headers.contains_key(*name))
        || headers.get(header::USER_AGENT).is_some_and(is_browser)
}

/// Returns true if the request names this machine by a loopback address or as `localhost`.
fn names_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    host_of(uri, headers).is_some_and(|host| is_loopback(without_port(host)))
}

fn session_id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, id)| id.trim())
}

/// Returns the host and port that the request names.
fn host_of<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 has the host in the URI.
    header.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

/// Returns true if an `Origin` header names the host of the request.
fn is_same_host(origin: &HeaderValue, uri: &Uri, headers: &HeaderMap) -> bool {
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = host_of(uri, headers);
    origin.zip(host).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&'static str, &str)| {
            (name.parse().expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[track_caller]
    fn check(
        bound: &str,
        path: &str,
        pairs: &[(&'static str, &str)],
        expected: Result<(), AuthError>,
    ) {
        let access = BrowserAccess::new(Timestamp::ZERO, bound, false);
        let uri = Uri::try_from(path).expect("a path");
        assert_eq!(access.check_anonymous(path, &uri, &headers(pairs)), expected, "{pairs:?}");
    }

    #[test]
    fn without_tokens_the_dashboard_is_for_this_machine() {
        for host in ["127.0.0.1:9090", "localhost", "LOCALHOST:1", "[::1]:9090", "127.8.8.8"] {
            check("127.0.0.1", "/", &[("host", host)], Ok(()));
        }
        for host in ["evil.example", "127.0.0.1.evil.example:9090", "192.168.0.1", "[::2]", ""] {
            check("127.0.0.1", "/", &[("host", host)], Err(AuthError::CrossOrigin));
            check("::1", "/v1/dashboard/series", &[("host", host)], Err(AuthError::CrossOrigin));
        }
        check("127.0.0.1", "/", &[], Err(AuthError::CrossOrigin));
        check("0.0.0.0", "/", &[("host", "localhost")], Err(AuthError::NotLocal));
        check("0.0.0.0", "/v1/dashboard/x", &[("host", "localhost")], Err(AuthError::NotLocal));
    }

    #[test]
    fn programs_may_use_any_name_of_a_listener_without_tokens() {
        check("0.0.0.0", "/metrics", &[("host", "node-1:9090")], Ok(()));
        check("0.0.0.0", "/reload", &[("host", "node-1:9090")], Ok(()));
    }

    #[test]
    fn other_web_pages_get_nothing() {
        let evil = ("origin", "http://evil.example");
        for path in ["/", "/reload", "/v1/overrides", "/v1/dashboard/events"] {
            check("127.0.0.1", path, &[("host", "localhost:1"), evil], Err(AuthError::CrossOrigin));
            let rebound = [("host", "evil.example"), evil];
            check("127.0.0.1", path, &rebound, Err(AuthError::CrossOrigin));
            let fetched = [("host", "evil.example"), ("sec-fetch-site", "same-origin")];
            check("127.0.0.1", path, &fetched, Err(AuthError::CrossOrigin));
            let own = [("host", "localhost:1"), ("origin", "http://localhost:1")];
            check("127.0.0.1", path, &own, Ok(()));
        }
        check(
            "127.0.0.1",
            "/",
            &[("host", "localhost"), ("origin", "null")],
            Err(AuthError::CrossOrigin),
        );
    }

    #[test]
    fn a_page_that_was_rebound_to_this_host_reads_nothing() {
        // A GET of a page of the same origin over plain HTTP: no Origin, no Sec-Fetch-Site.
        for browser in [("accept-language", "en"), ("user-agent", "Mozilla/5.0 (X11)")] {
            let rebound = [("host", "evil.example:9090"), browser];
            for path in ["/metrics", "/v1/overrides", "/v1/reservations", "/"] {
                check("127.0.0.1", path, &rebound, Err(AuthError::CrossOrigin));
            }
            check("127.0.0.1", "/metrics", &[("host", "localhost:9090"), browser], Ok(()));
        }
        check("127.0.0.1", "/metrics", &[("host", "node-1"), ("user-agent", "curl/8")], Ok(()));
    }

    #[test]
    fn pages_of_other_hosts_use_no_endpoint_of_a_listener_without_a_dashboard() {
        let check = |bound: &str, pairs: &[(&'static str, &str)], allowed: bool| {
            let access = BrowserAccess::new(Timestamp::ZERO, bound, false);
            let uri = Uri::from_static("/v1/reset?all=true");
            let checked = access.check_web_page(&uri, &headers(pairs));
            assert_eq!(checked.is_ok(), allowed, "{bound} {pairs:?}");
        };
        let evil = ("origin", "http://evil.example");
        check("127.0.0.1", &[("host", "127.0.0.1:8080"), evil], false);
        check("0.0.0.0", &[("host", "10.0.0.7:8080"), evil], false);
        check("127.0.0.1", &[("host", "evil.example:8080"), ("accept-language", "en")], false);
        check("127.0.0.1", &[("host", "localhost:8080"), ("accept-language", "en")], true);
        check("127.0.0.1", &[("host", "limiter"), ("user-agent", "python-requests/2")], true);
        check("0.0.0.0", &[("host", "limiter:8080"), ("accept-language", "en")], true);
    }

    fn cookie_of(set: &HeaderValue) -> String {
        let text = set.to_str().expect("text");
        assert!(text.contains("; HttpOnly; SameSite=Strict;"), "{text}");
        text.split(';').next().expect("a cookie").to_owned()
    }

    #[test]
    fn a_session_lasts_until_it_is_closed_or_its_token_is_gone() {
        let access = BrowserAccess::new(Timestamp::ZERO, "127.0.0.1", false);
        let tokens = |name: &str| Tokens::new([("ann", hash(name.as_bytes()))]).expect("tokens");
        let cookie = cookie_of(&access.open(b"t1").expect("a session"));
        let uri = Uri::from_static("/v1/dashboard/series");
        let with = |pairs: &[(&'static str, &str)]| headers(pairs);
        let get = with(&[("cookie", &format!("a=b; {cookie}"))]);
        let found = access.session_caller(&tokens("t1"), &Method::GET, &uri, &get);
        assert_eq!(found.as_ref().map(Caller::name), Ok("ann"));
        let other = access.session_caller(&tokens("t2"), &Method::GET, &uri, &get);
        assert_eq!(other, Err(AuthError::SessionOver));
        let forged = with(&[("cookie", "sluicegate_session=00")]);
        let forged = access.session_caller(&tokens("t1"), &Method::GET, &uri, &forged);
        assert_eq!(forged, Err(AuthError::SessionOver));
        let none = access.session_caller(&tokens("t1"), &Method::GET, &uri, &with(&[]));
        assert_eq!(none, Err(AuthError::Missing));
        assert!(access.close(&get).is_some());
        let closed = access.session_caller(&tokens("t1"), &Method::GET, &uri, &get);
        assert_eq!(closed, Err(AuthError::SessionOver));
    }

    #[test]
    fn a_change_by_cookie_needs_an_origin_of_this_host() {
        let access = BrowserAccess::new(Timestamp::ZERO, "0.0.0.0", true);
        let tokens = Tokens::new([("ann", hash(b"t1"))]).expect("tokens");
        let set = access.open(b"t1").expect("a session");
        assert!(set.to_str().expect("text").ends_with("; Secure"));
        let cookie = cookie_of(&set);
        let uri = Uri::from_static("/v1/overrides");
        for (origin, allowed) in [
            (Some("https://node-1:9090"), true),
            (Some("https://evil.example"), false),
            (Some("null"), false),
            (None, false),
        ] {
            let mut pairs = vec![("cookie", cookie.as_str()), ("host", "node-1:9090")];
            pairs.extend(origin.map(|origin| ("origin", origin)));
            let found = access.session_caller(&tokens, &Method::POST, &uri, &headers(&pairs));
            assert_eq!(found.is_ok(), allowed, "{origin:?}");
        }
    }

    #[test]
    fn the_number_of_sessions_has_a_maximum() {
        let access = BrowserAccess::new(Timestamp::ZERO, "127.0.0.1", false);
        for _ in 0..SESSIONS_MAX + 5 {
            access.open(b"t1").expect("a session");
        }
        assert_eq!(access.lock().len(), SESSIONS_MAX);
    }
}
