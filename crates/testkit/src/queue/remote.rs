//! Tests of leases that clients of a node hold: sends, receives, settles and extends by handle.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use sluicegate_queue::remote::{
    LeaseAction, LeaseActionKind, LeaseError, LeaseHandle, LeasedMessage, QueueOpener,
    ReceiveRequest, RemoteOptions, RemoteQueues,
};
use sluicegate_queue::{DeadLetterFilter, DeadLetterReason, DeliveryTime, Error, Message, Queue};

use super::{QueueBench, QueueSubject};

/// Longest wait of a receive that expects a message.
const WAIT: Span = Span::from_secs(20);

/// An opener that knows one queue.
struct OneQueue(Queue);

impl QueueOpener for OneQueue {
    fn open<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Queue, Error>> {
        std::future::ready(Ok(self.0.clone())).boxed()
    }

    fn create<'a>(&'a self, _: &'a Queue) -> BoxFuture<'a, Result<bool, Error>> {
        std::future::ready(Ok(false)).boxed()
    }
}

/// A node whose clients use the queue of a test.
struct RemoteNode {
    queues: Arc<RemoteQueues>,
    name: String,
}

impl RemoteNode {
    fn new<S: QueueSubject>(bench: &QueueBench<S>, leases_max: usize) -> Self {
        let options =
            RemoteOptions { host: "test".to_owned(), leases_max, clock: bench.subject.clock() };
        let opener = Arc::new(OneQueue(bench.queue.clone()));
        let name = bench.queue.name().to_owned();
        Self { queues: Arc::new(RemoteQueues::new(opener, options)), name }
    }

    async fn try_receive(&self, max: usize, wait: Span) -> Result<Vec<LeasedMessage>, LeaseError> {
        self.queues.receive(&self.name, ReceiveRequest { max, wait, lease: None }).await
    }

    async fn receive_one(&self) -> LeasedMessage {
        let mut received = self.try_receive(1, WAIT).await.expect("received");
        received.pop().expect("a message")
    }

    async fn settle(&self, handle: &LeaseHandle, action: LeaseAction) -> Result<bool, LeaseError> {
        self.queues.settle(&self.name, handle, action).await
    }
}

pub async fn a_client_settles_a_lease_once_and_may_repeat_it<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 10);
    bench.send(&["a"]).await;
    let leased = node.receive_one().await;
    assert_eq!(leased.message.body, "a");
    assert_eq!(node.queues.open_leases(), 1);
    let until = node.queues.extend(&node.name, &leased.handle, Some(Span::from_secs(7_200))).await;
    assert!(until.expect("extended") > leased.until);
    let parsed = LeaseHandle::parse(&leased.handle.to_string()).expect("a handle");
    assert_eq!(node.settle(&parsed, LeaseAction::Ack).await, Ok(false));
    assert_eq!(node.settle(&parsed, LeaseAction::Ack).await, Ok(true), "the same again");
    let other = node.settle(&parsed, LeaseAction::Requeue).await;
    assert_eq!(other, Err(LeaseError::Settled { by: LeaseActionKind::Ack }));
    assert_eq!(node.queues.open_leases(), 0);
    assert_eq!((node.queues.counts().received, node.queues.counts().settled[0]), (1, 1));
    bench.wait_for_ready(0).await;
}

pub async fn a_client_retries_defers_requeues_and_dead_letters<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 10);
    bench.send(&["{\"n\":1}"]).await;
    let leased = node.receive_one().await;
    let job = leased.message.meta.job.clone();
    let counts =
        |leased: &LeasedMessage| (leased.message.meta.attempt, leased.message.meta.deferrals);
    assert_eq!(counts(&leased), (0, 0));
    node.settle(&leased.handle, LeaseAction::Retry(DeliveryTime::Now)).await.expect("retried");
    let leased = node.receive_one().await;
    assert_eq!(counts(&leased), (1, 0));
    node.settle(&leased.handle, LeaseAction::Defer(DeliveryTime::Now)).await.expect("deferred");
    let leased = node.receive_one().await;
    assert_eq!(counts(&leased), (1, 1));
    node.settle(&leased.handle, LeaseAction::Requeue).await.expect("requeued");
    let leased = node.receive_one().await;
    assert_eq!((counts(&leased), &leased.message.meta.job), ((1, 1), &job));
    let reason = DeadLetterReason::new("broken");
    node.settle(&leased.handle, LeaseAction::DeadLetter(reason)).await.expect("dead-lettered");
    let mut letters = Vec::new();
    while letters.is_empty() {
        let letter = |letter: &sluicegate_queue::DeadLetter| letters.push(letter.original());
        let listed =
            bench.queue.dead_letters().list(&DeadLetterFilter::default(), 10, letter).await;
        listed.expect("listed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(letters, [b"{\"n\":1}".to_vec()]);
}

pub async fn a_lease_is_settled_on_another_node_where_the_broker_can<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let (first, second) = (RemoteNode::new(&bench, 10), RemoteNode::new(&bench, 10));
    bench.send(&["a"]).await;
    let handle = first.receive_one().await.handle;
    let extended = second.queues.extend(&second.name, &handle, None).await;
    let acked = second.settle(&handle, LeaseAction::Ack).await;
    if handle.to_string().ends_with('.') {
        // The lease belongs to a connection: the error names the node.
        let node = first.queues.node().to_owned();
        assert_eq!(extended, Err(LeaseError::OtherNode { node: node.clone() }));
        assert_eq!(acked, Err(LeaseError::OtherNode { node }));
        assert_eq!(first.settle(&handle, LeaseAction::Ack).await, Ok(false));
    } else {
        extended.expect("extended");
        assert_eq!(acked, Ok(false));
        assert_eq!(second.settle(&handle, LeaseAction::Ack).await, Ok(true), "it is remembered");
    }
    bench.wait_for_ready(0).await;
    bench.send(&["b"]).await;
    assert_eq!(second.receive_one().await.message.body, "b", "a is gone");
}

pub async fn a_lease_that_ends_is_lost<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 10);
    bench.send(&["a"]).await;
    let request = ReceiveRequest { max: 1, wait: WAIT, lease: Some(Span::from_secs(2)) };
    let leased = node.queues.receive(&node.name, request).await.expect("received");
    bench.subject.pass(Span::from_secs(2)).await;
    let again = loop {
        if let Some(again) = node.try_receive(1, WAIT).await.expect("received").pop() {
            break again;
        }
    };
    assert_eq!(again.message.meta.job, leased[0].message.meta.job);
    assert_eq!((leased[0].redeliveries, again.redeliveries), (0, 1));
    let late = node.settle(&leased[0].handle, LeaseAction::Ack).await;
    if S::FENCES || late.is_err() {
        let is_lost = matches!(late, Err(LeaseError::Lost { .. } | LeaseError::Expired { .. }));
        assert!(is_lost, "{late:?}");
        assert_eq!(node.settle(&again.handle, LeaseAction::Ack).await, Ok(false));
    }
}

pub async fn open_leases_are_bounded<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 2);
    bench.send(&["a", "b", "c"]).await;
    let mut leased = Vec::new();
    while leased.len() < 2 {
        leased.extend(node.try_receive(10, WAIT).await.expect("received"));
    }
    assert_eq!(leased.len(), 2, "the rest of a batch waits");
    assert_eq!(node.try_receive(1, WAIT).await, Err(LeaseError::TooMany { max: 2 }));
    node.settle(&leased[0].handle, LeaseAction::Ack).await.expect("acknowledged");
    assert_eq!(node.try_receive(5, WAIT).await.expect("received").len(), 1);
}

pub async fn an_idle_receive_leaves_room_for_others<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 3);
    // The first is polled first, so it has reserved its room when the second begins.
    let (idle, other) = tokio::join!(node.try_receive(3, WAIT), async {
        let beside = node.try_receive(3, Span::ZERO).await;
        assert_eq!(beside, Ok(Vec::new()), "nothing is there, and there is room");
        bench.send(&["a", "b", "c", "d"]).await;
        node.try_receive(3, WAIT).await
    });
    // The second finds no room if the first was faster.
    let mut leased = idle.expect("received");
    leased.extend(other.unwrap_or_default());
    while leased.len() < 3 {
        leased.extend(node.try_receive(3, WAIT).await.expect("received"));
    }
    assert_eq!((leased.len(), node.queues.open_leases()), (3, 3), "no more than the maximum");
    for leased in leased {
        node.settle(&leased.handle, LeaseAction::Ack).await.expect("acknowledged");
    }
    // A message for which there was no room is delivered to the next one.
    let last = loop {
        if let Some(last) = node.try_receive(3, WAIT).await.expect("received").pop() {
            break last;
        }
    };
    assert_eq!(node.settle(&last.handle, LeaseAction::Ack).await, Ok(false));
}

pub async fn a_waiting_client_gets_what_is_sent_later<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let node = RemoteNode::new(&bench, 10);
    assert_eq!(node.try_receive(1, Span::ZERO).await, Ok(Vec::new()), "nothing is there");
    let queues = node.queues.clone();
    let name = node.name.clone();
    let waiting = tokio::spawn(async move {
        loop {
            let request = ReceiveRequest { max: 5, wait: WAIT, lease: None };
            let received = queues.receive(&name, request).await.expect("received");
            if !received.is_empty() {
                return received;
            }
        }
    });
    let send = |_: &Queue, body: &str| (Message::new(body.to_owned()), DeliveryTime::Now);
    let sent = node.queues.send(&node.name, vec!["later"], send).await.expect("a queue");
    assert!(sent[0].is_ok());
    let received = waiting.await.expect("no panic");
    assert_eq!((received.len(), &received[0].message.body[..]), (1, &b"later"[..]));
}

pub async fn a_node_that_stops_requeues_what_its_clients_hold<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let (node, other) = (RemoteNode::new(&bench, 10), RemoteNode::new(&bench, 10));
    bench.send(&["a"]).await;
    let held = node.receive_one().await;
    let (queues, name) = (node.queues.clone(), node.name.clone());
    let waiting = tokio::spawn(async move {
        queues.receive(&name, ReceiveRequest { max: 1, wait: WAIT, lease: None }).await
    });
    node.queues.close().await;
    bench.queue.flush().await;
    assert_eq!(waiting.await.expect("no panic"), Ok(Vec::new()), "a waiting receive ends");
    assert_eq!(other.receive_one().await.message.meta.job, held.message.meta.job);
    let node_name = node.queues.node().to_owned();
    let late = node.settle(&held.handle, LeaseAction::Ack).await;
    assert_eq!(late, Err(LeaseError::Lost { node: node_name }));
}
