//! Makes the message for the next page of a response: the message of the job with another page in
//! its page field.

use axum::http::HeaderMap;
use serde_json::Value;
use sluicegate_config::{NextPage, PageOptions};
use sluicegate_queue::{JobId, Message};
use sluicegate_template::{Root, ValueSource as _};

use super::super::Job;
use super::super::job_scope::JobScope;
use super::link;

/// Longest page name that is a part of a job id as it is; longer ones are hashed.
const NAME_MAX: usize = 32;

/// Returns the name of the next page, or `None` if this is the last one. An error says what to
/// change in the configuration.
pub(super) fn next(
    options: &PageOptions,
    headers: &HeaderMap,
    answer: Option<&Value>,
) -> Result<Option<Value>, String> {
    match &options.next {
        NextPage::Link(parameter) => {
            let Some(address) = link::next(headers) else { return Ok(None) };
            let page = link::parameter(&address, parameter).ok_or_else(|| {
                format!(
                    "pages.link: the next page {address:?} has no parameter {parameter:?}: write one that it has"
                )
            })?;
            Ok(Some(Value::String(page)))
        }
        NextPage::Cursor(path) => {
            let answer = answer.ok_or("pages.cursor: the response is not JSON")?;
            Ok(match path.of(answer) {
                None | Some(Value::Null | Value::Bool(false)) => None,
                Some(Value::String(text)) if text.is_empty() => None,
                Some(page @ (Value::String(_) | Value::Number(_))) => Some(page.clone()),
                Some(_) => {
                    return Err(format!("pages.cursor: {path} is neither a text nor a number"));
                }
            })
        }
    }
}

/// Returns the message for a page.
pub(super) fn message(job: &Job, options: &PageOptions, page: &Value) -> Result<Message, String> {
    let field = &options.field;
    let scope = JobScope::new(job);
    let mut body = match scope.body() {
        Some(Value::Object(body)) => body.clone(),
        None if scope.is_json() => {
            let problem = scope.missing_because(Root::Message);
            return Err(format!("pages: the message {problem}, so it can't take {field:?}"));
        }
        _ => {
            let problem = "is not a JSON object, which could take";
            return Err(format!("pages: the message {problem} {field:?}"));
        }
    };
    let current = body.insert(field.clone(), page.clone());
    if current.is_some_and(|current| text(&current) == text(page)) {
        return Err(format!(
            "pages: the next page is this page again: use {{{{{field}}}}} in url, query or body"
        ));
    }
    let mut next =
        Message::of_job(id(job.key(), field, &text(page)), Value::Object(body).to_string())
            .with_priority(job.message.priority);
    next.kind.clone_from(&job.message.kind);
    next.headers.clone_from(&job.message.headers);
    next.meta.max_attempts = job.message.meta.max_attempts;
    next.content_type = Some("application/json".to_owned());
    Ok(next)
}

/// Returns the id of the job for a page: the same whenever the page is sent.
fn id(job: &str, field: &str, page: &str) -> JobId {
    let mark = format!("#{field}=");
    let first = job.rsplit_once(&mark).map_or(job, |(first, _)| first);
    let is_short = page.len() <= NAME_MAX && !page.chars().any(char::is_control);
    let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
    let page = if is_short { page.to_owned() } else { hash(page) };
    JobId::try_from(format!("{first}{mark}{page}")).unwrap_or_else(|_| {
        let long = format!("{}.{page}", hash(&format!("{first}{mark}")));
        JobId::try_from(long).unwrap_or_else(|_| JobId::random())
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_an_id_of_its_own() {
        assert_eq!(id("acme", "page", "2").as_str(), "acme#page=2");
        assert_eq!(id("acme#page=2", "page", "3").as_str(), "acme#page=3");
        let long = id(&"j".repeat(250), "cursor", &"c".repeat(99));
        assert_eq!(long, id(&"j".repeat(250), "cursor", &"c".repeat(99)));
        assert_ne!(long, id(&"j".repeat(250), "cursor", &"d".repeat(99)));
    }
}
