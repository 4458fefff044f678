//! A fake HTTP server that records its requests, and jobs for handlers.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::routing::any;
use bytes::Bytes;
use serde_json::Value;
use sluicegate_dispatch::handler::{FailureKind, HttpHandler, HttpOptions};
use sluicegate_dispatch::{Handler, HandlerResult, Job, JobFailure, JobSuccess};
use sluicegate_queue::{JobId, Message, WallClock};
use sluicegate_template::{Root, Text, Tree};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A server on a port of its own.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server that responds to every request with the result of `answer`.
    pub(crate) async fn start(
        answer: impl Fn(&ReceivedRequest) -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let remembered = asked.clone();
        let router = Router::new().fallback(any(move |request: Request| {
            let (answer, remembered) = (answer.clone(), remembered.clone());
            async move {
                let (head, body) = request.into_parts();
                let asked = ReceivedRequest {
                    method: head.method,
                    uri: head.uri.to_string(),
                    headers: head.headers,
                    body: to_bytes(body, usize::MAX).await.unwrap_or_default(),
                };
                remembered.lock().unwrap().push(asked.clone());
                answer(&asked)
            }
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, asked, task }
    }

    /// Starts a server that sends the same response to every request.
    pub(crate) async fn answering(
        status: u16,
        headers: &'static [(&'static str, &'static str)],
        body: &'static str,
    ) -> Self {
        Self::start(move |_| response(status, headers, body)).await
    }

    /// Returns all requests received so far.
    pub(crate) fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns the only request received.
    pub(crate) fn asked_once(&self) -> ReceivedRequest {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.into_iter().next().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn response(
    status: u16,
    headers: &[(&'static str, &'static str)],
    body: impl Into<Body>,
) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

/// Returns options for a plain call of this URL.
pub(crate) fn options(url: &str) -> HttpOptions {
    HttpOptions::to(text(url))
}

pub(crate) fn handler(options: HttpOptions) -> HttpHandler {
    HttpHandler::new(options, Arc::new(WallClock)).unwrap()
}

pub(crate) fn text(text: &str) -> Text {
    Text::parse(text, Root::EACH).unwrap()
}

pub(crate) fn tree(text: &str) -> Tree {
    Tree::text(text, Root::EACH).unwrap()
}

/// Returns a template that is a map.
pub(crate) fn map<const N: usize>(members: [(&str, &str); N]) -> Tree {
    Tree::Map(members.map(|(name, text)| (name.to_owned(), tree(text))).into())
}

/// Returns a job with this body: the second attempt of `a-17` for openai.
pub(crate) fn job(body: impl Into<Bytes>) -> Job {
    let id = JobId::try_from("a-17".to_owned()).unwrap();
    let mut message = Message::of_job(id, body).of_kind("crawl_org");
    message.meta.attempt = 1;
    Job::new(message, "openai".to_owned())
}

pub(crate) async fn done(handler: &dyn Handler, job: &Job) -> JobSuccess {
    handler.handle(job).await.outcome.unwrap_or_else(|failure| panic!("{failure:?}"))
}

pub(crate) async fn failed(handler: &dyn Handler, job: &Job) -> JobFailure {
    let HandlerResult { outcome, .. } = handler.handle(job).await;
    outcome.expect_err("it should have failed")
}

pub(crate) fn body(done: &JobSuccess) -> &str {
    let output = done.result.as_ref().expect("a result");
    std::str::from_utf8(&output.body).unwrap()
}

pub(crate) const TRANSIENT: FailureKind = FailureKind::Transient;
pub(crate) const PERMANENT: FailureKind = FailureKind::Permanent;
pub(crate) const LIMITED: FailureKind = FailureKind::Limited;
