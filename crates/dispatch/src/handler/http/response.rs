//! Turns an HTTP response into the outcome of a job.

use std::sync::atomic::Ordering;

use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use serde_json::Value;
use sluicegate_config::{NextPage, ResponseCondition, ResultSource, StatusRanges, UsagePaths};
use sluicegate_core::query::Cost;
use sluicegate_core::{Money, Timestamp};
use sluicegate_queue::{Message, without_byte_order_mark};
use sluicegate_template::JsonPath;
use sluicegate_vendors::UpstreamResponse;
use tracing::warn;

use super::super::{
    CallUsage, FailureKind, HandlerResult, Job, JobSuccess, Output, RateLimitInfo, chat, excerpt,
};
use super::etags::EtagEntry;
use super::{CallContext, HttpHandler, JobFailure, link, pages};

/// Maximum number of bytes read from an error response: enough for its retry hint and an excerpt.
const BEGINNING_BYTES: usize = 8 << 10;

impl HttpHandler {
    pub(super) async fn evaluate(
        &self,
        job: &Job,
        call: CallContext,
        response: Response<Incoming>,
    ) -> HandlerResult {
        let (head, mut body) = response.into_parts();
        let fields = head
            .headers
            .iter()
            .filter(|(name, _)| sluicegate_vendors::is_limit_header(name.as_str()));
        let fields = fields
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let status = head.status.as_u16();
        let mut rate_limit_info =
            RateLimitInfo { status, headers: fields.collect(), body: Bytes::new() };

        if head.status == StatusCode::NOT_MODIFIED
            && let Some(known) = call.known
        {
            let done = self.next_page(job, known.next.as_ref()).map(|next_page| JobSuccess {
                next_page,
                unchanged: true,
                ..JobSuccess::default()
            });
            let outcome = done.map_err(JobFailure::permanent);
            return HandlerResult { outcome, rate_limit_info: Some(rate_limit_info), usage: None };
        }
        if !contains(&self.options.success, status) {
            let said = read(&mut body, BEGINNING_BYTES).await.bytes;
            if head.status == StatusCode::UNAUTHORIZED {
                self.signer.refused().await;
            }
            let kind = self.kind(head.status, &rate_limit_info, &said);
            if kind == FailureKind::Limited {
                rate_limit_info.body = said.clone();
            }
            let message = format!("HTTP {} from {}", head.status, self.host);
            return self.failed(kind, message, &said, rate_limit_info);
        }

        let read = read(&mut body, self.options.response_limit.as_usize()).await;
        let said = read.bytes;
        let outcome = match read.end {
            ReadEnd::Whole => {
                let content_type = head.headers.get(CONTENT_TYPE);
                let content_type = content_type.and_then(|value| value.to_str().ok());
                self.result(&said, content_type)
            }
            ReadEnd::Cut => {
                let max = self.options.response_limit.0;
                let message = format!("the response exceeds {max} bytes: raise response_limit");
                Err((FailureKind::Permanent, message))
            }
            ReadEnd::Broken(error) => {
                Err((FailureKind::Transient, format!("the response ended early: {error}")))
            }
        };
        let usage = self.usage(&said);
        let done = outcome.and_then(|output| {
            let next = self.next(&head.headers, &said);
            let next_page = next.and_then(|next| Ok((self.next_page(job, next.as_ref())?, next)));
            let (next_page, next) = next_page.map_err(|error| (FailureKind::Permanent, error))?;
            if let Some(etag) = head.headers.get(ETAG).filter(|_| self.options.conditional) {
                let (etag, job) = (etag.clone(), job.key().to_owned());
                self.etags.insert(call.address, EtagEntry { etag, job, next });
            }
            Ok(JobSuccess { result: Some(output), next_page, ..JobSuccess::default() })
        });
        match done {
            Ok(done) => {
                let rate_limit_info = Some(rate_limit_info);
                HandlerResult { outcome: Ok(done), rate_limit_info, usage }
            }
            Err((kind, message)) => {
                let message = format!("{}: {message}", self.host);
                let failed = self.failed(kind, message, &said, rate_limit_info);
                HandlerResult { usage, ..failed }
            }
        }
    }

    /// Returns the name of the next page of a response.
    fn next(&self, headers: &HeaderMap, said: &[u8]) -> Result<Option<Value>, String> {
        match &self.options.pages {
            Some(options) => {
                let answer = match options.next {
                    NextPage::Link(_) => None,
                    NextPage::Cursor(_) => {
                        serde_json::from_slice(without_byte_order_mark(said)).ok()
                    }
                };
                pages::next(options, headers, answer.as_ref())
            }
            None => {
                if link::next(headers).is_some()
                    && !self.warned_of_pages.swap(true, Ordering::Relaxed)
                {
                    warn!(
                        host = self.host,
                        "response has further pages (Link: rel=\"next\") that are not read: set pages"
                    );
                }
                Ok(None)
            }
        }
    }

    /// Returns the message for a page.
    fn next_page(&self, job: &Job, page: Option<&Value>) -> Result<Option<Message>, String> {
        match (&self.options.pages, page) {
            (Some(options), Some(page)) => pages::message(job, options, page).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns what the call took, as far as the response contains it.
    fn usage(&self, said: &[u8]) -> Option<CallUsage> {
        let paths = &self.options.usage;
        let is_chat = matches!(self.options.result, ResultSource::Chat(_));
        if !is_chat && *paths == UsagePaths::default() {
            return None;
        }
        let answer: Value = serde_json::from_slice(without_byte_order_mark(said)).ok()?;
        if let ResultSource::Chat(provider) = &self.options.result {
            return chat::usage(*provider, &answer);
        }
        let tokens = |path: &Option<JsonPath>| path.as_ref()?.of(&answer)?.as_u64();
        let money =
            paths.usd.as_ref().and_then(|path| path.of(&answer)).and_then(|usd| match usd {
                Value::Number(number) => dollars(number),
                Value::String(text) => text.parse().ok(),
                _ => None,
            });
        let cost = Cost {
            requests: None,
            input_tokens: tokens(&paths.input_tokens),
            output_tokens: tokens(&paths.output_tokens),
            money,
        };
        (cost != Cost::default()).then_some(CallUsage { cost, model: None })
    }

    fn failed(
        &self,
        kind: FailureKind,
        message: String,
        said: &[u8],
        rate_limit_info: RateLimitInfo,
    ) -> HandlerResult {
        let response = excerpt::beginning(said, self.signer.secrets());
        let causes = response.iter().map(|said| format!("response: {said}")).collect();
        HandlerResult {
            outcome: Err(JobFailure { kind, message, causes, response }),
            rate_limit_info: Some(rate_limit_info),
            usage: None,
        }
    }

    /// Returns the failure kind of a response that is not a success.
    fn kind(
        &self,
        status: StatusCode,
        rate_limit_info: &RateLimitInfo,
        said: &[u8],
    ) -> FailureKind {
        let headers: Vec<_> = rate_limit_info
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        // A refusal does not depend on the time; the worker computes its length.
        let at = Timestamp::ZERO;
        let answer =
            UpstreamResponse { status: rate_limit_info.status, headers: &headers, body: said, at };
        if sluicegate_vendors::is_refusal(&answer) {
            return FailureKind::Limited;
        }
        let retried = match status.as_u16() {
            408 | 409 | 425 => true,
            // A token may expire early; the next attempt uses a new one.
            401 => self.signer.logs_in(),
            // 2xx, but not a configured success status: the result is not ready yet.
            code => code >= 500 || status.is_success(),
        };
        match retried || contains(&self.options.retry, status.as_u16()) {
            true => FailureKind::Transient,
            false => FailureKind::Permanent,
        }
    }

    /// Extracts the result from a successful response.
    fn result(
        &self,
        said: &Bytes,
        content_type: Option<&str>,
    ) -> Result<Output, (FailureKind, String)> {
        let transient = |message: &str| (FailureKind::Transient, message.to_owned());
        let permanent = |message: String| (FailureKind::Permanent, message);
        let whole = || Output { body: said.clone(), content_type: content_type.map(str::to_owned) };
        let condition = self.options.condition.as_ref();
        if condition.is_none() && self.options.result == ResultSource::Whole {
            return Ok(whole());
        }
        let answer: Value = serde_json::from_slice(without_byte_order_mark(said))
            .map_err(|_| transient("the response is not JSON"))?;
        if let Some(condition) = condition.filter(|condition| !holds(condition, &answer)) {
            let message =
                format!("{} of the response does not meet the success condition", condition.path);
            return Err(transient(&message));
        }
        let body = match &self.options.result {
            ResultSource::Whole => return Ok(whole()),
            ResultSource::Member(member) => {
                let found = member.of(&answer);
                found.ok_or_else(|| permanent(format!("the response has no {member}")))?.to_string()
            }
            ResultSource::Chat(provider) => {
                chat::read(*provider, &answer).map_err(permanent)?.to_string()
            }
        };
        Ok(Output { body: body.into(), content_type: Some("application/json".to_owned()) })
    }
}

/// Returns an amount of dollars. A small number is written with an exponent, so it is rounded to
/// nano-dollars.
fn dollars(number: &serde_json::Number) -> Option<Money> {
    let exact = number.to_string().parse().ok();
    exact.or_else(|| format!("{:.9}", number.as_f64()?).parse().ok())
}

fn contains(statuses: &StatusRanges, status: u16) -> bool {
    statuses.iter().any(|range| range.contains(&status))
}

/// Returns true if the response fulfils the condition.
fn holds(condition: &ResponseCondition, answer: &Value) -> bool {
    let values = &condition.values;
    match condition.path.of(answer) {
        None => false,
        Some(Value::Null | Value::Bool(false)) if values.is_empty() => false,
        Some(value) => values.is_empty() || values.contains(value),
    }
}

/// A body, or the part of it that was read.
struct ReadBody {
    bytes: Bytes,
    end: ReadEnd,
}

/// The reason why reading ended.
enum ReadEnd {
    Whole,
    /// The body exceeds the maximum size.
    Cut,
    Broken(hyper::Error),
}

/// Reads at most `bytes_max` bytes of a body.
async fn read(body: &mut Incoming, bytes_max: usize) -> ReadBody {
    let hint = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    // A server may announce any length, so memory grows only with received data.
    let mut bytes = BytesMut::with_capacity(hint.min(bytes_max).min(64 << 10));
    let end = loop {
        match body.frame().await {
            None => break ReadEnd::Whole,
            Some(Err(error)) => break ReadEnd::Broken(error),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                let room = bytes_max - bytes.len();
                bytes.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    break ReadEnd::Cut;
                }
            }
        }
    };
    ReadBody { bytes: bytes.freeze(), end }
}
