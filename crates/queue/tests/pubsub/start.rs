//! Errors at the start.

use sluicegate_queue::pubsub::Options as Connection;
use sluicegate_queue::{Broker as _, Error, Message, Options, Queue, QueueName};
use sluicegate_testkit::queue::run;

use crate::support::{connect, options, options_for, server};

fn live(name: &str) -> QueueName {
    QueueName::Live(name.to_owned())
}

#[test]
fn a_missing_server_and_a_bad_name_are_errors_with_a_remedy() {
    run(async {
        let unreachable = connect(options_for("http://127.0.0.1:1".to_owned())).await;
        let error = unreachable.check(&live("jobs")).await.expect_err("no server");
        assert!(error.is_transient() && error.to_string().contains("queue.endpoint"), "{error}");
        let broker = connect(options()).await;
        for bad in ["a b", "q", "7up", "google-jobs", "projects/p/topics/t", ""] {
            let error = broker.create(&live(bad)).await.expect_err(bad);
            assert!(error.to_string().contains("beginning with a letter"), "{error}");
        }
        let strange = Connection { endpoint: Some("http://[".to_owned()), ..options() };
        let error = sluicegate_queue::PubSub::connect(strange).await.expect_err("no address");
        assert!(error.to_string().contains("http://host:port"), "{error}");
    });
}

#[test]
fn a_wrong_project_a_missing_right_and_an_expired_token_are_errors_with_a_remedy() {
    run(async {
        for (project, remedy) in [
            ("no-such-project", "check queue.project"),
            ("denied-project", "grant the account the roles pubsub.publisher"),
            ("expired-project", "the credential is invalid or expired"),
        ] {
            let broker =
                connect(Connection { project: Some(project.to_owned()), ..options() }).await;
            let name = live("jobs");
            let sent = Queue::new(broker.clone(), "jobs", Options::default());
            let sent = sent.send(Message::new("x")).await.map(drop);
            for refused in [broker.check(&name).await, broker.create(&name).await, sent] {
                let error = refused.expect_err(project);
                assert!(matches!(error, Error::Refused { .. }), "{error}");
                assert!(error.to_string().contains(remedy), "{error}");
                assert!(!error.is_transient(), "{error}");
            }
        }
    });
}

/// Pub/Sub would accept messages for a topic without a subscription, and drop them.
#[test]
fn nothing_is_sent_to_a_topic_without_a_subscription() {
    run(async {
        // With another suffix, the topic exists and the subscription does not.
        let other = Connection { subscription_suffix: "-other".to_owned(), ..options() };
        let created = Queue::new(connect(other).await, "unread", Options::default());
        created.create().await.expect("created");
        let queue = Queue::new(connect(options()).await, "unread", Options::default());
        let error = queue.send(Message::new("x")).await.expect_err("no subscription");
        assert_eq!(error, Error::NoQueue { queue: "unread".to_owned() });
        queue.create().await.expect("the subscription is created");
        queue.send(Message::new("x")).await.expect("sent");
    });
}

#[test]
fn a_subscription_that_is_not_what_the_configuration_says_is_refused() {
    run(async {
        let queue = Queue::new(connect(options()).await, "plain", Options::default());
        queue.create().await.expect("created");
        for (changed, said) in [
            (Connection { exactly_once: true, ..options() }, "--enable-exactly-once-delivery"),
            (Connection { ordering: true, ..options() }, "--enable-message-ordering"),
        ] {
            let error = connect(changed).await.check(&live("plain")).await.expect_err(said);
            assert!(matches!(error, Error::Unusable { .. }), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    });
}

/// The policy names a dead-letter topic whose subscription is missing.
#[test]
fn a_dead_letter_topic_without_a_subscription_is_refused() {
    run(async {
        let broker = connect(options()).await;
        let (name, dead) = (live("unburied"), QueueName::Dead("unburied-dlq".to_owned()));
        broker.create_with_dead_letters(&name, &dead).await.expect("created");
        let error = broker.check(&name).await.expect_err("dead letters would be lost");
        assert!(error.to_string().contains("has no subscription"), "{error}");
        broker.create(&dead).await.expect("created");
        broker.check(&name).await.expect("usable");
    });
}

/// Pub/Sub counts deliveries only with a policy, and our consumers must count them.
#[test]
fn a_subscription_that_does_not_count_deliveries_is_not_consumed() {
    run(async {
        let broker = connect(options()).await;
        broker.create(&live("uncounted")).await.expect("created");
        let queue = Queue::new(broker, "uncounted", Options::default());
        queue.send(Message::new("x")).await.expect("its producers need no policy");
        assert_eq!(queue.peek(1, |_| {}).await, Ok(1));
        let error = queue.consume(1).await.expect_err("redeliveries are not counted");
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
        let remedy = "gcloud pubsub subscriptions update uncounted --dead-letter-topic=";
        assert!(error.to_string().contains(remedy), "{error}");
    });
}

/// `PUBSUB_EMULATOR_HOST`, in a process of its own.
#[test]
fn the_variables_of_google_are_honoured() {
    const TEST: &str = "start::the_variables_of_google_are_honoured";
    if std::env::var_os("PUBSUB_EMULATOR_HOST").is_some() {
        return run(async {
            let queue = Queue::new(connect(Connection::default()).await, "env", Options::default());
            queue.create().await.expect("created");
            queue.send(Message::new("x")).await.expect("sent");
        });
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
    child.args(["--exact", TEST, "--nocapture"]).env("GOOGLE_CLOUD_PROJECT", "tests");
    child.env("PUBSUB_EMULATOR_HOST", format!("127.0.0.1:{}", server().port));
    let child = child.output().expect("the test starts itself");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let got = server().sdk("receive", &["env"]);
    assert!(got.contains(r#""body":"x""#), "{got}");
}
