//! Section `memory`: memory per key and per log entry.

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use sluicegate_core::time::Clock;
use sluicegate_core::{Group, Query, Ruleset};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{Memory, MonotonicClock};

use crate::Effort;
use crate::allocator::{Weight, weigh};
use crate::ours::{Ids, acquire, rule, ruleset};
use crate::peers;
use crate::report::{Table, grouped};
use crate::scope::Quota;

const KEYS: [u32; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const KEYS_MAX_QUICK: u32 = 1_000_000;
const ENTRIES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Returns the highest number of bytes per key among all numbers of keys.
pub(crate) fn run(effort: Effort) -> f64 {
    let keys = KEYS.into_iter().filter(|&keys| !effort.quick || keys <= KEYS_MAX_QUICK);
    let weights: Vec<_> = keys.map(|keys| (keys, ours(keys), governor(keys))).collect();

    println!("\n## memory: bytes requested from the allocator and not freed\n");
    println!(
        "A key is a user and a model (`user-000123`, `gpt-4o`) with an exact log of 100/h that has \
         one entry.\ngovernor keeps the same key text and no entries. The {} bytes of our empty \
         store are not counted.\n",
        grouped(weigh(|| store(MonotonicClock::new())).1.bytes as f64)
    );
    let head = ["keys", "bytes/key", "blocks/key", "governor bytes/key", "governor blocks/key"];
    let mut table = Table::new(&head);
    for &(keys, ours, governor) in &weights {
        table.row([
            grouped(keys.into()),
            format!("{:.1}", per(ours.bytes, keys)),
            format!("{:.2}", per(ours.blocks, keys)),
            format!("{:.1}", per(governor.bytes, keys)),
            format!("{:.2}", per(governor.blocks, keys)),
        ]);
    }
    print!("{table}");

    println!("\nOne key whose exact log has many entries:\n");
    let mut table = Table::new(&["entries", "bytes/entry", "blocks"]);
    for entries in ENTRIES {
        let weight = log(entries);
        table.row([
            grouped(entries.into()),
            format!("{:.2}", per(weight.bytes, entries)),
            weight.blocks.to_string(),
        ]);
    }
    print!("{table}");
    let each = weights.iter().map(|&(keys, ours, _)| per(ours.bytes, keys));
    each.fold(0.0, f64::max)
}

fn per(weight: i64, count: u32) -> f64 {
    weight as f64 / f64::from(count)
}

/// Measures `keys` keys of ours with one log entry each.
fn ours(keys: u32) -> Weight {
    let rules = user_model("100/h");
    let clock = MonotonicClock::new();
    let store = store(clock);
    let mut ids = Ids::new();
    weigh(|| (0..keys).for_each(|user| ask(&rules, &clock, &store, &mut ids, user))).1
}

/// Measures one key of ours with `entries` log entries.
fn log(entries: u32) -> Weight {
    let rules = user_model("1000000/h");
    let clock = MonotonicClock::new();
    let store = store(clock);
    let mut ids = Ids::new();
    weigh(|| (0..entries).for_each(|_| ask(&rules, &clock, &store, &mut ids, 123))).1
}

/// Creates a store for twice the highest number of keys: shards are not filled evenly, and no key
/// may be refused.
fn store(clock: MonotonicClock) -> Memory {
    let capacity = Capacity { keys_max: 2 * KEYS[KEYS.len() - 1] as usize, ..Capacity::default() };
    Memory::with_clock(capacity, clock)
}

fn user_model(limit: &str) -> Ruleset {
    let rule = rule("USER_MODEL", &["userId", "modelId"], limit);
    ruleset(vec![Group::new("caller", [rule])])
}

fn ask(rules: &Ruleset, clock: &MonotonicClock, store: &Memory, ids: &mut Ids, user: u32) {
    let query = Query::new(ids.next()).with("userId", format!("user-{user:06}"));
    let query = query.and_then(|query| query.with("modelId", "gpt-4o"));
    let query = query.expect("the values are valid");
    let plan = rules.plan(&query, clock.now()).expect("one request is planned");
    assert!(acquire(store, &plan).is_allowed(), "the limit is not used up");
}

fn governor(keys: u32) -> Weight {
    let quota = peers::governor::quota(Quota::Hourly(100));
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota);
    let fill = || {
        for user in 0..keys {
            let allowed = limiter.check_key(&format!("user-{user:06}:gpt-4o"));
            assert!(allowed.is_ok(), "the limit is not used up");
        }
    };
    weigh(fill).1
}
