//! [`Config`]: a checked configuration. Every option has a value: its default where the file leaves
//! it out.

mod auth;
mod dispatch;
mod envoy;
mod gateway;
mod handler;
mod listen;
mod prices;
mod queue;
mod service;
mod store;
mod traces;

pub use sluicegate_core::outage::{DataLossPolicy, OutagePolicies, OutagePolicy};
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Ruleset};
pub use sluicegate_store::{RedisEndpoint, RedisTopology, Sentinels};

pub use auth::{Auth, AuthScope, TokenHash};
pub use dispatch::{DelayMode, Dispatch, Provider, Strategy, WorkerOptions};
pub use envoy::{EnvoyClosedReply, EnvoyOptions};
pub(crate) use gateway::route_key;
pub use gateway::{
    CALLER, Credentials, GatewayOptions, HeaderDimension, LearnOptions, Login, PathPattern, ROUTE,
    RouteOptions, SecretSource, UpstreamUrl, WaitOptions, WaitOrder,
};
pub use handler::{
    ChatPrompt, ChatProvider, CommandOptions, EmitRule, HandlerAction, HandlerOptions, HttpOptions,
    NextPage, PageOptions, RequestBody, ResponseCondition, ResultSource, StatusRanges, UsagePaths,
};
pub use listen::{Address, Listener, ListenerTls, Listeners};
pub use prices::Prices;
pub use queue::{PubSubOptions, QueueApiOptions, QueueBroker, QueueOptions, ServiceBusLogin};
pub use service::{
    ByteSize, DecisionSampling, LogFormat, LogLevel, LogOptions, MetricsOptions, SampleRate,
    ServerOptions,
};
pub use store::{RedisStore, RedisTimeouts, RedisWorkload, Secret, SnapshotFile, StoreOptions};
pub use traces::{TraceOptions, TraceProtocol};

use crate::diagnostic::Diagnostic;
use crate::price_file::{self, PriceFileError};

/// A usable configuration and the warnings about it.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Options that are probably mistakes, in the order of the text.
    pub warnings: Vec<Diagnostic>,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// True if limits apply. If false, every request is allowed, and is counted as allowed: an
    /// emergency switch that keeps the service available to its callers. Default: true.
    pub enabled: bool,
    /// Addresses of the service.
    pub listen: Listeners,
    /// Tokens of callers.
    pub auth: Auth,
    /// Store of the counters.
    pub store: StoreOptions,
    /// Reason why this store is used, for the log.
    pub store_reason: &'static str,
    /// Broker of the job queues. Default: no queue is used.
    pub queue: Option<QueueOptions>,
    /// Source of additional prices.
    pub prices: Prices,
    /// Logging.
    pub log: LogOptions,
    /// Metrics.
    pub metrics: MetricsOptions,
    /// Traces. Default: off.
    pub traces: Option<TraceOptions>,
    /// Resource limits of the process.
    pub server: ServerOptions,
    /// Responses to Envoy.
    pub envoy: EnvoyOptions,
    /// Gateways to upstreams. Default: none.
    pub gateways: Vec<GatewayOptions>,
    /// Dispatcher to providers. Default: none.
    pub dispatch: Option<Dispatch>,
    /// Workers. Default: none.
    pub workers: Vec<WorkerOptions>,
    /// All groups; those of the default rule come first.
    pub(crate) groups: Vec<Group>,
    /// Number of groups of the default rule: none if the file has limits.
    pub(crate) default_groups: usize,
    pub(crate) ruleset: Ruleset,
}

impl Config {
    /// Returns the groups of rules: those of the file, and those of the default rule.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the groups of rules as the file states them, also those of routes and providers.
    pub fn stated_groups(&self) -> &[Group] {
        &self.groups[self.default_groups..]
    }

    /// Returns the groups that apply because the file has no limits for callers: USER_MODEL, 100/h
    /// by userId and modelId.
    pub fn default_groups(&self) -> &[Group] {
        &self.groups[..self.default_groups]
    }

    /// Returns required and secret dimensions, prices and booking options. Default: nothing is
    /// required (userId and modelId if the file has no limits), apiKey is secret, bookings start at
    /// most an hour ahead.
    pub fn settings(&self) -> &Settings {
        self.ruleset.settings()
    }

    /// Imports the price file that [`Config::prices`] names, for models without a price of their
    /// own. Returns the number of models in the file.
    pub fn import_prices(&mut self, text: &str) -> Result<usize, PriceFileError> {
        let models = price_file::read(text)?;
        let count = models.len();
        self.ruleset.prices_mut().import(models);
        Ok(count)
    }

    /// Returns the compiled rules.
    pub const fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Returns the rules that apply: none if limits are disabled.
    pub fn active_ruleset(&self) -> Ruleset {
        if self.enabled {
            return self.ruleset.clone();
        }
        let settings =
            Settings { required: Vec::new(), needs: Vec::new(), ..self.settings().clone() };
        Ruleset::new(Vec::new(), settings).expect("an empty ruleset is valid")
    }
}
