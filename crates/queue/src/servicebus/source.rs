//! [`BusSource`]: a receiver link, renewed when it is lost. A task reads it, so that every message that
//! Service Bus has locked for this process is known and its lock is renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fe2o3_amqp::Receiver;
use fe2o3_amqp::link::ReceiverDisposer;
use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::{Notify, mpsc};
use tracing::{info, warn};
use uuid::Uuid;

use super::connection::{OpenConnection, OpenLink};
use super::queue_handle::QueueHandle;
use super::receipt::BusReceipt;
use super::{BusClient, failure, properties};
use crate::Error;
use crate::broker::{ConsumeOptions, MessageSource, ReceivedMessage};

/// Backoff between attempts to open a link; it doubles each time.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Time for which messages may still arrive after Service Bus has drained the link.
const DRAIN: Duration = Duration::from_millis(50);

/// A message, or an error that an operator has to fix.
type Received = Result<ReceivedMessage, Error>;

pub(super) struct BusSource {
    bus: Arc<BusClient>,
    queue_handle: Arc<QueueHandle>,
    options: ConsumeOptions,
    received: mpsc::Receiver<Received>,
    /// Makes the task close its link and pass on the messages that arrive meanwhile.
    closed: Arc<Notify>,
}

/// The permit of an unsettled delivery, out of those of its source.
pub(super) struct Place(Arc<Places>);

#[derive(Default)]
struct Places {
    taken: AtomicU32,
    /// Wakes the task of the source when a place is free.
    freed: Notify,
}

impl Place {
    fn take(places: &Arc<Places>) -> Self {
        places.taken.fetch_add(1, Ordering::Relaxed);
        Self(places.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

impl BusSource {
    /// Opens a receiver link, and starts to read it.
    pub(super) async fn open(
        bus: Arc<BusClient>,
        queue_handle: Arc<QueueHandle>,
        options: ConsumeOptions,
    ) -> Result<Self, Error> {
        let closed = Arc::default();
        let received = start(&bus, &queue_handle, options, &closed).await?;
        Ok(Self { bus, queue_handle, options, received, closed })
    }
}

async fn start(
    bus: &Arc<BusClient>,
    queue_handle: &Arc<QueueHandle>,
    options: ConsumeOptions,
    closed: &Arc<Notify>,
) -> Result<mpsc::Receiver<Received>, Error> {
    let link = queue_handle.queue.attach_receiver().await?;
    let prefetch = options.prefetch.max(1);
    let (messages, received) = mpsc::channel(usize::from(prefetch));
    let (bus, queue_handle, places) = (bus.clone(), queue_handle.clone(), Arc::default());
    let closed = closed.clone();
    let reader = Reader { bus, queue_handle, options, prefetch, places, messages, closed };
    tokio::spawn(reader.run(link));
    Ok(received)
}

impl MessageSource for BusSource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            let first = loop {
                match self.received.recv().await {
                    Some(first) => break first?,
                    // The task has ended with an error, which an operator may have fixed.
                    None => {
                        let (bus, queue_handle) = (&self.bus, &self.queue_handle);
                        self.received =
                            start(bus, queue_handle, self.options, &self.closed).await?;
                    }
                }
            };
            let mut messages = vec![first];
            while messages.len() < max
                && let Ok(Ok(message)) = self.received.try_recv()
            {
                messages.push(message);
            }
            Ok(messages)
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Vec<ReceivedMessage>> {
        async move {
            self.closed.notify_one();
            let mut left = Vec::new();
            while let Some(received) = self.received.recv().await {
                left.extend(received);
            }
            left
        }
        .boxed()
    }
}

/// The task of a source.
struct Reader {
    bus: Arc<BusClient>,
    queue_handle: Arc<QueueHandle>,
    options: ConsumeOptions,
    prefetch: u16,
    places: Arc<Places>,
    messages: mpsc::Sender<Received>,
    closed: Arc<Notify>,
}

impl Reader {
    /// Reads until the source is closed or dropped.
    async fn run(self, open: OpenLink<Receiver>) {
        let mut next = Some(open);
        while let Some(mut open) = next.take() {
            let disposer = open.link.disposer();
            match self.read(&open.live, &mut open.link, &disposer).await {
                Ok(()) => return self.give_back(open, &disposer).await,
                Err(error) => {
                    let queue = self.queue_handle.queue.address();
                    warn!(queue, %error, "AMQP receiver link lost, reconnecting");
                    drop(open);
                    next = self.reopen(error).await;
                }
            }
        }
    }

    /// Reads until the source is closed or dropped, or the link fails.
    async fn read(
        &self,
        live: &OpenConnection,
        receiver: &mut Receiver,
        disposer: &ReceiverDisposer,
    ) -> Result<(), Error> {
        let queue = self.queue_handle.queue.address();
        loop {
            let taken = self.places.taken.load(Ordering::Relaxed);
            let free = u32::from(self.prefetch).saturating_sub(taken);
            if free > receiver.credit() {
                let granted = live.within(receiver.set_credit(free)).await?;
                granted.map_err(|error| failure::unavailable(error.to_string()))?;
            }
            tokio::select! {
                received = receiver.recv::<Body<Value>>() => {
                    let delivery = received.map_err(|error| failure::of_queue(queue, &error))?;
                    if let Some(message) = self.accept(delivery, disposer) {
                        // The channel has room: every message in it holds a permit until it is
                        // settled.
                        let _ = self.messages.send(Ok(message)).await;
                    }
                }
                () = self.places.freed.notified() => {}
                () = self.closed.notified() => return Ok(()),
                () = self.messages.closed() => return Ok(()),
            }
        }
    }

    /// Opens the link again. Returns `None` if the source is closed or dropped, or an operator has to act.
    async fn reopen(&self, mut error: Error) -> Option<OpenLink<Receiver>> {
        let mut wait = WAIT_MIN;
        loop {
            // The error of the old link may have been fixed, so only an error of a new link counts.
            if !error.is_transient() && wait > WAIT_MIN {
                let _ = self.messages.send(Err(error)).await;
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.closed.notified() => return None,
                () = self.messages.closed() => return None,
            }
            let queue = &self.queue_handle.queue;
            match queue.attach_receiver().await {
                Ok(link) => {
                    info!(queue = queue.address(), "receiver link renewed");
                    return Some(link);
                }
                Err(next) => {
                    warn!(queue = queue.address(), error = %next, "receiver link failed, retrying");
                    error = next;
                }
            }
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    /// Closes a link. Messages that arrive meanwhile are passed on, or returned if the source is dropped.
    async fn give_back(&self, open: OpenLink<Receiver>, disposer: &ReceiverDisposer) {
        let OpenLink { live, link: mut receiver, mut session } = open;
        // Service Bus uses up the credit without further messages. Without credit on our side, the
        // library would refuse those that are on their way, and they would stay locked.
        if !matches!(live.within(receiver.drain()).await, Ok(Ok(()))) {
            return;
        }
        // Service Bus handles the frames of a session in order. So once it has opened another link, it
        // sends no message on this one, however slow the connection is.
        let _ = live.within(self.queue_handle.queue.receiver_in(&mut session)).await;
        while let Ok(Ok(delivery)) =
            tokio::time::timeout(DRAIN, receiver.recv::<Body<Value>>()).await
        {
            if !self.messages.is_closed() {
                if let Some(message) = self.accept(delivery, disposer) {
                    let _ = self.messages.send(Ok(message)).await;
                }
                continue;
            }
            let (delivery, _) = delivery.into_parts();
            let _ = disposer.release(delivery).await;
        }
        let _ = live.within(receiver.close()).await;
    }

    fn accept(
        &self,
        delivery: Delivery<Body<Value>>,
        disposer: &ReceiverDisposer,
    ) -> Option<ReceivedMessage> {
        // The tag is the lock token in the byte order of .NET.
        let lock = Uuid::from_slice_le(delivery.delivery_tag()).ok()?;
        let (delivery, message) = delivery.into_parts();
        let native = properties::read(message);
        self.queue_handle.leases.hold(lock, native.locked_until, self.options.visibility);
        let receipt = BusReceipt {
            bus: self.bus.clone(),
            queue_handle: self.queue_handle.clone(),
            lock: Some(lock),
            received_with: native.received_with,
            link: (disposer.clone(), delivery),
            place: Some(Place::take(&self.places)),
        };
        Some(ReceivedMessage { incoming: native.incoming, receipt: Box::new(receipt) })
    }
}
