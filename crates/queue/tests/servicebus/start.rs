//! Errors at the start and in a broken network.

use sluicegate_queue::ServiceBus;
use sluicegate_queue::servicebus::{Credential, Options};
use sluicegate_queue::{Broker as _, Error, Message, Options as QueueOptions, Queue, QueueName};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm, options, options_behind};

#[test]
fn a_wrong_namespace_and_a_missing_server_are_errors_with_a_remedy() {
    run(async {
        let nobody = Credential::SharedKey { name: "root".into(), key: "geheim".into() };
        let unknown = Options::new("no-such-namespace.invalid", nobody);
        let silent = Options { port: Some(1), ..options(calm()) };
        for options in [unknown, silent] {
            let error = ServiceBus::connect(options).await.expect_err("no server").to_string();
            assert!(error.contains("check the namespace"), "{error}");
            assert!(!error.contains("geheim"), "{error}");
        }
    });
}

#[test]
fn a_bad_name_and_a_message_beyond_the_tier_are_errors_with_a_remedy() {
    run(async {
        let server = sluicegate_testkit::servicebus::ServiceBusServer::start_with(&[]);
        let broker = broker(options(&server));
        let bad = QueueName::Live("a b".to_owned());
        let error = broker.create(&bad).await.expect_err("a bad name").to_string();
        assert!(error.contains("letters, digits"), "{error}");
        let queue = Queue::new(broker, "standard-tier", QueueOptions::default());
        queue.create().await.expect("created");
        let error = queue.send(Message::new(vec![b'x'; 300_000])).await.expect_err("too large");
        assert!(matches!(error, Error::TooLarge { max: 262_144, .. }), "{error}");
        queue.send(Message::new(vec![b'x'; 250_000])).await.expect("it fits");
    });
}

/// In a network that drops everything, sending fails in time, and nothing is lost afterwards.
#[test]
fn a_black_hole_is_an_error_in_time_and_not_a_loss() {
    run(async {
        let network = FaultProxy::start(calm().port);
        let broker = broker(options_behind(calm(), &network));
        let queue = Queue::new(broker, "black-hole", QueueOptions::default());
        queue.create().await.expect("created");
        network.set(NetworkState::BlackHole);
        let error = queue.send(Message::new("x")).await.expect_err("no answer");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        network.set(NetworkState::Cut);
        network.set(NetworkState::Healthy);
        while queue.send(Message::new("y")).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let mut bodies = vec![];
        while !bodies.contains(&"y".as_bytes().to_vec()) {
            let delivery = consumer.receive_one().await.expect("received");
            bodies.push(delivery.message().body.to_vec());
            delivery.ack().await.expect("acknowledged");
        }
    });
}

/// A queue that is deleted while it is used is named, and is used again when it is back.
#[test]
fn a_deleted_queue_is_named() {
    run(async {
        let broker = broker(options(calm()));
        let queue = Queue::new(broker.clone(), "deleted", QueueOptions::default());
        queue.create().await.expect("created");
        queue.send(Message::new("x")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
        crate::support::delete(calm(), "deleted");
        let missing = Error::NoQueue { queue: "deleted".to_owned() };
        while queue.send(Message::new("x")).await != Err(missing.clone()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(consumer.receive_one().await.err(), Some(missing.clone()));
        assert_eq!(queue.check().await, Err(missing));
        queue.create().await.expect("created again");
        queue.send(Message::new("y")).await.expect("sent");
    });
}

/// Links to a queue that does not exist are refused. That must not end other links of the connection.
#[test]
fn a_missing_queue_does_not_disturb_the_others() {
    run(async {
        let network = FaultProxy::start(calm().port);
        let broker = broker(options_behind(calm(), &network));
        let [missing, there] = ["missing", "undisturbed"]
            .map(|name| Queue::new(broker.clone(), name, QueueOptions::default()));
        there.create().await.expect("created");
        let no_queue = Err(Error::NoQueue { queue: "missing".to_owned() });
        for _ in 0..100 {
            let (refused, found, sent) =
                tokio::join!(missing.check(), there.check(), there.send(Message::new("x")));
            assert_eq!((refused, found), (no_queue.clone(), Ok(())));
            sent.expect("sent");
        }
        assert_eq!(network.connections(), 1);
    });
}
