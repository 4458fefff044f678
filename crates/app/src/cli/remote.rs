//! HTTP client for a running service: the options `--url`, `--token`, `--ca` and `--json`, and helpers
//! to print JSON responses.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::print;

/// Maximum time of a call.
const TIMEOUT: Duration = Duration::from_secs(10);

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
    #[command(flatten)]
    access: AccessArgs,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// Options of commands that ask the admin listener.
#[derive(Args)]
pub(super) struct AdminArgs {
    /// Address of the admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "SLUICEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:9090"
    )]
    admin: String,
    #[command(flatten)]
    access: AccessArgs,
}

/// Options of commands that print an answer of the admin listener.
#[derive(Args)]
pub(super) struct AdminRemote {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

impl AdminRemote {
    pub(super) fn remote(self) -> Remote {
        Remote::new(self.admin.admin, self.admin.access, self.json)
    }
}

/// Options that prove the identity of both sides.
#[derive(Args, Clone)]
pub(super) struct AccessArgs {
    /// Bearer token, if the service requires one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    ca: CaArgs,
}

/// The option `--ca`.
#[derive(Args, Clone)]
pub(super) struct CaArgs {
    /// PEM file with the CAs that the certificate of an https address is checked against [default:
    /// public CAs]
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_CA")]
    ca: Option<PathBuf>,
}

/// A client of one listener.
pub(super) struct ServiceClient {
    url: String,
    access: AccessArgs,
    agent: ureq::Agent,
}

/// Marker error: the service answered, and rejected the call.
#[derive(Debug)]
pub(super) struct CallRejected(String);

impl std::fmt::Display for CallRejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CallRejected {}

impl Remote {
    /// Creates a client for another listener than the one of `--url`, such as the admin listener.
    pub(super) const fn new(url: String, access: AccessArgs, json: bool) -> Self {
        Self { url, access, json }
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
        self.client()?.send("GET", path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.client()?.send("POST", path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.client()?.send("DELETE", path, None)
    }

    fn client(&self) -> anyhow::Result<ServiceClient> {
        ServiceClient::new(&self.url, &self.access)
    }
}

impl AdminArgs {
    pub(super) fn client(&self) -> anyhow::Result<ServiceClient> {
        ServiceClient::new(&self.admin, &self.access)
    }
}

impl CaArgs {
    /// Returns the TLS options of a client.
    pub(super) fn tls(&self) -> anyhow::Result<TlsConfig> {
        let roots = match &self.ca {
            None => RootCerts::WebPki,
            Some(path) => authorities(path)?,
        };
        Ok(TlsConfig::builder().root_certs(roots).build())
    }
}

/// Reads the certificates of a PEM file.
fn authorities(path: &Path) -> anyhow::Result<RootCerts> {
    let name = path.display();
    let text = std::fs::read(path).with_context(|| format!("--ca: can't read {name}"))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(one) = item.with_context(|| format!("--ca: {name}"))? {
            certificates.push(one);
        }
    }
    if certificates.is_empty() {
        bail!("--ca: {name} contains no certificate: write certificates in PEM into it");
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

impl ServiceClient {
    fn new(url: &str, access: &AccessArgs) -> anyhow::Result<Self> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(access.ca.tls()?)
            .timeout_global(Some(TIMEOUT))
            .build();
        let url = checked(url)?.to_owned();
        Ok(Self { url, access: access.clone(), agent: agent.into() })
    }

    /// Returns the address of the listener.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send("GET", path, None)
    }

    /// Opens a stream of server-sent events. A read fails if the service sends nothing for
    /// `silence_max`.
    pub(super) fn stream(
        &self,
        path: &str,
        silence_max: Duration,
    ) -> anyhow::Result<impl BufRead + Send + use<>> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(self.access.ca.tls()?)
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(silence_max))
            .build()
            .into();
        let mut response = self.call(&agent, "GET", path, None)?;
        if !response.status().is_success() {
            self.answer(&mut response)?;
        }
        Ok(BufReader::new(response.into_body().into_reader()))
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let mut response = self.call(&self.agent, method, path, body)?;
        self.answer(&mut response)
    }

    fn call(
        &self,
        agent: &ureq::Agent,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<ureq::http::Response<ureq::Body>> {
        let url = format!("{}{path}", self.url);
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        if let Some(token) = &self.access.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                agent.run(request.body(body.to_string())?)
            }
            None => agent.run(request.body(())?),
        };
        answer.with_context(|| {
            format!(
                "no response from {url}: is `sluicegate serve` running? --url and --admin name other \
                 addresses"
            )
        })
    }

    /// Reads the body of a response; an error status is an error.
    fn answer(&self, response: &mut ureq::http::Response<ureq::Body>) -> anyhow::Result<Value> {
        let status = response.status();
        let text = response.body_mut().read_to_string().context("can't read the whole response")?;
        let answer: Value = serde_json::from_str(&text).with_context(|| {
            let url = &self.url;
            format!("{url} answered {status} with a body that is not JSON: is it Sluicegate?")
        })?;
        if status.is_success() {
            return Ok(answer);
        }
        let detail = answer["detail"].as_str().unwrap_or(status.as_str());
        Err(CallRejected(detail.to_owned()).into())
    }
}

/// Returns an address without slashes at its end, or an error if it has no scheme.
pub(super) fn checked(url: &str) -> anyhow::Result<&str> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        bail!("address {url:?}: write http:// or https:// before the host");
    }
    Ok(url.trim_end_matches('/'))
}

/// Escapes control characters, with which a value of a request could change the terminal.
pub(super) fn escaped(text: &str) -> String {
    let is_harmful =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
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
