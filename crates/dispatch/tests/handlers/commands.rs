//! Tests of the command handler.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluicegate_config::ByteSize;
use sluicegate_dispatch::Handler as _;
use sluicegate_dispatch::handler::{CommandHandler, CommandOptions};
use sluicegate_testkit::eventually_is_async;

use crate::support::{PERMANENT, TRANSIENT, body, done, failed, job};

/// A shell script as a program.
fn sh(script: &str) -> CommandOptions {
    CommandOptions {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        dir: None,
        env: BTreeMap::new(),
        output_limit: ByteSize(1 << 20),
    }
}

fn handler(options: CommandOptions) -> CommandHandler {
    CommandHandler::new(options).unwrap()
}

#[tokio::test]
async fn the_message_comes_in_and_what_is_printed_is_the_result() {
    let done = done(&handler(sh("cat; echo not this >&2")), &job(r#"{"a": 1}"#)).await;
    assert_eq!(body(&done), r#"{"a": 1}"#);
    assert_eq!(done.result.unwrap().content_type.as_deref(), Some("application/json"));
}

#[tokio::test]
async fn a_program_gets_the_variables_of_its_job_and_few_others() {
    let mut options = sh("env | sort; pwd");
    options.env = [("API_KEY".to_owned(), "k3y-of-ours".into())].into();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    options.dir = Some(folder.clone());
    let done = done(&handler(options), &job("{}")).await;
    let lines: Vec<_> = body(&done).lines().collect();
    for expected in [
        "API_KEY=k3y-of-ours",
        "SLUICEGATE_JOB_ATTEMPT=1",
        "SLUICEGATE_JOB_ID=a-17",
        "SLUICEGATE_JOB_PROVIDER=openai",
        "SLUICEGATE_JOB_TYPE=crawl_org",
    ] {
        assert!(lines.contains(&expected), "{lines:?}");
    }
    assert_eq!(lines.last(), folder.to_str().as_ref());
    // Cargo sets many variables for its tests; the program gets none of them.
    assert!(!lines.iter().any(|line| line.starts_with("CARGO")), "{lines:?}");
}

#[tokio::test]
async fn the_exit_code_decides_the_outcome() {
    for (script, kind, message) in [
        ("exit 65", PERMANENT, "sh failed with exit status: 65"),
        ("exit 75", TRANSIENT, "sh failed with exit status: 75"),
        (
            "echo a >&2; echo the reason >&2; exit 3",
            TRANSIENT,
            "sh failed with exit status: 3: the reason",
        ),
        ("kill -9 $$", TRANSIENT, "sh failed with signal: 9 (SIGKILL)"),
    ] {
        let failure = failed(&handler(sh(script)), &job("{}")).await;
        assert_eq!((failure.kind, failure.message.as_str()), (kind, message), "{script}");
    }
}

#[tokio::test]
async fn the_end_of_standard_error_is_shown_without_secrets() {
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; echo \"key $KEY\" >&2; exit 1";
    let mut options = sh(script);
    options.env = [("KEY".to_owned(), "k3y-of-ours".into())].into();
    let failure = failed(&handler(options), &job("{}")).await;
    assert_eq!(failure.message, "sh failed with exit status: 1: key …");
    let told = failure.response.unwrap();
    assert!(told.ends_with("line 1999\nkey …") && told.len() <= 1_024, "{told}");
}

#[tokio::test]
async fn a_missing_program_is_a_transient_failure() {
    let failure =
        failed(&handler(CommandOptions { program: "./no-such".to_owned(), ..sh("") }), &job(""))
            .await;
    assert_eq!(failure.kind, TRANSIENT);
    assert!(failure.message.starts_with("can't run ./no-such: "), "{}", failure.message);
}

#[tokio::test]
async fn neither_input_nor_output_of_any_length_gets_stuck() {
    let long = vec![b'x'; 1 << 20];
    let echoed = done(&handler(sh("cat")), &job(long.clone())).await;
    assert_eq!(echoed.result.unwrap().body.len(), long.len());
    // A program need not read its input.
    assert_eq!(body(&done(&handler(sh("echo done")), &job(long)).await), "done\n");
}

#[tokio::test]
async fn a_program_that_prints_without_end_is_stopped() {
    let failure = failed(&handler(sh("exec yes")), &job("")).await;
    assert_eq!(failure.kind, PERMANENT);
    assert_eq!(failure.message, "the output of sh exceeds 1048576 bytes: raise output_limit");
}

#[tokio::test]
async fn a_type_with_a_nul_is_refused() {
    let mut job = job("{}");
    job.message.kind = Some("a\0b".to_owned());
    let failure = failed(&handler(sh("true")), &job).await;
    assert_eq!(failure.kind, PERMANENT);
    assert_eq!(failure.message, "SLUICEGATE_JOB_TYPE contains a NUL byte");
}

/// Waits until a file has a line, and returns it.
async fn written(path: &Path) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Returns true if a process runs and is not a zombie.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

#[tokio::test]
async fn dropping_a_call_kills_the_program_and_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = sh("trap '' TERM HUP; sleep 1000 & echo $! > child; echo $$ > self; wait");
    options.dir = Some(folder.path().to_owned());
    let handler = handler(options);
    let running = tokio::spawn(async move { handler.handle(&job("{}")).await.outcome.is_ok() });
    let child = written(&folder.path().join("child")).await;
    let itself = written(&folder.path().join("self")).await;
    assert!(runs(&child) && runs(&itself));
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    eventually_is_async(|| runs(&itself) || runs(&child), false).await;
    // Reaped, too: zombies would fill the process table.
    eventually_is_async(|| Path::new(&format!("/proc/{itself}")).exists(), false).await;
}

#[tokio::test]
async fn a_background_process_of_a_program_is_killed_and_does_not_delay_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = sh("sleep 1000 & echo $! > child; echo done");
    options.dir = Some(folder.path().to_owned());
    // The child holds the pipe open, so the output ends only when the child ends.
    let done = done(&handler(options), &job("{}")).await;
    assert_eq!(body(&done), "done\n");
    let child = written(&folder.path().join("child")).await;
    eventually_is_async(|| runs(&child), false).await;
}

/// Runs with paused time, which jumps ahead when all tasks wait.
#[tokio::test(start_paused = true)]
async fn a_process_that_left_the_group_does_not_delay_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = sh(
        "setsid sh -c 'echo $$ > child; exec sleep 1000' & while ! [ -s child ]; do :; done; echo done",
    );
    options.dir = Some(folder.path().to_owned());
    let done = done(&handler(options), &job("{}")).await;
    assert_eq!(body(&done), "done\n");
    let child = written(&folder.path().join("child")).await;
    assert!(runs(&child), "nothing but this test ends it");
    let child = Pid::from_raw(child.parse().unwrap()).unwrap();
    kill_process(child, Signal::KILL).unwrap();
}
