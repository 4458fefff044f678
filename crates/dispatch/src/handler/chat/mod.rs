//! A question to a model, with text and images: the body that each provider wants, and the text and
//! usage in what it answers. All else of such a call is HTTP.

mod anthropic;
mod gemini;
mod openai;

use serde_json::{Value, json};
use sluicegate_template::{Text, Tree, ValueSource};

use super::http::RequestError;

/// Whose interface is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatProvider {
    /// OpenAI's chat completions, which many others speak, too.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's `generateContent`.
    Gemini,
}

impl ChatProvider {
    /// Where it is, as its own libraries write it.
    pub const fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
        }
    }

    /// What follows the base for a question to this model.
    pub fn path(self, model: &str) -> String {
        match self {
            Self::OpenAi => "/chat/completions".to_owned(),
            Self::Anthropic => "/v1/messages".to_owned(),
            Self::Gemini => format!("/v1beta/models/{model}:generateContent"),
        }
    }

    /// The header field of the key; none if it is a bearer token.
    pub const fn key_header(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => None,
            Self::Anthropic => Some("x-api-key"),
            Self::Gemini => Some("x-goog-api-key"),
        }
    }

    /// Header fields that it asks for besides the key.
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Anthropic => &[("anthropic-version", "2023-06-01")],
            Self::OpenAi | Self::Gemini => &[],
        }
    }
}

/// A question.
#[derive(Clone, Debug)]
pub struct Chat {
    /// Whom.
    pub provider: ChatProvider,
    /// Which model.
    pub model: String,
    /// Who the model is to be.
    pub system: Option<Text>,
    /// What it is asked.
    pub prompt: Text,
    /// What it is shown: the address of an image, or a list of them.
    pub images: Option<Tree>,
    /// The longest answer, in tokens.
    pub max_tokens: Option<u32>,
    /// Whatever else the provider knows, put into the body as it is.
    pub options: Option<Tree>,
}

/// A question of which all places are filled.
struct Asked<'c> {
    model: &'c str,
    system: Option<String>,
    prompt: String,
    images: Vec<Image>,
    max_tokens: Option<u32>,
}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImageError {
    #[error("the value is neither an address nor a list of addresses")]
    Kind,
    #[error("an image is neither an http:// or https:// address nor data:<type>;base64,<data>")]
    Address,
}

impl Chat {
    /// The body of the request.
    pub(super) fn body(&self, scope: &dyn ValueSource) -> Result<Value, RequestError> {
        let system = self.system.as_ref().map(|text| text.render(scope)).transpose();
        let images = self.images.as_ref().map(|tree| tree.render(scope)).transpose();
        let asked = Asked {
            model: &self.model,
            system: system.map_err(RequestError::of("system"))?,
            prompt: self.prompt.render(scope).map_err(RequestError::of("prompt"))?,
            images: images_of(images.map_err(RequestError::of("images"))?)?,
            max_tokens: self.max_tokens,
        };
        let mut body = match self.provider {
            ChatProvider::OpenAi => openai::body(&asked),
            ChatProvider::Anthropic => anthropic::body(&asked),
            ChatProvider::Gemini => gemini::body(&asked),
        };
        if let Some(options) = &self.options {
            merge(&mut body, options.render(scope).map_err(RequestError::of("options"))?);
        }
        Ok(body)
    }
}

/// Text and usage of an answer, in the same words for every provider; or why there is no text.
pub(super) fn read(provider: ChatProvider, answer: &Value) -> Result<Value, String> {
    let Answered { text, finish, model, usage, tokens } = match provider {
        ChatProvider::OpenAi => openai::read(answer),
        ChatProvider::Anthropic => anthropic::read(answer),
        ChatProvider::Gemini => gemini::read(answer),
    };
    if text.is_empty() {
        return Err(format!("the model gave no text: {}", finish.unwrap_or("it did not say why")));
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

/// What a model answered.
struct Answered<'a> {
    text: String,
    /// Why it stopped, in the provider's words.
    finish: Option<&'a str>,
    model: Option<&'a str>,
    /// As the provider tells it.
    usage: Option<&'a Value>,
    /// Tokens sent and answered, those of caches and of thinking included.
    tokens: [u64; 2],
}

/// The sum of some members that are numbers, as far as they are there.
fn sum(usage: Option<&Value>, members: &[&str]) -> u64 {
    let number = |name: &&str| usage?.get(name)?.as_u64();
    members.iter().filter_map(number).fold(0, u64::saturating_add)
}

/// An image: where it is, or what it is.
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

/// Puts members into a map; where both have a map, into that.
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
