//! A queue by its name: what the broker lacks is here.

use std::fmt;
use std::sync::Arc;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};

use crate::broker::{Broker, Capabilities, Delay, Depth, Outgoing, Place, Terms};
use crate::consumer::Consumer;
use crate::dead::DeadLetters;
use crate::fields::Fields;
use crate::peek::{self, Seen};
use crate::stats::{Snapshot, Stats};
use crate::{Error, JobId, Message, MessageId, WallClock, When};

/// How a queue is used.
#[derive(Clone)]
pub struct Options {
    /// Where its dead letters go. Default: its name and `-dlq`.
    pub dead_letter: Option<String>,
    /// How long a delivery is kept from others unless it is prolonged. Default: 300 s.
    pub visibility: Span,
    /// The member of a foreign body that names the job. Default: none, the broker's id counts.
    pub job_field: Option<String>,
    /// The member of a foreign body that says what kind of work it is. Default: none.
    pub type_field: Option<String>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dead_letter: None,
            visibility: Span::from_secs(300),
            job_field: None,
            type_field: None,
            clock: Arc::new(WallClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dead_letter, visibility, job_field, type_field, clock: _ } = self;
        f.debug_struct("Options")
            .field("dead_letter", dead_letter)
            .field("visibility", visibility)
            .field("job_field", job_field)
            .field("type_field", type_field)
            .finish_non_exhaustive()
    }
}

/// A queue. Clones are the same queue, with the same counts.
#[derive(Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) live: Place,
    pub(crate) dead: Place,
    pub(crate) visibility: Span,
    pub(crate) fields: Fields,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: Stats,
}

impl Queue {
    /// The queue of this name. Asks nothing of the broker: see [`Queue::check`].
    pub fn new(broker: Arc<dyn Broker>, name: &str, options: Options) -> Self {
        let Options { dead_letter, visibility, job_field, type_field, clock } = options;
        let dead = dead_letter.unwrap_or_else(|| format!("{name}-dlq"));
        let inner = Inner {
            broker,
            live: Place::Live(name.to_owned()),
            dead: Place::Dead(dead),
            visibility,
            fields: Fields { job: job_field, kind: type_field },
            clock,
            stats: Stats::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.inner.live.name()
    }

    /// What its broker does natively.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.broker.capabilities()
    }

    /// Makes the queue and that of its dead letters, where they are missing.
    pub async fn create(&self) -> Result<(), Error> {
        // Dead letters first: a queue must not work before there is a place for what fails.
        for place in [&self.inner.dead, &self.inner.live] {
            match self.inner.broker.check(place).await {
                Err(Error::NoQueue { .. }) => self.inner.broker.create(place).await?,
                // One that exists stays as it is, whatever it is made of.
                checked => checked?,
            }
        }
        Ok(())
    }

    /// Says what is wrong with the queue or with that of its dead letters.
    pub async fn check(&self) -> Result<(), Error> {
        self.inner.broker.check(&self.inner.live).await?;
        self.inner.broker.check(&self.inner.dead).await
    }

    /// The job that a body names, where [`Options::job_field`] says how.
    pub fn job_in(&self, body: &[u8]) -> Option<JobId> {
        self.inner.fields.find(body).job.and_then(|job| JobId::try_from(job).ok())
    }

    /// Sends a message. It survives a crash of the broker when this returns.
    pub async fn send(&self, message: Message) -> Result<MessageId, Error> {
        self.send_when(message, When::Now).await
    }

    /// The same, to be delivered later.
    pub async fn send_when(&self, message: Message, when: When) -> Result<MessageId, Error> {
        let mut results = self.send_batch(vec![(message, when)]).await;
        results.pop().unwrap_or_else(|| unreachable!("one message has one result"))
    }

    /// Sends messages, each on its own: one result each, in their order.
    pub async fn send_batch(&self, batch: Vec<(Message, When)>) -> Vec<Result<MessageId, Error>> {
        let now = self.inner.clock.now();
        let mut ids = Vec::with_capacity(batch.len());
        let outgoing = batch.into_iter().map(|(mut message, when)| {
            message.meta.sent_at.get_or_insert(now);
            ids.push(message.id());
            self.inner.outgoing(message, when)
        });
        let outgoing = outgoing.collect();
        let results = self.inner.broker.publish(&self.inner.live, outgoing).await;
        let sent = results.iter().filter(|result| result.is_ok()).count();
        self.inner.stats.sent(sent);
        ids.into_iter().zip(results).map(|(id, result)| result.map(|()| id)).collect()
    }

    /// Starts to take messages, at most `prefetch` at the same time.
    pub async fn consume(&self, prefetch: u16) -> Result<Consumer, Error> {
        let terms = Terms { prefetch, visibility: self.inner.visibility, wait: Terms::WAIT_MAX };
        let source = self.inner.broker.consume(&self.inner.live, terms).await?;
        Ok(Consumer::new(self.clone(), source))
    }

    /// How much there is.
    pub async fn depth(&self) -> Result<Depth, Error> {
        self.inner.broker.depth(&self.inner.live).await
    }

    /// How many dead letters there are.
    pub async fn dead_depth(&self) -> Result<Depth, Error> {
        self.inner.broker.depth(&self.inner.dead).await
    }

    /// Shows messages one after the other, at most `max`, and leaves them there. Returns how many.
    ///
    /// Where the broker can't show them they are received and given back, which it may count.
    pub async fn peek(&self, max: u64, mut show: impl FnMut(&Message)) -> Result<u64, Error> {
        let mut shown = 0;
        if max == 0 {
            return Ok(shown);
        }
        peek::show(self, &self.inner.live, |message| {
            show(&message);
            shown += 1;
            if shown < max { Seen::More } else { Seen::Enough }
        })
        .await?;
        Ok(shown)
    }

    /// Throws away everything that nobody holds; how much that was, where the broker tells.
    pub async fn purge(&self) -> Result<Option<u64>, Error> {
        self.inner.broker.purge(&self.inner.live).await
    }

    /// Its dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.clone())
    }

    /// What went through this value and its clones.
    pub fn stats(&self) -> Snapshot {
        self.inner.stats.snapshot()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Inner {
    /// A message on its way, hidden as long as it has to be.
    pub(crate) fn outgoing(&self, mut message: Message, when: When) -> Outgoing {
        let now = self.clock.now();
        let capabilities = self.broker.capabilities();
        let delay = match when {
            When::After(span) if capabilities.fixed_delays && span > Span::ZERO => {
                // The broker counts by its own clock: nobody has to look at ours.
                message.meta.not_before = None;
                Delay::Fixed(span)
            }
            when => {
                message.meta.not_before = when.instant(now);
                message.meta.not_before.map_or(Delay::None, |at| until(at, now, &capabilities))
            }
        };
        Outgoing { message, delay }
    }
}

/// As long as the broker can hide it at once.
fn until(at: Timestamp, now: Timestamp, capabilities: &Capabilities) -> Delay {
    let left = at.since(now).min(capabilities.delay_max);
    if left < capabilities.delay_min || left == Span::ZERO {
        return Delay::None;
    }
    Delay::Until { at, left }
}
