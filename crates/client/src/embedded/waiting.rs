//! Waits for a turn: acquires it now, or books the first start that fits, sleeps until then and
//! claims it. The [`Pacer`] asks the store; the waiting is here, because it follows the clock of the
//! limiter.
//!
//! [`Pacer`]: sluicegate_pace::Pacer

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_pace::{Booking, PacedWork, Pacer, StartAttempt, Turn};
use sluicegate_service::answer::{Answer, store_refusal};
use sluicegate_service::{Service, headers};
use tokio::runtime::Handle as Runtime;

use super::engine::Engine;
use super::outcome;
use crate::backend::{AdmissionHandle, AllowedOutcome, Outcome};
use crate::background::to_the_end;
use crate::decision::{DecisionSource, Denial, Facts};
use crate::error::Error;
use crate::request::Request;

/// Longest time until the store is asked again. A concurrency slot may be freed long before its
/// lease ends, and a start beyond the horizon may come nearer.
const FAR: Span = Span::from_millis(100);
/// Time for which work waits for a store that does not answer and whose outage policy admits
/// nothing: long enough for a restart of Redis.
const OUTAGE: Span = Span::from_secs(2);

/// A question to the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    Acquire,
    Book,
    Claim,
}

/// Waits until the work may start. Dropping the future gives its booking back.
pub(super) async fn until_ready(engine: &Engine, request: &Request<'_>) -> Result<Outcome, Error> {
    let Engine { service, pacer, clock } = engine;
    let fresh = || request.request_id(service.request_id());
    // Returns errors of the request here: the pacer would only retry them.
    let query = request.query(fresh()?)?;
    service.limiter().rules().plan(&query, clock).map_err(Error::invalid)?;

    let has_local_store = engine.has_local_store();
    let work = Arc::new(Work { request: request.clone().into_owned(), has_local_store });
    let began = clock.now();
    let is_too_long =
        |until: Timestamp| request.wait_max.is_some_and(|most| until > began + Span::from(most));
    let mut open = OpenBooking { service: service.clone(), handle: None };
    let (mut question, mut id) = (Question::Acquire, fresh()?);
    loop {
        let (turn, mut unheard) = ask(service, pacer, &work, question, id).await;
        unheard.handle = None;
        let until = match turn {
            Turn::Go(admission, window) => {
                open.handle = handle_of(&admission);
                let opens = clock.now() + window.wait(clock.now());
                if is_too_long(opens) {
                    return Ok(too_long(opens.since(began), request));
                }
                clock.sleep_until(opens).await;
                if let StartAttempt::Started(late) = window.try_start(clock.now()) {
                    pacer.round_trips().started_after(late);
                    open.handle = None;
                    return Ok(Outcome::Allowed(*admission));
                }
                pacer.round_trips().started_after(window.late(clock.now()));
                if let Some(handle) = open.handle.take() {
                    pacer.cancel(&handle).await;
                }
                (question, id) = (Question::Book, fresh()?);
                continue;
            }
            Turn::Booked(Booking { id: booking, start, handle }) => {
                open.handle = Some(handle);
                if is_too_long(start) {
                    return Ok(too_long(start.since(began), request));
                }
                (question, id) = (Question::Claim, booking);
                Timestamp::ZERO + start.since(Timestamp::ZERO).saturating_sub(pacer.lead(&*work))
            }
            Turn::Later(_) | Turn::Busy(_) if question == Question::Acquire => {
                question = Question::Book;
                continue;
            }
            // The booking, if there is one, is kept: a slot is missing.
            Turn::Later(wait) | Turn::Busy(wait) => {
                let earliest = clock.now() + wait;
                if question == Question::Book && is_too_long(earliest) {
                    return Ok(too_long(earliest.since(began), request));
                }
                clock.now() + wait.min(FAR)
            }
            Turn::Gone => {
                open.handle = None;
                (question, id) = (Question::Book, fresh()?);
                continue;
            }
            Turn::Unanswered(wait) => {
                let until = clock.now() + wait;
                if pacer.is_out_for(OUTAGE) || is_too_long(until) {
                    return Ok(Outcome::Denied(unavailable()));
                }
                until
            }
            Turn::Never(denial) => return Ok(Outcome::Denied(*denial)),
        };
        if is_too_long(until) {
            return Ok(too_long(until.since(began), request));
        }
        clock.sleep_until(until).await;
    }
}

/// Asks the store. If this future is dropped before the answer arrives, what the store admits or books
/// is given back.
async fn ask(
    service: &Arc<Service>,
    pacer: &Arc<Pacer>,
    work: &Arc<Work>,
    question: Question,
    id: RequestId,
) -> (Turn<Work>, OpenBooking) {
    let (service, pacer, work) = (service.clone(), pacer.clone(), work.clone());
    let call = async move {
        let turn = match question {
            Question::Acquire => pacer.acquire(&*work, id).await,
            Question::Book => pacer.book(&*work, &*work, id).await,
            Question::Claim => pacer.claim(&*work, id).await,
        };
        let handle = match &turn {
            Turn::Go(admission, _) => handle_of(admission.as_ref()),
            Turn::Booked(booking) => Some(booking.handle.clone()),
            _ => None,
        };
        (turn, OpenBooking { service, handle })
    };
    to_the_end(call).await
}

/// A booking or an admission that is given back if nobody uses it.
struct OpenBooking {
    service: Arc<Service>,
    handle: Option<Handle>,
}

impl Drop for OpenBooking {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if let Ok(runtime) = Runtime::try_current() {
            let service = self.service.clone();
            // If it fails, the booking lapses.
            runtime.spawn(async move { service.cancel(&handle).await });
        }
    }
}

/// The work of a request.
struct Work {
    request: Request<'static>,
    has_local_store: bool,
}

impl PacedWork for Work {
    type Admission = Box<AllowedOutcome>;
    type Refusal = Box<Denial>;

    fn query(&self, id: RequestId) -> Query<'_> {
        self.request.query(id).expect("the request was checked before the first turn")
    }

    fn admitted(&self, answer: &Answer<'_, '_>, handle: Option<Handle>) -> Box<AllowedOutcome> {
        Box::new(outcome::allowed(answer, handle))
    }

    fn refused(&self, answer: &Answer<'_, '_>) -> Box<Denial> {
        Box::new(outcome::denial(answer))
    }

    /// Each request has its own limits, and a pacer spaces only work with the same limits.
    fn starts_here(&self) -> bool {
        false
    }

    fn has_local_store(&self) -> bool {
        self.has_local_store
    }
}

fn handle_of(admission: &AllowedOutcome) -> Option<Handle> {
    match &admission.handle {
        Some(AdmissionHandle::Store(handle, _)) => Some(handle.clone()),
        _ => None,
    }
}

fn too_long(wait: Span, request: &Request<'_>) -> Outcome {
    let facts = Facts { source: DecisionSource::Store, scopes: Vec::new(), headers: Vec::new() };
    let wait_max = request.wait_max.unwrap_or_default();
    Outcome::Denied(Denial::wait_too_long(facts, Duration::from(wait), wait_max))
}

/// Returns the denial of work that waited for a store that does not answer.
fn unavailable() -> Denial {
    let headers = vec![(headers::RETRY_AFTER, "1".to_owned())];
    Denial {
        facts: Facts { source: DecisionSource::OutagePolicy, scopes: Vec::new(), headers },
        status: 503,
        reason: "STORE_UNAVAILABLE".to_owned(),
        detail: store_refusal::UNAVAILABLE.to_owned(),
        rule: None,
        retry_after: None,
        output_tokens_max: None,
        body: None,
    }
}
