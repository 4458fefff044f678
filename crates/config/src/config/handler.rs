//! What a worker does with a job, where no Rust is written for it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::Value;
use sluicegate_core::Span;
use sluicegate_template::{Member, Text, Tree};

use super::{ByteSize, Credentials, SecretSource, Url};

/// What a worker does with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The work.
    pub work: Work,
    /// What is sent when it is done. Default: nothing.
    pub emit: Vec<Emit>,
}

impl Handler {
    /// The queues that it sends further work to.
    pub fn queues(&self) -> impl Iterator<Item = &str> {
        self.emit.iter().map(|emit| emit.queue.as_str())
    }
}

/// The work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A call over HTTP.
    Http(Box<HttpWork>),
    /// A program.
    Command(CommandWork),
    /// A question to a model.
    Chat(Box<ChatWork>),
}

/// A call over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpWork {
    /// How. Default: POST.
    pub method: String,
    /// Where.
    pub url: Text,
    /// Further header fields. Default: none.
    pub headers: BTreeMap<String, Text>,
    /// What is sent. Default: the message, or nothing by GET and DELETE.
    pub content: HttpContent,
    /// What the server wants to see. Default: nothing.
    pub credentials: Option<Credentials>,
    /// The header field that carries the id of the job. Default: idempotency-key.
    pub idempotency_header: Option<String>,
    /// Which statuses are good. Default: 2xx.
    pub success: Statuses,
    /// What the answer has to say besides. Default: nothing.
    pub condition: Option<AnswerCondition>,
    /// Which further statuses are worth another attempt. Default: none.
    pub retry: Statuses,
    /// What of the answer is the result. Default: all of it.
    pub result: Option<Member>,
    /// The longest answer. Default: 10MB.
    pub response_limit: ByteSize,
    /// How long a connection may take to be made. Default: 5s.
    pub connect_timeout: Span,
    /// Whether the server speaks HTTP/2 without being asked. Default: false.
    pub http2: bool,
    /// The authorities of its certificate, in PEM. Default: those of the system.
    pub ca: Option<PathBuf>,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpContent {
    /// Nothing.
    Nothing,
    /// The message, byte by byte.
    Message,
    /// JSON.
    Json(Tree),
    /// Text.
    Text(Text),
}

/// Ranges of statuses.
pub type Statuses = Vec<RangeInclusive<u16>>;

/// What an answer has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerCondition {
    /// Where.
    pub path: Member,
    /// Any of these. Default: anything but null and false.
    pub values: Vec<Value>,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandWork {
    /// Which.
    pub program: String,
    /// Its arguments. Default: none.
    pub args: Vec<String>,
    /// Where it runs. Default: where the worker does.
    pub dir: Option<PathBuf>,
    /// Variables that it is given. Default: a few of the worker's, such as PATH.
    pub env: BTreeMap<String, SecretSource>,
    /// The most that it may print. Default: 10MB.
    pub output_limit: ByteSize,
}

/// A question to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatWork {
    /// Whose interface is spoken.
    pub provider: ChatProvider,
    /// Which model.
    pub model: String,
    /// The key. It may be missing only where the address is not the provider's own.
    pub api_key: Option<SecretSource>,
    /// Where the provider is. Default: where it is for everybody.
    pub base_url: Option<Url>,
    /// Who the model is to be. Default: nobody.
    pub system: Option<Text>,
    /// What it is asked.
    pub prompt: Text,
    /// What it is shown. Default: nothing.
    pub images: Option<Tree>,
    /// The longest answer, in tokens. Default: the provider's; 4096 with Anthropic, which wants to
    /// be told.
    pub max_tokens: Option<u32>,
    /// Further members of the body. Default: none.
    pub options: Option<Tree>,
    /// The header field that carries the id of the job. Default: idempotency-key.
    pub idempotency_header: Option<String>,
    /// The longest answer, in bytes. Default: 10MB.
    pub response_limit: ByteSize,
    /// How long a connection may take to be made. Default: 5s.
    pub connect_timeout: Span,
    /// The authorities of its certificate, in PEM. Default: those of the system.
    pub ca: Option<PathBuf>,
}

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

/// What is sent when a job is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emit {
    /// A list in the result, of which each calls for a message. Default: there is one message.
    pub each: Option<Member>,
    /// Only if the result has something here. Default: always.
    pub when: Option<Member>,
    /// Where to.
    pub queue: String,
    /// What kind of work it is. Default: none.
    pub kind: Option<String>,
    /// What it says. Default: the item, or the result.
    pub body: Option<Tree>,
    /// What the job is called. Default: a name that is the same whenever the same is sent.
    pub id: Option<Text>,
}
