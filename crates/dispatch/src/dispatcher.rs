//! [`Dispatcher`], the first tier: receives messages from producers, chooses a provider for each,
//! and forwards it to that provider's queue, now or at the time when its limit allows.
//!
//! Delayed messages wait in the broker and not in this process, so that a throttled provider does
//! not block messages for other providers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures_util::future::join_all;
use serde::de::IgnoredAny;
use serde_json::Value;
use sluicegate_config::{DelayMode, Dispatch, Provider};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_queue::{
    ConsumerObserver, DeadLetterReason, Delivery, DeliveryTime, Error, Message, Queue, Unsettled,
    without_byte_order_mark,
};
use sluicegate_service::Service;
use sluicegate_service::trace::Tracer;
use tracing::{info, warn};

use crate::handler;
use crate::limit_switch::LimitSwitch;
use crate::limits::{ProviderLimits, Turn};
use crate::metrics::Metrics;
use crate::receive;
use crate::select::{Choice, Selector};
use crate::settle::{hold_if_unsettled, until_settled};
use crate::stop::Stop;
use crate::tier::{Booking, Tier, admission_id};
use crate::trace;
use crate::tracker::{JobEvent, JobStatus, JobTracker};

/// Time by which a booked message is delivered to its worker before its start. The worker waits for
/// the rest, because brokers deliver less exactly than bookings start.
pub const DELIVERED_AHEAD: Span = Span::from_millis(500);

/// Time after the start of a booked job in which its worker can settle the estimate.
const HOLD: Span = Span::from_secs(600);
/// Minimum delay of a message whose target can't be used.
const POSTPONE_MIN: Span = Span::from_millis(100);

/// A dispatcher. Several may run side by side.
pub struct Dispatcher {
    options: Dispatch,
    selector: Selector,
    limits: LimitSwitch,
    source: Queue,
    providers: Vec<ProviderQueue>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tracker: JobTracker,
    tracer: Tracer,
    /// Number of messages that found no provider with room.
    overflow: AtomicUsize,
}

/// The limits and the queue of one provider.
struct ProviderQueue {
    limits: Arc<ProviderLimits>,
    queue: Queue,
    /// Time until which the provider's limit is known to be reached, in microseconds by the clock
    /// of the queue.
    full_until: AtomicU64,
}

/// The destination of a message and its delivery time.
struct Destination {
    provider: usize,
    when: DeliveryTime,
    booking: Option<Booking>,
    /// Delay, if the message has to wait.
    later: Option<Span>,
}

impl Destination {
    const fn at_once(provider: usize) -> Self {
        Self { provider, when: DeliveryTime::Now, booking: None, later: None }
    }
}

impl Dispatcher {
    /// Creates a dispatcher from `source` to the queues of its providers: `targets` has one queue
    /// for each provider of the options, in their order.
    pub fn new(
        options: Dispatch,
        source: Queue,
        targets: Vec<Queue>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tracker: JobTracker,
    ) -> Arc<Self> {
        let provider = |(provider, queue): (&Provider, Queue)| {
            metrics.show_dispatched(&provider.name);
            let (name, estimate) = (provider.name.clone(), provider.estimate);
            let limits = ProviderLimits::new(service.clone(), name, estimate, HOLD);
            limits.show_pacing(&metrics, Tier::Dispatch);
            let limits = Arc::new(limits);
            tracker.add_provider(&limits);
            ProviderQueue { limits, queue, full_until: AtomicU64::new(0) }
        };
        let providers = options.providers.iter().zip(targets).map(provider).collect();
        let limits = LimitSwitch::new(options.enabled);
        let selector = Selector::new(&options);
        let overflow = AtomicUsize::new(0);
        Arc::new(Self {
            options,
            selector,
            limits,
            source,
            providers,
            clock,
            metrics,
            tracker,
            tracer: service.tracer().clone(),
            overflow,
        })
    }

    /// Turns limits on or off. When off, only messages already sent with a delay stay delayed.
    pub fn enable(&self, enabled: bool) {
        self.limits.set(enabled);
    }

    /// Dispatches messages until `stop` asks to drain.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let id = self.options.id.as_str();
        info!(dispatcher = id, queue = self.source.name(), "dispatcher started");
        let process = |delivery: Delivery| {
            let (dispatcher, stop) = (self.clone(), stop.clone());
            async move {
                let (tracer, source) = (&dispatcher.tracer, &dispatcher.source);
                let span = trace::received(tracer, "dispatch", source, delivery.message());
                trace::receive(span, dispatcher.dispatch(delivery, &stop)).await
            }
        };
        let most = self.options.prefetch.max(1);
        let states = (&self.metrics.queues, &*self.clock);
        let open = || std::future::ready(());
        receive::run(&self.source, most, self.clone(), states, &stop, open, process).await;
        info!(dispatcher = id, "dispatcher stopped");
    }

    async fn dispatch(&self, mut delivery: Delivery, stop: &Stop) -> Result<(), Error> {
        let choice = match self.choose(&delivery.message().body) {
            Ok(choice) => choice,
            Err(reason) => return self.reject(delivery, reason, stop).await,
        };
        let destination = loop {
            let result = delivery.with_lease(self.destination(&choice, delivery.message())).await;
            let is_on = self.limits.is_on();
            match result {
                // Limits were turned off during the check: ignore its result.
                Ok(Destination { later: Some(_), .. }) | Err(DispatchError::Later(_)) if !is_on => {
                }
                Ok(destination) => break destination,
                Err(DispatchError::Rejected(reason)) => {
                    return self.reject(delivery, reason, stop).await;
                }
                Err(DispatchError::Paused(span)) => {
                    return self.postpone(delivery, span, stop).await;
                }
                Err(DispatchError::Again(span)) => {
                    let wait = delivery.with_lease(stop.sleep(span.into()));
                    let slept = tokio::select! {
                        slept = wait => slept,
                        () = self.limits.turned_off() => true,
                    };
                    if !slept {
                        return delivery.requeue().await;
                    }
                }
                // Beyond the booking horizon: the message waits in its own queue.
                Err(DispatchError::Later(span)) => {
                    let until = DeliveryTime::At(self.clock.now() + span);
                    let defer = |delivery: Delivery| delivery.defer(until);
                    return self.settle(delivery, self.source.name(), stop, defer).await;
                }
            }
        };
        let target = &self.providers[destination.provider];
        let provider = target.limits.provider();
        delivery.set_booking(destination.booking.map(|booking| booking.to_string()));
        let now = self.clock.now();
        let (event, until) = match destination.later {
            None => (JobEvent::Dispatched, None),
            Some(span) => (JobEvent::Delayed, Some(now + span)),
        };
        let job = delivery.message().meta.job.clone();
        let mut status =
            JobStatus::new(delivery.message(), event, target.queue.name(), now).of(provider);
        status.until = until;
        let span = trace::sending(&self.tracer, &target.queue);
        span.fields().for_each(|(name, value)| delivery.set_header(name, value));
        let forwarded = delivery.forward(&target.queue, destination.when).await;
        if let Err(unsettled) = forwarded {
            span.fail(|| unsettled.error.to_string());
            drop(span);
            return self.not_forwarded(unsettled, &target.queue, stop).await;
        }
        self.metrics.queues.works(target.queue.name());
        self.metrics.sent(provider, destination.later);
        self.tracker.record(&job, status);
        Ok(())
    }

    /// Chooses the provider of a message. The error says why its body can't be used.
    fn choose(&self, body: &[u8]) -> Result<Choice, DeadLetterReason> {
        let json = without_byte_order_mark(body);
        // Checks the syntax at any depth. Only a strategy that reads the body needs it as a tree,
        // whose depth is limited.
        if let Err(error) = serde_json::from_slice::<IgnoredAny>(json) {
            return Err(rejection("the body is not JSON", &[error.to_string()]));
        }
        if !self.selector.reads_body() {
            return Ok(self.selector.choose(&Value::Null));
        }
        let body = serde_json::from_slice(json);
        let body = body.map_err(|error| {
            let reason = "the body is nested too deeply to read its provider";
            rejection(reason, &[error.to_string()])
        })?;
        Ok(self.selector.choose(&body))
    }

    /// Handles a message that could not be forwarded: the target failed, or the message is too large
    /// for it.
    async fn not_forwarded(
        &self,
        Unsettled { error, delivery }: Unsettled,
        target: &Queue,
        stop: &Stop,
    ) -> Result<(), Error> {
        let Some(delivery) = delivery else { return Err(error) };
        if error.is_permanent() {
            let reason = format!("it can't be sent to queue {}: {error}", target.name());
            let reason = rejection(&reason, &[error.to_string()]);
            return self.reject(*delivery, reason, stop).await;
        }
        let wait = self.metrics.queues.failed(target.name(), &error, self.clock.now());
        self.postpone(*delivery, wait, stop).await
    }

    /// Returns a message to its own queue until its target may be tried again. Messages for other
    /// providers go on meanwhile.
    async fn postpone(&self, delivery: Delivery, span: Span, stop: &Stop) -> Result<(), Error> {
        let until = DeliveryTime::At(self.clock.now() + span.max(POSTPONE_MIN));
        let postpone = |delivery: Delivery| delivery.postpone(until);
        self.settle(delivery, self.source.name(), stop, postpone).await
    }

    /// Repeats an operation that publishes to `queue` until it has settled the delivery.
    async fn settle<F>(
        &self,
        delivery: Delivery,
        queue: &str,
        stop: &Stop,
        operation: impl Fn(Delivery) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Unsettled>> + Send,
    {
        let states = (&self.metrics.queues, &*self.clock);
        let settled = until_settled(delivery, queue, states, stop, operation).await;
        hold_if_unsettled(settled, stop).await
    }

    /// Returns the time for which the queue of a provider should not be tried.
    fn paused(&self, provider: usize) -> Option<Span> {
        let queue = self.providers[provider].queue.name();
        self.metrics.queues.wait(queue, self.clock.now())
    }

    /// Chooses the destination of a message and its delivery time.
    async fn destination(
        &self,
        choice: &Choice,
        message: &Message,
    ) -> Result<Destination, DispatchError> {
        let provider = match choice {
            Choice::One(provider) => *provider,
            Choice::Any => return self.any(message).await,
            Choice::Unknown(name) => {
                let known: Vec<_> =
                    self.providers.iter().map(|provider| provider.limits.provider()).collect();
                let known = known.join(", ");
                let reason = format!("unknown provider {name:?} (known: {known})");
                return Err(DispatchError::Rejected(rejection(&reason, &[])));
            }
        };
        // Checked before the limit, so that a message is not charged while it can't be sent.
        if let Some(span) = self.paused(provider) {
            return Err(DispatchError::Paused(span));
        }
        if !self.limits.is_on() {
            return Ok(Destination::at_once(provider));
        }
        self.metrics.checked(self.providers[provider].limits.provider());
        match self.options.delay {
            DelayMode::Fixed(delay) => {
                let turn = self.providers[provider]
                    .limits
                    .acquire(Tier::Dispatch, Some(admission_id(message, Tier::Dispatch)))
                    .await;
                self.fixed(provider, turn, delay)
            }
            DelayMode::Booked => self.book(provider, message).await,
        }
    }

    /// Chooses the provider with the most room. If all are full, chooses the one that has room
    /// first (booked delays), or each in turn (fixed delay).
    async fn any(&self, message: &Message) -> Result<Destination, DispatchError> {
        let order = self.selector.order();
        let usable: Vec<usize> =
            order.iter().copied().filter(|provider| self.paused(*provider).is_none()).collect();
        let Some(&first) = usable.first() else {
            let waits = order.iter().filter_map(|provider| self.paused(*provider));
            return Err(DispatchError::Paused(waits.min().unwrap_or_default()));
        };
        let order = usable.as_slice();
        if !self.limits.is_on() {
            return Ok(Destination::at_once(first));
        }
        match self.options.delay {
            DelayMode::Fixed(delay) => self.any_at_once(order, message, delay).await,
            DelayMode::Booked => {
                let waits = order.iter().map(|&provider| async move {
                    let limits = &self.providers[provider].limits;
                    self.metrics.checked(limits.provider());
                    let wait = limits.soonest().await.unwrap_or(Span::from_micros(u64::MAX));
                    (provider, wait, limits.left())
                });
                let waits = join_all(waits).await;
                let best = waits.into_iter().min_by(|(_, wait, left), (_, other, more)| {
                    wait.cmp(other).then(more.total_cmp(left))
                });
                self.book(best.map_or(first, |(provider, ..)| provider), message).await
            }
        }
    }

    async fn any_at_once(
        &self,
        order: &[usize],
        message: &Message,
        delay: Span,
    ) -> Result<Destination, DispatchError> {
        let now = self.clock.now();
        let mut providers: Vec<usize> = order
            .iter()
            .copied()
            .filter(|&provider| !self.providers[provider].is_full(now))
            .collect();
        // Stable sort: equal providers stay in the configured order.
        providers.sort_by(|&a, &b| {
            self.providers[b].limits.left().total_cmp(&self.providers[a].limits.left())
        });
        for provider in providers {
            let limits = &self.providers[provider].limits;
            self.metrics.checked(limits.provider());
            let id = admission_id(message, Tier::Dispatch);
            match limits.acquire(Tier::Dispatch, Some(id)).await {
                Turn::Go(..) => return Ok(Destination::at_once(provider)),
                Turn::Later(span) => self.providers[provider].full_for(span, now),
                Turn::Never(_) => {}
                turn => return Err(turn.into()),
            }
        }
        // Round robin: if all messages went to one queue, they would wait much longer than the
        // delay.
        let turn = self.overflow.fetch_add(1, Ordering::Relaxed) % order.len().max(1);
        self.fixed(order.get(turn).copied().unwrap_or_default(), Turn::Later(delay), delay)
    }

    fn fixed(
        &self,
        provider: usize,
        turn: Turn,
        delay: Span,
    ) -> Result<Destination, DispatchError> {
        match turn {
            Turn::Go(..) => Ok(Destination::at_once(provider)),
            Turn::Later(_) => Ok(Destination {
                provider,
                when: DeliveryTime::After(delay),
                booking: None,
                later: Some(delay),
            }),
            turn => Err(turn.into()),
        }
    }

    /// Books the time at which the message may go.
    async fn book(&self, provider: usize, message: &Message) -> Result<Destination, DispatchError> {
        let id = admission_id(message, Tier::Booked);
        let limits = &self.providers[provider].limits;
        match limits.book(id, Tier::Dispatch).await {
            Turn::Booked(booked) => {
                let wait = booked.start.since(limits.now());
                let start = self.clock.now() + wait;
                let booking = Some(Booking { id: booked.id.id, start });
                let (when, later) = match wait > DELIVERED_AHEAD {
                    true => (DeliveryTime::At(start - DELIVERED_AHEAD), Some(wait)),
                    false => (DeliveryTime::Now, None),
                };
                Ok(Destination { provider, when, booking, later })
            }
            Turn::Go(..) => Ok(Destination::at_once(provider)),
            turn => Err(turn.into()),
        }
    }

    async fn reject(
        &self,
        delivery: Delivery,
        reason: DeadLetterReason,
        stop: &Stop,
    ) -> Result<(), Error> {
        let message = delivery.message().clone();
        let status = JobStatus::new(&message, JobEvent::Dead, self.source.name(), self.clock.now());
        let status = status.because(&reason.message);
        warn!(job = %message.meta.job, reason = reason.message, "message rejected by dispatcher");
        let reason = reason.with("dispatcher", self.options.id.as_str());
        let dead_letter = |delivery: Delivery| delivery.dead_letter(reason.clone());
        self.settle(delivery, self.source.dead_letter_name(), stop, dead_letter).await?;
        self.metrics.rejected();
        self.tracker.record(&message.meta.job, status);
        Ok(())
    }
}

/// Messages that the consumer of the dispatcher does not hand out.
impl ConsumerObserver for Dispatcher {
    fn on_dead_letter(&self, message: &Message, reason: &DeadLetterReason) {
        let (queue, now) = (self.source.name(), self.clock.now());
        let status = JobStatus::new(message, JobEvent::Dead, queue, now).because(&reason.message);
        self.tracker.record(&message.meta.job, status);
    }

    fn on_failure(&self, queue: &str, error: &Error) {
        self.metrics.queues.failed(queue, error, self.clock.now());
    }

    fn on_published(&self, queue: &str) {
        self.metrics.queues.works(queue);
    }
}

/// Creates the reason of a dead letter, with the causes as its stack.
fn rejection(reason: &str, causes: &[String]) -> DeadLetterReason {
    DeadLetterReason::new(reason).with_stack(handler::stack(reason, causes))
}

/// The reason why a message is not forwarded.
enum DispatchError {
    /// The message can never be forwarded.
    Rejected(DeadLetterReason),
    /// The limiter gave no decision: retry after this delay.
    Again(Span),
    /// The limit admits the message after this delay.
    Later(Span),
    /// The queue of the provider can't be used: retry after this delay.
    Paused(Span),
}

impl From<Turn> for DispatchError {
    fn from(turn: Turn) -> Self {
        match turn {
            Turn::Later(span) | Turn::Busy(span) => Self::Later(span),
            Turn::Unanswered(span) => Self::Again(span),
            Turn::Go(..) | Turn::Gone | Turn::Booked(_) => Self::Again(Span::ZERO),
            Turn::Never(rule) => {
                let reason = format!("the limits of rule {rule} can never admit it");
                Self::Rejected(rejection(&reason, &[]))
            }
        }
    }
}

impl ProviderQueue {
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
