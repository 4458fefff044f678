//! What the upstream wants to see, which no caller ever does.
//!
//! A token that is asked for is kept until nine tenths of its life are over, or the upstream says
//! that it is not good any more. However many requests need a new one, it is asked for once.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Limited};
use sluicegate_core::time::{Clock, Span, Timestamp};
use tokio::sync::Mutex;
use tracing::warn;

use super::client::Upstream;
use super::secret::{Secret, Secrets, Unreadable};

/// More than any token takes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

/// What the upstream wants to see. Nothing of it is ever printed.
#[derive(Clone)]
pub enum Credentials {
    /// `Authorization: Basic`.
    Basic {
        /// Who.
        user: Secret,
        /// The password.
        password: Secret,
    },
    /// `Authorization: Bearer`.
    Bearer(Secret),
    /// Header fields of the vendor's choice.
    Headers(Vec<(HeaderName, Secret)>),
    /// A token that is asked for, kept and renewed.
    Login(Box<Login>),
}

/// How a token is asked for.
#[derive(Clone)]
pub struct Login {
    /// Where, by POST.
    pub url: Uri,
    /// What is sent.
    pub body: Secret,
    /// Its media type.
    pub content_type: String,
    /// Where the token is in the JSON of the answer, as a JSON pointer.
    pub token: String,
    /// Where the answer says for how many seconds it is good.
    pub expires_in: Option<String>,
    /// How long it is good where the answer does not say.
    pub ttl: Duration,
    /// The header field that carries it.
    pub header: HeaderName,
    /// What stands before it, such as `Bearer`; nothing, if it is empty.
    pub scheme: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Adds credentials to requests.
pub struct Signer {
    kind: Kind,
    /// What an answer may repeat and nobody should read.
    secrets: Secrets,
}

enum Kind {
    Nothing,
    Fixed(Vec<(HeaderName, HeaderValue)>),
    Login { login: Box<Login>, body: String, token: Mutex<Option<Token>> },
}

struct Token {
    value: HeaderValue,
    renew_at: Timestamp,
}

/// Why credentials can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file can't be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// What they are can't be sent.
    #[error(
        "the credentials have characters that no header field can hold: is there a line break?"
    )]
    Unsendable,
}

/// The upstream gave no token to log in with; the log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream gave no token to log in with")]
pub struct LoginFailed;

impl Signer {
    /// Reads the credentials, whichever files they are in.
    pub fn new(credentials: Option<&Credentials>) -> Result<Self, CredentialsError> {
        let mut secrets = Secrets::default();
        let mut read = |secret: &Secret| -> Result<String, CredentialsError> {
            let text = secret.read()?;
            secrets.add(&text);
            Ok(text)
        };
        let kind = match credentials {
            None => Kind::Nothing,
            Some(Credentials::Basic { user, password }) => {
                let pair = format!("{}:{}", user.read()?, read(password)?);
                let encoded = read(&Secret::Text(BASE64_STANDARD.encode(pair)))?;
                Kind::Fixed(vec![(AUTHORIZATION, sensitive(&format!("Basic {encoded}"))?)])
            }
            Some(Credentials::Bearer(token)) => {
                let value = format!("Bearer {}", read(token)?);
                Kind::Fixed(vec![(AUTHORIZATION, sensitive(&value)?)])
            }
            Some(Credentials::Headers(fields)) => {
                let mut field = |(name, value): &(HeaderName, Secret)| {
                    Ok((name.clone(), sensitive(&read(value)?)?))
                };
                Kind::Fixed(fields.iter().map(&mut field).collect::<Result<_, CredentialsError>>()?)
            }
            Some(Credentials::Login(login)) => {
                let body = read(&login.body)?;
                Kind::Login { login: login.clone(), body, token: Mutex::new(None) }
            }
        };
        Ok(Self { kind, secrets })
    }

    /// What the upstream is told, so that nobody reads it in its answers. Tokens that were asked
    /// for are not in it.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Whether a token is asked for, so that one which is refused can be replaced.
    pub fn logs_in(&self) -> bool {
        matches!(self.kind, Kind::Login { .. })
    }

    /// Gets ready what takes time, so that signing right after it takes none.
    pub async fn prepare(&self, upstream: &Upstream, clock: &dyn Clock) -> Result<(), LoginFailed> {
        match &self.kind {
            Kind::Nothing | Kind::Fixed(_) => Ok(()),
            Kind::Login { login, body, token } => {
                // Boxed, as below: requests of all others need not have room for it.
                Box::pin(current(login, body, token, upstream, clock)).await.map(drop)
            }
        }
    }

    /// Puts the credentials in, in the place of whatever a caller sent there.
    pub async fn sign(
        &self,
        headers: &mut HeaderMap,
        upstream: &Upstream,
        clock: &dyn Clock,
    ) -> Result<(), LoginFailed> {
        match &self.kind {
            Kind::Nothing => {}
            Kind::Fixed(fields) => {
                for (name, value) in fields {
                    headers.insert(name, value.clone());
                }
            }
            Kind::Login { login, body, token } => {
                let value = Box::pin(current(login, body, token, upstream, clock)).await?;
                headers.insert(&login.header, value);
            }
        }
        Ok(())
    }

    /// The upstream did not accept them: the next request asks for a new token.
    pub async fn refused(&self) {
        if let Kind::Login { token, .. } = &self.kind {
            *token.lock().await = None;
        }
    }
}

fn sensitive(text: &str) -> Result<HeaderValue, CredentialsError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| CredentialsError::Unsendable)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The token that is good now.
async fn current(
    login: &Login,
    body: &str,
    token: &Mutex<Option<Token>>,
    upstream: &Upstream,
    clock: &dyn Clock,
) -> Result<HeaderValue, LoginFailed> {
    let mut token = token.lock().await;
    let now = clock.now();
    if let Some(token) = token.as_ref().filter(|token| token.renew_at > now) {
        return Ok(token.value.clone());
    }
    let new = log_in(login, body, upstream, now).await?;
    Ok(token.insert(new).value.clone())
}

/// Asks for a token.
async fn log_in(
    login: &Login,
    body: &str,
    upstream: &Upstream,
    now: Timestamp,
) -> Result<Token, LoginFailed> {
    let failed = |why: &'static str| {
        // Neither what was sent nor what was answered: both hold secrets.
        warn!(url = %login.url, why, "no token to log in with");
        LoginFailed
    };
    let request = Request::post(login.url.clone())
        .header(CONTENT_TYPE, login.content_type.as_str())
        .body(Body::from(body.to_owned()));
    let request = request.map_err(|_| failed("the request can't be made"))?;
    let response =
        upstream.send(request, PATIENCE).await.map_err(|_| failed("there was no answer"))?;
    if !response.status().is_success() {
        return Err(failed("it was refused"));
    }
    let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let answer = answer.map_err(|_| failed("the answer took too long"))?;
    let answer = answer.map_err(|_| failed("the answer broke off, or has no end"))?.to_bytes();
    let answer: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|_| failed("the answer is not JSON"))?;
    let token = answer.pointer(&login.token).and_then(serde_json::Value::as_str);
    let token = token.ok_or_else(|| failed("there is no token where it should be"))?;
    let text = match login.scheme.as_str() {
        "" => token.to_owned(),
        scheme => format!("{scheme} {token}"),
    };
    let value = sensitive(&text).map_err(|_| failed("the token can't be sent"))?;
    let said = login.expires_in.as_deref().and_then(|place| answer.pointer(place)?.as_u64());
    let life = said.map_or(Span::from(login.ttl), Span::from_secs);
    let renew_at = now + Span::from_micros(life.as_micros() / 10 * 9);
    Ok(Token { value, renew_at })
}
