//! Gateways: what they listen on, and what goes where, how fast.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use sluicegate_core::{Limit, Span};

use super::{Auth, ByteSize, Listener, Secret};

/// One gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name; logs and metrics speak of it.
    pub name: String,
    /// Where it listens, apart from everything else.
    pub listen: Listener,
    /// The header field that carries the token of a caller. Default: x-internal-token.
    pub token_header: String,
    /// The tokens. Default: none, so that everybody who can reach it is let in.
    pub auth: Auth,
    /// Dimensions that are read from header fields. Default: none; `caller` is the name of the
    /// token.
    pub dimensions: BTreeMap<String, String>,
    /// How many proxies before it are ours. Default: 0, so that what clients say of themselves
    /// does not count.
    pub trusted_hops: usize,
    /// What the log calls a request. Default: gateway_request.
    pub event: String,
    /// The first that takes a path is taken.
    pub routes: Vec<Route>,
}

/// What goes where, how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name. Default: its path.
    pub name: String,
    /// Which path, or with `*` at the end all that begin like it.
    pub path: String,
    /// Which methods. Default: all.
    pub methods: Vec<String>,
    /// Where to. A path in it takes the place of the part that matched.
    pub upstream: Url,
    /// Whether the upstream speaks HTTP/2 without being asked. Default: false; over TLS both
    /// sides agree on a version by themselves.
    pub http2: bool,
    /// The authorities of its certificate, in PEM. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// What the upstream wants to see. Default: nothing.
    pub credentials: Option<Credentials>,
    /// Its limits for all callers together. Default: none.
    pub limits: Vec<Limit>,
    /// What happens over the limit.
    pub wait: Wait,
    /// How long a connection may take to be made. Default: 5s.
    pub connect_timeout: Span,
    /// From sending a request to the head of its answer. Default: 60s.
    pub timeout: Span,
    /// How long a body may fall silent. Default: 60s.
    pub idle_timeout: Span,
    /// From the arrival of a request to the head of its answer, waiting included. Default: none.
    pub deadline: Option<Span>,
    /// The longest body of a request. Default: 1MB.
    pub body_limit: ByteSize,
    /// How often a request that can't do harm twice is sent again when it got no answer.
    /// Default: 0.
    pub retries: u32,
    /// Whether only answers with 2xx count. Default: false; under most contracts everything that
    /// was sent does.
    pub count_if_ok: bool,
    /// Whether connections may be taken over. Default: false.
    pub upgrades: bool,
    /// Whether bodies are GraphQL. Default: if the path ends with /graphql.
    pub graphql: bool,
    /// What is learned from answers. Default: where there is a limit, pauses up to an hour.
    pub learn: Option<Learn>,
}

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// As it is written.
    pub text: String,
    /// Whether it has a path, be it `/`.
    pub has_path: bool,
}

/// What the upstream wants to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// `Authorization: Basic`.
    Basic {
        /// Who.
        user: SecretSource,
        /// The password.
        password: SecretSource,
    },
    /// `Authorization: Bearer`.
    Bearer(SecretSource),
    /// Header fields.
    Headers(BTreeMap<String, SecretSource>),
    /// A token that is asked for.
    Login(Login),
}

/// How a token is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Where, by POST.
    pub url: Url,
    /// What is sent.
    pub body: SecretSource,
    /// Its media type. Default: application/json.
    pub content_type: String,
    /// Where the token is in the answer. Default: /access_token.
    pub token: String,
    /// Where the answer says for how many seconds it is good. Default: /expires_in.
    pub expires_in: String,
    /// How long it is good where the answer does not say. Default: 10min.
    pub ttl: Span,
    /// The header field that carries it. Default: authorization.
    pub header: String,
    /// What stands before it. Default: Bearer.
    pub scheme: String,
}

/// A secret, or the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The secret.
    Value(Secret),
    /// The file.
    File(PathBuf),
}

/// What happens over the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long a request may wait. Default: 60s; 0s refuses at once.
    pub max: Span,
    /// How many may wait. Default: 1000.
    pub depth: usize,
    /// Who is next. Default: who came first.
    pub fair: Option<Fair>,
}

/// Turns over the values of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fair {
    /// The dimension.
    pub by: String,
    /// How many go in a turn. Default: 1.
    pub weights: HashMap<String, u32>,
    /// Who goes before others. Default: 0.
    pub priorities: HashMap<String, u8>,
}

/// What is learned from answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// A window of the upstream with fewer requests left counts as used up. Default: 1.
    pub below: u64,
    /// The longest pause that is believed. Default: 1h.
    pub pause_max: Span,
}
