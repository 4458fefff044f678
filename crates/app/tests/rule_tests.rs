//! Tests of the command `sluicegate test`.

use std::path::Path;
use std::process::Command;

/// Runs the command in a folder with `files`; returns the exit code and the output.
fn run(files: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    run_in(folder.path(), arguments)
}

fn run_in(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    // Variables of the shell must not affect the test.
    command.arg("test").args(arguments).env("RATE", "99").current_dir(folder);
    let output = command.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    (output.status.code().expect("an exit code"), said)
}

#[track_caller]
fn check(files: &[(&str, &str)], arguments: &[&str], code: i32, expected: &str) {
    let (got, said) = run(files, arguments);
    assert_eq!(said.trim_end(), expected.trim(), "exit code {got}");
    assert_eq!(got, code);
}

/// Asserts that all tests of one file pass.
#[track_caller]
fn passes(text: &str) {
    let (code, said) = run(&[("t.yaml", text)], &["t.yaml"]);
    assert_eq!(code, 0, "{said}");
}

const LIMITS: &str = "
limits:
  - name: caller
    rules:
      - name: USER_MODEL
        per: [userId, modelId]
        limit: [5/5s, 100/h]
";

#[test]
fn the_example_passes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/inference-limiter");
    let (code, said) = run_in(Path::new(folder), &["tests.yaml"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with("\n13 passed\n"), "{said}");
}

#[test]
fn a_failure_shows_the_step_and_the_usage_of_the_limits() {
    let tests = "
config: rules.yaml
tests:
  - name: five calls go
    steps:
      - send: {userId: u1, modelId: gpt4}
        times: 5
  - name: the sixth goes
    steps:
      - send: {userId: u1, modelId: gpt4}
        times: 6
  - name: the sixth is denied for a second
    steps:
      - send: {userId: u1, modelId: gpt4}
        times: 5
      - at: 1s
        send: {userId: u1, modelId: gpt4}
        expect: {decision: deny, rule: USER_MODEL, retry_after: 1s, remaining: 1}
";
    let expected = "
✓ five calls go
✗ the sixth goes
    t.yaml:10:9: step 1, at 0s: send userId=u1 modelId=gpt4, call 6 of 6

              expected  got
    decision  allow     deny

    rule        limit  used  left  resets
    USER_MODEL  5/5s   5     0     in 5s
    USER_MODEL  100/h  5     95    in 1h

✗ the sixth is denied for a second
    t.yaml:17:9: step 2, at 1s: send userId=u1 modelId=gpt4

                 expected  got
    retry_after  1s        4s
    remaining    1         0

    rule        limit  used  left  resets
    USER_MODEL  5/5s   5     0     in 4s
    USER_MODEL  100/h  5     95    in 3599s

1 passed, 2 failed
";
    check(&[("rules.yaml", LIMITS), ("t.yaml", tests)], &["t.yaml"], 1, expected);
}

#[test]
fn counts_of_decisions_and_scopes_are_compared() {
    let tests = format!(
        "{LIMITS}
tests:
  - name: six of ten go
    steps:
      - send: {{userId: u1, modelId: gpt4}}
        times: 10
        expect: {{allow: 6, deny: 4}}
  - name: four are used
    steps:
      - send: {{userId: u1, modelId: gpt4}}
        times: 5
      - after: 5s
        usage: {{userId: u1, modelId: gpt4}}
        expect: {{USER_MODEL: {{5/5s: 0, 100/h: 4}}}}
  - name: it has a rule
    steps:
      - send: {{userId: u1}}
        expect: {{rules: [USER_MODEL]}}
dimensions: {{modelId: optional}}
"
    );
    let expected = "
✗ six of ten go
    t.yaml:12:9: step 1, at 0s: send userId=u1 modelId=gpt4, 10 calls

           expected  got
    allow  6 calls   5
    deny   4 calls   5

    rule        limit  used  left  resets
    USER_MODEL  5/5s   5     0     in 5s
    USER_MODEL  100/h  5     95    in 1h

✗ four are used
    t.yaml:20:9: step 2, at 5s: usage userId=u1 modelId=gpt4

                      expected  got
    USER_MODEL 100/h  4         5

    rule        limit  used  left  resets
    USER_MODEL  5/5s   0     5     in 0s
    USER_MODEL  100/h  5     95    in 3595s

✗ it has a rule
    t.yaml:24:9: step 1, at 0s: send userId=u1

           expected    got
    rules  USER_MODEL  none

    no rule matches the request

0 passed, 3 failed
";
    check(&[("t.yaml", &tests)], &["t.yaml"], 1, expected);
}

#[test]
fn all_errors_are_shown_at_once_with_their_positions() {
    let tests = "\
config: rules.yaml
tests:
  - name: a test
    steps:
      - send: {userId: u1}
        tims: 3
      - seend: {userId: u1}
      - send: {userId: u1}
        expect: {decision: denied, rule: USER_MDOEL, scopes: {USER_MODEL: {7/s: 1}}}
      - at: 9s
        send: {userId: u1}
        cost: {usd: a lot}
      - at: 8s
        release: r1
        hold: 3s
  - steps: [{at: 1s}]
";
    let expected = r#"
error: t.yaml:6:9: unknown key tims: did you mean times?
    6 |         tims: 3
      |         ^
t.yaml:7:9: unknown key seend: did you mean send?
    7 |       - seend: {userId: u1}
      |         ^
t.yaml:9:28: unknown decision denied: did you mean deny?
    9 |         expect: {decision: denied, rule: USER_MDOEL, scopes: {USER_MODEL: {7/s: 1}}}
      |                            ^
t.yaml:9:42: unknown rule USER_MDOEL: did you mean USER_MODEL?
    9 |         expect: {decision: denied, rule: USER_MDOEL, scopes: {USER_MODEL: {7/s: 1}}}
      |                                          ^
t.yaml:9:76: USER_MODEL has no limit 7/s: its limits are 5/5s, 100/h
    9 |         expect: {decision: denied, rule: USER_MDOEL, scopes: {USER_MODEL: {7/s: 1}}}
      |                                                                            ^
t.yaml:12:21: "a lot" is not an amount: write a plain decimal such as 5.00 or 0.0002
   12 |         cost: {usd: a lot}
      |                     ^
t.yaml:13:9: 8s is before the last call of the previous step: write 9s or later
   13 |       - at: 8s
      |         ^
t.yaml:14:18: no earlier step has the id r1: add id: r1 to an earlier send step
   14 |         release: r1
      |                  ^
t.yaml:15:9: hold is not an option of release: remove it
   15 |         hold: 3s
      |         ^
t.yaml:16:5: this test has no name: write name: what the test shows
   16 |   - steps: [{at: 1s}]
      |     ^
t.yaml:16:13: this step has no action: write one of send, check, usage, reset, settle, release, renew, cancel
   16 |   - steps: [{at: 1s}]
      |             ^
"#;
    check(&[("rules.yaml", LIMITS), ("t.yaml", tests)], &["t.yaml"], 2, expected);
}

#[test]
fn an_invalid_test_file_is_reported_with_its_error() {
    for (text, expected) in [
        ("", "error: t.yaml:1:1: there are no tests in this file: write a list of tests, each"),
        ("tests: []", "there are no tests in this file"),
        ("tests: [}", "t.yaml:1:9: tests[0]: invalid YAML: "),
        ("config: x.yaml\ntests: [{name: a, steps: []}]", "can't read x.yaml: "),
        (
            "config: x.yaml\nlimits: []\ntests: [{}]",
            "t.yaml:2:1: this can't be combined with config",
        ),
        ("confg: x.yaml\ntests: [{}]", "t.yaml:1:1: unknown key confg: did you mean config?"),
        ("{limits: [], tests: [{}]}", "write each top-level key on a line of its own"),
        (
            "tests: [{name: a, steps: [{send: {a: b}, after: 1s, at: 1s}]}]",
            "at and after can't be combined",
        ),
        ("start: 1960-01-01T00:00:00Z\ntests: [{}]", "the start is before 1970"),
        ("tests: [{name: a, name: b}]", "t.yaml:1:19: tests[0].name: duplicate key"),
    ] {
        let (code, said) = run(&[("t.yaml", text)], &["t.yaml"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn an_error_in_limits_is_shown_with_its_position() {
    let limits = LIMITS.replace("[5/5s, 100/h]", "5 per second");
    let text = format!("tests: [{{name: a, steps: [{{send: {{userId: u1}}}}]}}]{limits}");
    let (code, said) = run(&[("t.yaml", &text)], &["t.yaml"]);
    assert!(
        code == 2 && said.starts_with("error: t.yaml:7:16: limits[0].rules[0].limit: "),
        "{said}"
    );
}

#[test]
fn variables_come_from_the_file_alone() {
    let config = LIMITS.replace("5/5s", "\"${RATE:?set it}/5s\"");
    let tests = "
config: rules.yaml
env: {RATE: \"2\"}
tests:
  - name: two go
    steps:
      - send: {userId: u1, modelId: gpt4}
        times: 3
        expect: {allow: 2, deny: 1}
";
    check(&[("rules.yaml", &config), ("t.yaml", tests)], &["t.yaml"], 0, "✓ two go\n1 passed");
    let without = tests.replace("env: {RATE: \"2\"}", "");
    let (code, said) = run(&[("rules.yaml", &config), ("t.yaml", &without)], &["t.yaml"]);
    assert!(code == 2 && said.contains("set it"), "{said}");
}

#[test]
fn tests_are_selected_by_name_and_grouped_by_file() {
    let one = format!(
        "{LIMITS}\ntests: [{{name: one goes, steps: [{{send: {{userId: u, modelId: m}}}}]}}]"
    );
    let two = one.replace("one goes", "two go").replace("{send", "{times: 2, send");
    let files = [("a.yaml", one.as_str()), ("b.yaml", two.as_str())];
    let both = "a.yaml\n✓ one goes\nb.yaml\n✓ two go\n2 passed";
    check(&files, &["a.yaml", "b.yaml"], 0, both);
    check(&files, &["b.yaml", "--filter", "two"], 0, "✓ two go\n1 passed");
    let none = "error: no test name contains \"three\" (--filter)";
    check(&files, &["b.yaml", "--filter", "three"], 2, none);
}

#[test]
fn without_limits_the_default_rule_is_tested() {
    let hundred = "{send: {userId: u1, modelId: gpt4}, times: 101, expect: {allow: 100, deny: 1}}";
    let nobody = "{send: {modelId: gpt4}, expect: invalid}";
    passes(&format!("tests: [{{name: a hundred an hour, steps: [{hundred}, {nobody}]}}]"));
}

#[test]
fn reservations_are_settled_released_renewed_and_cancelled() {
    passes(
        "
limits:
  - name: money
    rules:
      - {name: BUDGET, per: [userId], limit: 1.00 USD/day}
  - name: slots
    rules:
      - {name: SLOTS, per: [], limit: 2 concurrent, lease: 30s}
tests:
  - name: an estimate becomes what it really was
    steps:
      - send: &u {userId: u1}
        id: r<n>
        times: 2
        hold: 20s
        cost: {usd: 0.40}
        expect: allow
      - send: *u
        expect: {decision: deny, rule: SLOTS, retry_after: 30s}
      - settle: r1
        cost: {usd: 0.05}
      - settle: r1
        cost: {usd: 0.05}
        expect: replayed
      - settle: r1
        cost: {usd: 0.06}
        expect: conflict
      - usage: *u
        expect: {BUDGET: 0.45, SLOTS: 1}
      - at: 10s
        renew: r2
      - at: 35s
        release: r2
        expect: done
      - cancel: r2
      - usage: *u
        expect: {BUDGET: 0.05, SLOTS: 0}
      - send: *u
        id: r2
        hold: 20s
        cost: {usd: 0.40}
        expect: gone
  - name: a slot comes back when its holder dies
    steps:
      - send: *u
        id: a
      - send: *u
      - send: *u
        expect: deny
      - at: 30s
        send: *u
      - renew: a
        expect: lost
  - name: more than the limit can ever give
    steps:
      - send: *u
        cost: {usd: 1.01}
        expect: {decision: never, reason: EXCEEDS_BUDGET_LIMIT}
",
    );
}

#[test]
fn shadow_rules_and_calendars_are_tested_too() {
    passes(
        "
start: 2026-03-28T23:30:00+01:00
limits:
  - name: caller
    rules:
      - {name: STRICT, shadow: true, per: [userId], limit: 1/min}
      - {name: DAILY, per: [userId], limit: 3/calendar day Europe/Berlin}
tests:
  - name: a shadow rule denies nothing and midnight is where the user lives
    steps:
      - send: {userId: u1}
        expect: {shadowed: [], remaining: 2}
      - send: {userId: u1}
        expect: {shadowed: [STRICT], remaining: 1}
      - send: {userId: u1}
      - send: {userId: u1}
        expect: {decision: deny, rule: DAILY, retry_after: 30min}
      - at: 30min
        send: {userId: u1}
      - reset: {userId: u1}
      - usage: {userId: u1}
        expect: {DAILY: 0, STRICT: 0}
  - name: a test has a start of its own
    start: 2026-03-29T00:00:00+01:00
    steps:
      - send: {userId: u1}
        times: 3
      - check: {userId: u1}
        expect: {decision: deny, retry_after: 23h}
      - at: 23h
        check: {userId: u1}
",
    );
}
