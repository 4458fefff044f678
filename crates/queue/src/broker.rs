//! The port that a broker implements: few operations, each of which does what the server can do
//! natively and nothing else. Everything above is written once, in [`Queue`](crate::Queue).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::{Span, Timestamp};

use crate::{Error, Message};

/// A connection to a broker, which makes itself anew when it is lost.
pub trait Broker: Send + Sync + 'static {
    /// What it does natively.
    fn capabilities(&self) -> Capabilities;

    /// Publishes messages, each on its own: one result each, in their order. One that is `Ok`
    /// survives a crash of the broker; one that is not may have been published all the same.
    fn publish<'a>(
        &'a self,
        place: &'a Place,
        batch: Vec<Outgoing>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>>;

    /// Opens a stream of deliveries.
    fn consume<'a>(
        &'a self,
        place: &'a Place,
        terms: Terms,
    ) -> BoxFuture<'a, Result<Box<dyn Source>, Error>>;

    /// How much there is.
    fn depth<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Depth, Error>>;

    /// Messages as they lie there, in the order of their numbers, after the one of this number.
    ///
    /// Only where [`Capabilities::browse`] says so; elsewhere they are received and given back.
    fn browse<'a>(
        &'a self,
        _place: &'a Place,
        _after: u64,
        _max: usize,
    ) -> BoxFuture<'a, Result<Vec<(u64, Incoming)>, Error>> {
        let broker = self.capabilities().broker;
        let cant = Error::Invalid(format!("{broker} can't show messages where they lie"));
        std::future::ready(Err(cant)).boxed()
    }

    /// Says what is wrong with a queue before anybody depends on it.
    fn check<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>>;

    /// Makes a queue that [`Broker::check`] did not find.
    fn create<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>>;

    /// Throws away everything that nobody holds; returns how much that was, where that is known.
    fn purge<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Option<u64>, Error>>;
}

/// Where messages lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A queue from which work is done.
    Live(String),
    /// A queue of dead letters.
    Dead(String),
}

impl Place {
    /// What the broker calls it.
    pub fn name(&self) -> &str {
        match self {
            Self::Live(name) | Self::Dead(name) => name,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a broker does natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What it is called in messages.
    pub broker: &'static str,
    /// How a delivery is kept from others.
    pub lease: Lease,
    /// The longest that a message may lie hidden at once; longer delays take several hops. Zero:
    /// it knows no delays.
    pub delay_max: Span,
    /// The shortest that it can hide a message: what is due sooner is held by its consumer.
    pub delay_min: Span,
    /// Whether it has delays of its own for the few lengths of [`Delay::Fixed`], exact to the
    /// millisecond; elsewhere these are instants like others.
    pub fixed_delays: bool,
    /// Whether messages can be read where they lie.
    pub browse: bool,
    /// Whether more urgent messages go first.
    pub priorities: bool,
    /// The largest message.
    pub size_max: usize,
    /// Whether the server counts deliveries, and may throw a message away that came back too often.
    pub counts_returns: bool,
    /// Whether passing a message on is one step, so that not even a crash makes a duplicate.
    pub atomic_relay: bool,
}

/// How a delivery is kept from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// For a time, at most so long at once, that its holder prolongs.
    Timed(Span),
    /// As long as the connection lives: nothing to prolong.
    Connection,
}

/// A message on its way to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// What to publish.
    pub message: Message,
    /// How long it is to lie hidden. A broker may deliver it sooner: the consumer looks at
    /// `not_before` and sends it on.
    pub delay: Delay,
}

/// How long a message is to lie hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Not at all.
    None,
    /// So long, which is one of few lengths: see [`When::After`](crate::When::After).
    Fixed(Span),
    /// Until then; `left` is how long that is from now.
    Until {
        /// The instant.
        at: Timestamp,
        /// How long it takes until then.
        left: Span,
    },
}

impl Delay {
    /// How long.
    pub const fn span(self) -> Span {
        match self {
            Self::None => Span::ZERO,
            Self::Fixed(span) | Self::Until { left: span, .. } => span,
        }
    }
}

/// How deliveries are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The most that are held at the same time without being settled, where the broker counts.
    pub prefetch: u16,
    /// How long a delivery is kept from others, where that is a matter of time.
    pub visibility: Span,
    /// How long one question may wait for messages, where the broker has to be asked. Whoever
    /// stops asking leaves one behind, which takes what comes and gives it back.
    pub wait: Span,
}

impl Terms {
    /// The most that is of use anywhere.
    pub const WAIT_MAX: Span = Span::from_secs(20);
}

/// A stream of deliveries. It survives the loss of its connection.
pub trait Source: Send {
    /// The next ones, at least one and at most `max`. Waits as long as it takes; whoever stops
    /// waiting loses nothing.
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Received>, Error>>;
}

/// A message as the broker hands it out.
pub struct Received {
    /// What came.
    pub incoming: Incoming,
    /// What settles it.
    pub receipt: Box<dyn Receipt>,
}

/// What came, before anybody has looked into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The bytes of the producer.
    pub body: Bytes,
    /// See [`Message`].
    pub content_type: Option<String>,
    /// See [`Message`].
    pub kind: Option<String>,
    /// See [`Message`].
    pub priority: u8,
    /// Headers that are text, ours excepted.
    pub headers: BTreeMap<String, String>,
    /// Our metadata, as it was written.
    pub envelope: Option<String>,
    /// What producer or broker call the message, if they do, the same at every delivery.
    pub foreign_id: Option<String>,
    /// How often it was handed out before without being settled, as far as the broker tells.
    pub returns: u32,
}

/// The right to settle one delivery, once.
///
/// Dropping one gives the message back, without anybody hearing of it; where that can't be, the
/// broker hands it out again when the lease ends.
pub trait Receipt: Send + Sync {
    /// The work is done.
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;

    /// Publishes the next message, and acknowledges this one when that is confirmed.
    fn relay(
        self: Box<Self>,
        place: Place,
        next: Outgoing,
    ) -> BoxFuture<'static, Result<(), Error>>;

    /// Somebody else may have it now.
    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;

    /// Keeps it from others for so long from now. Nothing to do where the lease has no time.
    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>>;
}

/// How much there is in a queue. What a broker can't tell is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that can be delivered now.
    pub ready: u64,
    /// Messages that wait for their instant.
    pub delayed: Option<u64>,
    /// Messages that somebody holds.
    pub in_flight: Option<u64>,
    /// How long the oldest of the ready ones has been there.
    pub oldest: Option<Span>,
}
