//! What a configuration means. Every option is there, with its default where the file left it
//! out.

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

use std::sync::Arc;

pub use sluicegate_core::outage::{Outage, OutagePolicy};
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Ruleset};

pub use auth::{Auth, TokenHash, TokenScope};
pub use dispatch::{Delay, Dispatch, Provider, Strategy, Worker};
pub use envoy::{Envoy, EnvoyClosed};
pub use gateway::{Credentials, Fair, Gateway, Learn, Login, Route, SecretSource, Url, Wait};
pub use handler::{
    AnswerCondition, ChatProvider, ChatWork, CommandWork, Emit, Handler, HttpContent, HttpWork,
    Statuses, Work,
};
pub use listen::{Address, Listen, Listener, Tls};
pub use prices::Prices;
pub use queue::{Queue, QueueBroker};
pub use service::{ByteSize, Decisions, Log, LogFormat, LogLevel, Metrics, Server, Share};
pub use store::{
    Asking, OnLoss, RedisAddress, RedisStore, RedisTopology, Secret, SnapshotFile, Store, Waits,
};

use crate::diagnostic::Diagnostic;
use crate::price_file::{self, PriceFileError};

/// A configuration that can be used, and what is odd about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is probably not meant, in the order of the text.
    pub warnings: Vec<Diagnostic>,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether limits apply. If not, every answer is Allow and is counted as such: the way to
    /// turn limiting off at once without taking the service away from its callers. Default: true.
    pub enabled: bool,
    /// Where the service listens.
    pub listen: Listen,
    /// Who may call it.
    pub auth: Auth,
    /// Where usage is kept.
    pub store: Store,
    /// Where jobs wait. Default: no queue is used.
    pub queue: Option<Queue>,
    /// Where further prices come from.
    pub prices: Prices,
    /// What is logged.
    pub log: Log,
    /// What is measured.
    pub metrics: Metrics,
    /// What one process takes on.
    pub server: Server,
    /// What Envoy is answered.
    pub envoy: Envoy,
    /// What goes to upstreams, how fast. Default: nothing.
    pub gateways: Vec<Gateway>,
    /// What is sent to providers. Default: nothing.
    pub dispatch: Option<Dispatch>,
    /// Who works on it. Default: nobody.
    pub workers: Vec<Worker>,
    pub(crate) groups: Vec<Group>,
    pub(crate) settings: Settings,
}

impl Config {
    /// The groups of rules, as the file states them. Default: USER_MODEL, 100/h by userId and
    /// modelId.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Required and secret dimensions, prices, and how bookings behave. Default: nothing is required
    /// (userId and modelId if the file has no limits), apiKey is secret, bookings start at most
    /// an hour ahead.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the prices of the file that [`Config::prices`] names, for models that have none yet;
    /// says how many models there are.
    pub fn import_prices(&mut self, text: &str) -> Result<usize, PriceFileError> {
        let models = price_file::read(text)?;
        let count = models.len();
        Arc::make_mut(&mut self.settings.prices).import(models);
        Ok(count)
    }

    /// The rules, compiled.
    pub fn ruleset(&self) -> Ruleset {
        Ruleset::new(self.groups.clone(), self.settings.clone())
            .expect("loading compiled the same groups, and nothing can change them since")
    }
}
