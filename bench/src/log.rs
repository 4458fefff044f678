//! Section `log`: time of an acquire for exact logs of different sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_core::{Group, Query, Ruleset, Timestamp};
use sluicegate_store::Memory;
use sluicegate_store::memory::Capacity;

use crate::Effort;
use crate::ours::{Ids, acquire, rule, ruleset};
use crate::report::{Table, grouped, ns, spread};
use crate::rounds::{Figure, interleave, ns_per_call};

const ENTRIES: [u64; 5] = [10, 100, 1_000, 10_000, 100_000];
/// Time between two requests.
const STEP_US: u64 = 100;

/// A clock that the benchmark sets, so that a log keeps its size however fast requests come.
#[derive(Debug)]
struct Hand(AtomicU64);

impl Hand {
    fn advance(&self) {
        self.0.fetch_add(STEP_US, Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Relaxed))
    }
}

/// State of the log when a request arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meets {
    /// The oldest entry expires before each request.
    Room,
    /// The log is full, and the clock stands still.
    Full,
}

struct Subject {
    entries: u64,
    meets: Meets,
    ruleset: Ruleset,
    clock: Arc<Hand>,
    store: Memory<Arc<Hand>>,
}

impl Subject {
    fn new(entries: u64, meets: Meets) -> Self {
        let limit = format!("{entries}/{}us", entries * STEP_US);
        let group = Group::new("caller", [rule("USER", &["userId"], &limit)]);
        let clock = Arc::new(Hand(AtomicU64::new(1_700_000_000_000_000)));
        let subject = Self {
            entries,
            meets,
            ruleset: ruleset(vec![group]),
            store: Memory::with_clock(Capacity::default(), Arc::clone(&clock)),
            clock,
        };
        let mut ids = Ids::new();
        for _ in 0..entries {
            subject.clock.advance();
            assert!(subject.ask(&mut ids), "the log is not full yet");
        }
        subject
    }

    fn ask(&self, ids: &mut Ids) -> bool {
        let query = Query::new(ids.next()).with("userId", "user-000123");
        let query = query.expect("the value is valid");
        let plan = self.ruleset.plan(&query, &self.clock);
        acquire(&self.store, &plan.expect("one request is planned")).is_allowed()
    }

    fn measure(&self, length: Duration) -> f64 {
        let mut ids = Ids::new();
        ns_per_call(length, || {
            if self.meets == Meets::Room {
                self.clock.advance();
            }
            let allowed = self.ask(&mut ids);
            assert_eq!(allowed, self.meets == Meets::Room, "the log is full, and one entry old");
        })
    }
}

/// Returns the time of an admission in the largest log, divided by that in the smallest.
pub(crate) fn run(effort: Effort) -> f64 {
    let mut subjects: Vec<Subject> = [Meets::Room, Meets::Full]
        .into_iter()
        .flat_map(|meets| ENTRIES.map(|entries| Subject::new(entries, meets)))
        .collect();
    let length = Duration::from_millis(100);
    let samples = interleave(effort.rounds(), &mut subjects, |subject| subject.measure(length));
    let figures: Vec<Figure> = samples.into_iter().map(Figure::of).collect();

    println!("\n## log: time of an acquire on one key, by the size of its exact log\n");
    println!(
        "`admitted`: one entry expires before each request. `denied`: the log is full and no entry \
         expires.\nThe benchmark sets the clock, so reading it costs nothing here.\n"
    );
    let mut table = Table::new(&["", "entries", "ns", "min–max"]);
    for (subject, &figure) in subjects.iter().zip(&figures) {
        table.row([
            match subject.meets {
                Meets::Room => "admitted".to_owned(),
                Meets::Full => "denied".to_owned(),
            },
            grouped(subject.entries as f64),
            ns(figure.median),
            spread(figure),
        ]);
    }
    print!("{table}");
    figures[ENTRIES.len() - 1].median / figures[0].median
}
