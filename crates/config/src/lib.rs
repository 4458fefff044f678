//! From the text of a configuration to what it means, or to every mistake in it.
//!
//! ```text
//! text ─raw→ marked tree ─interpolate→ the same, with variables replaced ─resolve→ Config
//! ```
//!
//! The first stage knows YAML and nothing of limits; the last knows limits and nothing of YAML.
//! There is no file and no environment in this crate: the text and a way to look up variables are
//! arguments. Files that a configuration names stay paths.

mod config;
mod diagnostic;
mod interpolate;
mod place;
mod price_file;
mod raw;
mod report;
mod resolve;
mod source;

pub use config::{
    Address, AnswerCondition, Asking, Auth, ByteSize, ChatProvider, ChatWork, CommandWork, Config,
    Credentials, Decisions, Delay, Dispatch, Emit, Envoy, EnvoyClosed, Fair, Gateway, Handler,
    HttpContent, HttpWork, Learn, Listen, Listener, Loaded, Log, LogFormat, LogLevel, Login,
    Metrics, OnLoss, Outage, OutagePolicy, Prices, Provider, Queue, QueueBroker, RedisAddress,
    RedisStore, RedisTopology, Route, Secret, SecretSource, Server, Share, SnapshotFile, Statuses,
    Store, Strategy, Tls, TokenHash, TokenScope, Url, Wait, Waits, Work, Worker,
};
pub use diagnostic::{Diagnostic, Diagnostics, Excerpt, Severity};
pub use price_file::PriceFileError;

use report::Report;
use source::Source;

/// Reads a configuration, or says everything that is wrong with it.
///
/// A file in the format of envoyproxy/ratelimit is one too: it is known by its `domain`.
///
/// `source_name` is what messages call the text, `env` looks up a variable. A value that came from
/// a variable is never part of a message: messages show what is written in the text.
pub fn load(
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Loaded, Diagnostics> {
    load_as(None, source_name, text, env)
}

/// Reads a configuration that is in this format, whatever it looks like.
pub fn load_from(
    format: Format,
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Loaded, Diagnostics> {
    load_as(Some(format), source_name, text, env)
}

/// The formats of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Ours.
    Sluicegate,
    /// That of envoyproxy/ratelimit: a domain with descriptors.
    Envoy,
}

fn load_as(
    format: Option<Format>,
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Loaded, Diagnostics> {
    let mut report = Report::default();
    let (tree, hidden) = raw::parse(text, &mut report);
    let config = tree.and_then(|mut tree| {
        interpolate::tree(&mut tree, env, &mut report);
        match format.unwrap_or_else(|| resolve::format(&tree)) {
            Format::Sluicegate => resolve::config(&tree, &mut report),
            Format::Envoy => resolve::envoy_file(&tree, &mut report),
        }
    });
    report.finish(&Source::new(source_name, text, hidden), config)
}
