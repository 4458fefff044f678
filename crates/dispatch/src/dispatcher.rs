//! [`Dispatcher`], the first tier: receives messages from producers, chooses a provider for each,
//! and forwards it to that provider's queue, now or at the time when its limit allows.
//!
//! Delayed messages wait in the broker and not in this process, so that a throttled provider does
//! not block messages for other providers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use serde_json::Value;
use sluicegate_config::{DelayMode, Dispatch, Provider};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_queue::{DeadLetterReason, Delivery, DeliveryTime, Error, Message, Queue};
use sluicegate_service::Service;
use tracing::{info, warn};

use crate::intake;
use crate::metrics::Metrics;
use crate::pace::{Pace, Turn};
use crate::select::{Choice, Selector};
use crate::stop::Stop;
use crate::switch::Switch;
use crate::tier::{Booking, Tier, turn};
use crate::tracker::{Event, Sighting, Tracker};

/// Time by which a booked message reaches its worker early. The worker waits for the rest, because
/// brokers deliver less exactly than bookings start.
const LEAD: Span = Span::from_millis(500);

/// The delay of messages that are over the limit of their provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The same delay for all messages.
    Fixed(Span),
    /// Until a start time that is booked in the store and that the worker claims.
    Booked,
}

/// Configuration of a dispatcher.
#[derive(Debug)]
pub struct Options {
    /// Name of the dispatcher in the log.
    pub id: String,
    /// True if limits are enforced. If false, all messages go straight to the queues of their
    /// providers.
    pub enabled: bool,
    /// Delay of messages over the limit.
    pub delay: Delay,
    /// Selection of a provider.
    pub selector: Selector,
    /// Maximum number of messages in flight.
    pub prefetch: u16,
}

/// A dispatcher. Several may run side by side.
pub struct Dispatcher {
    options: Dispatch,
    selector: Selector,
    limits: Switch,
    source: Queue,
    lanes: Vec<Lane>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tracker: Tracker,
}

/// The limiter and the queue of one provider.
struct Lane {
    pace: Pace,
    queue: Queue,
    /// Time until which the provider's limit is known to be reached, in microseconds by the clock
    /// of the queue.
    full_until: AtomicU64,
}

/// The destination of a message and its delivery time.
struct Way {
    lane: usize,
    when: DeliveryTime,
    booking: Option<Booking>,
    /// Delay, if the message has to wait.
    later: Option<Span>,
}

impl Way {
    const fn at_once(lane: usize) -> Self {
        Self { lane, when: DeliveryTime::Now, booking: None, later: None }
    }
}

impl Dispatcher {
    /// Creates a dispatcher from `source` to the queues of `providers`, which are in the order of
    /// the selector.
    pub fn new(
        options: Dispatch,
        source: Queue,
        targets: Vec<Queue>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tracker: Tracker,
    ) -> Arc<Self> {
        let lane = |(provider, queue): (&Provider, Queue)| {
            metrics.show_dispatched(&provider.name);
            let pace = Pace::new(service.clone(), provider.name.clone(), provider.estimate);
            Lane { pace, queue, full_until: AtomicU64::new(0) }
        };
        let lanes = options.providers.iter().zip(targets).map(lane).collect();
        let limits = Switch::new(options.enabled);
        let selector = Selector::new(&options);
        Arc::new(Self { options, selector, limits, source, lanes, clock, metrics, tracker })
    }

    /// Turns limits on or off. When off, only messages already sent with a delay stay delayed.
    pub fn enable(&self, enabled: bool) {
        self.limits.turn(enabled);
    }

    /// Dispatches messages until `stop` asks to drain.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let id = self.options.id.as_str();
        info!(dispatcher = id, queue = self.source.name(), "dispatcher started");
        let see_through = |delivery: Delivery| {
            let (dispatcher, stop) = (self.clone(), stop.clone());
            async move { dispatcher.dispatch(delivery, &stop).await }
        };
        let most = self.options.prefetch.max(1);
        intake::run(&self.source, most, &stop, || std::future::ready(()), see_through).await;
        info!(dispatcher = id, "dispatcher stopped");
    }

    async fn dispatch(&self, mut delivery: Delivery, stop: &Stop) -> Result<(), Error> {
        let Ok(body) = serde_json::from_slice::<Value>(&delivery.message().body) else {
            return self.reject(delivery, DeadLetterReason::new("the body is not JSON")).await;
        };
        let choice = self.selector.choose(&body);
        let way = loop {
            let asked = delivery.with_lease(self.way(&choice, delivery.message())).await;
            let is_on = self.limits.is_on();
            match asked {
                // Limits were turned off during the check: ignore its result.
                Ok(Way { later: Some(_), .. }) | Err(Stuck::Later(_)) if !is_on => {}
                Ok(way) => break way,
                Err(Stuck::Rejected(reason)) => return self.reject(delivery, reason).await,
                Err(Stuck::Again(span)) => {
                    let wait = delivery.with_lease(stop.sleep(span.into()));
                    let slept = tokio::select! {
                        slept = wait => slept,
                        () = self.limits.is_off() => true,
                    };
                    if !slept {
                        return delivery.requeue().await;
                    }
                }
                // Beyond the booking horizon: the message waits in its own queue.
                Err(Stuck::Later(span)) => {
                    return delivery.defer(DeliveryTime::At(self.clock.now() + span)).await;
                }
            }
        };
        let lane = &self.lanes[way.lane];
        let provider = lane.pace.provider();
        delivery.set_booking(way.booking.map(|booking| booking.to_string()));
        let now = self.clock.now();
        let (event, until) = match way.later {
            None => (Event::Dispatched, None),
            Some(span) => (Event::Delayed, Some(now + span)),
        };
        let job = delivery.message().meta.job.clone();
        let mut seen =
            Sighting::new(delivery.message(), event, lane.queue.name(), now).of(provider);
        seen.until = until;
        delivery.forward(&lane.queue, way.when).await?;
        self.metrics.sent(provider, way.later);
        self.tracker.saw(&job, seen);
        Ok(())
    }

    /// Chooses the destination of a message and its delivery time.
    async fn way(&self, choice: &Choice, message: &Message) -> Result<Way, Stuck> {
        let lane = match choice {
            Choice::One(lane) => *lane,
            Choice::Any => return self.any(message).await,
            Choice::Unknown(name) => {
                let known: Vec<_> = self.lanes.iter().map(|lane| lane.pace.provider()).collect();
                let known = known.join(", ");
                let reason = format!("unknown provider {name:?} (known: {known})");
                return Err(Stuck::Rejected(DeadLetterReason::new(reason)));
            }
        };
        if !self.limits.is_on() {
            return Ok(Way::at_once(lane));
        }
        self.metrics.checked(self.lanes[lane].pace.provider());
        match self.options.delay {
            DelayMode::Fixed(delay) => {
                let turn = self.lanes[lane]
                    .pace
                    .acquire(Tier::Dispatch, Some(turn(message, Tier::Dispatch)))
                    .await;
                self.fixed(lane, turn, delay)
            }
            DelayMode::Booked => self.book(lane, message).await,
        }
    }

    /// Chooses the provider with the most room; if all are full, the one that has room first.
    async fn any(&self, message: &Message) -> Result<Way, Stuck> {
        let order = self.selector.order();
        let first = order.first().copied().unwrap_or_default();
        if !self.limits.is_on() {
            return Ok(Way::at_once(first));
        }
        match self.options.delay {
            DelayMode::Fixed(delay) => self.any_at_once(order, message, delay).await,
            DelayMode::Booked => {
                let asked = order.iter().map(|&lane| async move {
                    let pace = &self.lanes[lane].pace;
                    self.metrics.checked(pace.provider());
                    let wait = match pace.soonest().await {
                        Turn::Now => Span::ZERO,
                        Turn::Later(span) | Turn::Closed(span) => span,
                        Turn::Never(_) => Span::from_micros(u64::MAX),
                    };
                    (lane, wait, pace.left())
                });
                let asked = join_all(asked).await;
                let best = asked.into_iter().min_by(|(_, wait, left), (_, other, more)| {
                    wait.cmp(other).then(more.total_cmp(left))
                });
                self.book(best.map_or(first, |(lane, ..)| lane), message).await
            }
        }
    }

    async fn any_at_once(
        &self,
        order: &[usize],
        message: &Message,
        delay: Span,
    ) -> Result<Way, Stuck> {
        let now = self.clock.now();
        let mut lanes: Vec<usize> =
            order.iter().copied().filter(|&lane| !self.lanes[lane].is_full(now)).collect();
        // Stable sort: equal providers stay in the configured order.
        lanes.sort_by(|&a, &b| self.lanes[b].pace.left().total_cmp(&self.lanes[a].pace.left()));
        for lane in lanes {
            let pace = &self.lanes[lane].pace;
            self.metrics.checked(pace.provider());
            match pace.acquire(Tier::Dispatch, Some(turn(message, Tier::Dispatch))).await {
                Turn::Now => return Ok(Way::at_once(lane)),
                Turn::Later(span) => self.lanes[lane].full_for(span, now),
                Turn::Never(_) => {}
                Turn::Closed(span) => return Err(Stuck::Again(span)),
            }
        }
        let soonest = order.iter().copied().min_by_key(|&lane| self.lanes[lane].full_until(now));
        self.fixed(soonest.unwrap_or_default(), Turn::Later(delay), delay)
    }

    fn fixed(&self, lane: usize, turn: Turn, delay: Span) -> Result<Way, Stuck> {
        match turn {
            Turn::Now => Ok(Way::at_once(lane)),
            Turn::Later(_) => Ok(Way {
                lane,
                when: DeliveryTime::After(delay),
                booking: None,
                later: Some(delay),
            }),
            turn => Err(turn.into()),
        }
    }

    /// Books the time at which the message may go.
    async fn book(&self, lane: usize, message: &Message) -> Result<Way, Stuck> {
        let id = turn(message, Tier::Booked);
        let asked = self.clock.now();
        match self.lanes[lane].pace.book(id, Tier::Dispatch).await {
            Ok((id, wait)) => {
                let start = asked + wait;
                let booking = Some(Booking { id, start });
                let now = wait == Span::ZERO;
                let when =
                    if wait > LEAD { DeliveryTime::At(start - LEAD) } else { DeliveryTime::Now };
                Ok(Way { lane, when, booking, later: (!now).then_some(wait) })
            }
            Err(Turn::Now) => Ok(Way::at_once(lane)),
            Err(turn) => Err(turn.into()),
        }
    }

    async fn reject(&self, delivery: Delivery, reason: DeadLetterReason) -> Result<(), Error> {
        let message = delivery.message().clone();
        let seen = Sighting::new(&message, Event::Dead, self.source.name(), self.clock.now());
        let seen = seen.because(&reason.message);
        warn!(job = %message.meta.job, reason = reason.message, "message rejected by dispatcher");
        delivery.dead_letter(reason.with("dispatcher", self.options.id.as_str())).await?;
        self.metrics.rejected();
        self.tracker.saw(&message.meta.job, seen);
        Ok(())
    }
}

/// The reason why a message is not forwarded.
enum Stuck {
    /// The message can never be forwarded.
    Rejected(DeadLetterReason),
    /// The limiter gave no decision: ask again after this time.
    Again(Span),
    /// The limit admits the message after this time.
    Later(Span),
}

impl From<Turn> for Stuck {
    fn from(turn: Turn) -> Self {
        match turn {
            Turn::Now => Self::Again(Span::ZERO),
            Turn::Later(span) => Self::Later(span),
            Turn::Closed(span) => Self::Again(span),
            Turn::Never(rule) => Self::Rejected(DeadLetterReason::new(format!(
                "the limits of rule {rule} can never admit it"
            ))),
        }
    }
}

impl Lane {
    fn is_full(&self, now: Timestamp) -> bool {
        self.full_until(now) > now
    }

    fn full_until(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.full_until.load(Ordering::Relaxed)).max(now)
    }

    fn full_for(&self, span: Span, now: Timestamp) {
        self.full_until.store((now + span).as_micros(), Ordering::Relaxed);
    }
}
