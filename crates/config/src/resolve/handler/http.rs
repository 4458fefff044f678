//! Reads an `http` handler, which makes an HTTP call.

use http::header::CONTENT_TYPE;
use http::{HeaderName, Method};
use sluicegate_core::Span;
use sluicegate_template::{Root, Text};

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::super::upstream::{credentials, header, header_name};
use super::template;
use crate::config::{
    ByteSize, HttpOptions, NextPage, PageOptions, RequestBody, ResponseCondition, ResultSource,
    StatusRanges, UsagePaths,
};
use crate::raw::Value;
use crate::report::Report;

const KNOWN: [&str; 18] = [
    "method",
    "url",
    "query",
    "headers",
    "body",
    "text",
    "credentials",
    "idempotency_key",
    "success",
    "retry",
    "result",
    "pages",
    "conditional",
    "usage",
    "response_limit",
    "connect_timeout",
    "http2",
    "ca",
];
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
/// Header fields that the HTTP client sets itself: they frame the request or name its target.
const OURS: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// Reads the options of an HTTP call.
pub(super) fn http(item: Item<'_>, report: &mut Report) -> Option<HttpOptions> {
    let fields = Fields::open(item, &KNOWN, report)?;
    let methods = METHODS.map(|method| (method, method));
    let method = fields.read("method", Method::POST, report, |item, report| {
        scalar::word(item, report, &methods)?.parse().ok()
    });
    let url = fields.require("url", "write a URL, such as https://api.example/jobs", report);
    let url = url.and_then(|item| address(&item, report));
    let headers = fields.read("headers", Vec::new(), report, headers);
    let content = content(&fields, &method, &headers, report);
    let idempotency_header = idempotency(&fields, report);
    if let Some((name, _)) =
        headers.iter().find(|(name, _)| Some(name) == idempotency_header.as_ref())
    {
        let message = format!("headers.{name} is also the header field of idempotency_key");
        let remedy = "remove it from headers, or write idempotency_key: false";
        report.error(&fields.location(), message, remedy);
    }
    let (success, condition) = success(&fields, report);
    let result = fields.read_some("result", report, template::member);
    let conditional = fields.read("conditional", false, report, scalar::boolean);
    if conditional
        && method != Method::GET
        && let Some(item) = fields.get("conditional")
    {
        item.fail(report, "only GET requests are conditional", "remove it, or write method: GET");
    }
    Some(HttpOptions {
        query: fields.read("query", Vec::new(), report, query),
        pages: fields.get("pages").and_then(|item| pages(item, report)),
        conditional,
        usage: fields.get("usage").map(|item| usage(item, report)).unwrap_or_default(),
        method,
        headers,
        content,
        credentials: fields
            .get("credentials")
            .filter(is_given)
            .and_then(|item| credentials(&item, report)),
        idempotency_header,
        success,
        condition,
        retry: fields.read("retry", Vec::new(), report, statuses),
        result: result.map_or(ResultSource::Whole, ResultSource::Member),
        response_limit: response_limit(&fields, report),
        connect_timeout: connect_timeout(&fields, report),
        http2: fields.read("http2", false, report, scalar::boolean),
        ca: fields.read_some("ca", report, scalar::path),
        // Last, so that all mistakes in the other options are reported at once.
        url: url?,
    })
}

/// Returns false for a map whose values are all empty variables, such as `bearer: ${TOKEN:-}`.
fn is_given(item: &Item<'_>) -> bool {
    let is_omitted = |value: &Value| matches!(value, Value::Scalar(scalar) if scalar.is_omitted());
    let Value::Map(entries) = &item.node.value else { return true };
    entries.is_empty() || !entries.iter().all(|(_, node)| is_omitted(&node.value))
}

/// Reads query parameters.
fn query(item: &Item<'_>, report: &mut Report) -> Option<Vec<(String, Text)>> {
    let form = "write a map from query parameters to values";
    let mut found = Vec::new();
    for (key, item) in item.entries(report, form)? {
        if key.text.contains("{{") {
            item.fail(report, "placeholders are not allowed in names", "write the name out");
        }
        // An empty variable leaves the parameter out.
        if matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_omitted()) {
            continue;
        }
        let text = template::text(&item, Root::BEFORE, report);
        found.extend(text.map(|text| (key.text.clone(), text)));
    }
    Some(found)
}

/// Reads the way to the next page.
fn pages(item: Item<'_>, report: &mut Report) -> Option<PageOptions> {
    let fields = Fields::open(item.clone(), &["link", "cursor", "field"], report)?;
    let field = fields.read_some("field", report, scalar::text);
    let link = fields.read_some("link", report, scalar::text);
    let cursor = fields.read_some("cursor", report, template::member);
    match (link, cursor, field) {
        (Some(parameter), None, field) => {
            let field = field.unwrap_or_else(|| parameter.clone());
            Some(PageOptions { next: NextPage::Link(parameter), field })
        }
        (None, Some(path), Some(field)) => {
            Some(PageOptions { next: NextPage::Cursor(path), field })
        }
        (None, Some(_), None) => {
            let remedy =
                "write the field of the message that names the page, such as field: cursor";
            item.fail(report, "missing field", remedy);
            None
        }
        _ => {
            let remedy =
                "write link: page for `Link: rel=\"next\"`, or cursor with a path in the response";
            item.fail(report, "needs exactly one of link and cursor", remedy);
            None
        }
    }
}

/// Reads the members of a response that contain what the call took.
fn usage(item: Item<'_>, report: &mut Report) -> UsagePaths {
    let known = ["input_tokens", "output_tokens", "usd"];
    let Some(fields) = Fields::open(item, &known, report) else { return UsagePaths::default() };
    UsagePaths {
        input_tokens: fields.read_some("input_tokens", report, template::member),
        output_tokens: fields.read_some("output_tokens", report, template::member),
        usd: fields.read_some("usd", report, template::member),
    }
}

/// Reads the maximum size of a response.
pub(super) fn response_limit(fields: &Fields<'_>, report: &mut Report) -> ByteSize {
    fields.read("response_limit", ByteSize(10 << 20), report, scalar::size)
}

/// Reads the timeout for opening a connection.
pub(super) fn connect_timeout(fields: &Fields<'_>, report: &mut Report) -> Span {
    let least = |item: &Item<'_>, report: &mut Report| {
        scalar::span_from(item, report, Span::from_millis(1), "write at least 1ms")
    };
    fields.read("connect_timeout", Span::from_secs(5), report, least)
}

/// Reads the header field that carries the job id; `false` turns it off.
pub(super) fn idempotency(fields: &Fields<'_>, report: &mut Report) -> Option<HeaderName> {
    let default = Some(HeaderName::from_static("idempotency-key"));
    let read = |item: &Item<'_>, report: &mut Report| {
        let form = "write the name of a header field, or false";
        match item.scalar(report, form)?.text() {
            "false" => Some(None),
            "true" => Some(default.clone()),
            _ => header(item, report).map(Some),
        }
    };
    fields.read("idempotency_key", default.clone(), report, read)
}

/// Reads an address whose host does not depend on messages. No message repeats the address, because
/// it may contain a variable.
fn address(item: &Item<'_>, report: &mut Report) -> Option<Text> {
    let form = "write a URL, such as https://api.example/{{id}}";
    let url = template::text(item, Root::BEFORE, report)?;
    let beginning = url.beginning();
    let parsed = url::Url::parse(beginning)
        .ok()
        .filter(|parsed| matches!(parsed.scheme(), "http" | "https") && parsed.has_host());
    let Some(parsed) = parsed else {
        item.fail(report, "not an HTTP address", form);
        return None;
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        item.fail(report, "contains a user or a password", "move them to credentials");
        return None;
    }
    let after_scheme = beginning.split_once("://").map_or("", |(_, rest)| rest);
    if !url.is_fixed() && !after_scheme.contains(['/', '?']) {
        let message = "placeholders are not allowed in the host, or a message could redirect \
                       credentials";
        item.fail(
            report,
            message,
            "write the host out; placeholders may be in the path and the query",
        );
        return None;
    }
    let written: Vec<_> = url.fixed().collect();
    let odd = |c: char| !c.is_ascii_graphic() || "#\"<>\\^`{|}".contains(c);
    if written.iter().any(|part| part.contains(odd)) {
        let message = "contains characters that are not allowed in an address";
        item.fail(
            report,
            message,
            "percent-encode them, such as %20, and remove # and the text after it",
        );
        return None;
    }
    let whole = written.join("x");
    let path = whole.split('?').next().unwrap_or_default();
    if path.split('/').any(|part| part == "." || part == "..") {
        item.fail(report, "contains . or .. in its path", "write the resolved path");
        return None;
    }
    Some(url)
}

fn headers(item: &Item<'_>, report: &mut Report) -> Option<Vec<(HeaderName, Text)>> {
    let form = "write a map from header fields to values";
    let mut found = Vec::new();
    for (key, item) in item.entries(report, form)? {
        let name = header_name(&key.text);
        match name.as_ref().map(HeaderName::as_str) {
            None => {
                let remedy = "write a name such as x-request-id";
                item.fail(report, "not a valid header field name", remedy);
            }
            Some(name) if OURS.contains(&name) || name.starts_with("proxy-") => {
                item.fail(report, "this header field is set by the HTTP client", "remove it");
            }
            Some(_) => {}
        }
        let Some(text) = template::text(&item, Root::BEFORE, report) else { continue };
        if text.fixed().any(|part| part.contains(char::is_control)) {
            item.fail(report, "contains control characters", "write the value on one line");
        }
        found.extend(name.map(|name| (name, text)));
    }
    Some(found)
}

/// Reads the body: `body` or `text`, or the message itself.
fn content(
    fields: &Fields<'_>,
    method: &Method,
    headers: &[(HeaderName, Text)],
    report: &mut Report,
) -> RequestBody {
    let (body, text) = (fields.get("body"), fields.get("text"));
    let without = matches!(*method, Method::GET | Method::DELETE);
    for item in [&body, &text].into_iter().flatten().filter(|_| method == Method::GET) {
        item.fail(report, "GET requests have no body", "remove it, or write method: POST");
    }
    let of_json = |text: &Text| text.fixed().any(|part| part.to_ascii_lowercase().contains("json"));
    match (body, text) {
        (None, None) if without => RequestBody::Nothing,
        (None, None) => RequestBody::Message,
        (Some(body), None) => {
            let tree = template::tree(&body, Root::BEFORE, report);
            tree.map_or(RequestBody::Nothing, RequestBody::Json)
        }
        (None, Some(text)) => {
            if headers.iter().any(|(name, text)| *name == CONTENT_TYPE && of_json(text)) {
                let message =
                    "text is not allowed for JSON, because a value could end a string in it";
                text.fail(report, message, "write the JSON as a map in body");
            }
            let text = template::text(&text, Root::BEFORE, report);
            text.map_or(RequestBody::Nothing, RequestBody::Text)
        }
        (Some(_), Some(text)) => {
            text.fail(report, "can't be combined with body", "remove one of them");
            RequestBody::Nothing
        }
    }
}

fn success(fields: &Fields<'_>, report: &mut Report) -> (StatusRanges, Option<ResponseCondition>) {
    let default = vec![200..=299];
    let known = ["status", "path", "is"];
    let Some(fields) = fields.get("success").and_then(|item| Fields::open(item, &known, report))
    else {
        return (default, None);
    };
    let status = fields.read("status", default, report, statuses);
    let values = fields.read("is", Vec::new(), report, |item, report| {
        item.one_or_more().iter().map(|item| template::value(item, report)).collect()
    });
    let path = fields.read_some("path", report, template::member);
    if path.is_none()
        && let Some(item) = fields.get("is")
    {
        item.fail(
            report,
            "needs path",
            "add the path of the value in the response, such as path: data.state",
        );
    }
    (status, path.map(|path| ResponseCondition { path, values }))
}

/// Reads `200`, `2xx`, or a list of them.
fn statuses(item: &Item<'_>, report: &mut Report) -> Option<StatusRanges> {
    let form = "write a status such as 200 or 2xx, or a list of them";
    let mut found = Vec::new();
    for item in item.one_or_more() {
        let Some(scalar) = item.scalar(report, form) else { continue };
        let text = scalar.text();
        let class = text.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
        let one = text.parse::<u16>().ok().filter(|status| (100..=599).contains(status));
        match (class, one) {
            (Some(class @ 1..=5), _) if text.len() == 3 => {
                found.push(class * 100..=class * 100 + 99);
            }
            (None, Some(status)) => found.push(status..=status),
            _ => item.fail(report, format!("{} is not an HTTP status", scalar.describe()), form),
        }
    }
    Some(found)
}
