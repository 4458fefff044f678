//! [`WebClient`]: sends HTTP requests to the management API and to Entra.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio_rustls::rustls::ClientConfig;

use super::failure::unavailable;
use crate::Error;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a response.
const RESPONSE_MAX: usize = 1 << 20;

pub(super) struct WebClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl WebClient {
    pub(super) fn new(tls: ClientConfig) -> Self {
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        Self { client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Sends a form. Returns the status and the body of the response.
    pub(super) async fn post_form(
        &self,
        url: &str,
        form: String,
    ) -> Result<(StatusCode, String), Error> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::from(form));
        self.send(url, request).await
    }

    /// Sends a request to the management API. Returns the status and the body of the response.
    pub(super) async fn manage(
        &self,
        method: Method,
        url: &str,
        authorization: String,
        body: String,
    ) -> Result<(StatusCode, String), Error> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/atom+xml;type=entry;charset=utf-8")
            .body(Full::from(body));
        self.send(url, request).await
    }

    async fn send(
        &self,
        url: &str,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<(StatusCode, String), Error> {
        // Without the query, which is the same always.
        let place = url.split('?').next().unwrap_or_default();
        let fail = |reason: String| unavailable(format!("{place}: {reason}"));
        let request = request.map_err(|error| Error::Invalid(format!("{place}: {error}")))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                fail(cause.unwrap_or_else(|| error.to_string()))
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), RESPONSE_MAX).collect().await;
            let body = body.map_err(|error| fail(error.to_string()))?.to_bytes();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(fail("timeout".to_owned())),
        }
    }
}
