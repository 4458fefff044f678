//! [`Client`]: the backend that asks a remote service.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use sluicegate_core::time::{Clock as _, Timestamp};
use sluicegate_service::headers::RETRY_AFTER;
use sluicegate_store::MonotonicClock;
use tokio::time::sleep;
use tracing::warn;

use super::breaker::Breaker;
use super::builder::UnavailablePolicy;
use super::denial_cache::DenialCache;
use super::transport::{HttpAnswer, NoAnswer, Transport};
use super::wire::{self, CallError, ClaimAnswer};
use crate::backend::{AdmissionHandle, AllowedOutcome, Backend, EndMode, Operation, Outcome};
use crate::background::to_the_end;
use crate::cost::Cost;
use crate::decision::{DecisionSource, Denial, Facts};
use crate::error::{Error, ErrorKind};
use crate::explanation::Explanation;
use crate::request::Request;
use crate::scope::Scope;
use crate::settlement::Settlement;

/// Minimum and maximum wait before a claim is repeated because no slot was free. A slot may be
/// freed long before its lease ends.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_millis(250);
/// Minimum, initial and maximum time before its start at which a booking is claimed: about a round
/// trip. The service accepts at most a second.
const LEAD_MIN: Duration = Duration::from_millis(5);
const LEAD_FIRST: Duration = Duration::from_millis(20);
const LEAD_MAX: Duration = Duration::from_millis(500);
/// Number of turns that may come too late before the policy decides.
const LATE_MAX: usize = 5;

/// The client of a service.
pub(super) struct Client {
    shared: Arc<Connected>,
}

/// The parts that calls in the background share.
struct Connected {
    transport: Transport,
    policy: UnavailablePolicy,
    denials: DenialCache,
    breaker: Breaker,
    clock: MonotonicClock,
    lead: Lead,
}

/// Lead of the next claim: the time before its start at which a booking is claimed.
struct Lead(AtomicU64);

impl Default for Lead {
    fn default() -> Self {
        Self(AtomicU64::new(LEAD_FIRST.as_micros() as u64))
    }
}

impl Lead {
    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Adapts to a round trip: to a longer one at once, to shorter ones slowly.
    fn measured(&self, round_trip: Duration) {
        // Rounded up, because the service takes milliseconds.
        let round_trip = Duration::from_millis(round_trip.as_micros().div_ceil(1_000) as u64);
        let lead = round_trip.max(self.get() * 9 / 10).clamp(LEAD_MIN, LEAD_MAX);
        self.0.store(lead.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Decisions without waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Acquire,
    Check,
}

impl Client {
    pub(super) fn new(
        transport: Transport,
        policy: UnavailablePolicy,
        denials: DenialCache,
        breaker: Breaker,
    ) -> Self {
        let (clock, lead) = (MonotonicClock::new(), Lead::default());
        Self { shared: Arc::new(Connected { transport, policy, denials, breaker, clock, lead }) }
    }

    async fn decide(&self, request: &Request<'_>, mode: Mode) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        let path = match mode {
            Mode::Acquire => "/v1/acquire?status=429",
            Mode::Check => "/v1/check?status=429",
        };
        // Without an id, a request that is sent twice would be charged twice.
        let is_idempotent = mode == Mode::Check || request.id.is_some();
        // A replay is not denied, and reservations give capacity back.
        let is_cached = mode == Mode::Acquire && request.id.is_none() && request.hold.is_none();
        let body = wire::request(request, None).to_string();
        if is_cached && let Some(denial) = shared.denials.get(&body, shared.clock.now()) {
            return Ok(Outcome::Denied(denial));
        }
        let answer = shared.ask(path, &body, is_idempotent).await;
        let decided = answer.and_then(|answer| wire::decision(&answer, shared.clock.now()));
        match decided {
            Ok(Outcome::Denied(denial)) => {
                if is_cached {
                    shared.denials.put(&body, &denial, shared.clock.now());
                }
                Ok(Outcome::Denied(denial))
            }
            Ok(outcome) => Ok(outcome),
            Err(error) => shared.decide_alone(error),
        }
    }

    async fn until_ready(&self, request: &Request<'_>) -> Result<Outcome, Error> {
        let began = self.shared.clock.now();
        let mut id = request.id.as_deref().map_or_else(random_id, str::to_owned);
        for _ in 0..LATE_MAX {
            match self.take_turn(request, &id, began).await? {
                Some(outcome) => return Ok(outcome),
                // The turn came too late to be used, and was given back.
                None => id = random_id(),
            }
        }
        let reason =
            format!("{LATE_MAX} turns came too late: set booking.slack to more than a round trip");
        self.shared.decide_alone(CallError::Unavailable(NoAnswer::new(reason)))
    }

    /// Books a turn, waits for it and claims it. Returns `None` if the answer came too late.
    async fn take_turn(
        &self,
        request: &Request<'_>,
        id: &str,
        began: Timestamp,
    ) -> Result<Option<Outcome>, Error> {
        let shared = &*self.shared;
        let encoded = wire::request(request, Some(id));
        let asked = shared.clock.now();
        let booked = to_the_end(self.shared.clone().book(encoded.to_string())).await;
        let (booking, wait, mut open) = match booked {
            Ok((Outcome::Allowed(booking), wait, open)) => (booking, wait, open),
            Ok((denied, ..)) => return Ok(Some(denied)),
            Err(error) => return shared.decide_alone(error).map(Some),
        };
        shared.lead.measured(shared.clock.now().since(asked).into());
        let mut start = asked + wait.into();
        let mut claimant = 0;
        loop {
            if let Some(most) = request.wait_max.filter(|most| start > began + (*most).into()) {
                let wait = start.since(shared.clock.now()).into();
                let denial = Denial::wait_too_long(booking.facts, wait, most);
                return Ok(Some(Outcome::Denied(denial)));
            }
            // The claim is sent about a round trip before the start, so that its answer arrives in time.
            let lead = shared.lead.get();
            sleep(Duration::from(start.since(shared.clock.now())).saturating_sub(lead)).await;
            let asked = shared.clock.now();
            let claim = json!({
                "request": encoded,
                "claimant": format!("{id}-{claimant}"),
                "lead": format!("{}ms", lead.as_millis()),
            });
            let answer = shared.ask("/v1/claim", &claim.to_string(), true).await;
            if answer.is_ok() {
                shared.lead.measured(shared.clock.now().since(asked).into());
            }
            match answer.and_then(|answer| wire::claim(&answer, shared.clock.now())) {
                Ok(ClaimAnswer::Go { outcome: mut allowed, wait, good }) => {
                    open.handle.clone_from(&allowed.handle);
                    sleep(wait).await;
                    let overrun =
                        Duration::from(shared.clock.now().since(asked)).saturating_sub(good);
                    if overrun > Duration::ZERO {
                        shared.lead.measured(lead + overrun);
                        if let Some(handle) = open.handle.take() {
                            let _ = Backend::end(self, &handle, EndMode::Cancel).await;
                        }
                        return Ok(None);
                    }
                    open.handle = None;
                    if allowed.facts.headers.is_empty() {
                        allowed.facts.headers = booking.facts.headers;
                    }
                    return Ok(Some(Outcome::Allowed(*allowed)));
                }
                Ok(ClaimAnswer::Wait(wait)) => start = asked + wait.into(),
                Ok(ClaimAnswer::Busy(wait)) => {
                    start = shared.clock.now() + (wait.clamp(AGAIN_MIN, AGAIN_MAX) + lead).into();
                }
                // We did not start: another claimant may.
                Ok(ClaimAnswer::Spent) => claimant += 1,
                Ok(ClaimAnswer::Denied(denial)) => return Ok(Some(Outcome::Denied(denial))),
                Err(error) => return shared.decide_alone(error).map(Some),
            }
        }
    }

    async fn end(&self, path: &str, body: serde_json::Value) -> Result<Option<HttpAnswer>, Error> {
        let ended = self.shared.ask(path, &body.to_string(), true).await;
        match ended {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::Refused(error)) => Err(error),
            Err(CallError::Unavailable(error)) => match self.shared.policy {
                UnavailablePolicy::Error => Err(unavailable(&error)),
                UnavailablePolicy::Open | UnavailablePolicy::Closed => Ok(None),
            },
        }
    }
}

impl Connected {
    /// Sends a call, unless the service did not answer the last ones.
    async fn ask(
        &self,
        path: &str,
        body: &str,
        is_idempotent: bool,
    ) -> Result<HttpAnswer, CallError> {
        let asked = self.clock.now();
        if self.breaker.is_open(asked) {
            return Err(CallError::Unavailable(NoAnswer::new("the last calls got no answer")));
        }
        match self.transport.call(path, body, is_idempotent).await {
            Ok(answer) => {
                self.breaker.answered();
                Ok(answer)
            }
            Err(error) => {
                if self.breaker.failed(self.clock.now()) {
                    warn!(reason = error.reason, policy = ?self.policy, "the limiter does not answer");
                }
                Err(CallError::Unavailable(error))
            }
        }
    }

    /// Books a turn. The booking is given back if the last part of the result is dropped.
    async fn book(
        self: Arc<Self>,
        request: String,
    ) -> Result<(Outcome, Duration, OpenBooking), CallError> {
        let path = format!("/v1/book?status=429&lead={}ms", self.lead.get().as_millis());
        let answer = self.ask(&path, &request, true).await?;
        let (outcome, wait) = wire::booking(&answer, self.clock.now())?;
        let handle = match &outcome {
            Outcome::Allowed(booking) => booking.handle.clone(),
            Outcome::Denied(_) => None,
        };
        Ok((outcome, wait, OpenBooking { shared: self, handle }))
    }

    /// Decides by the policy, because the service did not.
    fn decide_alone(&self, error: CallError) -> Result<Outcome, Error> {
        let error = match error {
            CallError::Refused(error) => return Err(error),
            CallError::Unavailable(error) => error,
        };
        let facts =
            |headers| Facts { source: DecisionSource::ClientPolicy, scopes: Vec::new(), headers };
        match self.policy {
            UnavailablePolicy::Error => Err(unavailable(&error)),
            UnavailablePolicy::Open => Ok(Outcome::Allowed(AllowedOutcome {
                facts: facts(Vec::new()),
                replayed: false,
                handle: None,
                lease: None,
            })),
            UnavailablePolicy::Closed => Ok(Outcome::Denied(Denial {
                facts: facts(vec![(RETRY_AFTER, "1".to_owned())]),
                status: 503,
                reason: "LIMITER_UNAVAILABLE".to_owned(),
                detail: "the rate limiter does not answer: retry later".to_owned(),
                rule: None,
                retry_after: Some(Duration::from_secs(1)),
                output_tokens_max: None,
                body: None,
            })),
        }
    }
}

fn unavailable(error: &NoAnswer) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the limiter does not answer: {}", error.reason))
}

/// Converts an error of a call for which there is no policy.
fn without_policy(error: CallError) -> Error {
    match error {
        CallError::Refused(error) => error,
        CallError::Unavailable(error) => unavailable(&error),
    }
}

impl Backend for Client {
    fn acquire<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(self.decide(request, Mode::Acquire))
    }

    fn check<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(self.decide(request, Mode::Check))
    }

    fn until_ready<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(self.until_ready(request))
    }

    fn settle<'a>(
        &'a self,
        handle: &'a AdmissionHandle,
        cost: &'a Cost,
    ) -> Operation<'a, Settlement> {
        Box::pin(async move {
            cost.read_actual()?;
            let body = json!({ "handle": of_service(handle)?, "cost": cost.json() });
            match self.end("/v1/settle", body).await? {
                None => Ok(Settlement::default()),
                Some(answer) => wire::settlement(&answer).map_err(without_policy),
            }
        })
    }

    fn end<'a>(&'a self, handle: &'a AdmissionHandle, how: EndMode) -> Operation<'a, bool> {
        Box::pin(async move {
            let path = match how {
                EndMode::Release => "/v1/release",
                EndMode::Cancel => "/v1/cancel",
            };
            let ended = Self::end(self, path, json!({ "handle": of_service(handle)? })).await?;
            match ended {
                None => Ok(false),
                Some(answer) => wire::ended(&answer).map(|()| true).map_err(without_policy),
            }
        })
    }

    fn renew<'a>(&'a self, handle: &'a AdmissionHandle) -> Operation<'a, Duration> {
        Box::pin(async move {
            let body = json!({ "handle": of_service(handle)? }).to_string();
            let answer = self.shared.ask("/v1/renew", &body, true).await;
            answer.and_then(|answer| wire::renewal(&answer)).map_err(without_policy)
        })
    }

    fn usage<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Vec<Scope>> {
        Box::pin(async move {
            let body = wire::request(request, None).to_string();
            let answer = self.shared.ask("/v1/usage", &body, true).await;
            let now = self.shared.clock.now();
            answer.and_then(|answer| wire::usage(&answer, now)).map_err(without_policy)
        })
    }

    fn explain<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Explanation> {
        Box::pin(async move {
            let body = wire::request(request, None).to_string();
            let answer = self.shared.ask("/v1/explain", &body, true).await;
            answer.and_then(|answer| wire::read(&answer)).map_err(without_policy)
        })
    }

    fn reload(&self, _: &str) -> Result<(), Error> {
        Err(Error::configuration(
            "the rules are those of the service: change its file, which it reloads by itself",
        ))
    }

    fn ends_at_once(&self) -> bool {
        false
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(sleep(time))
    }
}

/// A booking that is given back if nobody uses it.
struct OpenBooking {
    shared: Arc<Connected>,
    handle: Option<AdmissionHandle>,
}

impl Drop for OpenBooking {
    fn drop(&mut self) {
        let Some(AdmissionHandle::Remote(handle)) = self.handle.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = self.shared.clone();
            // If it fails, the booking lapses.
            runtime.spawn(async move {
                let body = json!({ "handle": handle }).to_string();
                let _ = shared.ask("/v1/cancel", &body, true).await;
            });
        }
    }
}

/// Returns the name of an admission of the service.
fn of_service(handle: &AdmissionHandle) -> Result<&str, Error> {
    match handle {
        AdmissionHandle::Remote(handle) => Ok(handle),
        AdmissionHandle::Store(..) => {
            Err(Error::invalid("the admission belongs to another limiter"))
        }
    }
}

/// Returns a random id for a booking.
fn random_id() -> String {
    // The standard library's source of random keys, which needs no further crate.
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
