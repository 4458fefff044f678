//! Tests of the command `sluicegate verify`.

mod served;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use sluicegate_core::limit::Unit;
use sluicegate_core::{Limit, Timestamp};
use sluicegate_server::decision_log::SampleRate;

use self::served::served;

/// Writes each log to a file and verifies all of them; returns the exit code and the output.
fn verify(logs: &[String], options: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<_> = (1..=logs.len()).map(|number| format!("{number}.log")).collect();
    for (name, log) in names.iter().zip(logs) {
        std::fs::write(folder.path().join(name), numbered(log, name)).expect("a file");
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    run(folder.path(), &[options, &names].concat(), "")
}

/// Completes a handwritten log as a process would have written it: sequence numbers and, unless it has
/// some, scopes in every line, and an end line unless the last line is cut off.
fn numbered(log: &str, node: &str) -> String {
    if log.contains("\"started\"") {
        return log.to_owned();
    }
    let (mut line, mut seq, mut numbered, mut at) = (0, 0, String::new(), Value::Null);
    for text in log.split_inclusive('\n') {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else {
            numbered.push_str(text);
            continue;
        };
        if !fields.contains_key("requestId") {
            numbered.push_str(text);
            continue;
        }
        line += 1;
        at = fields["timestamp"].clone();
        if fields.get("allowed") == Some(&Value::Bool(true)) {
            seq += 1;
            fields.entry("decided").or_insert("store".into());
            let mut scopes = Vec::new();
            for charge in fields["charges"].as_array_mut().expect("charges") {
                for text in charge["limits"].as_array().cloned().expect("limits") {
                    let limit = text.as_str().and_then(|text| text.parse::<Limit>().ok());
                    let unit = limit.as_ref().map_or(Unit::Requests, Limit::unit);
                    let amount = limit.map_or(0, |limit| limit.amount().get()) as f64;
                    let amount = if unit == Unit::Usd { amount / 1e9 } else { amount };
                    let name = if unit == Unit::Usd { "nano-USD" } else { unit.name() };
                    charge["unit"] = name.into();
                    scopes.push(
                        json!({ "window": text, "limit": amount, "count": 0, "remaining": amount }),
                    );
                }
            }
            if fields["scopes"].as_array().is_some_and(Vec::is_empty) {
                fields.insert("scopes".to_owned(), scopes.into());
            }
        }
        number(&mut fields, node, seq, line);
        numbered.push_str(&Value::Object(fields).to_string());
        numbered.push('\n');
    }
    if log.ends_with('\n') && line > 0 {
        let mut end = Map::new();
        end.extend([("timestamp".to_owned(), at), ("operation".to_owned(), "end".into())]);
        number(&mut end, node, seq, line + 1);
        numbered.push_str(&Value::Object(end).to_string());
        numbered.push('\n');
    }
    numbered
}

fn number(fields: &mut Map<String, Value>, node: &str, seq: u64, line: u64) {
    fields.insert("node".to_owned(), node.into());
    fields.insert("started".to_owned(), "2026-01-01T00:00:00Z".into());
    fields.insert("seq".to_owned(), seq.into());
    fields.insert("line".to_owned(), line.into());
}

fn run(folder: &Path, arguments: &[&str], input: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg("verify").args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    (output.status.code().expect("an exit code"), said)
}

#[track_caller]
fn check(logs: &[String], options: &[&str], code: i32, expected: &str) {
    let (got, said) = verify(logs, options);
    assert_eq!(said.trim_end(), expected.trim(), "exit code {got}");
    assert_eq!(got, code);
}

/// Asserts the exit code and the last line of the output.
#[track_caller]
fn ends(logs: &[String], options: &[&str], code: i32, expected: &str) {
    let (got, said) = verify(logs, options);
    assert_eq!(said.lines().last(), Some(expected), "{said}");
    assert_eq!(got, code);
}

/// Returns a log of admissions at these milliseconds.
fn log(limits: &str, millis: &[u64]) -> String {
    millis.iter().map(|&millis| admit(millis, "K:u1#requests", limits, 1, "")).collect()
}

fn admit(millis: u64, key: &str, limits: &str, take: u64, further: &str) -> String {
    let at = Timestamp::from_millis(1_767_571_200_000 + millis);
    format!(
        r#"{{"timestamp":"{at}","level":"INFO","requestId":"0","operation":"acquire","allowed":true,"latencyMs":0.012,"scopes":[],"at":"{at}",{further}"charges":[{{"key":"{key}","limits":[{limits}],"take":{take},"unit":"requests"}}]}}"#
    ) + "\n"
}

const FIVE: &str = r#""5/5s""#;

#[test]
fn a_log_within_its_limits_is_proven() {
    let log = log(r#""2/s","4/min""#, &[0, 300, 1_000, 1_300]);
    let expected = "
counter        limit  admissions  peak usage  window
K:u1#requests  2/s    4           2 of 2      (2026-01-04T23:59:59.3Z, 2026-01-05T00:00:00.3Z]
K:u1#requests  4/min  4           4 of 4      (2026-01-04T23:59:01.3Z, 2026-01-05T00:00:01.3Z]

proven: 4 admissions on 1 counter under 2 limits
";
    check(&[log], &[], 0, expected);
}

#[test]
fn an_exceeded_limit_is_shown_with_its_window_and_its_line() {
    let log = log(r#""2/s","4/min""#, &[0, 300, 999]);
    let expected = "
exceeded: K:u1#requests: 3 admitted in (2026-01-04T23:59:59.999Z, 2026-01-05T00:00:00.999Z] where 2/s allows 2 (1.log:3)
note: if the store lost its data in this time, which the log of the service says, verify with --losses and the number of losses in a window
not proven: 3 admissions on 1 counter under 2 limits, 1 limit exceeded
";
    check(std::slice::from_ref(&log), &["--top", "0"], 1, expected);
    let proven = "proven: 3 admissions on 1 counter under 2 limits";
    ends(std::slice::from_ref(&log), &["--losses", "1"], 0, proven);
    ends(&[log], &["--spread", "1ms"], 0, proven);
}

#[test]
fn the_logs_of_several_nodes_are_checked_together() {
    let nodes = [log(FIVE, &[0, 2_000, 4_000]), log(FIVE, &[1_000, 3_000, 4_999])];
    for node in &nodes {
        ends(std::slice::from_ref(node), &[], 0, "proven: 3 admissions on 1 counter under 1 limit");
    }
    ends(&nodes, &[], 1, "not proven: 6 admissions on 1 counter under 1 limit, 1 limit exceeded");
    let (_, said) = verify(&nodes, &[]);
    assert!(said.contains("note: the lines are of 2 processes: with a memory store"), "{said}");
}

#[test]
fn buckets_calendars_and_money_are_checked() {
    let bucket = |millis: &[u64]| log(r#""10/s burst 2""#, millis);
    ends(&[bucket(&[0, 0, 100, 200])], &[], 0, "proven: 4 admissions on 1 counter under 1 limit");
    let exceeded = "not proven: 4 admissions on 1 counter under 1 limit, 1 limit exceeded";
    ends(&[bucket(&[0, 0, 100, 199])], &[], 1, exceeded);

    let calendar = |millis: &[u64]| log(r#""2/calendar day UTC""#, millis);
    let day = 86_400_000;
    let proven = "proven: 4 admissions on 1 counter under 1 limit";
    ends(&[calendar(&[0, day - 1, day, day])], &[], 0, proven);
    ends(&[calendar(&[0, 0, day - 1, day])], &[], 1, exceeded);

    let money = |nanos| {
        let of = |millis, take| admit(millis, "B:u1#USD/day", r#""5.00 USD/day""#, take, "");
        [of(0, 4_000_000_000) + &of(1, nanos)]
    };
    ends(&money(1_000_000_000), &[], 0, "proven: 2 admissions on 1 counter under 1 limit");
    let (code, said) = verify(&money(1_000_000_001), &[]);
    assert!(code == 1 && said.contains("5.000000001 USD admitted"), "{said}");
}

#[test]
fn other_lines_are_skipped_and_malformed_ones_reported() {
    let mut log = log(FIVE, &[0, 1]);
    log.push_str(
        "listening\n{\"level\":\"INFO\",\"message\":\"reloaded\"}\n\n{\"allowed\":true,\"op\n",
    );
    log.push_str(&admit(2, "K:u1#requests", r#""many/s""#, 1, ""));
    let expected = r#"
warning: 1.log:6: EOF while parsing a string at line 1 column 19
warning: 1.log:7: "many" is not an amount: write a whole number from 1 to 9007199254740991, such as 100/h, or dollars as in 5.00 USD/day
skipped: 3 lines that are not decision log entries
error: not proven: 2 admissions on 1 counter under 1 limit: 2 lines malformed
"#;
    check(&[log], &["--top", "0"], 2, expected);
    let nothing = "error: no decisions found: pass the standard output of `sluicegate serve`, in JSON \
        (log.format), not its log on standard error";
    check(&["listening\n".to_owned()], &[], 2, nothing);
}

#[test]
fn a_last_line_that_is_cut_off_is_not_part_of_the_proof() {
    let log = log(FIVE, &[0, 1]) + "{\"allowed\":tr";
    let expected = "
note: 1.log (2026-01-01T00:00:00Z) has no end line: it was killed or is still running, so its admissions after 2026-01-05T00:00:00.000988Z (1.log:2) are unknown
note: 1.log:3: the line is cut off
proven up to 2026-01-05T00:00:00.000988Z: 2 admissions on 1 counter under 1 limit
";
    check(&[log], &["--top", "0"], 0, expected);
}

/// In Redis, literal keys have scores in milliseconds, rounded up. The honest log of a worker was
/// "not proven", because the store still counted what had been admitted up to a millisecond earlier.
#[test]
fn admissions_under_a_literal_key_are_counted_up_to_a_millisecond_longer() {
    let line = |micros: u64, count: u64| {
        let [from, at] = [0, micros].map(|n| Timestamp::from_micros(1_767_571_200_000_000 + n));
        let scope =
            json!([{ "window": "2/s", "limit": 2, "count": count, "remaining": 2 - count }]);
        admit(0, "ziraai:worker:gemini", r#""2/s""#, 1, "")
            .replace(&from.to_string(), &at.to_string())
            .replace(r#""scopes":[]"#, &format!(r#""scopes":{scope}"#))
    };
    let proven = "proven: 2 admissions on 1 counter under 1 limit";
    ends(&[line(100, 1) + &line(1_000_300, 2)], &[], 0, proven);
    let (code, said) = verify(&[line(100, 1) + &line(1_001_100, 2)], &[]);
    assert!(code == 2 && said.contains("the store counted 2"), "{said}");
}

/// Decisions that were made in the last 5 ms may be missing, and that is all that the log covers.
#[test]
fn a_log_that_ends_during_its_longest_decision_proves_nothing() {
    let slow = log(FIVE, &[0, 4]).replace(r#""latencyMs":0.012"#, r#""latencyMs":5"#);
    let expected = "error: not proven: 2 admissions on 1 counter under 1 limit: 1.log \
        (2026-01-01T00:00:00Z) has no end line, and its lines cover less time than its longest \
        decision took (5ms)";
    ends(&[slow + "{\"allowed\":tr"], &[], 2, expected);
}

/// Returns a log of a process that was killed while it wrote a line.
fn killed(log: String) -> String {
    log + "{\"allowed\":tr"
}

#[test]
fn windows_after_the_end_of_the_proof_are_not_shown() {
    let of = |key: &str, limit: &str, millis: &[u64]| -> String {
        let limit = format!("\"{limit}\"");
        millis.iter().map(|&millis| admit(millis, key, &limit, 1, "")).collect()
    };
    let (day, later) = ("D#requests/day", &[7_000, 7_001, 7_002]);
    let other = of("K:u2#requests", "5/5s", &[500])
        + &of(day, "9/calendar day UTC", &[501, 502])
        + &of("K:u2#requests", "5/5s", later)
        + &of("K:u3#requests", "5/5s", later)
        + &of(day, "9/calendar day UTC", later);
    let expected = "
counter         limit           admissions  peak usage  window
D#requests/day  9/calendar day  5           2 of 9      [2026-01-05T00:00:00Z, 2026-01-06T00:00:00Z)
K:u1#requests   5/5s            2           1 of 5      (2026-01-04T23:59:55Z, 2026-01-05T00:00:00Z]
K:u2#requests   5/5s            4           1 of 5      (2026-01-04T23:59:55.5Z, 2026-01-05T00:00:00.5Z]

note: 1.log (2026-01-01T00:00:00Z) has no end line: it was killed or is still running, so its admissions after 2026-01-05T00:00:00.999988Z (1.log:2) are unknown
note: 1.log:3: the line is cut off
proven up to 2026-01-05T00:00:00.999988Z: 14 admissions on 4 counters under 2 limits
";
    check(&[killed(log(FIVE, &[0, 1_000])), other], &[], 0, expected);
}

/// The process that was killed ends long before a counter that is checked several times.
#[test]
fn windows_after_the_end_of_the_proof_are_not_shown_of_a_long_log() {
    let hundred = r#""100/s""#;
    let slow = (0..6_000).map(|n| n * 20);
    let fast = (0..18_000).map(|n| 120_000 + n * 10);
    let long = log(hundred, &slow.chain(fast).collect::<Vec<_>>());
    let short = [0, 60_000].map(|millis| admit(millis, "K:u2#requests", hundred, 1, ""));
    let (code, said) = verify(&[long, killed(short.concat())], &[]);
    assert!(code == 0 && said.contains(" 50 of 100 ") && !said.contains("100 of"), "{said}");
}

#[test]
fn a_sample_and_a_log_with_gaps_prove_nothing() {
    let with = |further| log(FIVE, &[0, 1]) + &admit(2, "K:u1#requests", FIVE, 1, further);
    let extent = "3 admissions on 1 counter under 1 limit";
    let sample = format!(
        "error: not proven: {extent}: only 12.5 % of admissions are logged, and a sample proves \
         nothing: set log.decisions.allowed to 1.0"
    );
    ends(&[with(r#""samplePpm":125000,"#)], &[], 2, &sample);
    let gaps = format!("error: not proven: {extent}: 7 lines dropped when the log was written");
    ends(&[with(r#""dropped":7,"#)], &[], 2, &gaps);
    // But a violation in a sample is a violation.
    let exceeded = log(FIVE, &[0; 6]) + &admit(2, "K:u1#requests", FIVE, 1, r#""samplePpm":9,"#);
    ends(
        &[exceeded],
        &[],
        1,
        "not proven: 7 admissions on 1 counter under 1 limit, 1 limit exceeded",
    );
}

#[test]
fn reservations_may_have_been_given_back() {
    let until = r#""until":"2026-01-05T00:01:00Z","#;
    let held = |count: usize| admit(3, "K:u1#requests", FIVE, 1, until).repeat(count);
    let plain = log(FIVE, &[0, 1, 2]);
    let proven = "proven: 5 admissions on 1 counter under 1 limit";
    ends(&[plain.clone() + &held(2)], &[], 0, proven);
    let open = "error: not proven: 6 admissions on 1 counter under 1 limit: 1 limit exceeded, \
                unless reservations or bookings were given back that the log does not contain";
    ends(&[plain + &held(3)], &[], 2, open);
    let exceeded = log(FIVE, &[0; 6]) + &held(1);
    ends(
        &[exceeded],
        &[],
        1,
        "not proven: 7 admissions on 1 counter under 1 limit, 1 limit exceeded",
    );
}

#[test]
fn shadow_rules_are_not_checked() {
    let shadow = log(FIVE, &[0; 9]).replace(r#""unit":"#, r#""shadow":true,"unit":"#);
    let proven = "proven: 1 admission on 1 counter under 1 limit";
    ends(&[log(FIVE, &[0]) + &shadow], &[], 0, proven);
}

/// Returns a log line with an `operation` on an earlier id.
fn follow(millis: u64, id: u64, operation: &str, further: &str) -> String {
    let at = Timestamp::from_millis(1_767_571_200_000 + millis);
    format!(
        r#"{{"timestamp":"{at}","level":"INFO","requestId":"{id}","operation":"{operation}","latencyMs":0.012,"at":"{at}"{further}}}"#
    ) + "\n"
}

/// Returns the admission of one of two slots, leased for ten seconds.
fn slot(millis: u64, id: u64) -> String {
    let line = admit(millis, "S#concurrent", r#""2 concurrent""#, 1, "");
    let line = line.replace(r#""requestId":"0""#, &format!(r#""requestId":"{id}""#));
    line.replace(r#""unit":"requests""#, r#""unit":"slots","lease":"10s""#)
}

#[test]
fn slots_are_held_until_they_are_released_or_their_lease_expires() {
    let two = || slot(0, 1) + &slot(0, 2);
    let proven = "proven: 3 admissions on 1 counter under 1 limit";
    let exceeded = "not proven: 3 admissions on 1 counter under 1 limit, 1 limit exceeded";
    for (between, millis, code) in [
        (String::new(), 9_999, 1),
        (String::new(), 10_000, 0),
        (follow(50, 2, "release", ""), 50, 0),
        (follow(50, 2, "release", ""), 49, 1),
        (follow(50, 2, "release", r#","replayed":true"#), 60, 1),
        (follow(50, 2, "settle", ""), 60, 0),
        (follow(50, 2, "cancel", ""), 60, 0),
        (follow(50, 3, "release", ""), 60, 1),
        (follow(50, 1, "renew", "") + &follow(60, 2, "renew", ""), 10_049, 1),
        (follow(50, 1, "renew", "") + &follow(60, 2, "renew", ""), 10_050, 0),
        (follow(50, 9, "reset", r#","keys":["S#concurrent"]"#), 51, 0),
        (follow(50, 9, "reset", r#","keys":["T#concurrent"]"#), 51, 1),
    ] {
        let said = if code == 0 { proven } else { exceeded };
        ends(&[two() + &between + &slot(millis, 4)], &[], code, said);
    }
}

#[test]
fn settlements_refunds_cancellations_and_resets_change_the_counted_usage() {
    let until = r#""until":"2026-01-05T00:01:00Z","#;
    let held = admit(0, "T:u1#tokens", r#""100 tokens/h""#, 80, until);
    let held = held.replace(r#""unit":"requests""#, r#""unit":"tokens""#);
    let more = |take| admit(9, "T:u1#tokens", r#""100 tokens/h""#, take, "");
    let proven = "proven: 2 admissions on 1 counter under 1 limit";
    let exceeded = "not proven: 2 admissions on 1 counter under 1 limit, 1 limit exceeded";
    let charge =
        r#","charges":[{"key":"T:u1#tokens","limits":["100 tokens/h"],"take":30,"unit":"tokens"}]"#;
    let firm = held.replace(until, "");
    for (between, take, code) in [
        (follow(5, 8, "refund", charge), 50, 0),
        (follow(5, 8, "refund", charge), 51, 1),
        (follow(5, 8, "refund", &charge.replace("u1", "u2")), 21, 1),
    ] {
        let said = if code == 0 { proven } else { exceeded };
        ends(&[firm.clone() + &between + &more(take)], &[], code, said);
    }
    for (between, take, code) in [
        (follow(5, 0, "settle", r#","cost":{"tokens":30}"#), 70, 0),
        (follow(5, 0, "settle", r#","cost":{"tokens":30}"#), 71, 1),
        // Units without an actual cost keep their estimate, and a debt was not admitted.
        (follow(5, 0, "settle", r#","cost":{"requests":1}"#), 21, 1),
        (follow(5, 0, "settle", r#","cost":{"tokens":300}"#), 20, 0),
        (follow(5, 0, "cancel", ""), 100, 0),
        (follow(5, 0, "cancel", ""), 101, 1),
        (follow(5, 7, "reset", r#","keys":["T:u1#tokens"]"#), 100, 0),
        (follow(5, 7, "reset", r#","keys":["T:u1#tokens"]"#), 101, 1),
    ] {
        let said = if code == 0 { proven } else { exceeded };
        ends(&[held.clone() + &between + &more(take)], &[], code, said);
    }
}

#[test]
fn peak_usage_does_not_leave_out_debts() {
    let tokens = |millis, id: u64, take| {
        let until = r#""until":"2026-01-05T00:01:00Z","#;
        let line = admit(millis, "T:u1#tokens", r#""100 tokens/5s""#, take, until);
        line.replace(r#""requestId":"0""#, &format!(r#""requestId":"{id}""#))
    };
    let settle =
        |millis, id, cost| follow(millis, id, "settle", &format!(r#","cost":{{"tokens":{cost}}}"#));
    let proven = "proven: 2 admissions on 1 counter under 1 limit";
    // The debt is charged at the settlement, and what was admitted at the admission.
    let debt = settle(1_000, 1, 80);
    let within = tokens(0, 1, 50) + &debt + &tokens(2_000, 2, 20) + &settle(3_000, 2, 10);
    let beyond = tokens(0, 1, 50) + &tokens(100, 2, 50) + &debt + &settle(3_000, 2, 40);
    for (log, shown) in [
        (within, "  90 of 100   (2026-01-04T23:59:57Z, 2026-01-05T00:00:02Z]\n"),
        (beyond, "  120 of 100 with debts  (2026-01-04T23:59:56Z, 2026-01-05T00:00:01Z]\n"),
    ] {
        let (code, said) = verify(&[log], &[]);
        assert!(code == 0 && said.contains(shown) && said.trim_end().ends_with(proven), "{said}");
    }
}

#[test]
fn a_booking_that_was_claimed_is_given_back_only_by_its_claimant() {
    let book = |millis: u64| {
        let start = Timestamp::from_millis(1_767_571_200_000 + millis);
        let line = admit(0, "K:u1#requests", FIVE, 5, &format!(r#""start":"{start}","#));
        line.replace(r#""operation":"acquire""#, r#""operation":"book""#)
    };
    let go = admit(1_000, "K:u1#requests", FIVE, 5, r#""claimant":"me","#);
    let go = go.replace(r#""operation":"acquire""#, r#""operation":"claim""#);
    let after = admit(1_500, "K:u1#requests", FIVE, 1, "");
    let proven = "proven: 2 admissions on 1 counter under 1 limit";
    for (between, code) in [
        (follow(900, 0, "cancel", ""), 0),
        (go.clone() + &follow(1_200, 0, "cancel", r#","claimant":"me""#), 0),
        (go.clone() + &follow(1_200, 0, "cancel", r#","claimant":"you""#), 1),
        (go.clone() + &follow(1_200, 0, "cancel", ""), 1),
    ] {
        let (got, said) = verify(&[book(1_000) + &between + &after], &[]);
        assert_eq!(got, code, "{between}{said}");
        assert!(code == 1 || said.trim_end().ends_with(proven), "{said}");
    }
    // Rebooked for later, it does not count before its new start.
    let charges =
        r#""charges":[{"key":"K:u1#requests","limits":["5/5s"],"take":5,"unit":"requests"}]"#;
    let late = |start: &str| {
        let further =
            format!(r#","effect":"rebooked","start":"2026-01-05T00:00:{start}Z",{charges}"#);
        follow(1_200, 0, "claim", &further)
    };
    let proven = "proven: 2 admissions on 1 counter under 1 limit";
    ends(&[book(1_000) + &late("09") + &after], &[], 0, proven);
    let (code, said) = verify(&[book(1_000) + &late("02") + &after], &[]);
    assert!(code == 2 && said.contains("that the log does not contain"), "{said}");
}

/// Returns the number of admissions in each row of the table, by counter.
fn admissions(said: &str) -> Vec<(&str, &str)> {
    let rows = said.lines().skip(1).take_while(|line| !line.is_empty());
    let columns = rows.map(|row| row.split("  ").filter(|column| !column.is_empty()));
    columns.map(|mut row| (row.next().unwrap_or(""), row.nth(1).unwrap_or("").trim())).collect()
}

#[test]
fn a_booking_that_was_moved_is_not_counted_as_another_admission() {
    let charges = |key: &str| {
        format!(r#""charges":[{{"key":"{key}","limits":["5/5s"],"take":1,"unit":"requests"}}]"#)
    };
    let moved = |millis, key: &str| {
        let start = Timestamp::from_millis(1_767_571_200_000 + millis + 500);
        let charges = charges(key);
        let further = format!(r#","effect":"rebooked","start":"{start}",{charges}"#);
        follow(millis, 0, "claim", &further)
    };
    let book = admit(0, "K:u1#requests", FIVE, 1, r#""start":"2026-01-05T00:00:01Z","#);
    let book = book.replace(r#""operation":"acquire""#, r#""operation":"book""#);
    let go = admit(8_000, "K:u1#requests", FIVE, 1, r#""claimant":"me","#);
    let go = go.replace(r#""operation":"acquire""#, r#""operation":"claim""#);
    let proven = "proven: 1 admission on 1 counter under 1 limit";
    let twice = moved(2_000, "K:u1#requests") + &moved(5_000, "K:u1#requests");
    // The last log begins after the booking was made.
    for log in [book.clone() + &twice + &go, twice + &go] {
        let (code, said) = verify(&[log], &[]);
        assert_eq!((code, said.lines().last()), (0, Some(proven)), "{said}");
        assert_eq!(admissions(&said), [("K:u1#requests", "1")], "{said}");
    }
    // After a reload, it is on another counter, where it is an admission, too.
    let (_, said) = verify(&[book + &moved(2_000, "K:u2#requests")], &[]);
    let last = "proven: 1 admission on 2 counters under 1 limit";
    assert_eq!(said.lines().last(), Some(last), "{said}");
    let rows = admissions(&said);
    assert!(rows.contains(&("K:u2#requests", "1")), "{said}");
}

#[test]
fn a_reload_changes_the_limit_of_later_admissions() {
    let raised = log(r#""2/s""#, &[0, 1]) + &log(r#""4/s""#, &[2, 3]);
    ends(&[raised], &[], 0, "proven: 4 admissions on 1 counter under 2 limits");
    let too_many = log(r#""2/s""#, &[0, 1]) + &log(r#""4/s""#, &[2, 3, 4]);
    ends(
        &[too_many],
        &[],
        1,
        "not proven: 5 admissions on 1 counter under 2 limits, 1 limit exceeded",
    );
}

#[test]
fn a_window_that_comes_later_does_not_bound_what_came_before() {
    let hourly = log(r#""100/h""#, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let short = hourly.clone() + &log(r#""3/2s""#, &[3_000, 3_001, 3_002]);
    ends(&[short], &[], 0, "proven: 11 admissions on 1 counter under 2 limits");
    let too_many = hourly + &log(r#""3/2s""#, &[3_000, 3_001, 3_002, 3_003]);
    ends(
        &[too_many],
        &[],
        1,
        "not proven: 12 admissions on 1 counter under 2 limits, 1 limit exceeded",
    );
}

/// Enough admissions for several intermediate checks of the counters.
#[test]
fn a_long_log_is_checked_as_a_stream() {
    let millis: Vec<_> = (0..30_000).map(|n| n * 10).collect();
    let limits = r#""100/s","6000/min""#;
    let proven = "proven: 30,000 admissions on 1 counter under 2 limits";
    ends(&[log(limits, &millis)], &[], 0, proven);
    for planted in [0, 15_000, 29_999] {
        let mut millis = millis.clone();
        millis.insert(planted, millis[planted]);
        let exceeded =
            "not proven: 30,001 admissions on 1 counter under 2 limits, 2 limits exceeded";
        ends(&[log(limits, &millis)], &[], 1, exceeded);
    }
    let mut late = millis;
    late.push(0);
    let doubt = "error: not proven: 30,001 admissions on 1 counter under 2 limits: 1 admission more \
                 than 1min out of order: sort the log by `at`";
    ends(&[log(limits, &late)], &[], 2, doubt);
}

#[test]
fn a_log_is_read_from_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, said) = run(folder.path(), &["-"], &numbered(&log(FIVE, &[0]), "node"));
    assert!(
        code == 0 && said.ends_with("proven: 1 admission on 1 counter under 1 limit\n"),
        "{said}"
    );
}

#[test]
fn errors_in_options_say_what_to_write() {
    for (options, expected) in [
        (["--bound", "3/0"], "write a ratio such as 3/2"),
        (["--spread", "soon"], "500ms, 5s, 1min"),
    ] {
        let (code, said) = verify(&[String::new()], &options);
        assert!(code == 2 && said.contains(expected), "{said}");
    }
    let calendar = log(r#""2/calendar day UTC""#, &[0]);
    let (code, said) = verify(&[calendar], &["--spread", "5ms"]);
    assert!(code == 2 && said.contains("can't be proven with a spread"), "{said}");
}

/// Returns an admission by a node on its own, while the store did not respond.
fn alone(millis: u64, by: &str) -> String {
    let outage = if by == "fallback" { "open" } else { "unlimited" };
    admit(millis, "K:u1#requests", FIVE, 1, &format!(r#""outage":"{outage}","decided":"{by}","#))
}

#[test]
fn admissions_by_an_outage_policy_are_not_skipped() {
    for by in ["fallback", "unlimited"] {
        let stored = log(FIVE, &[0, 1, 2, 3]);
        let within = stored.clone() + &alone(4, by);
        let proven = "proven: 5 admissions on 1 counter under 1 limit";
        ends(std::slice::from_ref(&within), &[], 0, proven);
        let (_, said) = verify(&[within], &[]);
        let note =
            "note: 1 admission decided by nodes on their own while the store did not respond";
        assert!(said.contains(note), "{said}");

        let beyond = stored + &(4..12).map(|millis| alone(millis, by)).collect::<String>();
        let exceeded = "not proven: 12 admissions on 1 counter under 1 limit, 1 limit exceeded";
        ends(std::slice::from_ref(&beyond), &[], 1, exceeded);
        ends(std::slice::from_ref(&beyond), &["--bound", "2"], 1, exceeded);
        let proven = "proven: 12 admissions on 1 counter under 1 limit";
        ends(&[beyond], &["--bound", "11"], 0, proven);
    }
}

#[test]
fn a_bound_for_outages_does_not_excuse_the_store() {
    let beyond = log(FIVE, &[0; 6]) + &alone(9_000, "fallback");
    let exceeded = "not proven: 7 admissions on 1 counter under 1 limit, 1 limit exceeded";
    ends(std::slice::from_ref(&beyond), &["--bound", "11"], 1, exceeded);
    // A store that lost its counters admits as much again.
    let proven = "proven: 7 admissions on 1 counter under 1 limit";
    ends(&[beyond], &["--losses", "1"], 0, proven);
}

#[test]
fn an_admission_whose_first_answer_was_lost_counts_once() {
    let with_id = |line: String, id: u64| {
        line.replace(r#""requestId":"0""#, &format!(r#""requestId":"{id}""#))
    };
    let replay = |id| {
        let line = admit(4, "K:u1#requests", FIVE, 1, r#""decided":"replay","replayed":true,"#);
        with_id(line, id)
    };
    let five: String = (1..=5).map(|id| with_id(log(FIVE, &[id]), id)).collect();
    let proven = "proven: 5 admissions on 1 counter under 1 limit";
    ends(&[five.clone() + &replay(3) + &replay(5)], &[], 0, proven);
    let exceeded = "not proven: 6 admissions on 1 counter under 1 limit, 1 limit exceeded";
    ends(&[five + &replay(6) + &replay(6)], &[], 1, exceeded);
}

#[test]
fn charges_in_several_slots_are_checked_by_their_own_clocks() {
    // The clock of the counter's server is 40 ms behind that of another slot of the same plan.
    let across = |millis: u64, behind: u64| {
        let at = Timestamp::from_millis(1_767_571_200_000 + millis - behind);
        let line = admit(millis, "K:u1#requests", r#""2/s""#, 1, "");
        line.replace(r#""unit":"#, &format!(r#""at":"{at}","unit":"#))
    };
    let honest = across(1_000, 0) + &across(1_040, 40) + &across(2_000, 0);
    ends(&[honest], &[], 0, "proven: 3 admissions on 1 counter under 1 limit");
    let exceeded = "not proven: 3 admissions on 1 counter under 1 limit, 1 limit exceeded";
    let beyond = across(1_040, 0) + &across(1_040, 0) + &across(2_040, 40);
    ends(&[beyond], &[], 1, exceeded);
}

#[test]
fn only_the_last_admission_of_an_optimistic_budget_goes_beyond_it() {
    let of = |millis, take: u64| {
        let line = admit(millis, "T#tokens/h", r#""100 tokens/h""#, take, "");
        line.replace(r#""unit":"#, r#""need":1,"unit":"#)
    };
    let proven = "proven: 3 admissions on 1 counter under 1 limit";
    ends(&[of(0, 60) + &of(1, 39) + &of(2, 500)], &[], 0, proven);
    let exceeded = "not proven: 3 admissions on 1 counter under 1 limit, 1 limit exceeded";
    ends(&[of(0, 60) + &of(1, 500) + &of(2, 1)], &[], 1, exceeded);
}

/// Returns an admission of one key, a second for each number, with the count of the store.
fn counted(number: u64, count: u64) -> String {
    let remaining = 100 - count;
    let scope = json!({ "window": "100/h", "limit": 100, "count": count, "remaining": remaining });
    let line = admit(1_000 * number, "K:u1#requests", "\"100/h\"", 1, "");
    let line = line.replace("\"scopes\":[]", &format!("\"scopes\":[{scope}]"));
    let reset = Timestamp::from_millis(1_767_571_200_000 + 3_601_000);
    let fields = format!(
        "\"requestId\":\"{number}\",\"remaining\":{remaining},\"windowResetAt\":\"{reset}\""
    );
    line.replace("\"requestId\":\"0\"", &fields)
}

/// Of the admissions of one key, every second one was made by a node whose log is missing.
#[test]
fn calls_without_a_response_do_not_hide_the_missing_log_of_a_node() {
    let at = |millis: u64| Timestamp::from_millis(1_767_571_200_000 + millis);
    let unanswered = |number: u64, key: &str| {
        let unconfirmed = json!([{ "key": key, "take": 1 }]);
        let line = json!({ "timestamp": at(1_000 * number + 500).to_string(), "level": "WARN",
            "requestId": format!("lost{number}"), "operation": "acquire", "latencyMs": 20.0,
            "effect": "unknown", "unconfirmed": unconfirmed });
        line.to_string() + "\n"
    };
    let log = |key: &str| -> String {
        let lines =
            |number| [unanswered(number, key), counted(number + 1, 2 * (number + 1))].concat();
        (0..20).map(lines).collect()
    };
    ends(&[log("K:u1#requests")], &[], 0, "proven: 20 admissions on 1 counter under 1 limit");
    let (code, said) = verify(&[log("K:u2#requests")], &[]);
    assert!(code == 2 && said.contains("node are missing"), "{said}");
}

/// The store has counted an admission whose thread had not written its line when the log ended.
#[test]
fn an_admission_in_progress_at_the_end_of_a_log_is_not_a_missing_log() {
    let log = |lines: u64, in_progress_since: u64| -> String {
        let count = |number| number + u64::from(number >= in_progress_since);
        killed((1..=lines).map(|number| counted(number, count(number))).collect())
    };
    let up_to = "proven up to 2026-01-05T00:00:10Z: 20 admissions on 1 counter under 1 limit";
    ends(&[log(20, 12)], &[], 0, up_to);
    // One that is missing for longer was not in progress.
    let (code, said) = verify(&[log(20, 10)], &[]);
    assert!(code == 2 && said.contains("node are missing"), "{said}");
    let short = "error: not proven: 9 admissions on 1 counter under 1 limit: 1.log \
        (2026-01-01T00:00:00Z) has no end line, the store counted admissions that have no line yet, \
        and the lines cover less than 10s";
    ends(&[log(9, 5)], &[], 2, short);
}

/// The users of a node whose log is missing come to another node shortly before its log ends: the
/// counts show for the first time then what the missing node has admitted long before.
#[test]
fn users_that_come_from_a_missing_node_at_the_end_of_a_log_are_noticed() {
    let log = |oldest_ms: u64| -> String {
        let newcomer = counted(18, 5).replace("K:u1", "K:u2");
        let [from, to] = [3_601_000, 3_600_000 + oldest_ms]
            .map(|ms| Timestamp::from_millis(1_767_571_200_000 + ms).to_string());
        let newcomer = newcomer.replace(&from, &to);
        let line = |number| match number {
            18 => newcomer.clone(),
            _ => counted(number, number - u64::from(number > 18)),
        };
        killed((1..=20).map(line).collect())
    };
    let (code, said) = verify(&[log(1_000)], &[]);
    assert!(code == 2 && said.contains("node are missing"), "{said}");
    // Here, the store says that all of them are recent.
    let up_to = "proven up to 2026-01-05T00:00:10Z: 20 admissions on 2 counters under 1 limit";
    ends(&[log(15_000)], &[], 0, up_to);
}

#[test]
fn a_process_that_was_killed_is_proven_up_to_its_last_line() {
    let log = served(SampleRate::ALL);
    let lines: Vec<_> = log.lines().collect();
    let half = lines[..lines.len() / 2].join("\n") + "\n";
    let (code, said) = verify(&[half], &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("has no end line") && said.contains("\nproven up to 2026-"), "{said}");
    let later = lines[lines.len() / 2..].join("\n") + "\n";
    let (code, said) = verify(&[later], &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("windows that begin before") && said.contains("\nproven: "), "{said}");
}
