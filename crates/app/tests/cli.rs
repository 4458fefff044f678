//! The other commands, as they are typed.

mod common;

use common::{Running, sluicegate};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = sluicegate().args(arguments).output().expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_running_service_is_asked_from_the_command_line() {
    let service = Running::start(
        "limits: [{name: g, effective: true, rules: [{name: USER, per: [userId], limit: 2/h}]}]\n",
    );
    let ask = |command: &str| run(&[command, "userId=u1", "modelId=m", "--url", &service.http]);
    let (code, out, _) = ask("allow");
    assert_eq!(code, Some(0));
    assert!(out.starts_with("allowed\n"), "{out}");
    assert_eq!(ask("allow").0, Some(0));
    let (code, out, _) = ask("allow");
    assert_eq!(code, Some(1));
    assert!(out.starts_with("denied by USER, fits in "), "{out}");
    let (code, out, _) = ask("explain");
    assert_eq!(code, Some(1));
    assert!(out.contains("g      USER               2/h    USER:u1#requests"), "{out}");
    let (code, out, _) = ask("usage");
    assert_eq!(code, Some(0));
    assert!(out.contains("USER  2/h    2     2   0"), "{out}");
    assert_eq!(ask("reset").1, "forgotten: USER:u1#requests\n");
    assert_eq!(ask("allow").0, Some(0));
    let json = ["allow", "userId=u1", "modelId=m", "--json", "--url", &service.http];
    let (_, out, _) = run(&json);
    assert!(out.starts_with("{\"allowed\":true,"), "{out}");
}

#[test]
fn what_can_not_be_answered_exits_with_2() {
    let (code, _, said) = run(&["allow", "userId=u1", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("is `sluicegate serve` running?"), "{said}");
    let (code, _, said) = run(&["allow", "userId", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("write for instance userId=u1"), "{said}");
    assert_eq!(run(&["frobnicate"]).0, Some(2));
    assert_eq!(run(&[]).0, Some(2));
}

#[test]
fn a_configuration_is_checked_as_the_service_would_read_it() {
    let (code, out, _) = run(&["check"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("caller  USER_MODEL        userId, modelId  100/h"), "{out}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "limits: [{name: g, rules: [{name: X, per: [], limit: 5/parsec}]}]")
        .expect("a file");
    let (code, _, said) = run(&["check", path.to_str().expect("a path")]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("bad.yaml:1:54: limits[0].rules[0].limit: ") && said.contains("^"),
        "{said}"
    );
}

#[test]
fn help_has_examples_and_nothing_is_coloured_outside_of_a_terminal() {
    for command in ["serve", "check", "allow", "explain", "test", "verify", "queue", "dlq"] {
        let (code, out, _) = run(&[command, "--help"]);
        assert_eq!(code, Some(0), "{command}");
        assert!(out.contains("Examples:"), "{command}: {out}");
        assert!(!out.contains('\u{1b}'), "{command}");
    }
    let (code, out, _) = run(&["completions", "bash"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("_sluicegate"));
    assert!(!run(&["check"]).1.contains('\u{1b}'));
}
