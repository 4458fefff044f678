//! Logs that a real service writes in virtual time.

use std::sync::Arc;

use pollster::block_on;
use serde_json::Value;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::{Group, Limiter, Rule, Ruleset, Span, Timestamp};
use sluicegate_server::decision_log::{DecisionLog, Options, SampleRate};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory};
use sluicegate_testkit::ManualClock;

use super::{ends, verify};

/// Returns the log of the real service under traffic, with this share of its admissions.
pub(super) fn served(allowed: SampleRate) -> String {
    let limits = ["5/5s", "20/min"].map(|text| text.parse().expect("a limit"));
    let rules = [Rule::new("USER_MODEL", limits).per(&["userId"])];
    let rate = ["30/s burst 40".parse().expect("a limit")];
    let groups = vec![Group::new("caller", rules), Group::new("all", [Rule::new("ALL", rate)])];
    let options = Options { allowed, ..Options::new([7; 32]) };
    let served = ServedRules::with(groups, options, Capacity::default());
    let ServedRules { clock, service, .. } = &served;
    for call in 0..10_000_u32 {
        clock.advance(Span::from_millis(u64::from(call.wrapping_mul(2_654_435_761) >> 27)));
        let user = format!("u{}", call.wrapping_mul(40_503) % 50);
        let query = Query::new(service.request_id()).with("userId", user).expect("a user");
        let queries = [query];
        block_on(service.decide(&queries, DecisionMode::Acquire, |_| ())).expect("a decision");
    }
    served.log()
}

#[test]
fn the_log_of_a_real_service_is_proven() {
    let log = served(SampleRate::ALL);
    let denied = log.lines().filter(|line| line.contains(r#""allowed":false"#)).count();
    assert!(denied > 1_000, "{denied}");
    let (code, said) = verify(std::slice::from_ref(&log), &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(" on 51 counters under 3 limits"), "{said}");

    // Duplicate lines are not further admissions, and no process writes such a log.
    let (code, said) = verify(&[log.clone(), log], &[]);
    assert!(code == 2 && said.contains("with duplicate sequence numbers"), "{said}");
    let sample = served("0.5".parse().expect("a half"));
    let (code, said) = verify(&[sample], &[]);
    assert!(code == 2 && said.contains("only 50 % of admissions are logged"), "{said}");
}

/// The windows of this log reach back to before its first line, so that the count of a counter
/// could be usage from before the log.
#[test]
fn an_admission_under_another_key_does_not_look_like_usage_before_the_log() {
    let rules = [Rule::new("USER", ["9/h".parse().expect("a limit")]).per(&["userId"])];
    let served = ServedRules::new(rules);
    let ServedRules { clock, service, .. } = &served;
    for call in 0..8 {
        let user = format!("u{}", call % 2);
        let query = Query::new(service.request_id()).with("userId", user).expect("a user");
        block_on(service.decide(&[query], DecisionMode::Acquire, |_| ())).expect("a decision");
        clock.advance(Span::from_millis(10));
    }
    let log = served.log();
    ends(std::slice::from_ref(&log), &[], 0, "proven: 8 admissions on 2 counters under 1 limit");
    let lines: Vec<_> = log.lines().collect();
    for moved in 0..8 {
        let mut lines: Vec<_> = lines.iter().map(|&line| line.to_owned()).collect();
        let other = lines[moved].replace(&format!("USER:u{}#", moved % 2), "USER:other#");
        assert_ne!(lines[moved], other);
        lines[moved] = other;
        let (code, said) = verify(&[lines.join("\n") + "\n"], &[]);
        assert!(code == 2 && said.contains("node are missing"), "admission {moved}: {said}");
    }
}

/// Returns the log of a service whose store has room for few counters, while a flood of users
/// comes and goes.
fn flooded() -> String {
    let limit = |text: &str| text.parse().expect("a limit");
    let rules = [
        Rule::new("USER", [limit("20/10s")]).per(&["userId"]),
        Rule::new("TOKENS", [limit("9000 tokens/10s")]).per(&["userId"]),
        Rule::new("DAY", [limit("5000000 tokens/calendar day UTC")]).per(&["userId"]),
    ];
    let groups = rules.map(|rule| Group::new(rule.name.clone(), [rule]));
    let capacity = Capacity { keys_max: 256, records_max: 256 };
    let served = ServedRules::with(groups.into(), Options::new([7; 32]), capacity);
    let ServedRules { clock, service, .. } = &served;
    for call in 0..6_000_u32 {
        let random = call.wrapping_mul(2_654_435_761) >> 8;
        clock.advance(Span::from_millis(u64::from(random % 40)));
        // Every other second thousand is a flood. Between them, counters find room again.
        let users = if call / 1_000 % 2 == 0 { 900 } else { 30 };
        let user = format!("u{}", random / 64 % users);
        let mut query = Query::new(service.request_id()).with("userId", user).expect("a user");
        query.cost = Cost { input_tokens: Some(u64::from(random % 90)), ..Cost::default() };
        let queries = [query];
        block_on(service.decide(&queries, DecisionMode::Acquire, |_| ())).expect("a decision");
    }
    served.log()
}

#[test]
fn a_full_store_does_not_look_like_a_missing_log() {
    let log = flooded();
    let shared = log.lines().filter(|line| line.contains(r#""shared":true"#)).count();
    assert!(shared > 100, "{shared} counts of overflow counters");
    let (code, said) = verify(&[log], &[]);
    assert!(code == 0 && said.contains(" by the store not compared with the log"), "{said}");
}

/// Returns the log of the real service with reservations that are settled, released, cancelled,
/// refunded and reset.
fn lived() -> String {
    let limit = |text: &str| text.parse().expect("a limit");
    let rules = [
        Rule::new("BUDGET", [limit("1000 tokens/min")]),
        Rule::new("SLOTS", [limit("3 concurrent")]),
    ];
    let groups = rules.map(|rule| Group::new(rule.name.clone(), [rule]));
    let served = ServedRules::with(groups.into(), Options::new([7; 32]), Capacity::default());
    let ServedRules { clock, service, .. } = &served;
    let mut held = std::collections::VecDeque::new();
    for call in 0..20_000_u32 {
        let random = call.wrapping_mul(2_654_435_761);
        clock.advance(Span::from_millis(u64::from(random >> 20) % 700));
        let mut query = Query::new(service.request_id());
        query.cost = Cost { input_tokens: Some(u64::from(random >> 13) % 300), ..Cost::default() };
        query.hold = Some(Span::from_secs(20));
        let queries = [query];
        let decided = service.decide(&queries, DecisionMode::Acquire, |answer| {
            answer.decision().is_allowed().then(|| answer.plan().handle())
        });
        held.extend(block_on(decided).expect("a decision"));
        let actual = u64::from(random >> 9) % 250;
        let actual = Cost { input_tokens: Some(actual), ..Cost::default() };
        // Reservations that are lost or cancelled by now may fail.
        match (random >> 5) % 12 {
            0..=4 => {
                drop(held.pop_front().map(|handle| block_on(service.settle(&handle, &actual))))
            }
            5 => drop(held.pop_back().map(|handle| block_on(service.cancel(&handle)))),
            6 => drop(held.front().map(|handle| block_on(service.release(handle)))),
            7 => drop(held.front().map(|handle| block_on(service.renew(handle)))),
            9 => drop(block_on(service.refund(&queries[0], |_, _, _| ()))),
            8 if call % 20 == 0 => drop(block_on(service.reset(&queries[0], |_| true, |_| ()))),
            _ => {}
        }
    }
    served.log()
}

#[test]
fn settlements_and_releases_are_part_of_the_proof() {
    let log = lived();
    let (code, said) = verify(std::slice::from_ref(&log), &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("SLOTS#concurrent") && said.contains("3 of 3"), "{said}");
    for operation in ["settle", "release", "cancel", "refund", "reset"] {
        let name = format!("\"operation\":\"{operation}\"");
        let without: String = log
            .lines()
            .filter(|line| !line.contains(&name))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(without.len() < log.len(), "there are some of {operation}");
        let (code, said) = verify(&[without], &[]);
        assert_ne!(code, 0, "without {operation} it can't be right: {said}");
    }
}

/// Returns the log as two nodes would have written it: every line belongs to one of them.
fn shared_by_two_nodes(log: &str, of_second: impl Fn(usize) -> bool) -> [String; 2] {
    let mut logs = [String::new(), String::new()];
    for (number, line) in log.lines().enumerate() {
        let mut line: Value = serde_json::from_str(line).expect("a line");
        let fields = line.as_object_mut().expect("fields");
        if fields["operation"] != "end" {
            fields.retain(|name, _| {
                !["node", "started", "seq", "line", "writtenUs"].contains(&name.as_str())
            });
            logs[usize::from(of_second(number))] += &format!("{line}\n");
        }
    }
    logs
}

#[test]
fn a_missing_log_is_noticed_by_the_levels_of_buckets() {
    let served = ServedRules::new([Rule::new("ALL", ["30/s burst 40".parse().expect("a limit")])]);
    for call in 0..2_000_u32 {
        served.clock.advance(Span::from_millis(u64::from(call.wrapping_mul(2_654_435_761) >> 26)));
        served.acquire();
    }
    let log = served.log();
    let both = shared_by_two_nodes(&log, |number| number % 2 == 1);
    let (code, said) = verify(&both, &[]);
    assert_eq!(code, 0, "{said}");
    for alone in both {
        let (code, said) = verify(&[alone], &[]);
        assert!(code == 2 && said.contains("node are missing"), "{said}");
    }
}

#[test]
fn a_missing_log_is_noticed_by_the_slots_in_use() {
    let served = ServedRules::new([Rule::new("SLOTS", ["5 concurrent".parse().expect("a limit")])]);
    for _ in 0..60 {
        let handles: Vec<_> = (0..4).filter_map(|_| served.acquire()).collect();
        for handle in &handles {
            served.clock.advance(Span::from_millis(7));
            block_on(served.service.release(handle)).expect("released");
        }
    }
    let log = served.log();
    // Four admissions are followed by their four releases.
    let both = shared_by_two_nodes(&log, |number| number % 2 == 1);
    let (code, said) = verify(&both, &[]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = verify(&[both[0].clone()], &[]);
    assert!(code == 2 && said.contains("node are missing"), "{said}");
}

/// A service in virtual time whose log is read at the end.
struct ServedRules {
    clock: Arc<ManualClock>,
    service: Service,
    log: DecisionLog,
    file: tempfile::NamedTempFile,
}

impl ServedRules {
    fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::with(vec![Group::new("g", rules)], Options::new([7; 32]), Capacity::default())
    }

    fn with(groups: Vec<Group>, options: Options, capacity: Capacity) -> Self {
        let rules = Ruleset::new(groups, Default::default()).expect("rules");
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_767_571_200)));
        let file = tempfile::NamedTempFile::new().expect("a file");
        let out = Box::new(file.reopen().expect("the same file"));
        // Minutes of virtual time pass in an instant. The queue has room for all lines, so that no
        // line is dropped if the thread that writes them gets no processor time meanwhile.
        let options = Options { queue_bytes_max: usize::MAX, ..options };
        let log = DecisionLog::new(out, clock.clone(), options).expect("a log");
        let store = Memory::with_clock(capacity, clock.clone());
        let limiter = Limiter::new(rules, AnyStore::custom(store));
        let service = Service::new(limiter, clock.clone(), vec![Box::new(log.clone())]);
        Self { clock, service, log, file }
    }

    /// Acquires, and returns the handle of an admission.
    fn acquire(&self) -> Option<Handle> {
        let queries = [Query::new(self.service.request_id())];
        let decided = self.service.decide(&queries, DecisionMode::Acquire, |answer| {
            answer.is_allowed().then(|| answer.plan().handle())
        });
        block_on(decided).expect("a decision")
    }

    fn log(self) -> String {
        self.log.close();
        std::fs::read_to_string(self.file.path()).expect("a log")
    }
}
