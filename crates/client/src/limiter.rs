//! [`Limiter`]: decides if work may start.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::admission::Admission;
use crate::backend::{Backend, Outcome};
use crate::background::to_the_end;
use crate::decision::Decision;
use crate::embedded::Builder;
use crate::error::Error;
use crate::explanation::Explanation;
#[cfg(feature = "remote")]
use crate::remote::RemoteBuilder;
use crate::request::Request;
use crate::scope::Scope;
use crate::stats::{Counters, Stats};

/// A limiter: the engine in this process, or a client of a remote service. All methods are the same
/// for both. Clones share everything.
///
/// ```
/// use sluicegate::{Decision, Limiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), sluicegate::Error> {
/// let limiter = Limiter::from_yaml(
///     "limits: [{name: user, rules: [{name: USER, per: [userId], limit: [10/min, 100/h]}]}]",
/// )?;
/// match limiter.acquire(&[("userId", "u1")]).await? {
///     Decision::Allowed(_admission) => println!("go"),
///     Decision::Denied(denial) => println!("{denial}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

/// The parts of a limiter that its clones and admissions share.
pub(crate) struct Shared {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) counters: Counters,
    /// Number of admissions whose end is sent again.
    pub(crate) retries: AtomicUsize,
}

impl Limiter {
    /// Creates a limiter in this process from the text of a
    /// configuration file. Variables such as `${REDIS_URL}` are taken from the environment.
    ///
    /// The sections `limits`, `dimensions`, `outage`, `prices`, `booking`, `enabled` and `store`
    /// apply. `listen`, `auth`, `server`, `log`, `metrics` and `envoy` belong to `sluicegate serve`
    /// and are ignored, so that both can share a file. `gateways`, `queue`, `dispatch` and `workers`
    /// are errors. A store of the kind `redis` needs the feature `redis`.
    pub fn from_yaml(text: &str) -> Result<Self, Error> {
        Self::builder().yaml(text).build()
    }

    /// Returns a builder for a limiter in this process.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a builder for a client of the service at `url`, such as `http://127.0.0.1:8080`.
    #[cfg(feature = "remote")]
    pub fn remote(url: impl Into<String>) -> RemoteBuilder {
        RemoteBuilder::new(url.into())
    }

    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        let (backend, counters) = (Box::new(backend), Counters::default());
        Self { shared: Arc::new(Shared { backend, counters, retries: AtomicUsize::new(0) }) }
    }

    /// Charges a request on all limits that apply to it, or on none.
    ///
    /// If the future is dropped before the decision arrives, the admission is released in the
    /// background.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into();
        if self.shared.backend.ends_at_once() {
            return Ok(self.decision(self.shared.backend.acquire(&request).await?));
        }
        let (limiter, request) = (self.clone(), request.into_owned());
        to_the_end(
            async move { Ok(limiter.decision(limiter.shared.backend.acquire(&request).await?)) },
        )
        .await
    }

    /// Returns the decision that a request would get now. Charges nothing.
    pub async fn check<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into();
        Ok(match self.shared.backend.check(&request).await? {
            Outcome::Allowed(outcome) => Decision::Allowed(Admission::new(&self.shared, outcome)),
            Outcome::Denied(denial) => Decision::Denied(denial),
        })
    }

    /// Waits for the turn of a request: books its earliest start and sleeps until then. Denies only
    /// work that never fits, that would wait longer than [`Request::wait_max`], or that the rules
    /// refuse while the store does not answer.
    ///
    /// Dropping the future gives the booking back.
    ///
    /// ```
    /// # async fn example(limiter: sluicegate::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use sluicegate::Request;
    ///
    /// let request = Request::from([("provider", "acme")]).wait_max(Duration::from_secs(30));
    /// let turn = limiter.until_ready(request).await?.admit()?;
    /// // Call the vendor here.
    /// drop(turn);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn until_ready<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> Result<Decision, Error> {
        let request = request.into();
        Ok(self.decision(self.shared.backend.until_ready(&request).await?))
    }

    /// Returns the usage of the limits that apply to a request. Charges nothing.
    pub async fn usage<'a>(&self, request: impl Into<Request<'a>>) -> Result<Vec<Scope>, Error> {
        let request = request.into();
        self.shared.backend.usage(&request).await
    }

    /// Explains which rules apply to a request and why others do not. Charges nothing.
    pub async fn explain<'a>(&self, request: impl Into<Request<'a>>) -> Result<Explanation, Error> {
        let request = request.into();
        self.shared.backend.explain(&request).await
    }

    /// Replaces the rules by those of a configuration file. Usage is kept. If the file has errors,
    /// the old rules stay. The other sections of the file are not applied.
    ///
    /// A service reloads its own file, so this is an error for a remote limiter.
    pub fn reload_yaml(&self, text: &str) -> Result<(), Error> {
        self.shared.backend.reload(text)
    }

    /// Returns the counts of decisions.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    fn decision(&self, outcome: Outcome) -> Decision {
        let decision = match outcome {
            Outcome::Allowed(outcome) => Decision::Allowed(Admission::new(&self.shared, outcome)),
            Outcome::Denied(denial) => Decision::Denied(denial),
        };
        self.shared.counters.count(&decision);
        decision
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
