//! Configuration loader: turns the text of a configuration file into a checked [`Config`], or into
//! a list of every mistake in it.
//!
//! ```text
//! text ─raw→ tree of nodes with line numbers ─interpolate→ tree with variables replaced ─resolve→ Config
//! ```
//!
//! The first stage knows YAML and nothing of limits; the last knows limits and nothing of YAML. The
//! crate reads no files and no environment: the caller passes the text and a function that looks up
//! variables. Files named in a configuration stay paths.

mod config;
mod diagnostic;
mod interpolate;
mod location;
mod price_file;
mod raw;
mod report;
mod resolve;
mod source_text;

pub use config::{
    Address, Auth, AuthScope, ByteSize, CALLER, ChatPrompt, ChatProvider, CommandOptions, Config,
    Credentials, DataLossPolicy, DecisionSampling, DelayMode, Dispatch, EmitRule, EnvoyClosedReply,
    EnvoyOptions, GatewayOptions, HandlerAction, HandlerOptions, HeaderDimension, HttpOptions,
    LearnOptions, Listener, ListenerTls, Listeners, LoadedConfig, LogFormat, LogLevel, LogOptions,
    Login, MetricsOptions, NextPage, OutagePolicies, OutagePolicy, PageOptions, PathPattern,
    Prices, Provider, PubSubOptions, QueueApiOptions, QueueBroker, QueueOptions, ROUTE,
    RedisEndpoint, RedisStore, RedisTimeouts, RedisTopology, RedisWorkload, RequestBody,
    ResponseCondition, ResultSource, RouteOptions, SampleRate, Secret, SecretSource, Sentinels,
    ServerOptions, ServiceBusLogin, SnapshotFile, StatusRanges, StoreOptions, Strategy, TokenHash,
    TraceOptions, TraceProtocol, UpstreamUrl, UsagePaths, WaitOptions, WaitOrder, WorkerOptions,
};
pub use diagnostic::{Diagnostic, Diagnostics, Excerpt, Severity};
pub use location::Position;
pub use price_file::PriceFileError;
pub use raw::{MapKey, Node, Scalar, Value};

pub use resolve::VariableError;

use report::Report;
use resolve::SelectedStore;
use source_text::SourceText;

/// Loads a configuration, or returns every mistake in it.
///
/// Accepts our own format, that of envoyproxy/ratelimit and that of the old inference limiter. A
/// file of the second is recognised by its top-level key `domain`, one of the third by
/// `rate_limits`.
///
/// `source_name` is the file name that messages show, `env` looks up a variable. Messages never
/// contain the value of a variable: they show the text as it is written in the file.
pub fn load(
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedConfig, Diagnostics> {
    load_as(None, source_name, text, env)
}

/// Returns the configuration of a process without a file: the default rule, in memory or on the
/// Redis that the variables `REDIS_URL` and `REDIS_CLUSTER_MODE` name.
pub fn load_defaults(env: &dyn Fn(&str) -> Option<String>) -> Result<LoadedConfig, VariableError> {
    let none = SelectedStore {
        reason: "there is no configuration file and REDIS_URL is not set",
        ..SelectedStore::default()
    };
    let selected = resolve::store_from_environment(env)?.unwrap_or(none);
    let mut report = Report::default();
    let (tree, _) = raw::parse("", &mut report);
    let config = tree.and_then(|tree| resolve::config(&tree, env, selected, &mut report));
    let config = config.expect("an empty file is a configuration");
    Ok(LoadedConfig { config, warnings: Vec::new() })
}

/// Loads a configuration in the given format, without looking at its keys to detect the format.
pub fn load_from(
    format: Format,
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedConfig, Diagnostics> {
    load_as(Some(format), source_name, text, env)
}

/// The formats of configuration files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Our own format.
    Sluicegate,
    /// The format of envoyproxy/ratelimit: a domain with descriptors.
    Envoy,
    /// The format of the old inference limiter: `redis` and `rate_limits`.
    RateLimits,
}

fn load_as(
    format: Option<Format>,
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedConfig, Diagnostics> {
    let mut report = Report::default();
    let (tree, hidden) = raw::parse(text, &mut report);
    let config = tree.and_then(|mut tree| {
        interpolate::tree(&mut tree, env, &mut report);
        match format.unwrap_or_else(|| resolve::format(&tree)) {
            Format::Sluicegate => {
                let reason = "the file has no section store";
                let selected = SelectedStore { reason, ..SelectedStore::default() };
                resolve::config(&tree, env, selected, &mut report)
            }
            Format::Envoy => resolve::envoy_file(&tree, &mut report),
            Format::RateLimits => resolve::rate_limits_file(&tree, env, &mut report),
        }
    });
    let (config, warnings) = report.finish(&SourceText::new(source_name, text, hidden), config)?;
    Ok(LoadedConfig { config, warnings })
}

/// Parses a YAML file of another format with the checks and messages of a configuration. Variables
/// are not replaced.
pub fn parse_yaml(source_name: &str, text: &str) -> Result<Node, Diagnostics> {
    let mut report = Report::default();
    let (tree, hidden) = raw::parse(text, &mut report);
    Ok(report.finish(&SourceText::new(source_name, text, hidden), tree)?.0)
}
