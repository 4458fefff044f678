//! Credentials for an upstream, which callers never see. [`Signer`] adds them to requests.
//!
//! A login token is cached for nine tenths of its lifetime, or until the upstream refuses it.
//! Concurrent requests share one login.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Limited};
use sluicegate_config::{Credentials, Login, SecretSource};
use sluicegate_core::time::{Clock, Span, Timestamp};
use tokio::sync::Mutex;
use tracing::warn;

use super::client::Upstream;
use super::secret::{SecretError, Secrets, read_secret};

/// Maximum size of a login response.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const LOGIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Adds credentials to requests.
pub struct Signer {
    kind: SignerKind,
    /// Values to remove from upstream responses before anyone reads them.
    secrets: Secrets,
}

enum SignerKind {
    Nothing,
    Fixed(Vec<(HeaderName, HeaderValue)>),
    Login { login: Box<Login>, body: String, token: Mutex<Option<Token>> },
}

struct Token {
    value: HeaderValue,
    renew_at: Timestamp,
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file can't be read.
    #[error(transparent)]
    Unreadable(#[from] SecretError),
    /// They contain characters that a header cannot contain.
    #[error(
        "the credentials contain characters that a header field cannot contain: check for a line break"
    )]
    Unsendable,
}

/// A failed login; the log contains the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("login at the upstream failed: no token")]
pub struct LoginError;

impl Signer {
    /// Reads the credentials, from their files if needed.
    pub fn new(credentials: Option<&Credentials>) -> Result<Self, CredentialsError> {
        let mut secrets = Secrets::default();
        let mut read = |secret: &SecretSource| -> Result<String, CredentialsError> {
            let text = read_secret(secret)?;
            secrets.add(&text);
            Ok(text)
        };
        let kind = match credentials {
            None => SignerKind::Nothing,
            Some(Credentials::Basic { user, password }) => {
                let pair = format!("{}:{}", read_secret(user)?, read(password)?);
                let encoded = read(&BASE64_STANDARD.encode(pair).as_str().into())?;
                SignerKind::Fixed(vec![(AUTHORIZATION, sensitive(&format!("Basic {encoded}"))?)])
            }
            Some(Credentials::Bearer(token)) => {
                let value = format!("Bearer {}", read(token)?);
                SignerKind::Fixed(vec![(AUTHORIZATION, sensitive(&value)?)])
            }
            Some(Credentials::Headers(fields)) => {
                let mut field = |(name, value): &(HeaderName, SecretSource)| {
                    Ok((name.clone(), sensitive(&read(value)?)?))
                };
                SignerKind::Fixed(
                    fields.iter().map(&mut field).collect::<Result<_, CredentialsError>>()?,
                )
            }
            Some(Credentials::Login(login)) => {
                let body = read(&login.body)?;
                SignerKind::Login { login: login.clone(), body, token: Mutex::new(None) }
            }
        };
        Ok(Self { kind, secrets })
    }

    /// Returns the secret values sent to the upstream, so that they can be removed from its
    /// responses. Login tokens are not included.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Returns true if the token comes from a login, so that a refused one can be replaced.
    pub fn logs_in(&self) -> bool {
        matches!(self.kind, SignerKind::Login { .. })
    }

    /// Logs in if needed, so that a `sign` right after it does not wait.
    pub async fn prepare(&self, upstream: &Upstream, clock: &dyn Clock) -> Result<(), LoginError> {
        match &self.kind {
            SignerKind::Nothing | SignerKind::Fixed(_) => Ok(()),
            SignerKind::Login { login, body, token } => {
                // Boxed, here and below: requests without a login need no room for it.
                Box::pin(current(login, body, token, upstream, clock)).await.map(drop)
            }
        }
    }

    /// Adds the credentials, replacing header fields that the caller sent.
    pub async fn sign(
        &self,
        headers: &mut HeaderMap,
        upstream: &Upstream,
        clock: &dyn Clock,
    ) -> Result<(), LoginError> {
        match &self.kind {
            SignerKind::Nothing => {}
            SignerKind::Fixed(fields) => {
                for (name, value) in fields {
                    headers.insert(name, value.clone());
                }
            }
            SignerKind::Login { login, body, token } => {
                let value = Box::pin(current(login, body, token, upstream, clock)).await?;
                headers.insert(&login.header, value);
            }
        }
        Ok(())
    }

    /// Discards the token after the upstream refused it; the next request logs in again.
    pub async fn refused(&self) {
        if let SignerKind::Login { token, .. } = &self.kind {
            *token.lock().await = None;
        }
    }
}

fn sensitive(text: &str) -> Result<HeaderValue, CredentialsError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| CredentialsError::Unsendable)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the cached token, or logs in if it has expired.
async fn current(
    login: &Login,
    body: &str,
    token: &Mutex<Option<Token>>,
    upstream: &Upstream,
    clock: &dyn Clock,
) -> Result<HeaderValue, LoginError> {
    let mut token = token.lock().await;
    let now = clock.now();
    if let Some(token) = token.as_ref().filter(|token| token.renew_at > now) {
        return Ok(token.value.clone());
    }
    let new = log_in(login, body, upstream, now).await?;
    Ok(token.insert(new).value.clone())
}

/// Reads a lifetime in seconds: a number, or a text that contains one, with or without decimals.
fn lifetime(said: &serde_json::Value) -> Option<Span> {
    let seconds = match said {
        serde_json::Value::Number(number) => number.as_f64()?,
        serde_json::Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let seconds = Some(seconds).filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)?;
    // The cast saturates.
    Some(Span::from_micros((seconds * 1e6) as u64))
}

/// Requests a token.
async fn log_in(
    login: &Login,
    body: &str,
    upstream: &Upstream,
    now: Timestamp,
) -> Result<Token, LoginError> {
    let failed = |why: &'static str| {
        // Neither the request nor the response is logged: both contain secrets.
        warn!(url = %login.url, why, "upstream login failed");
        LoginError
    };
    let request = Request::post(login.url.clone())
        .header(CONTENT_TYPE, login.content_type.as_str())
        .body(Body::from(body.to_owned()));
    let request = request.map_err(|_| failed("cannot build the request"))?;
    let response =
        upstream.send(request, LOGIN_TIME_MAX).await.map_err(|_| failed("no response"))?;
    if !response.status().is_success() {
        return Err(failed("the upstream refused it"));
    }
    let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let answer = tokio::time::timeout(LOGIN_TIME_MAX, answer).await;
    let answer = answer.map_err(|_| failed("the response took too long"))?;
    let answer = answer.map_err(|_| failed("the response is incomplete or too large"))?.to_bytes();
    let answer: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|_| failed("the response is not JSON"))?;
    let token = answer.pointer(&login.token).and_then(serde_json::Value::as_str);
    let token =
        token.ok_or_else(|| failed("the response has no token at the configured pointer"))?;
    let text = match login.scheme.as_str() {
        "" => token.to_owned(),
        scheme => format!("{scheme} {token}"),
    };
    let value = sensitive(&text).map_err(|_| failed("the token contains invalid characters"))?;
    let said = answer.pointer(&login.expires_in);
    let life = said.and_then(lifetime).unwrap_or_else(|| {
        if said.is_some_and(|said| !said.is_null()) {
            let (url, ttl) = (&login.url, login.ttl);
            // Without the value: a wrong pointer may lead to the token.
            warn!(%url, ?ttl, "expires_in of the login is not a number of seconds: using ttl");
        }
        login.ttl
    });
    let renew_at = now + Span::from_micros(life.as_micros() / 10 * 9);
    Ok(Token { value, renew_at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lifetime_is_read_from_numbers_and_texts() {
        for (said, expected) in [
            (json!(3600), Some(3_600_000)),
            (json!(3599.5), Some(3_599_500)),
            (json!("3600"), Some(3_600_000)),
            (json!(" 3599.5 "), Some(3_599_500)),
            (json!(0), Some(0)),
            (json!(1e300), Some(Span::from_micros(u64::MAX).as_micros() / 1_000)),
            (json!(-1), None),
            (json!("soon"), None),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!(""), None),
            (json!(true), None),
            (json!({ "seconds": 1 }), None),
        ] {
            let found = lifetime(&said).map(|span| span.as_micros() / 1_000);
            assert_eq!(found, expected, "{said}");
        }
    }
}
