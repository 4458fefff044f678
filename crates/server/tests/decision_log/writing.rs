//! Tests of the writer: lines are written whole, in the background, and no decision waits for them.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use serde_json::Value;
use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Store};
use sluicegate_server::decision_log::{Options, SampleRate};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionEvent, Observer, Operation};
use sluicegate_store::clock::MonotonicClock;

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{Page, WHO, fields, log, logged, options, three_scopes};

/// An output that reports each write and blocks until the test releases it.
struct Gate {
    asked: SyncSender<()>,
    open: Receiver<()>,
    page: Page,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.asked.send(());
        // After the test drops its end, all writes pass.
        let _ = self.open.recv();
        self.page.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_without_room_is_dropped_and_counted_and_nobody_waits() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100000/h"])]));
    let (asked, is_asked) = sync_channel(100);
    let (let_go, open) = sync_channel(0);
    let page = Page::default();
    let line = logged(&limiter, options(), &[Ask::new(0, &[])])[0].len();
    let options = Options { queue_bytes_max: 10 * (line + 10), ..options() };
    let log = log(Gate { asked, open, page: page.clone() }, options);
    limiter.ask(&log, &Ask::new(1, &[]));
    is_asked.recv().expect("the first line is being written");
    for id in 2..=101 {
        limiter.ask(&log, &Ask::new(id, &[]));
    }
    let dropped = log.dropped();
    assert!((85..=92).contains(&dropped), "{dropped}");
    let_go.send(()).expect("a writer");
    is_asked.recv().expect("the queue is being written, and is empty again");
    limiter.ask(&log, &Ask::new(102, &[]));
    drop(let_go);
    log.close();
    assert_eq!(log.dropped(), dropped);
    let lines = page.lines();
    assert_eq!(lines.len() as u64, 102 - dropped);
    let told: Vec<_> =
        lines.iter().map(|line| fields(line, &["dropped"])["dropped"].clone()).collect();
    let (last, before) = told.split_last().expect("lines");
    assert_eq!(last, &Value::from(dropped), "the next line tells how many are missing");
    assert!(before.iter().all(Value::is_null));
}

#[test]
fn a_log_ends_with_how_many_admissions_and_lost_lines_there_were() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["3/h"])]));
    let page = Page::default();
    let half = "0.5".parse().expect("a share");
    let log = log(page.clone(), Options { allowed: half, ..options() });
    for id in 0..5 {
        limiter.ask(&log, &Ask::new(id, &[]));
    }
    log.close();
    log.close();
    let lines = page.all_lines();
    let names = ["operation", "dropped", "droppedTotal", "node", "started", "seq", "line"];
    let expected = serde_json::json!({
        "operation": "end", "dropped": null, "droppedTotal": 0, "node": "node",
        "started": "2027-01-15T07:59:59.75Z", "seq": 3, "line": lines.len(),
    });
    assert_eq!(fields(lines.last().expect("a line"), &names), expected);
    // Sampling omits admissions, and the numbers of the logged ones show it.
    let seq: Vec<_> = lines.iter().map(|line| fields(line, &["seq"])["seq"].clone()).collect();
    assert!(lines.len() < 6 && seq.is_sorted_by_key(|seq| seq.as_u64()), "{seq:?}");
}

#[test]
fn an_output_that_blocks_to_the_end_is_told_in_the_end_line() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100000/h"])]));
    let (asked, is_asked) = sync_channel(100);
    let (let_go, open) = sync_channel(0);
    let page = Page::default();
    let log = log(
        Gate { asked, open, page: page.clone() },
        Options { queue_bytes_max: 2_000, ..options() },
    );
    limiter.ask(&log, &Ask::new(1, &[]));
    is_asked.recv().expect("the first line is being written");
    for id in 2..=101 {
        limiter.ask(&log, &Ask::new(id, &[]));
    }
    let dropped = log.dropped();
    assert!(dropped > 90, "{dropped}");
    drop(let_go);
    log.close();
    let lines = page.all_lines();
    let names = ["operation", "dropped", "droppedTotal", "seq", "line"];
    let expected = serde_json::json!({
        "operation": "end", "dropped": dropped, "droppedTotal": dropped, "seq": 101, "line": 102,
    });
    assert_eq!(fields(lines.last().expect("a line"), &names), expected);
}

#[test]
fn what_comes_after_the_end_is_dropped() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100/h"])]));
    let page = Page::default();
    let log = log(page.clone(), options());
    limiter.ask(&log, &Ask::new(1, &[]));
    log.close();
    limiter.ask(&log, &Ask::new(2, &[]));
    log.clone().close();
    assert_eq!((page.lines().len(), log.dropped()), (1, 1));
}

#[test]
fn dropping_the_last_handle_writes_everything() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100/h"])]));
    let page = Page::default();
    let log = log(page.clone(), options());
    for id in 0..50 {
        limiter.ask(&log, &Ask::new(id, &[]));
    }
    drop(log);
    assert_eq!(page.lines().len(), 50);
}

/// An output whose every second write fails in the middle.
struct Torn {
    page: Page,
    fails: bool,
}

impl Write for Torn {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes == b"\n" {
            return self.page.write(bytes);
        }
        self.fails = !self.fails;
        if self.fails {
            self.page.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::Error::other("disk full"));
        }
        self.page.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failed_write_is_counted_and_spoils_no_other_line() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100000/h"])]));
    let page = Page::default();
    let log = log(Torn { page: page.clone(), fails: false }, options());
    for id in 1..=2_000 {
        limiter.ask(&log, &Ask::new(id, &[]));
        if id % 7 == 0 {
            thread::yield_now();
        }
    }
    log.close();
    let text = String::from_utf8(page.0.lock().expect("no panic").clone()).expect("UTF-8");
    let whole = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    // Some lines of a failed write may have been written, so more are counted as lost.
    assert!(log.dropped() > 0);
    assert!(whole as u64 + log.dropped() >= 2_000, "{whole} whole, {} lost", log.dropped());
}

#[test]
fn lines_of_many_threads_stay_whole() {
    const THREADS: u128 = 4;
    const EACH: u128 = 5_000;
    let limiter = Limiter::new(all_of([rule("R", &["userId"], &["1000000/h"])]));
    let page = Page::default();
    let log = log(page.clone(), Options { queue_bytes_max: 1 << 30, ..options() });
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let (log, limiter) = (log.clone(), &limiter);
            threads.spawn(move || {
                for id in thread * EACH..(thread + 1) * EACH {
                    limiter.ask(&log, &Ask::new(id, &[("userId", "some user")]));
                }
            });
        }
    });
    log.close();
    let ids = page.lines().iter().map(|line| fields(line, &["requestId"]).to_string()).collect();
    let ids: BTreeSet<String> = ids;
    assert_eq!(ids.len() as u128, THREADS * EACH);
    assert_eq!(log.dropped(), 0);
}

/// Prints the cost: `cargo test --release --test decision_log cost -- --nocapture`.
#[test]
fn the_cost_of_a_line_is_that_of_writing_each_once() {
    const ROUNDS: usize = 5;
    const TIMES: u64 = 10_000;
    let limiter = three_scopes();
    let query = Ask::new(1, WHO).query();
    let plan = limiter.rules.plan(&query, limiter.clock.now()).expect("a plan");
    let decision = pollster::block_on(limiter.store.peek(&plan));
    let (query, plan, decision) = (&query, &plan, &decision.expect("a decision"));
    let answer = Answer::new(&limiter.rules, plan, decision);
    let (operation, latency) = (Operation::Acquire, Span::from_micros(30));
    let event = DecisionEvent {
        query,
        answer,
        operation,
        claimant: None,
        started: sluicegate_core::Timestamp::default(),
        latency,
        trace: None,
    };
    let clock = MonotonicClock::new();
    for (name, allowed) in [("written", SampleRate::ALL), ("left out", SampleRate::NONE)] {
        let page = Page::default();
        let log = log(page.clone(), Options { allowed, queue_bytes_max: 1 << 30, ..options() });
        let fastest = (0..ROUNDS).map(|_| {
            let began = clock.now();
            (0..TIMES).for_each(|_| log.on_decision(&event));
            clock.now().since(began).as_micros() * 1_000 / TIMES
        });
        println!("a line that is {name}: {} ns", fastest.min().unwrap_or_default());
        log.close();
        let expected = if name == "written" { ROUNDS * TIMES as usize } else { 0 };
        let written = page.lines().iter().filter(|line| line.contains("requestId")).count();
        assert_eq!((written, log.dropped()), (expected, 0), "{name}");
    }
}
