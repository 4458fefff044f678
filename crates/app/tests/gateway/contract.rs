//! The vendor's rate limit is kept and used, with one replica and with three.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::limit_check::{Early, early};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_is};

use crate::measured::measured;
use crate::proof;
use crate::replica::{
    Replica, TOKEN, admits, ask, booked_starts, distant_redis, flood, gateway, prove, redis,
};
use crate::vendor::Vendor;

const PROFILES: [&str; 2] = ["25/s", "25/s burst 25"];
/// Time between two starts that are spread evenly.
const EVENLY: Span = Span::from_millis(40);

fn limit(limit: &str) -> String {
    format!("limit: {limit}")
}

#[test]
fn fifty_at_once_without_a_queue() {
    for profile in PROFILES {
        let vendor = Vendor::start();
        let replica = Replica::start(&gateway(&vendor, &[&limit(profile), "wait: {max: 0s}"]));
        let answers = flood(std::slice::from_ref(&replica), 50);
        let passed = answers.iter().filter(|(status, ..)| *status == 200).count();
        assert_eq!(vendor.arrivals().len(), passed, "{profile}");
        for (status, retry, code) in answers.into_iter().filter(|(status, ..)| *status != 200) {
            assert_eq!((status, code.as_str()), (429, "TOO_MANY_REQUESTS"));
            assert!(retry.is_some_and(|seconds| seconds <= 1), "{retry:?}");
        }
        let logs = [replica.end()];
        prove(profile, &logs, &vendor);
        // Uses the store's times, so that the speed of the fifty requests does not matter.
        let admits = admits(&logs);
        let (first, last) = (admits[0], admits[passed - 1]);
        let spread = last.since(first).as_micros();
        let most = match profile.contains("burst") {
            // The bucket refills while they arrive: 26 if they arrive within 40 ms.
            true => 25 + 25 * spread / 1_000_000,
            // The limit applies to each second that they take to arrive.
            false => 25 * (1 + spread / 1_000_000),
        };
        assert!((25..=most).contains(&(passed as u64)), "{profile}: {passed} in {spread} µs");
    }
}

#[test]
fn fifty_at_once_with_a_queue_all_pass() {
    for profile in PROFILES {
        let vendor = Vendor::start();
        let replica = Replica::start(&gateway(&vendor, &[&limit(profile), "wait: {max: 30s}"]));
        let answers = flood(std::slice::from_ref(&replica), 50);
        assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
        // A request is logged after its response.
        eventually_is(|| replica.requests().len(), 50);
        let line = &replica.requests()[0];
        assert_eq!(
            (line["operation"].as_str(), line["status"].as_u64()),
            (Some("Diamonds"), Some(200))
        );
        assert_eq!((line["allowed"].as_bool(), line["store"].as_str()), (Some(true), Some("up")));
        for field in
            ["trace_id", "queue_depth", "method", "duration_ms", "remaining", "decision_ms"]
        {
            assert!(!line[field].is_null(), "{field}: {line}");
        }
        let logs = [replica.end()];
        prove(profile, &logs, &vendor);
        if profile == "25/s" {
            // By default, starts under an exact limit with a short window are spread evenly.
            let starts = booked_starts(&logs);
            let close = starts.windows(2).filter(|pair| pair[1].since(pair[0]) < EVENLY);
            assert_eq!(close.count(), 0, "{starts:?}");
        }
    }
}

#[test]
fn three_replicas_under_overload_keep_the_contract() {
    for profile in PROFILES {
        let server = RedisServer::start(Version::System, &[]);
        let vendor = Vendor::start();
        let config = redis(server.port) + &gateway(&vendor, &[&limit(profile), "wait: {max: 40s}"]);
        let replicas: Vec<_> = (0..3).map(|_| Replica::start(&config)).collect();
        replicas.iter().for_each(|replica| replica.wait_for(200));
        let answers = flood(&replicas, 150);
        assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
        let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
        prove(profile, &logs, &vendor);
    }
}

/// Number of callers that never stop: more than the limit allows.
const CALLERS: usize = 60;

/// Maximum percentage of turns that may be missed on a quiet machine.
const REBOOKED_MAX: f64 = 1.0;

/// Maximum time by which requests under a limit without room may arrive too early, because they do not
/// all take the same time to the vendor.
pub(crate) const EARLY_MAX: Span = Span::from_millis(5);

/// Result of an overload.
struct Overload {
    /// Percentage of 25 requests per second that was used.
    used: f64,
    /// Most requests that arrived at the vendor in any 1.000 s.
    worst: usize,
    /// Requests that arrived too early at the vendor.
    early: Early,
    /// Percentage of the turns that were missed and booked again.
    rebooked: f64,
    /// Median time from the start of a turn, by the store, to the arrival of its request at the vendor.
    typical: Span,
    /// Longest such time.
    delay: Span,
}

/// The whole table: milliseconds to Redis, replicas, limit, and the percentage of it that must be used.
/// `SLUICEGATE_GRID="10x3 50x1"` selects rows by the first two.
fn all_distances() -> Vec<(u64, usize, &'static str, f64)> {
    let selected = std::env::var("SLUICEGATE_GRID").ok();
    let is_selected = |name: &str| {
        selected.as_ref().is_none_or(|names| names.split_whitespace().any(|one| one == name))
    };
    let mut rows = Vec::new();
    for (millis, least) in [(0, 97.0), (2, 97.0), (4, 97.0), (10, 97.0), (20, 95.0), (50, 92.0)] {
        for replicas in [1, 3].into_iter().filter(|n| is_selected(&format!("{millis}x{n}"))) {
            for profile in ["25/s", "25/s burst 25", "25/s smooth"] {
                rows.push((millis, replicas, profile, least));
            }
            if (millis, replicas) == (10, 3) {
                rows.push((millis, replicas, "25/s burst 2", least));
            }
        }
    }
    assert!(!rows.is_empty(), "SLUICEGATE_GRID selects no row");
    rows
}

/// Overloads replicas for a while, checks that the limit was kept, and measures its use.
fn overload(
    profile: &str,
    config: &str,
    vendor: &Vendor,
    replicas: usize,
    time: Duration,
) -> Overload {
    let replicas: Vec<_> = (0..replicas).map(|_| Replica::start(config)).collect();
    replicas.iter().for_each(|replica| replica.wait_for(200));
    let before = vendor.arrivals().len();
    let (over, clock) = (AtomicBool::new(false), MonotonicClock::new());
    let (began, ended) = std::thread::scope(|scope| {
        let _end = Ending(&over);
        for number in 0..CALLERS {
            let (url, over) = (&replicas[number % replicas.len()].url, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let (status, _, code) = ask(url, TOKEN);
                    assert_eq!(status, 200, "{code}");
                }
            });
        }
        // The first seconds are for learning the distance of the store.
        eventually(|| vendor.arrivals().len() >= before + 50);
        let began = clock.now();
        // The channel has no sender, so this waits for the timeout.
        let (_nobody, passed) = std::sync::mpsc::sync_channel::<()>(1);
        let _ = passed.recv_timeout(time);
        (began, clock.now())
    });
    let arrivals = vendor.arrivals();
    let used = used(&arrivals, began, ended) * 100.0;
    let worst = most_in_a_second(&arrivals);
    let early = early(profile, &arrivals);
    let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
    let delay = prove(profile, &logs, vendor);
    let mut delays: Vec<_> =
        admits(&logs).iter().zip(&arrivals).map(|(start, at)| at.since(*start)).collect();
    delays.sort_unstable();
    let typical = delays[delays.len() / 2];
    let missed = proof::missed(&logs);
    let rebooked = missed as f64 * 100.0 / (arrivals.len() + missed) as f64;
    assert!(early.by <= delay, "{profile}: {early}, longer than the longest delay of {delay}");
    Overload { used, worst, early, rebooked, typical, delay }
}

/// With more callers than the limit allows, the limit is kept and fully used, also with a Redis that
/// is a network away.
#[test]
fn the_whole_contract_is_used_under_lasting_overload_however_far_away_redis_is() {
    // A busy machine misses start times, and missed ones are lost. So the long form, which runs on
    // a quiet machine, must reach the goals, and the short form less.
    let long = sluicegate_testkit::long();
    let cases = if long {
        all_distances()
    } else {
        vec![
            (0, 3, "25/s", 90.0),
            (10, 3, "25/s", 88.0),
            (10, 3, "25/s burst 25", 90.0),
            (50, 1, "25/s", 85.0),
            (10, 1, "25/s smooth", 90.0),
            (10, 3, "25/s smooth", 88.0),
        ]
    };
    let time = Duration::from_secs(if long { 40 } else { 6 });
    let mut below = Vec::new();
    let row = |row: String| drop(writeln!(std::io::stdout(), "{row}"));
    row("| Redis away | replicas | limit | % used | most in 1.000 s | too early | % rebooked | from start to vendor, median | longest |".to_owned());
    row("|---|---|---|---|---|---|---|---|---|".to_owned());
    for (millis, replicas, profile, least) in cases {
        // Without room, starts are exactly as far apart as the limit requires, so that each request
        // that takes longer than the next one to arrive is too early for it.
        let early_max = if profile.ends_with("smooth") { EARLY_MAX } else { Span::ZERO };
        let reached = |found: &Overload| {
            let is_used = found.used >= least && (!long || found.rebooked < REBOOKED_MAX);
            is_used && found.early.by <= early_max
        };
        let found = measured(reached, |_| {
            let server = RedisServer::start(Version::System, &[]);
            let proxy = DelayProxy::start(server.port, Duration::from_millis(millis));
            let port = if millis == 0 { server.port } else { proxy.port };
            let vendor = Vendor::start();
            let config =
                distant_redis(port) + &gateway(&vendor, &[&limit(profile), "wait: {max: 60s}"]);
            let found = overload(profile, &config, &vendor, replicas, time);
            let Overload { used, worst, early, rebooked, typical, delay } = &found;
            row(format!(
                "| {millis} ms | {replicas} | {profile} | {used:.2} | {worst} | {early} | {rebooked:.2} | {typical} | {delay} |"
            ));
            found
        });
        if !reached(&found) {
            let Overload { used, rebooked, early, .. } = found;
            below.push(format!(
                "{millis} ms, {replicas} replicas, {profile}: {used:.2} % used, {rebooked:.2} % rebooked, too early: {early}"
            ));
        }
    }
    assert!(below.is_empty(), "goals were missed: {below:#?}");
}

/// A light caller on one replica does not wait behind the requests of a heavy caller on the others:
/// `fair` holds across replicas. Counts the starts of others while it waits, by the clock of the
/// store, so the speed of the machine does not matter.
#[test]
fn a_light_caller_goes_before_the_backlog_of_a_heavy_one_on_other_replicas() {
    const LIGHT: &str = "the-token-of-the-light-caller";
    const HEAVY_CALLERS: usize = 80;
    let server = RedisServer::start(Version::System, &[]);
    let proxy = DelayProxy::start(server.port, Duration::from_millis(10));
    let vendor = Vendor::start();
    let route = [&limit("25/s"), "wait: {max: 60s, order: fair, by: caller}"];
    let config = distant_redis(proxy.port)
        + &gateway(&vendor, &route)
            .replace("tokens:\n", &format!("tokens:\n        light: {LIGHT}\n"));
    let replicas: Vec<_> = (0..3).map(|_| Replica::start(&config)).collect();
    replicas.iter().for_each(|replica| replica.wait_for(200));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ending(&over);
        for number in 0..HEAVY_CALLERS {
            let (url, over) = (&replicas[number % 2].url, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let (status, _, code) = ask(url, TOKEN);
                    assert_eq!(status, 200, "{code}");
                }
            });
        }
        // All of them wait, except for those whose turn it is.
        let waiting = || replicas.iter().map(Replica::waiting).sum::<usize>();
        eventually(|| waiting() >= HEAVY_CALLERS - 25);
        for _ in 0..5 {
            assert_eq!(replicas[2].ask_with(LIGHT).0, 200);
        }
    });
    let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
    prove("25/s", &logs, &vendor);
    let heavy = admits(&logs[..2]);
    let before = |&(asked, start): &(Timestamp, Timestamp)| {
        heavy.iter().filter(|other| (asked..start).contains(*other)).count()
    };
    let mut before: Vec<_> = waits(&logs[2]).iter().map(before).collect();
    before.sort_unstable();
    assert!(before.len() >= 5, "{before:?}");
    // The other replicas learn of the first request while it waits. Of the later ones, each goes
    // before half of the requests that are booked for the next second; first come, first served
    // would let all of these 25 go before.
    assert!(before[before.len() / 2] <= 18, "{before:?} went before");
    assert!(before[before.len() - 1] <= HEAVY_CALLERS / 2, "{before:?} went before");
}

/// Each replica knows how many requests wait at the others, so a request that would wait too long is
/// refused when it arrives, not after the longest wait.
#[test]
fn a_wait_that_is_known_to_be_too_long_is_refused_at_once_by_three_replicas() {
    const LATER: &str = "the-token-of-the-later-caller";
    const WAIT_MAX_MS: u64 = 5_000;
    // More than 25 in each of the 5 s, and what the replicas keep after they have refused the others.
    let (first, waiting_least, later) = (180, 90, 90);
    let server = RedisServer::start(Version::System, &[]);
    let proxy = DelayProxy::start(server.port, Duration::from_millis(10));
    let vendor = Vendor::start();
    let config = distant_redis(proxy.port)
        + &gateway(&vendor, &[&limit("25/s"), "wait: {max: 5s}"])
            .replace("tokens:\n", &format!("tokens:\n        later: {LATER}\n"));
    let replicas: Vec<_> = (0..3).map(|_| Replica::start(&config)).collect();
    replicas.iter().for_each(|replica| replica.wait_for(200));
    std::thread::scope(|scope| {
        for number in 0..first {
            let replica = &replicas[number % 3];
            scope.spawn(move || assert!(matches!(replica.ask().0, 200 | 429)));
        }
        eventually(|| replicas.iter().map(Replica::waiting).sum::<usize>() >= waiting_least);
        // Enough to use the limit for the next seconds, so these are too many.
        for number in 0..later {
            let replica = &replicas[number % 3];
            scope.spawn(move || assert!(matches!(replica.ask_with(LATER).0, 200 | 429)));
        }
    });
    let logged = || {
        let requests = replicas.iter().flat_map(Replica::requests);
        requests.filter(|line| line["caller"] == "later").collect::<Vec<_>>()
    };
    eventually_is(|| logged().len(), later);
    let refused: Vec<_> = logged().into_iter().filter(|line| line["status"] == 429).collect();
    let waited = |line: &&Value| line["waited_ms"].as_u64().is_some_and(|ms| ms >= WAIT_MAX_MS);
    let in_vain = refused.iter().filter(waited).count();
    assert!(refused.len() >= later / 4, "{} of {later} are refused", refused.len());
    assert!(in_vain * 10 <= refused.len(), "{in_vain} of {} waited in vain", refused.len());
    let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
    prove("25/s", &logs, &vendor);
}

/// Returns for each request in the log of a replica with one caller when it was asked for first, and
/// its start, by the clock of the store. If a start was missed, which a busy machine does, the request
/// was asked for again then.
fn waits(log: &str) -> Vec<(Timestamp, Timestamp)> {
    let (mut waits, mut asked) = (Vec::new(), None);
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).expect("a line");
        let time = |name: &str| line[name].as_str().map(|time| time.parse().expect("a time"));
        let Some(at) = time("at") else { continue };
        if line["effect"] == "rebooked" {
            asked = Some(at);
        }
        let asked_at = *asked.get_or_insert(at);
        let goes = matches!(line["operation"].as_str(), Some("acquire" | "claim"));
        if goes && line["allowed"] == true {
            waits.push((asked_at, time("start").unwrap_or(at)));
            asked = None;
        }
    }
    waits
}

/// Ends the callers of a test when it is dropped, also if the test fails.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the most arrivals in any interval of one second.
fn most_in_a_second(arrivals: &[Timestamp]) -> usize {
    let until = |first: usize| {
        arrivals[first..].partition_point(|at| at.since(arrivals[first]) < Span::from_secs(1))
    };
    (0..arrivals.len()).map(until).max().unwrap_or_default()
}

/// Returns the share of 25 requests per second that arrived between two instants.
///
/// The limiter admits a whole window at a time, so a plain count would depend on where the interval
/// cuts the windows. This averages over all intervals that begin up to a second later, so arrivals
/// near the ends weigh less.
fn used(arrivals: &[Timestamp], began: Timestamp, ended: Timestamp) -> f64 {
    let seconds = |span: Span| span.as_micros() as f64 / 1e6;
    let weight = |at: &Timestamp| seconds(at.since(began).min(ended.since(*at))).min(1.0);
    let weights: f64 = arrivals.iter().map(weight).sum();
    weights / 25.0 / (seconds(ended.since(began)) - 1.0)
}
