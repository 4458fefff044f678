//! Chat requests to models, with text and images. Builds the request body for each
//! provider, and reads text and usage from the response. The rest of such a call is plain HTTP.

mod anthropic;
mod gemini;
mod openai;

use serde_json::{Value, json};
use sluicegate_config::{ChatPrompt, ChatProvider};
use sluicegate_core::query::Cost;
use sluicegate_template::ValueSource;

use super::CallUsage;
use super::http::RequestError;

/// A chat request with all templates rendered.
struct ChatRequest<'c> {
    model: &'c str,
    system: Option<String>,
    prompt: String,
    images: Vec<Image>,
    max_tokens: Option<u32>,
}

/// The reason why an image can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImageError {
    #[error("expected a URL or a list of URLs")]
    Kind,
    #[error("expected an http:// or https:// URL, or data:<type>;base64,<data>")]
    Address,
}

/// Builds the body of the request for a job.
pub(super) fn body(chat: &ChatPrompt, scope: &dyn ValueSource) -> Result<Value, RequestError> {
    let system = chat.system.as_ref().map(|text| text.render(scope)).transpose();
    let images = chat.images.as_ref().map(|tree| tree.render(scope)).transpose();
    let request = ChatRequest {
        model: &chat.model,
        system: system.map_err(RequestError::of("system"))?,
        prompt: chat.prompt.render(scope).map_err(RequestError::of("prompt"))?,
        images: images_of(images.map_err(RequestError::of("images"))?)?,
        max_tokens: chat.max_tokens,
    };
    let mut body = match chat.provider {
        ChatProvider::OpenAi => openai::body(&request),
        ChatProvider::Anthropic => anthropic::body(&request),
        ChatProvider::Gemini => gemini::body(&request),
    };
    if let Some(options) = &chat.options {
        merge(&mut body, options.render(scope).map_err(RequestError::of("options"))?);
    }
    Ok(body)
}

/// Returns text and usage of a response in the same form for every provider, or the reason why
/// there is no text.
pub(super) fn read(provider: ChatProvider, answer: &Value) -> Result<Value, String> {
    let ChatResponse { text, finish, model, usage, tokens } = response(provider, answer);
    if text.is_empty() {
        return Err(format!("the model returned no text: {}", finish.unwrap_or("no reason given")));
    }
    let [input, output] = tokens;
    Ok(json!({
        "text": text,
        "model": model,
        "finish_reason": finish,
        "usage": {"input_tokens": input, "output_tokens": output},
        "provider_usage": usage,
    }))
}

/// Returns the tokens of a response, if the provider reports them.
pub(super) fn usage(provider: ChatProvider, answer: &Value) -> Option<CallUsage> {
    let ChatResponse { model, usage, tokens: [input, output], .. } = response(provider, answer);
    usage?;
    let cost = Cost { input_tokens: Some(input), output_tokens: Some(output), ..Cost::default() };
    Some(CallUsage { cost, model: model.map(str::to_owned) })
}

fn response(provider: ChatProvider, answer: &Value) -> ChatResponse<'_> {
    match provider {
        ChatProvider::OpenAi => openai::read(answer),
        ChatProvider::Anthropic => anthropic::read(answer),
        ChatProvider::Gemini => gemini::read(answer),
    }
}

/// A chat response in the common form.
struct ChatResponse<'a> {
    text: String,
    /// Finish reason, as the provider names it.
    finish: Option<&'a str>,
    model: Option<&'a str>,
    /// Usage, as the provider reports it.
    usage: Option<&'a Value>,
    /// Number of input and output tokens, those of caches and of reasoning included.
    tokens: [u64; 2],
}

/// Returns the sum of the given members; missing ones count as 0.
fn sum(usage: Option<&Value>, members: &[&str]) -> u64 {
    let number = |name: &&str| usage?.get(name)?.as_u64();
    members.iter().filter_map(number).fold(0, u64::saturating_add)
}

/// An image, by URL or by content.
enum Image {
    At(String),
    Data { media_type: String, base64: String },
}

fn images_of(value: Option<Value>) -> Result<Vec<Image>, ImageError> {
    let items = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    items.into_iter().map(image).collect()
}

fn image(value: Value) -> Result<Image, ImageError> {
    let Value::String(text) = value else { return Err(ImageError::Kind) };
    if text.starts_with("https://") || text.starts_with("http://") {
        return Ok(Image::At(text));
    }
    let data = text.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (media_type, base64) = data.ok_or(ImageError::Address)?;
    Ok(Image::Data { media_type: media_type.to_owned(), base64: base64.to_owned() })
}

/// Merges one JSON value into another; maps are merged recursively.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests;
