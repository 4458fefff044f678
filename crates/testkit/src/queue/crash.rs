//! Crash tests: a process is killed (`kill -9`) at every step of forwarding, retrying, deferring and
//! dead-lettering a message.
//!
//! A test of an adapter starts itself again as a child process with [`VARIABLE`] set. The child
//! settles messages in one way until it reaches its step, and kills itself there. No message may be
//! lost, and duplicates of forwarded messages must have the same id.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::step::{self, DeliveryStep};
use sluicegate_queue::{
    Broker, DeadLetterFilter, DeadLetterReason, Delivery, DeliveryTime, JobId, Message, MessageId,
    Options, Queue, Unsettled,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Environment variable that tells a child its broker, action and step: `address action step count`.
const VARIABLE: &str = "SLUICEGATE_CRASH";
/// Number of messages per child, more than it settles before it dies.
const JOBS: usize = 4;
/// Number of killed children per action in the short form of the test: 52 in all.
const KILLS: usize = 13;
/// Visibility timeout: long enough for a child on a slow machine. A message that a child held when
/// it died is redelivered after it.
const VISIBILITY: Span = Span::from_secs(10);
/// Maximum idle time after which the test concludes that nothing more will arrive.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// A way to settle a message that publishes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Forward,
    Retry,
    Defer,
    DeadLetter,
}

impl Action {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Forward, "forward"),
        (Self::Retry, "retry"),
        (Self::Defer, "defer"),
        (Self::DeadLetter, "dead-letter"),
    ];

    async fn settle(self, delivery: Delivery, target: &Queue) -> Result<(), Unsettled> {
        match self {
            Self::Forward => delivery.forward(target, DeliveryTime::Now).await,
            Self::Retry => delivery.retry(DeliveryTime::Now).await,
            Self::Defer => delivery.defer(DeliveryTime::Now).await,
            Self::DeadLetter => delivery.dead_letter(DeadLetterReason::new("crash")).await,
        }
    }
}

/// Returns the source and target queues of an action on a broker.
fn queues(broker: &Arc<dyn Broker>, action: &str) -> [Queue; 2] {
    let open = |name: &str| {
        let options = Options { visibility: VISIBILITY, ..Options::default() };
        Queue::new(broker.clone(), &format!("crash-{action}-{name}"), options)
    };
    [open("source"), open("target")]
}

/// Runs the child: settles messages until it dies. Returns false at once if this process is not a
/// child.
pub async fn child<F: Future<Output = Arc<dyn Broker>>>(connect: impl Fn(String) -> F) -> bool {
    let Ok(place) = std::env::var(VARIABLE) else { return false };
    let mut words = place.split(' ');
    let [address, action, step, count] =
        [(); 4].map(|()| words.next().expect("four words").to_owned());
    let (action, name) =
        Action::ALL.into_iter().find(|(_, name)| *name == action).expect("an action");
    let step = DeliveryStep::ALL.into_iter().find(|known| known.name() == step).expect("a step");
    let [source, target] = queues(&connect(address).await, name);
    let mut consumer = source.consume(1).await.expect("a consumer");
    let left = AtomicU32::new(count.parse().expect("a number"));
    tracing::subscriber::set_global_default(KillAtStep { step, left }).expect("the only one");
    // A child that never reaches its step ends, and the parent sees that it was not killed.
    while let Ok(received) = tokio::time::timeout(IDLE_MAX, consumer.receive(1)).await {
        for delivery in received.expect("received") {
            action.settle(delivery, &target).await.expect("settled");
        }
    }
    true
}

/// Runs the parent: for each action, kills children at every step and then counts messages. `test` is
/// the name of the test that calls [`child`].
pub async fn nothing_is_lost(broker: Arc<dyn Broker>, address: &str, test: &str) {
    for action in Action::ALL {
        nothing_is_lost_by(action, &broker, address, test).await;
    }
}

#[expect(clippy::print_stdout, reason = "the number of duplicates is a result of the test")]
async fn nothing_is_lost_by(
    (action, name): (Action, &str),
    broker: &Arc<dyn Broker>,
    address: &str,
    test: &str,
) {
    let kills = if crate::long() { KILLS * 10 } else { KILLS };
    let queues = queues(broker, name);
    for queue in &queues {
        queue.create().await.expect("created");
    }
    let [source, target] = queues;
    let mut sent = Vec::new();
    for kill in 0..kills {
        let jobs: Vec<_> = (0..JOBS).map(|_| (Message::new("job"), DeliveryTime::Now)).collect();
        sent.extend(jobs.iter().map(|(message, _)| message.meta.job.clone()));
        for result in source.send_batch(jobs).await {
            result.expect("sent");
        }
        let step = DeliveryStep::ALL[kill % DeliveryStep::ALL.len()].name();
        let count = 1 + kill / DeliveryStep::ALL.len() % (JOBS - 1);
        let status = spawn(address, &format!("{name} {step} {count}"), test).await;
        assert_eq!(status.signal(), Some(9), "kill {kill} at {name} {step} {count}: {status}");
    }
    let (letters, all) = (source.dead_letters(), DeadLetterFilter::default());
    let replayed = letters.replay(&all, u64::MAX, |_| {}).await.expect("replayed");
    assert_eq!(replayed > 0, action == Action::DeadLetter, "{replayed} dead letters");
    let arrived = arrivals(&source, &target, sent.len()).await;
    let lost = sent.iter().filter(|job| !arrived.contains_key(*job)).count();
    assert_eq!(lost, 0, "of {} jobs", sent.len());
    // A second letter of a job is not replayed.
    let letters = letters.list(&all, u64::MAX, |_| {}).await.expect("listed");
    let copies: usize = arrived.values().map(|copies| copies.len() - 1).sum();
    let twice = copies + usize::try_from(letters).expect("a number");
    // At most one message is in flight when a process dies.
    let bound = if target.capabilities().atomic_relay { 0 } else { kills };
    let (jobs, broker) = (sent.len(), target.capabilities().broker);
    println!("{broker}: {name}: {kills} kills, {jobs} jobs, 0 lost, {twice} duplicates");
    assert!(twice <= bound, "{twice} duplicates by {kills} kills");
    if action == Action::Forward {
        for copies in arrived.values() {
            assert!(copies.iter().all(|copy| *copy == copies[0]), "{copies:?}");
        }
    }
}

/// Forwards the messages left in the source, until all jobs have arrived and both queues are empty.
async fn arrivals(source: &Queue, target: &Queue, jobs: usize) -> BTreeMap<JobId, Vec<MessageId>> {
    const LOOK: Duration = Duration::from_millis(200);
    let mut arrived = BTreeMap::<_, Vec<MessageId>>::new();
    let mut leaving = source.consume(1).await.expect("a consumer");
    let mut arriving = target.consume(100).await.expect("a consumer");
    let mut idle = Duration::ZERO;
    while idle < IDLE_MAX {
        tokio::select! {
            received = leaving.receive(1) => {
                for delivery in received.expect("received") {
                    delivery.forward(target, DeliveryTime::Now).await.expect("forwarded");
                }
                idle = Duration::ZERO;
            }
            received = arriving.receive(100) => {
                for delivery in received.expect("received") {
                    let id = delivery.message().id();
                    arrived.entry(id.job.clone()).or_default().push(id);
                    delivery.ack().await.expect("acknowledged");
                }
                idle = Duration::ZERO;
            }
            () = tokio::time::sleep(LOOK) => {
                idle += LOOK;
                if arrived.len() >= jobs && is_empty(source, idle).await && is_empty(target, idle).await {
                    break;
                }
            }
        }
    }
    arrived
}

/// Returns true if a queue has no messages. A broker that does not tell has none if none arrived for
/// longer than a lease.
async fn is_empty(queue: &Queue, idle: Duration) -> bool {
    if !queue.capabilities().depth {
        return idle > Duration::from(VISIBILITY) * 2;
    }
    let depth = queue.depth().await.expect("a depth");
    depth.ready == 0 && depth.in_flight.unwrap_or(0) == 0
}

async fn spawn(address: &str, place: &str, test: &str) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, format!("{address} {place}"))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let mut child = command.spawn().expect("the test starts itself");
    tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends")
}

/// A tracing subscriber that kills this process at a given step.
struct KillAtStep {
    step: DeliveryStep,
    left: AtomicU32,
}

impl Subscriber for KillAtStep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == step::TARGET
    }

    fn event(&self, event: &Event<'_>) {
        let mut visitor = StepVisitor { word: self.step.name(), is_match: false };
        event.record(&mut visitor);
        if visitor.is_match && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            // Stop here: the process must not continue after the step.
            loop {
                std::thread::park();
            }
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct StepVisitor {
    word: &'static str,
    is_match: bool,
}

impl Visit for StepVisitor {
    fn record_str(&mut self, _: &Field, value: &str) {
        self.is_match |= value == self.word;
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
