//! Errors at the start and in a broken network.

use std::sync::Arc;

use sluicegate_queue::rabbitmq::Options as Rabbit;
use sluicegate_queue::{Error, Message, Options, Queue, RabbitMq};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::rabbitmq::RabbitServer;

use crate::support::{PATIENCE, calm};

async fn refusal(url: String) -> String {
    RabbitMq::connect(Rabbit::new(url)).await.expect_err("refused").to_string()
}

#[test]
fn a_wrong_address_login_or_virtual_host_is_an_error_with_a_remedy() {
    run(async {
        let port = calm().port;
        for (url, words) in [
            ("http://127.0.0.1".to_owned(), "write amqp://user:password@host:5672/"),
            ("amqp://127.0.0.1:1".to_owned(), "can't connect to 127.0.0.1:1"),
            (
                format!("amqp://guest:wrong-secret@127.0.0.1:{port}/%2f"),
                "check user and password in queue.url",
            ),
            (
                format!("amqp://guest:guest@127.0.0.1:{port}/nowhere"),
                "check the virtual host in queue.url",
            ),
        ] {
            let message = refusal(url.clone()).await;
            assert!(message.contains(words), "{url}: {message}");
            assert!(!message.contains("wrong-secret"), "{message}");
        }
    });
}

/// `amqp://host:5672/` is the default of the configuration.
#[test]
fn an_address_that_ends_with_a_slash_is_the_default_virtual_host() {
    run(async {
        let port = calm().port;
        for end in ["", "/", "/%2f"] {
            let url = format!("amqp://guest:guest@127.0.0.1:{port}{end}");
            let connected = RabbitMq::connect(Rabbit::new(url)).await;
            connected.unwrap_or_else(|error| panic!("{end:?}: {error}"));
        }
    });
}

/// In a network that drops everything, sending fails in time, and nothing is lost afterwards.
#[test]
fn a_black_hole_is_an_error_in_time_and_not_a_loss() {
    run(async {
        let network = FaultProxy::start(calm().port);
        let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", network.port);
        let broker = Arc::new(RabbitMq::connect(Rabbit::new(url)).await.expect("connected"));
        let queue = Queue::new(broker, "black-hole", Options::default());
        queue.create().await.expect("created");
        network.set(NetworkState::BlackHole);
        let sending = tokio::time::timeout(PATIENCE, queue.send(Message::new("x"))).await;
        let error = sending.expect("in time").expect_err("no answer");
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

/// Calls a function of Erlang's `sys` on the process of the queue `stuck`.
fn on_queue_process(node: &RabbitServer, function: &str) {
    node.ctl(&[
        "eval",
        &format!(
            r#"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"stuck">>)),
               ok = sys:{function}(amqqueue:get_pid(Q))."#
        ),
    ]);
}

/// Each queue that messages are published to has a channel of its own. One that does not answer is
/// opened anew.
#[test]
fn a_queue_that_does_not_answer_blocks_no_other_and_is_used_again() {
    let node = RabbitServer::start();
    run(async {
        let broker = RabbitMq::connect(Rabbit::new(node.url())).await.expect("connected");
        let broker = Arc::new(broker);
        let queues =
            ["stuck", "other"].map(|name| Queue::new(broker.clone(), name, Options::default()));
        for queue in &queues {
            queue.create().await.expect("created");
            queue.send(Message::new("before")).await.expect("sent");
        }
        let [stuck, other] = &queues;
        on_queue_process(&node, "suspend");
        let mut sending = Box::pin(stuck.send(Message::new("unanswered")));
        for _ in 0..20 {
            tokio::select! {
                biased;
                sent = &mut sending => panic!("a queue that does not answer: {sent:?}"),
                sent = other.send(Message::new("meanwhile")) => drop(sent.expect("sent")),
            }
        }
        let sent = tokio::time::timeout(PATIENCE, sending).await.expect("in time");
        let error = sent.expect_err("no answer");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        on_queue_process(&node, "resume");
        while stuck.send(Message::new("after")).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let mut consumer = stuck.consume(1).await.expect("a consumer");
        let mut bodies = Vec::new();
        while !bodies.contains(&"after".as_bytes().to_vec()) {
            let delivery = consumer.receive_one().await.expect("received");
            bodies.push(delivery.message().body.to_vec());
            delivery.ack().await.expect("acknowledged");
        }
        assert_eq!(bodies[0], "before".as_bytes());
    });
}
