//! Reads a `preset` handler, which sends a prompt to a chat model.

use ::http::HeaderName;
use sluicegate_template::{Root, Text};

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::super::upstream::{secret, url};
use super::{http, template};
use crate::config::{
    ChatPrompt, ChatProvider, Credentials, HttpOptions, RequestBody, ResultSource,
};
use crate::raw::Value;
use crate::report::Report;

/// Options next to `preset`.
pub(super) const KNOWN: [&str; 12] = [
    "model",
    "api_key",
    "base_url",
    "system",
    "prompt",
    "images",
    "max_tokens",
    "options",
    "idempotency_key",
    "response_limit",
    "connect_timeout",
    "ca",
];
const PROVIDERS: [(&str, ChatProvider); 3] = [
    ("openai", ChatProvider::OpenAi),
    ("anthropic", ChatProvider::Anthropic),
    ("gemini", ChatProvider::Gemini),
];

/// Reads the options of a preset: an HTTP call with the URL, header fields and body of its provider.
pub(super) fn chat(
    preset: &Item<'_>,
    fields: &Fields<'_>,
    report: &mut Report,
) -> Option<HttpOptions> {
    let provider = scalar::word(preset, report, &PROVIDERS);
    let model = fields.require("model", "write a model, such as model: gpt-4o-mini", report);
    let model = model.and_then(|item| model_of(&item, report));
    let prompt = fields.require("prompt", "write a prompt, such as prompt: \"{{text}}\"", report);
    let prompt = prompt.and_then(|item| text(&item, report));
    let base_url = fields.read_some("base_url", report, url);
    let api_key = fields.read_some("api_key", report, secret);
    if fields.get("api_key").is_none() && fields.get("base_url").is_none() {
        let remedy = "write the key, such as api_key: ${API_KEY:?} or api_key: {file: path}";
        report.error(&fields.location(), "missing api_key", remedy);
    }
    let idempotency_header = http::idempotency(fields, report);
    let response_limit = http::response_limit(fields, report);
    let connect_timeout = http::connect_timeout(fields, report);
    let ca = fields.read_some("ca", report, scalar::path);
    let tokens = |item: &Item<'_>, report: &mut Report| {
        let number = scalar::whole(item, report, 1..=u64::from(u32::MAX))?;
        u32::try_from(number).ok()
    };
    let options = fields.get("options").and_then(|item| match &item.node.value {
        Value::Map(_) => template::tree(&item, Root::BEFORE, report),
        _ => {
            item.fail(
                report,
                "not a map",
                "write a map of members for the request body, such as temperature: 0",
            );
            None
        }
    });
    let prompt = ChatPrompt {
        system: fields.read_some("system", report, text),
        images: fields
            .read_some("images", report, |item, report| template::tree(item, Root::BEFORE, report)),
        max_tokens: fields.read_some("max_tokens", report, tokens),
        options,
        provider: provider?,
        model: model?,
        prompt: prompt?,
    };
    let provider = prompt.provider;
    let base = base_url.map_or(provider.base_url().to_owned(), |url| url.uri.to_string());
    let url = format!("{}{}", base.trim_end_matches('/'), provider.path(&prompt.model));
    let name = HeaderName::from_static;
    let field = |(key, value): &(&'static str, &str)| (name(key), Text::from((*value).to_owned()));
    Some(HttpOptions {
        headers: provider.headers().iter().map(field).collect(),
        credentials: api_key.map(|key| match provider.key_header() {
            None => Credentials::Bearer(key),
            Some(header) => Credentials::Headers(vec![(name(header), key)]),
        }),
        result: ResultSource::Chat(provider),
        content: RequestBody::Chat(Box::new(prompt)),
        idempotency_header,
        response_limit,
        connect_timeout,
        ca,
        ..HttpOptions::to(Text::from(url))
    })
}

fn text(item: &Item<'_>, report: &mut Report) -> Option<Text> {
    scalar::text(item, report)?;
    template::text(item, Root::BEFORE, report)
}

/// Reads a model name, which becomes part of an address.
fn model_of(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let model = scalar::text(item, report)?;
    let sound = |c: char| c.is_ascii_alphanumeric() || "-._:/@".contains(c);
    if !model.chars().all(sound) || model.split('/').any(|part| matches!(part, "" | "." | "..")) {
        item.fail(report, "not a valid model name", "write a name such as gpt-4o-mini");
        return None;
    }
    Some(model)
}
