//! [`Backend`]: the interface of the engine in this process and of a remote service. [`Limiter`]
//! and its guards are built once on top of it.
//!
//! [`Limiter`]: crate::Limiter

use std::pin::Pin;
use std::time::Duration;

use sluicegate_core::plan::Handle;
use sluicegate_service::cost::Origin;

use crate::cost::Cost;
use crate::decision::{Denial, Facts};
use crate::error::Error;
use crate::explanation::Explanation;
use crate::request::Request;
use crate::scope::Scope;
use crate::settlement::Settlement;

/// The future of an operation.
pub(crate) type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A limiter: in this process, or a remote one.
pub(crate) trait Backend: Send + Sync {
    /// Charges the request now, or denies it.
    fn acquire<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome>;

    /// Returns what [`Backend::acquire`] would answer. Charges nothing.
    fn check<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome>;

    /// Waits for the turn of the request. If the future is dropped, its booking is given back.
    fn until_ready<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome>;

    /// Replaces the estimate of an admission with its actual cost, and ends it. `recorded` of the
    /// result is false if a remote service did not answer and the client does not report that as an
    /// error.
    fn settle<'a>(
        &'a self,
        handle: &'a AdmissionHandle,
        cost: &'a Cost,
    ) -> Operation<'a, Settlement>;

    /// Ends an admission. Returns false if the end was not recorded, as for [`Backend::settle`].
    fn end<'a>(&'a self, handle: &'a AdmissionHandle, how: EndMode) -> Operation<'a, bool>;

    /// Extends an admission. Returns the time until it ends.
    fn renew<'a>(&'a self, handle: &'a AdmissionHandle) -> Operation<'a, Duration>;

    /// Returns the usage of the limits that apply to the request.
    fn usage<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Vec<Scope>>;

    /// Explains which rules apply to the request.
    fn explain<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Explanation>;

    /// Replaces the rules.
    fn reload(&self, yaml: &str) -> Result<(), Error>;

    /// Returns true if admissions end without waiting: the store is in this process.
    fn ends_at_once(&self) -> bool;

    /// Waits by the clock of the limiter.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The ways to end an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndMode {
    /// Frees the concurrency slots and keeps the charges.
    Release,
    /// Gives back everything.
    Cancel,
}

/// The answer of a backend.
pub(crate) enum Outcome {
    /// The work may start.
    Allowed(AllowedOutcome),
    /// The work may not start now.
    Denied(Denial),
}

/// An admission as the backend returns it.
pub(crate) struct AllowedOutcome {
    pub(crate) facts: Facts,
    pub(crate) replayed: bool,
    /// Name of the admission, if it can be settled, released or cancelled.
    pub(crate) handle: Option<AdmissionHandle>,
    /// Time until the admission ends unless it is renewed.
    pub(crate) lease: Option<Duration>,
}

/// The name of an admission.
#[derive(Clone, Debug)]
pub(crate) enum AdmissionHandle {
    /// The name in the store, and data for computing the actual cost.
    Store(Handle, Origin),
    /// The name that the service gave it.
    #[cfg(feature = "remote")]
    Remote(String),
}
