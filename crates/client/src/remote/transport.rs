//! [`Transport`]: sends a call to the service and reads its whole answer within the deadline.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use sluicegate_http::upstream::{ClientOptions, SendError, Upstream, is_address};
use tokio::time::timeout;

use crate::error::Error;

/// Maximum size of an answer: a few KB are usual.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The connections to a service.
pub(super) struct Transport {
    upstream: Upstream,
    /// Address without a slash at the end.
    base: String,
    authorization: Option<HeaderValue>,
    deadline: Duration,
}

/// An answer of the service.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

/// A call that got no answer.
#[derive(Debug)]
pub(super) struct NoAnswer {
    pub(super) reason: String,
    /// True if a connection broke: the service may have restarted.
    broken: bool,
}

impl NoAnswer {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), broken: false }
    }
}

impl Transport {
    pub(super) fn new(
        url: &str,
        token: Option<&str>,
        deadline: Duration,
        ca: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let base = url.trim_end_matches('/').to_owned();
        let is_usable =
            base.parse::<Uri>().is_ok_and(|uri| is_address(&uri) && uri.query().is_none());
        if !is_usable {
            let message = format!("url {url:?}: write an address such as http://127.0.0.1:8080");
            return Err(Error::configuration(message));
        }
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let authorization = authorization.transpose().map_err(|_| {
            Error::configuration("token: contains characters that an HTTP header can't contain")
        })?;
        let authorization = authorization.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        let options = ClientOptions { connect_timeout: deadline, http2_only: true, ca };
        let upstream = Upstream::new(&options).map_err(Error::configuration)?;
        Ok(Self { upstream, base, authorization, deadline })
    }

    /// Sends a call. An idempotent one is sent again if its connection broke, because the service
    /// may have restarted.
    pub(super) async fn call(
        &self,
        path: &str,
        body: &str,
        is_idempotent: bool,
    ) -> Result<HttpAnswer, NoAnswer> {
        let answer = async {
            match self.send(path, body).await {
                Err(error) if error.broken && is_idempotent => self.send(path, body).await,
                answer => answer,
            }
        };
        let answer = timeout(self.deadline, answer).await;
        answer.unwrap_or_else(|_| {
            Err(NoAnswer::new(format!("no answer within {} ms", self.deadline.as_millis())))
        })
    }

    async fn send(&self, path: &str, body: &str) -> Result<HttpAnswer, NoAnswer> {
        let mut request = http::Request::new(Body::from(body.to_owned()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("{}{path}", self.base)
            .parse()
            .map_err(|_| NoAnswer::new("the url can't be used"))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let answer = self.upstream.request(request).await.map_err(|error| NoAnswer {
            broken: matches!(error, SendError::Broken(_)),
            reason: error.to_string(),
        })?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| NoAnswer { reason: error.to_string(), broken: true })?;
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok(HttpAnswer { status: head.status, headers: head.headers, body })
    }
}
