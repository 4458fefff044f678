//! [`HandlerOptions`]: options of the built-in handlers, with which a worker processes jobs without
//! code: an HTTP call (also to a chat model) or a command.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use http::{HeaderName, Method};
use serde_json::Value;
use sluicegate_core::Span;
use sluicegate_template::{JsonPath, Text, Tree};

use super::{ByteSize, Credentials, SecretSource};

/// Options of the handler that processes the jobs of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerOptions {
    /// The call or program that it runs for a job.
    pub action: HandlerAction,
    /// Messages to send when a job is done. Default: none.
    pub emit: Vec<EmitRule>,
}

impl HandlerOptions {
    /// Returns the queues that it sends further messages to.
    pub fn queues(&self) -> impl Iterator<Item = &str> {
        self.emit.iter().map(|emit| emit.queue.as_str())
    }
}

/// The call or program that a handler runs for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerAction {
    /// An HTTP call.
    Http(Box<HttpOptions>),
    /// A program that is run.
    Command(CommandOptions),
}

/// An HTTP call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Method. Default: POST.
    pub method: Method,
    /// Address, a template. Scheme and host are fixed, so that credentials go only to the configured
    /// server.
    pub url: Text,
    /// Query parameters, added to those of the address. One whose value is empty is left out.
    /// Default: none.
    pub query: Vec<(String, Text)>,
    /// Additional header fields. Default: none.
    pub headers: Vec<(HeaderName, Text)>,
    /// Request body. Default: the message; nothing for GET and DELETE.
    pub content: RequestBody,
    /// Credentials for the server. Default: none.
    pub credentials: Option<Credentials>,
    /// Header field that carries the job id, by which the server recognises a repeated job. Default:
    /// idempotency-key.
    pub idempotency_header: Option<HeaderName>,
    /// Statuses that mean success. Default: 2xx.
    pub success: StatusRanges,
    /// Condition that the response body must meet as well. Default: none.
    pub condition: Option<ResponseCondition>,
    /// Additional statuses that are retried. Default: none.
    pub retry: StatusRanges,
    /// Part of the response that is the result. Default: the whole body.
    pub result: ResultSource,
    /// Place of the next page in a response, which becomes a further message. Default: none.
    pub pages: Option<PageOptions>,
    /// True if an unchanged response (304) is not processed again. Default: false.
    pub conditional: bool,
    /// Members of the JSON response that contain what the call took. Default: none.
    pub usage: UsagePaths,
    /// Maximum size of the response. Default: 10MB.
    pub response_limit: ByteSize,
    /// Timeout for opening a connection. Default: 5s.
    pub connect_timeout: Span,
    /// True if the server speaks HTTP/2 without negotiation. Default: false.
    pub http2: bool,
    /// Certificate authorities of the server, in PEM. Default: those of the system.
    pub ca: Option<PathBuf>,
}

impl HttpOptions {
    /// Returns a call of this address with the defaults of all other options.
    pub fn to(url: Text) -> Self {
        Self {
            method: Method::POST,
            url,
            query: Vec::new(),
            headers: Vec::new(),
            content: RequestBody::Message,
            credentials: None,
            idempotency_header: Some(HeaderName::from_static("idempotency-key")),
            success: vec![200..=299],
            condition: None,
            retry: Vec::new(),
            result: ResultSource::Whole,
            pages: None,
            conditional: false,
            usage: UsagePaths::default(),
            response_limit: ByteSize(10 << 20),
            connect_timeout: Span::from_secs(5),
            http2: false,
            ca: None,
        }
    }
}

/// The way to the next page of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Place of the next page in a response.
    pub next: NextPage,
    /// Member of the message that names the page. Default: the parameter of the link.
    pub field: String,
}

/// The place of the next page in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPage {
    /// This query parameter of the address in `Link: rel="next"`.
    Link(String),
    /// This member of the JSON body.
    Cursor(JsonPath),
}

/// The members of a JSON response that contain what a call took. Default: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePaths {
    /// Input tokens.
    pub input_tokens: Option<JsonPath>,
    /// Output tokens.
    pub output_tokens: Option<JsonPath>,
    /// Dollars.
    pub usd: Option<JsonPath>,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// No body.
    Nothing,
    /// The message, byte by byte.
    Message,
    /// JSON made from a template.
    Json(Tree),
    /// Text made from a template.
    Text(Text),
    /// A prompt to a chat model.
    Chat(Box<ChatPrompt>),
}

/// The part of a response that is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultSource {
    /// The whole body.
    Whole,
    /// This member of the JSON body.
    Member(JsonPath),
    /// Text and usage of a chat response.
    Chat(ChatProvider),
}

/// Ranges of HTTP statuses.
pub type StatusRanges = Vec<RangeInclusive<u16>>;

/// A condition on the body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseCondition {
    /// Path of the value to compare.
    pub path: JsonPath,
    /// Accepted values. Default: everything except null and false.
    pub values: Vec<Value>,
}

/// A program that is run for each job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOptions {
    /// The program.
    pub program: String,
    /// Arguments. Default: none.
    pub args: Vec<String>,
    /// Working directory. Default: that of the worker.
    pub dir: Option<PathBuf>,
    /// Environment variables. Default: a few of the worker's, such as PATH.
    pub env: BTreeMap<String, SecretSource>,
    /// Maximum size of the output. Default: 10MB.
    pub output_limit: ByteSize,
}

/// A prompt to a chat model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// API of the provider.
    pub provider: ChatProvider,
    /// Name of the model.
    pub model: String,
    /// System prompt. Default: none.
    pub system: Option<Text>,
    /// Prompt.
    pub prompt: Text,
    /// Images. Default: none.
    pub images: Option<Tree>,
    /// Maximum length of the response, in tokens. Default: the provider's; 4096 for Anthropic,
    /// whose API requires a value.
    pub max_tokens: Option<u32>,
    /// Additional members of the request body. Default: none.
    pub options: Option<Tree>,
}

/// The API of a chat model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatProvider {
    /// OpenAI's chat completions, which many other providers offer too.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's `generateContent`.
    Gemini,
}

impl ChatProvider {
    /// Returns the default base URL of the provider.
    pub const fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
        }
    }

    /// Returns the path after the base URL for a request to this model.
    pub fn path(self, model: &str) -> String {
        match self {
            Self::OpenAi => "/chat/completions".to_owned(),
            Self::Anthropic => "/v1/messages".to_owned(),
            Self::Gemini => format!("/v1beta/models/{model}:generateContent"),
        }
    }

    /// Returns the header field of the API key; `None` if it is a bearer token.
    pub const fn key_header(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => None,
            Self::Anthropic => Some("x-api-key"),
            Self::Gemini => Some("x-goog-api-key"),
        }
    }

    /// Returns the additional header fields that the API requires.
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Anthropic => &[("anthropic-version", "2023-06-01")],
            Self::OpenAi | Self::Gemini => &[],
        }
    }
}

/// A message to send when a job is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmitRule {
    /// Path of a list in the result; one message is sent for each item. Default: one message.
    pub each: Option<JsonPath>,
    /// Path in the result that must have a value for the message to be sent. Default: always sent.
    pub when: Option<JsonPath>,
    /// Queue to send to.
    pub queue: String,
    /// Type of the message. Default: none.
    pub kind: Option<String>,
    /// Body template. Default: the item, or the result.
    pub body: Option<Tree>,
    /// Job id template. Default: an id that is the same whenever the same message is sent.
    pub id: Option<Text>,
}
