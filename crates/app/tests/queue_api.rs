//! Tests of the queue API of a running service, on the embedded queue.

mod common;

use std::path::Path;

use common::{RunningService, get, post, sluicegate};
use serde_json::{Value, json};
use sluicegate_testkit::eventually;

/// Starts a service whose queues are in a folder.
fn serve(folder: &Path, more: &str) -> RunningService {
    let path = folder.join("queue.db");
    let config = format!("queue:\n  path: {}\n  job_id: AnalysisId\n{more}", path.display());
    RunningService::start(&config)
}

fn call(service: &RunningService, operation: &str, body: &Value) -> (u16, Value) {
    post(&format!("{}/v1/queues/jobs/{operation}", service.http), body, None)
}

#[track_caller]
fn ok(service: &RunningService, operation: &str, body: &Value) -> Value {
    let (status, answer) = call(service, operation, body);
    assert!(status == 200 || status == 201, "{operation} {body}: {status} {answer}");
    answer
}

/// Receives one message.
#[track_caller]
fn receive(service: &RunningService, options: Value) -> Value {
    let mut body = json!({ "wait": "20s" });
    body.as_object_mut().expect("a map").extend(options.as_object().expect("a map").clone());
    let mut answer = ok(service, "receive", &body);
    assert_eq!(answer["messages"].as_array().map(Vec::len), Some(1), "{answer}");
    answer["messages"][0].take()
}

fn depth(service: &RunningService) -> Value {
    let (status, text) = get(&format!("{}/v1/queues/jobs", service.http));
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn handle(message: &Value) -> Value {
    json!({ "handle": message["handle"] })
}

#[test]
fn a_message_is_sent_received_extended_and_acknowledged_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    let (status, text) = get(&format!("{}/v1/queues/jobs", service.http));
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("queue jobs does not exist"), "{text}");

    let sent = ok(&service, "send", &json!({"body": {"AnalysisId": "a-1", "n": 1}}));
    assert_eq!(sent, json!({"id": "a-1/0", "job": "a-1"}));
    let message = receive(&service, json!({}));
    assert_eq!(message["body"], json!({"AnalysisId": "a-1", "n": 1}));
    assert_eq!(message["contentType"], "application/json");
    assert_eq!((&message["job"], &message["attempt"]), (&json!("a-1"), &json!(0)));
    let state = depth(&service);
    assert_eq!((&state["ready"], &state["inFlight"]), (&json!(0), &json!(1)));
    assert_eq!(state["openLeases"], 1);

    let mut longer = handle(&message);
    longer["lease"] = json!("3600s");
    let extended = ok(&service, "extend", &longer);
    assert!(extended["leaseUntil"].as_str() > message["leaseUntil"].as_str(), "{extended}");
    assert_eq!(ok(&service, "ack", &handle(&message)), json!({"replayed": false}));
    assert_eq!(ok(&service, "ack", &handle(&message)), json!({"replayed": true}));
    let (status, problem) = call(&service, "requeue", &handle(&message));
    assert_eq!((status, &problem["reason"]), (409, &json!("LEASE_SETTLED")), "{problem}");
    assert_eq!(depth(&service)["inFlight"], 0);
    assert_eq!(service.metric("sluicegate_queue_api_messages_total{event=\"ack\"}"), 1);
    assert_eq!(service.metric("sluicegate_queue_api_leases"), 0);
    service.stop();
}

#[test]
fn every_body_travels_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    let deep = format!("{}1{}", "[".repeat(3_000), "]".repeat(3_000));
    // The text of the body, the request, and the answer.
    let precise = r#"{"n":12345678901234567890123, "a":1.50,"a":2}"#;
    let send = format!("{{\"body\":{precise}}}");
    let response = ureq::post(format!("{}/v1/queues/jobs/send", service.http))
        .header("content-type", "application/json")
        .send(send)
        .expect("an answer");
    assert_eq!(response.status(), 201);
    let response = ureq::post(format!("{}/v1/queues/jobs/receive", service.http))
        .header("content-type", "application/json")
        .send(r#"{"wait":"20s"}"#);
    let text = response.expect("an answer").body_mut().read_to_string().expect("a body");
    assert!(text.contains(&format!("\"body\":{precise}}}")), "{text}");

    for (request, field, value) in [
        (json!({"text": "plain\n"}), "base64", json!("cGxhaW4K")),
        (json!({"text": deep}), "base64", Value::Null),
        (json!({"base64": "AP8="}), "base64", json!("AP8=")),
        (json!({"body": null}), "body", Value::Null),
        (json!({"text": "{\"a\": 1}"}), "body", json!({"a": 1})),
    ] {
        ok(&service, "send", &request);
        let message = receive(&service, json!({}));
        assert!(message.get(field).is_some(), "{request} {message}");
        assert!(value.is_null() || message[field] == value, "{request} {message}");
        ok(&service, "ack", &handle(&message));
    }
    ok(&service, "send", &json!({"body": {}}));
    assert_eq!(receive(&service, json!({"format": "base64"}))["base64"], "e30=");
}

#[test]
fn a_batch_is_sent_delayed_received_and_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    let messages: Vec<_> = (0..20).map(|n| json!({"body": n, "job": format!("j-{n}")})).collect();
    let sent = ok(&service, "send-batch", &json!({ "messages": messages }));
    assert_eq!((&sent["failed"], &sent["results"][19]["job"]), (&json!(0), &json!("j-19")));
    ok(&service, "send", &json!({"body": "later", "delay": "300s"}));
    let soon = json!({"body": "soon", "notBefore": "2020-01-15T08:00:00Z", "priority": 9});
    ok(&service, "send", &soon);
    let mut handles = Vec::new();
    while handles.len() < 21 {
        let received = ok(&service, "receive", &json!({"max": 100, "wait": "20s"}));
        let messages = received["messages"].as_array().expect("messages").clone();
        handles.extend(messages.iter().map(|message| message["handle"].clone()));
    }
    assert_eq!(depth(&service)["delayed"], 1);
    handles.push(json!("n.00000000000000000000000000000000.7-7"));
    let acked = ok(&service, "ack", &json!({ "handles": handles }));
    assert_eq!(acked["failed"], 1, "{acked}");
    assert_eq!(acked["results"][21]["problem"]["reason"], "LEASE_LOST");
    assert_eq!(depth(&service)["inFlight"], 0);
}

#[test]
fn failures_are_counted_and_dead_lettered_with_their_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    ok(&service, "send", &json!({"body": {"n": 1}, "type": "crawl", "headers": {"x-a": "b"}}));
    let first = receive(&service, json!({}));
    ok(&service, "retry", &json!({"handle": first["handle"], "delay": "1ms"}));
    let second = receive(&service, json!({}));
    assert_eq!((&second["attempt"], &second["deferrals"]), (&json!(1), &json!(0)));
    ok(&service, "defer", &handle(&second));
    let third = receive(&service, json!({}));
    assert_eq!((&third["attempt"], &third["deferrals"]), (&json!(1), &json!(1)));
    assert_eq!((&third["type"], &third["headers"]["x-a"]), (&json!("crawl"), &json!("b")));
    let error = json!({"message": "no such repository", "stack": "at x"});
    ok(&service, "dead-letter", &json!({"handle": third["handle"], "error": error}));
    assert_eq!(depth(&service)["deadLetters"], 1);
    let config = service.config.to_str().expect("a path");
    let listed = sluicegate().args(["dlq", "list", "jobs", "--config", config]).output();
    let listed = String::from_utf8(listed.expect("it ran").stdout).expect("text");
    assert!(listed.contains("no such repository"), "{listed}");

    // Without a stack, the message is in its place.
    ok(&service, "send", &json!({"body": {"n": 2}, "job": "j-2"}));
    let other = receive(&service, json!({}));
    let error = json!({"message": "no such page"});
    ok(&service, "dead-letter", &json!({"handle": other["handle"], "error": error}));
    let shown = sluicegate().args(["dlq", "show", "jobs", "j-2", "--config", config]).output();
    let shown: Value = serde_json::from_slice(&shown.expect("it ran").stdout).expect("JSON");
    assert_eq!(shown["died"]["stack"], "no such page", "{shown}");
}

#[test]
fn a_message_keeps_its_maximum_of_attempts() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    ok(&service, "send", &json!({"body": 1, "maxAttempts": 1}));
    let batch = json!({"messages": [{"body": 2, "maxAttempts": 1000}, {"body": 3}]});
    assert_eq!(ok(&service, "send-batch", &batch)["failed"], 0);
    for expected in [json!(1), json!(1_000), Value::Null] {
        let message = receive(&service, json!({}));
        assert_eq!(message["maxAttempts"], expected, "{message}");
        ok(&service, "ack", &handle(&message));
    }
}

/// The message gets the content type of JSON.
#[test]
fn json_with_a_byte_order_mark_is_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    ok(&service, "send", &json!({"text": "\u{feff}{}"}));
    assert_eq!(receive(&service, json!({}))["contentType"], "application/json");
    let config = service.config.to_str().expect("a path");
    let send = ["queue", "send", "jobs", "\u{feff}{}", "--config", config];
    assert!(sluicegate().args(send).output().expect("it ran").status.success());
    assert_eq!(receive(&service, json!({}))["contentType"], "application/json");
}

#[test]
fn a_lease_outlives_the_node_that_granted_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = serve(folder.path(), "");
    ok(&first, "send-batch", &json!({"messages": [{"body": 1}, {"body": 2}, {"body": 3}]}));
    let leased = [1, 2, 3].map(|_| receive(&first, json!({})));
    let second = serve(folder.path(), "");
    assert_eq!(ok(&second, "ack", &handle(&leased[0])), json!({"replayed": false}));
    first.kill();
    ok(&second, "extend", &handle(&leased[1]));
    assert_eq!(ok(&second, "retry", &handle(&leased[1])), json!({"replayed": false}));
    assert_eq!(receive(&second, json!({}))["attempt"], 1);
    let error = json!({"message": "x"});
    ok(&second, "dead-letter", &json!({"handle": leased[2]["handle"], "error": error}));
    let state = depth(&second);
    assert_eq!((&state["inFlight"], &state["deadLetters"]), (&json!(1), &json!(1)), "{state}");
}

#[test]
fn a_shutdown_returns_leased_messages_and_ends_waiting_receives() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = serve(folder.path(), "  api: {leases_max: 2}\n");
    let second = serve(folder.path(), "");
    ok(&first, "send", &json!({"body": 1}));
    let leased = receive(&first, json!({}));
    let url = format!("{}/v1/queues/jobs/receive", first.http);
    // Repeated while a call of the loop below has taken the room.
    let waiting = std::thread::spawn(move || {
        loop {
            let answer = post(&url, &json!({"wait": "20s"}), None);
            if answer.0 != 429 {
                return answer;
            }
        }
    });
    // The lease and the waiting receive take all room.
    eventually(|| call(&first, "receive", &json!({})).0 == 429);
    first.stop();
    let (status, answer) = waiting.join().expect("no panic");
    assert_eq!((status, &answer["messages"]), (200, &json!([])), "{answer}");
    assert_eq!(receive(&second, json!({}))["job"], leased["job"], "at once, not after 300 s");
    let (status, problem) = call(&second, "ack", &handle(&leased));
    assert_eq!((status, &problem["reason"]), (410, &json!("LEASE_LOST")), "{problem}");
}

/// A handle must not move a message into a queue that its holder may use.
#[test]
fn another_node_settles_a_lease_only_through_its_own_queue() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (serve(folder.path(), ""), serve(folder.path(), ""));
    ok(&first, "send", &json!({"body": 1}));
    let leased = receive(&first, json!({}));
    let other = |operation: &str, body: &Value| {
        post(&format!("{}/v1/queues/other/{operation}", second.http), body, None)
    };
    assert!(other("send", &json!({"body": 2})).0 < 300);
    for operation in ["requeue", "extend", "ack"] {
        let (status, problem) = other(operation, &handle(&leased));
        assert_eq!((status, &problem["reason"]), (410, &json!("LEASE_LOST")), "{operation}");
    }
    ok(&second, "ack", &handle(&leased));
}

#[test]
fn leases_are_bounded_and_expire() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "  api: {leases_max: 2}\n");
    ok(&service, "send-batch", &json!({"messages": [{"body": 1}, {"body": 2}, {"body": 3}]}));
    let received = ok(&service, "receive", &json!({"max": 10, "wait": "20s", "lease": "1s"}));
    assert_eq!(received["messages"].as_array().map(Vec::len), Some(2));
    let (status, problem) = call(&service, "receive", &json!({}));
    if status != 200 {
        assert_eq!((status, &problem["reason"]), (429, &json!("TOO_MANY_LEASES")), "{problem}");
    }
    // The room of leases that have ended is free again.
    let mut seen = Vec::new();
    eventually(|| {
        let (status, answer) = call(&service, "receive", &json!({"wait": "20s"}));
        if status == 200 {
            let messages = answer["messages"].as_array().cloned().unwrap_or_default();
            for message in messages {
                seen.push(message["body"].clone());
                call(&service, "ack", &handle(&message));
            }
        }
        [1, 2, 3].iter().all(|n| seen.contains(&json!(n)))
    });
    let (status, problem) = call(&service, "ack", &handle(&received["messages"][0]));
    assert_eq!((status, &problem["reason"]), (410, &json!("LEASE_LOST")), "{problem}");
}

#[test]
fn nonsense_is_refused_with_the_field_and_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "  api: {queues: [jobs, crawl-*], body_limit: 1KB}\n");
    let handle = "n.00000000000000000000000000000000.";
    for (operation, body, status, text) in [
        ("send", json!({}), 400, "write exactly one of body (JSON), text and base64"),
        ("send", json!({"body": 1, "text": "a"}), 400, "exactly one"),
        ("send", json!({"base64": "%"}), 400, "base64: is not valid Base64"),
        ("send", json!({"body": 1, "job": "a\nb"}), 400, "job: invalid job id"),
        ("send", json!({"body": 1, "priority": 10}), 400, "priority: must be from 0 to 9"),
        ("send", json!({"body": 1, "priority": -1}), 400, "priority"),
        ("send", json!({"body": 1, "maxAttempts": 0}), 400, "maxAttempts: must be from 1 to 1000"),
        ("send", json!({"body": 1, "maxAttempts": 1_001}), 400, "maxAttempts: must be"),
        ("send", json!({"body": 1, "delay": "soon"}), 400, "delay"),
        ("send", json!({"body": 1, "delay": "15d"}), 400, "delay: must be from 0s to 14d"),
        ("send", json!({"body": 1, "notBefore": "tomorrow"}), 400, "notBefore: write a time"),
        ("send", json!({"body": 1, "headers": {"sluicegate": "x"}}), 400, "headers.sluicegate"),
        ("send", json!({"body": 1, "unknown": 1}), 400, "unknown field `unknown`"),
        ("send", json!({"text": "x".repeat(2_000)}), 413, "queue.api.body_limit"),
        ("send-batch", json!({"messages": []}), 400, "messages: has 0 entries"),
        ("send-batch", json!({"messages": [{"body": 1}, {}]}), 400, "messages[1].body: write"),
        ("receive", json!({"max": 0}), 400, "max: must be from 1 to 100"),
        ("receive", json!({"wait": "21s"}), 400, "wait: must be from 0s to 20s"),
        ("receive", json!({"lease": "1ms"}), 400, "lease: must be from 1s to 12h"),
        ("receive", json!({"format": "xml"}), 400, "format: unknown value `xml`, expected"),
        ("receive", json!("all"), 400, "the body must be an object, not the string \"all\""),
        ("receive", json!({"max": "all"}), 400, "max: must be a whole number"),
        ("send", json!({"body": 1, "headers": []}), 400, "headers: must be an object, not"),
        ("send-batch", json!({"messages": {}}), 400, "messages: must be an array, not an object"),
        ("ack", json!({}), 400, "write either handle or handles"),
        ("ack", json!({"handle": "x"}), 400, "handle: not a lease handle"),
        ("ack", json!({"handle": handle}), 409, "node n holds the lease"),
        ("extend", json!({"handle": handle, "lease": "9"}), 400, "lease"),
        ("dead-letter", json!({"handle": handle}), 400, "error"),
        ("dead-letter", json!({"handle": handle, "error": {"message": " "}}), 400, "is empty"),
    ] {
        let (found, problem) = call(&service, operation, &body);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!((found, detail.contains(text)), (status, true), "{operation} {body}: {problem}");
    }
    let other = |name: &str| get(&format!("{}/v1/queues/{name}", service.http));
    assert_eq!(other("secrets").0, 403);
    assert!(other("secrets").1.contains("QUEUE_NOT_ALLOWED"), "{}", other("secrets").1);
    assert_eq!(other("crawl-1").0, 404, "allowed, but not there");
    assert_eq!(other("http:%2f%2f10.0.0.1%2fq").0, 403);
    assert_eq!(other("%00").0, 400);
}

#[test]
fn a_service_without_queues_says_so() {
    let service = RunningService::start("");
    let (status, problem) = call(&service, "send", &json!({"body": 1}));
    assert_eq!(status, 404);
    assert_eq!(problem["reason"], "NO_QUEUES", "{problem}");
}

#[test]
fn a_broker_that_is_down_does_not_stop_the_limiter() {
    let config = "queue: {kind: rabbitmq, url: 'amqp://guest:guest@127.0.0.1:9/'}\n";
    let service = RunningService::start(config);
    let (status, answer) = service.allow(&json!({"userId": "u", "modelId": "m"}));
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)));
    let (status, problem) = call(&service, "send", &json!({"body": 1}));
    assert_eq!((status, &problem["reason"]), (503, &json!("BROKER_UNAVAILABLE")), "{problem}");
}

#[test]
fn queues_that_only_clients_use_are_known_to_the_dashboard_and_to_jobs_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "");
    ok(&service, "send", &json!({"body": {"AnalysisId": "a-1"}}));
    ok(&service, "send", &json!({"body": {"AnalysisId": "a-2"}, "delay": "1h"}));
    let why = |job: &str| {
        let mut command = sluicegate();
        command.args(["jobs", "why", job, "--admin", &service.admin, "--config"]);
        let output = command.arg(&service.config).output().expect("the command runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = why("a-1");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("sent to queue jobs by a client of the queue API"), "{text}");
    assert!(text.contains("it is in queue jobs: ready"), "{text}");
    let (_, text) = why("a-2");
    assert!(text.contains("it is in queue jobs: waiting for its delay until "), "{text}");

    let message = receive(&service, json!({}));
    let (_, text) = why("a-1");
    assert!(text.contains("a client of the queue API has it, from queue jobs"), "{text}");
    let mut dead = handle(&message);
    dead["error"] = json!({"message": "no such page"});
    ok(&service, "dead-letter", &dead);
    let (_, text) = why("a-1");
    assert!(text.contains("dead letter of queue jobs: no such page"), "{text}");

    // The depth is polled.
    eventually(|| {
        let (_, text) = get(&format!("{}/metrics", service.admin));
        let has = |line: &str| text.lines().any(|other| other == line);
        has("sluicegate_queue_depth{queue=\"jobs\",state=\"delayed\"} 1")
            && has("sluicegate_queue_depth{queue=\"jobs\",state=\"dead\"} 1")
    });
    let (_, letters) = get(&format!("{}/v1/dashboard/dead-letters?queue=jobs", service.admin));
    assert!(letters.contains("no such page"), "{letters}");
    service.stop();
}

/// Three letters of two queues with one dead-letter queue were three of each: six in every sum.
#[test]
fn a_dead_letter_queue_that_queues_share_is_counted_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = serve(folder.path(), "  dead_letter: all-dlq\n");
    for (queue, job) in [("a", "j-1"), ("a", "j-2"), ("b", "j-3")] {
        let call = |operation: &str, body: &Value| {
            let (status, answer) =
                post(&format!("{}/v1/queues/{queue}/{operation}", service.http), body, None);
            assert!(status == 200 || status == 201, "{operation}: {status} {answer}");
            answer
        };
        call("send", &json!({"body": {}, "job": job}));
        let received = call("receive", &json!({"wait": "20s"}));
        let mut dead = handle(&received["messages"][0]);
        dead["error"] = json!({"message": "no such page"});
        call("dead-letter", &dead);
    }
    let admin = |path: &str| -> Value {
        let (status, text) = get(&format!("{}{path}", service.admin));
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    };
    // The depth is polled.
    eventually(|| {
        let (_, text) = get(&format!("{}/metrics", service.admin));
        let is_dead = |line: &&str| {
            line.starts_with("sluicegate_queue_depth") && line.contains("state=\"dead\"")
        };
        let dead: Vec<_> = text.lines().filter(is_dead).collect();
        dead == ["sluicegate_queue_depth{queue=\"all-dlq\",state=\"dead\"} 3"]
    });
    let output = sluicegate().args(["top", "--json", "--admin", &service.admin]).output();
    let top: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("JSON");
    let queues = top["queues"].as_array().expect("queues").iter();
    let dead: Vec<_> = queues.map(|one| (one["queue"].as_str(), one["dead"].as_f64())).collect();
    assert_eq!(dead, [(Some("a"), None), (Some("all-dlq"), Some(3.0)), (Some("b"), None)]);
    let problems = admin("/v1/dashboard/overview")["problems"].take();
    let titles: Vec<_> = problems.as_array().expect("problems").iter().collect();
    assert_eq!(titles.len(), 1, "{problems}");
    assert_eq!(titles[0]["title"], "Dead letters in all-dlq: 3");

    let listed = |queue: &str| {
        let letters = admin(&format!("/v1/dashboard/dead-letters?queue={queue}"))["letters"].take();
        letters.as_array().expect("letters").len()
    };
    assert_eq!([listed("a"), listed("b"), listed("all-dlq")], [2, 1, 3]);
    let replay = |dry_run: bool| {
        let body = json!({"queue": "all-dlq", "reason": "fixed", "dryRun": dry_run});
        let url = format!("{}/v1/dashboard/dead-letters/replay", service.admin);
        let (status, answer) = post(&url, &body, None);
        assert_eq!(status, 200, "{answer}");
        answer["count"].clone()
    };
    assert_eq!([replay(true), replay(false)], [json!(3), json!(3)]);
    for (queue, ready) in [("a", 2), ("b", 1)] {
        let (_, text) = get(&format!("{}/v1/queues/{queue}", service.http));
        let state: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(state["ready"], ready, "each letter is back in its queue: {text}");
    }
    assert_eq!(admin("/v1/dashboard/audit")["audit"][0]["detail"], "3 dead letters");
    service.stop();
}
