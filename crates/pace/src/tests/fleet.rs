//! Replicas that come, go, are suspended and die, and upstreams that ask for pauses, at random, with
//! clocks that drift and a network that delays and loses packets: the limit holds, pauses are kept, and
//! hardly any of the limit is lost.

use std::sync::Mutex;

use sluicegate_checker::CheckedScope;
use sluicegate_core::store::GateClosure;
use sluicegate_testkit::sim::Rng;

use super::*;

/// Virtual time of one run.
const RUN: Span = Span::from_secs(60);
/// Number of callers of each replica, which never stop. One replica alone can use the limit.
const CALLERS: usize = 40;
const REPLICAS_MAX: usize = 10;
/// Maximum drift of a clock, in parts per million.
const DRIFT_MAX: u64 = 300;
/// Time by which two clocks may differ in the interval between two starts: a replica spaces its starts
/// under a token bucket by its own clock.
const DRIFTED: Span = Span::from_micros(200);

/// A clock that is ahead of the store's clock, and faster or slower.
#[derive(Clone, Copy, Debug)]
struct DriftingClock {
    clock: RuntimeClock,
    began: Timestamp,
    ahead: Span,
    /// Parts per million by which it is faster, plus [`DRIFT_MAX`].
    faster: u64,
}

impl Clock for DriftingClock {
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        let gone = now.since(self.began).as_micros();
        let drift = |parts: u64| {
            Span::from_micros(gone / 1_000_000 * parts + gone % 1_000_000 * parts / 1_000_000)
        };
        now + self.ahead + drift(self.faster) - drift(DRIFT_MAX)
    }
}

/// A running replica.
struct Replica {
    process: SimulatedProcess,
    lane: TestLane,
    callers: JoinSet<()>,
}

/// The counts of one run.
#[derive(Debug, Default)]
struct Counts {
    went: Mutex<Vec<Timestamp>>,
    missed: Mutex<usize>,
}

/// The result of one run.
struct Run {
    /// Part of the limit that was used.
    used: f64,
    /// Part of the turns that were missed and booked again.
    rebooked: f64,
    started: usize,
    left: usize,
    suspended: usize,
    killed: usize,
    paused: usize,
    network: Network,
}

/// A pause of the upstream, and the number of requests that may go in it: their turns were claimed
/// before.
struct Pause {
    closed: GateClosure,
    claimed_max: usize,
}

/// Closes the gate through the replica of the first lane, as one does whose upstream asked for a pause.
/// `burst` requests may go together.
async fn pause(lanes: Vec<TestLane>, span: Span, burst: usize, pauses: Arc<Mutex<Vec<Pause>>>) {
    // A claim is made this long before the last moment at which its turn may be used.
    let ahead = || {
        let pacing = lanes.iter().map(|lane| lane.pacer().round_trips().pacing());
        pacing.map(|pacing| pacing.lead + pacing.slack).max().unwrap_or_default()
    };
    let before = ahead();
    let Ok(closed) = lanes[0].close(span).await else { return };
    // A claim may come a little before its lead (`EARLY` in pacer.rs).
    let ahead = before.max(ahead()) + Span::from_millis(5);
    let claimed_max = (ahead.as_micros() as f64 / 1e6 * 25.0).ceil() as usize + burst;
    pauses.lock().expect("the lock").push(Pause { closed, claimed_max });
}

/// Sends a request as a process does that may be suspended at any time.
async fn send_in(
    process: SimulatedProcess,
    lane: TestLane,
    counts: Arc<Counts>,
    clock: RuntimeClock,
) {
    let service = lane.pacer().service().clone();
    let since = service.now();
    let Ok(mut waited) = lane.wait("", Span::ZERO, MINUTE).await else { return };
    loop {
        process.running().await;
        match waited.window.try_start(service.now()) {
            StartAttempt::Started(late) => {
                lane.pacer().round_trips().started_after(late);
                waited.admission.left();
                counts.went.lock().expect("the lock").push(clock.now());
                return;
            }
            StartAttempt::Wait(span) => sleep(span.into()).await,
            StartAttempt::Over => {
                lane.pacer().round_trips().started_after(waited.window.late(service.now()));
                *counts.missed.lock().expect("the lock") += 1;
                drop(waited);
                let Ok(next) = lane.wait_again(since, MINUTE).await else { return };
                waited = next;
            }
        }
    }
}

fn start(world: &World, counts: &Arc<Counts>, rng: &mut Rng) -> Replica {
    let clock = DriftingClock {
        clock: world.clock,
        began: world.clock.now(),
        ahead: Span::from_micros(rng.between(0, 5_000_000)),
        faster: rng.between(0, 2 * DRIFT_MAX),
    };
    let process = SimulatedProcess::default();
    let store = DistantStore::new(world.store.clone(), world.network, rng.between(0, u64::MAX - 1));
    let store = store.used_by(process.clone());
    let lane = world.replica_on(store, 100_000, WaitOrder::Fifo, clock);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (process, lane, counts, clock) =
            (process.clone(), lane.clone(), counts.clone(), world.clock);
        callers.spawn(async move {
            loop {
                send_in(process.clone(), lane.clone(), counts.clone(), clock).await;
                // A request that is refused is not sent again at once.
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    Replica { process, lane, callers }
}

async fn run(limit: &str, seed: u64) -> Run {
    let mut rng = Rng::new(seed);
    let mut world = World::new(limit);
    if limit == "25/s" {
        world = world.spread("25/s burst 1");
    }
    let jitter = Span::from_millis(rng.between(0, 10));
    world.network = Network {
        round_trip: Span::from_millis(rng.between(0, 100)),
        jitter,
        lost_per_mille: rng.between(0, 3),
        ..Network::default()
    };
    let burst = if limit.ends_with("burst 25") { 25 } else { 1 };
    let counts = Arc::new(Counts::default());
    let began = world.clock.now();
    let mut replicas = vec![start(&world, &counts, &mut rng)];
    let (mut started, mut left, mut suspended, mut killed, mut paused) = (1, 0, 0, 0, 0);
    let pauses = Arc::new(Mutex::new(Vec::new()));
    while world.clock.now().since(began) < RUN {
        sleep(Duration::from_millis(rng.between(500, 4_000))).await;
        let running = replicas.iter().filter(|replica| replica.process.is_running()).count();
        match rng.between(0, 4) {
            0 if running > 1 => {
                let number = rng.index(replicas.len());
                let mut gone = replicas.swap_remove(number);
                gone.process.resume();
                gone.callers.abort_all();
                left += 1;
            }
            1 if running > 1 => {
                let number = rng.index(replicas.len());
                let mut dead = replicas.swap_remove(number);
                dead.process.kill();
                dead.callers.abort_all();
                killed += 1;
            }
            2 if running > 1 => {
                let process = replicas[rng.index(replicas.len())].process.clone();
                let pause = Duration::from_millis(rng.between(50, 3_000));
                process.suspend();
                tokio::spawn(async move {
                    sleep(pause).await;
                    process.resume();
                });
                suspended += 1;
            }
            3 => {
                let mut lanes: Vec<_> =
                    replicas.iter().map(|replica| replica.lane.clone()).collect();
                let closing = rng.index(lanes.len());
                lanes.swap(0, closing);
                let span = Span::from_millis(rng.between(200, 1_500));
                tokio::spawn(pause(lanes, span, burst, pauses.clone()));
                paused += 1;
            }
            _ if replicas.len() < REPLICAS_MAX => {
                replicas.push(start(&world, &counts, &mut rng));
                started += 1;
            }
            _ => {}
        }
    }
    let took = world.clock.now().since(began).as_micros() as f64 / 1e6;
    drop(replicas);
    let mut went = counts.went.lock().expect("the lock").clone();
    went.sort_unstable();
    let mut checker = Checker::new();
    let scope = CheckedScope::new(world.limit.clone());
    let scope = if limit == "25/s" { scope } else { scope.spread(DRIFTED) };
    checker.scope(KEY, scope).expect("a scope");
    for at in &went {
        checker.admit(KEY, *at, 1).expect("an event");
    }
    let verdict = checker.check().expect("events").proven();
    verdict.unwrap_or_else(|violation| panic!("{limit}, seed {seed}: {violation}"));
    let mut pauses = std::mem::take(&mut *pauses.lock().expect("the lock"));
    pauses.sort_unstable_by_key(|pause| pause.closed.at);
    let (mut closed_for, mut closed_until) = (Span::ZERO, Timestamp::ZERO);
    for Pause { closed, claimed_max } in &pauses {
        let inside = went.iter().filter(|at| (closed.at..closed.until).contains(*at)).count();
        closed_for = closed_for + closed.until.since(closed.at.max(closed_until));
        closed_until = closed_until.max(closed.until);
        assert!(
            inside <= *claimed_max,
            "{limit}, seed {seed}: {inside} went in a pause, {claimed_max} may"
        );
    }
    let missed = *counts.missed.lock().expect("the lock");
    Run {
        used: went.len() as f64 / (25.0 * (took - closed_for.as_micros() as f64 / 1e6)),
        rebooked: missed as f64 / (missed + went.len()) as f64,
        started,
        left,
        suspended,
        killed,
        paused,
        network: world.network,
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_that_come_go_stall_and_die_keep_the_limit_and_use_it() {
    let seeds = if sluicegate_testkit::long() { 100 } else { 8 };
    println!(
        "| limit | seed | round trip | jitter | lost ‰ | started | left | suspended | killed | pauses | used | rebooked |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for limit in ["25/s", "25/s burst 25", "25/s smooth"] {
        for seed in 0..seeds {
            let Run { used, rebooked, started, left, suspended, killed, paused, network } =
                run(limit, seed).await;
            let Network { round_trip, jitter, lost_per_mille, .. } = network;
            let row = format!(
                "| {limit} | {seed} | {round_trip} | {jitter} | {lost_per_mille} | {started} | {left} | {suspended} | {killed} | {paused} | {used:.3} | {rebooked:.4} |"
            );
            println!("{row}");
            // A replica that dies or is suspended loses its share of the turns of one second, and after
            // a pause the turns that were booked in it are booked again.
            let seconds = RUN.as_micros() as f64 / 1e6;
            let lost = ((killed + suspended) as f64 + paused as f64 / 2.0) / seconds;
            if used < 0.85 - lost {
                missed.push(row);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
