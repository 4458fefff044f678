//! HTTP client for a running service: the options `--url`, `--token` and `--json`, and helpers to
//! print JSON responses.

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;

use super::print;

#[derive(Args)]
pub(super) struct Remote {
    /// Address of the service
    #[arg(
        long,
        value_name = "URL",
        env = "SLUICEGATE_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
    /// Bearer token, if the service requires one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// Options of commands that ask the admin listener.
#[derive(Args)]
pub(super) struct AdminRemote {
    /// Address of the admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "SLUICEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:9090"
    )]
    admin: String,
    /// Bearer token, if the service requires one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

impl AdminRemote {
    pub(super) fn remote(self) -> Remote {
        Remote::new(self.admin, self.token, self.json)
    }
}

impl Remote {
    /// Creates a client for another listener than the one of `--url`, such as the admin listener.
    pub(super) const fn new(url: String, token: Option<String>, json: bool) -> Self {
        Self { url, token, json }
    }

    /// Prints a response: as JSON with `--json`, else formatted by `words`.
    pub(super) fn show(&self, answer: &Value, words: impl FnOnce(&Value) -> String) {
        if self.json {
            print(&answer.to_string());
        } else {
            print(&words(answer));
        }
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send("GET", path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send("POST", path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send("DELETE", path, None)
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(std::time::Duration::from_secs(10)))
            .build()
            .into();
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                agent.run(request.body(body.to_string())?)
            }
            None => agent.run(request.body(())?),
        };
        let mut response = answer
            .with_context(|| format!("no response from {url}: is `sluicegate serve` running?"))?;
        let status = response.status();
        let text = response.body_mut().read_to_string().context("the response was cut off")?;
        let answer: Value = serde_json::from_str(&text).with_context(|| {
            format!("{url} answered {status} with a body that is not JSON: is it Sluicegate?")
        })?;
        if status.is_success() {
            return Ok(answer);
        }
        bail!("{}", answer["detail"].as_str().unwrap_or(status.as_str()))
    }
}

/// Returns the elements of a JSON array, or an empty slice for any other value.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Formats a JSON value for display: strings without quotes, arrays joined by commas.
pub(super) fn display(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(values) => values.iter().map(display).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Parses `NAME=VALUE` pairs into a JSON object.
pub(super) fn parse_pairs(pairs: &[String]) -> anyhow::Result<serde_json::Map<String, Value>> {
    let pair = |text: &String| {
        let Some((name, value)) = text.split_once('=') else {
            bail!("{text:?} is not of the form NAME=VALUE, such as userId=u1");
        };
        Ok((name.to_owned(), value.into()))
    };
    pairs.iter().map(pair).collect()
}
