//! `jobs why` and `dlq show` beside a running worker.

use serde_json::Value;
use simulators::Provider;
use sluicegate_testkit::{eventually, eventually_is};

use crate::common::{RunningService, sluicegate};
use crate::support::{TestSetup, patient, worked};

fn worker(setup: &TestSetup, handler: &str) -> RunningService {
    let name = &setup.name;
    let config = format!(
        "workers: [{{provider: p, queue: {name}-p, concurrency: 1, prefetch: 1, attempts: 1, \
         timeout: 1h, handler: {handler}}}]\n"
    );
    setup.run("worker", &config)
}

/// Runs a command with the configuration of a process; returns its exit code and output.
fn run(running: &RunningService, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = sluicegate();
    command.args(arguments).arg("--config").arg(&running.config);
    let output = command.output().expect("it ran");
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

fn why(running: &RunningService, job: &str) -> (Option<i32>, String) {
    run(running, &["jobs", "why", job, "--admin", &running.admin])
}

#[test]
fn jobs_why_knows_a_paused_provider() {
    let setup = TestSetup::alone("why-paused");
    let window = std::time::Duration::from_secs(600);
    let (url, _) = setup.provider(Provider { limit: 1, window, ..patient(0) });
    let running = worker(&setup, &format!("{{http: {{url: '{url}/v1/analyze'}}}}"));
    setup.produce("p", 5);
    eventually_is(|| worked(&running, "p", "pauses"), 1);
    // The second job was refused, and the worker takes no further one.
    eventually(|| setup.depth("p").delayed.is_some_and(|delayed| delayed > 0));
    let pause = "provider p asked for a pause until ";
    let (code, said) = why(&running, "why-paused-4");
    assert_eq!(code, Some(0));
    assert!(said.starts_with(&format!("it is in queue why-paused-p: {pause}")), "{said}");
    let said: Vec<_> = (0..5).map(|job| why(&running, &format!("why-paused-{job}")).1).collect();
    let refused = said.iter().filter(|said| said.contains("p refused it: HTTP 429")).count();
    assert_eq!(refused, 1, "{said:#?}");
    let (code, said) = why(&running, "why-paused-9");
    assert_eq!((code, said.starts_with("job not found")), (Some(1), true), "{said}");
}

#[test]
fn jobs_why_knows_a_job_that_a_worker_has() {
    let setup = TestSetup::alone("why-leased");
    let (url, _) = setup.provider(patient(600_000));
    let running = worker(&setup, &format!("{{http: {{url: '{url}/v1/analyze'}}}}"));
    setup.produce("p", 1);
    eventually_is(|| running.metric("sluicegate_worker_busy{provider=\"p\"}"), 1);
    let (code, said) = why(&running, "why-leased-0");
    assert_eq!(code, Some(0));
    assert!(said.contains("running: a worker of queue why-leased-p works on it"), "{said}");
    assert!(said.contains("it is in queue why-leased-p: a worker has it"), "{said}");
}

#[test]
fn a_dead_letter_has_the_chain_of_causes() {
    let setup = TestSetup::alone("why-dead");
    let script = "echo 'Traceback: line 7' >&2; echo 'ValueError: no image' >&2; exit 65";
    let cases = [
        (format!("{{command: [sh, -c, \"{script}\"]}}"), "standard error: Traceback: line 7"),
        ("{http: {url: 'http://127.0.0.1:1/x'}}".to_owned(), "Connection refused"),
    ];
    for (handler, cause) in cases {
        let running = worker(&setup, &handler);
        setup.produce("p", 1);
        eventually_is(|| setup.dead("p"), 1);
        let job = setup.jobs(1).into_iter().next().expect("a job");
        let (code, said) = run(&running, &["dlq", "show", "why-dead-p", &job]);
        assert_eq!(code, Some(0));
        let shown: Value = serde_json::from_str(&said).expect("JSON");
        let stack = shown["died"]["stack"].as_str().expect("a stack");
        let message = shown["died"]["message"].as_str().expect("a message");
        assert!(stack.starts_with(&format!("{message}\n  caused by: ")), "{stack}");
        assert!(stack.contains(cause), "{stack}");
        assert_eq!(shown["died"]["attempts"], 1);
        run(&running, &["dlq", "delete", "why-dead-p", "--yes"]);
        running.stop();
    }
}

#[test]
fn an_id_may_contain_any_character() {
    let setup = TestSetup::alone("why-ids");
    let running = worker(&setup, "{command: [sh, -c, 'exit 65']}");
    let queue = format!("{}-p", setup.name);
    for job in ["acme/site-1", "-v", "it's a $(job)?x=1#y%2F"] {
        let id = format!("--job={job}");
        assert_eq!(run(&running, &["queue", "send", &queue, "{}", &id]).0, Some(0), "{job}");
        eventually_is(|| setup.dead("p"), 1);
        let arguments =
            ["jobs", "why", "--json", "--admin", &running.admin, "--config", "x", "--", job];
        let mut command = sluicegate();
        command.args(arguments.map(|argument| match argument {
            "x" => running.config.as_os_str(),
            other => other.as_ref(),
        }));
        let output = command.output().expect("it ran");
        let places: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(places[0]["job"], *job, "the process knows it: {places}");
        assert_eq!((&places[0]["event"], &places[1]["state"]), (&"dead".into(), &"dead".into()));
        // The printed command works as it is.
        let arguments = ["jobs", "why", "--admin", &running.admin, "--"];
        let mut command = sluicegate();
        command.env("SLUICEGATE_CONFIG", &running.config).args(arguments).arg(job);
        let said = String::from_utf8(command.output().expect("it ran").stdout).expect("text");
        let (_, replay) = said.split_once("replay it with: sluicegate ").expect("a command");
        let program = sluicegate().get_program().to_owned();
        let script = format!("'{}' {} --dry-run", program.display(), replay.trim());
        let replayed = std::process::Command::new("sh").args(["-c", &script]).output();
        let replayed = String::from_utf8(replayed.expect("it ran").stdout).expect("text");
        assert!(replayed.starts_with('1'), "{script}: {replayed}");
        run(&running, &["dlq", "delete", &queue, "--yes"]);
    }
    running.stop();
}
