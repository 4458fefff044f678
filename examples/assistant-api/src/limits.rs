//! Client of Sluicegate: reserves the estimated cost of a question and settles its actual cost.

use axum::body::Body;
use axum::http::{HeaderName, Response, StatusCode, header};
use serde_json::{Value, json};

/// HTTP client of a Sluicegate service.
#[derive(Clone)]
pub(crate) struct Limits {
    agent: ureq::Agent,
    url: String,
}

/// An admitted question, with the handle to settle it.
pub(crate) struct Admitted {
    handle: Option<String>,
}

/// Number of input and output tokens of a model call.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) query_tokens: usize,
    pub(crate) context_tokens: usize,
    pub(crate) output_tokens: usize,
}

/// Error response for the client.
pub(crate) type Refusal = Box<Response<Body>>;

/// Fields of a denial that are passed on to the client.
const PASSED_ON: [&str; 7] = [
    "content-type",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit",
    "ratelimit-policy",
];

impl Limits {
    pub(crate) fn new(url: &str) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self { agent: config.build().into(), url: url.trim_end_matches('/').to_owned() }
    }

    /// Reserves a request, a slot and the maximum cost. Returns the response for the client if the
    /// limiter denies it.
    pub(crate) fn acquire(
        &self,
        user: &str,
        input_tokens: usize,
        max_tokens: usize,
    ) -> Result<Admitted, Refusal> {
        let ask = json!({
            "dimensions": { "userId": user, "modelId": "assistant" },
            "cost": { "inputTokens": input_tokens, "maxTokens": max_tokens },
            "hold": "60s",
        });
        let (status, headers, body) = self.post("/v1/acquire?status=429", &ask)?;
        if status == StatusCode::OK {
            let answer: Value = serde_json::from_str(&body).unwrap_or_default();
            let handle = answer["handle"].as_str().map(str::to_owned);
            return Ok(Admitted { handle });
        }
        let mut refusal = Response::new(Body::from(body));
        *refusal.status_mut() = status;
        for name in PASSED_ON {
            if let Some(value) = headers.get(name) {
                refusal.headers_mut().insert(HeaderName::from_static(name), value.clone());
            }
        }
        Err(Box::new(refusal))
    }

    /// Settles the reservation with the actual cost; returns the metadata for the client.
    pub(crate) fn settle(&self, admitted: &Admitted, usage: Usage) -> Value {
        let Some(handle) = &admitted.handle else { return Value::Null };
        let settle = json!({
            "handle": handle,
            "cost": {
                "queryTokens": usage.query_tokens,
                "contextTokens": usage.context_tokens,
                "outputTokens": usage.output_tokens,
            },
        });
        // If the limiter does not respond, the reservation expires; the client gets its answer anyway.
        let answer = self.post("/v1/settle", &settle).map(|(_, _, body)| body);
        let answer = answer.unwrap_or_default();
        serde_json::from_str::<Value>(&answer).unwrap_or_default()["metadata"].take()
    }

    /// Returns the usage of a user.
    pub(crate) fn usage(&self, user: &str) -> Result<String, Refusal> {
        let response = self.agent.get(format!("{}/v1/users/{user}/usage", self.url)).call();
        let mut response = response.map_err(|_| unreachable_limiter())?;
        response.body_mut().read_to_string().map_err(|_| unreachable_limiter())
    }

    fn post(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<(StatusCode, header::HeaderMap, String), Refusal> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let response = request.header("content-type", "application/json").send(body.to_string());
        let mut response = response.map_err(|_| unreachable_limiter())?;
        let text = response.body_mut().read_to_string().map_err(|_| unreachable_limiter())?;
        Ok((response.status(), response.headers().clone(), text))
    }
}

fn unreachable_limiter() -> Refusal {
    let mut response = Response::new(Body::from("{\"detail\":\"the limiter does not respond\"}"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    Box::new(response)
}
