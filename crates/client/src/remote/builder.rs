//! [`RemoteBuilder`]: creates a client of a remote service.

use std::path::PathBuf;
use std::time::Duration;

use super::breaker::Breaker;
use super::client::Client;
use super::denial_cache::DenialCache;
use super::transport::Transport;
use crate::error::Error;
use crate::limiter::Limiter;

/// Longest time for which a denial is cached. Capacity may come back earlier than a denial said,
/// because an admission was cancelled or a limit was raised.
const DENY_CACHE_MAX: Duration = Duration::from_secs(1);

/// The policy for requests while the service does not answer. If the service answers and its store
/// does not, the outage policy of the service decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnavailablePolicy {
    /// Denies, with status 503 and the reason `LIMITER_UNAVAILABLE`.
    #[default]
    Closed,
    /// Admits.
    Open,
    /// Returns an error of the kind [`Unavailable`](crate::ErrorKind::Unavailable).
    Error,
}

/// A builder of a client.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Limiter, UnavailablePolicy};
///
/// let limiter = Limiter::remote("http://127.0.0.1:8080")
///     .token("secret")
///     .deadline(Duration::from_millis(200))
///     .on_unavailable(UnavailablePolicy::Open)
///     .build()?;
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct RemoteBuilder {
    url: String,
    token: Option<String>,
    deadline: Duration,
    policy: UnavailablePolicy,
    deny_cache: Duration,
    ca: Option<PathBuf>,
}

impl RemoteBuilder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            token: None,
            deadline: Duration::from_secs(1),
            policy: UnavailablePolicy::default(),
            deny_cache: DENY_CACHE_MAX,
            ca: None,
        }
    }

    /// Sets the token of the service.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the longest time of a call, including the connection. Default: 1 second.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the policy while the service does not answer. Default: closed.
    pub fn on_unavailable(mut self, policy: UnavailablePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the longest time for which a denial is repeated without a call, at most 1 second, which
    /// is the default; zero turns it off. A denial is repeated only as long as it is valid.
    pub fn deny_cache(mut self, time: Duration) -> Self {
        self.deny_cache = time;
        self
    }

    /// Sets a PEM file with the certificates that an https service is checked with. Default: those
    /// of the system.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Creates the client. It connects with the first call, which needs a Tokio runtime.
    pub fn build(self) -> Result<Limiter, Error> {
        if self.deadline.is_zero() {
            return Err(Error::configuration("deadline: must not be zero"));
        }
        if self.deny_cache > DENY_CACHE_MAX {
            return Err(Error::configuration("deny_cache: must be at most 1 second"));
        }
        let transport = Transport::new(&self.url, self.token.as_deref(), self.deadline, self.ca)?;
        let denials = DenialCache::new(self.deny_cache);
        Ok(Limiter::new(Client::new(transport, self.policy, denials, Breaker::default())))
    }
}
