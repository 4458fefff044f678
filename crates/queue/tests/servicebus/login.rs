//! Keys, signatures, Entra identities, and their rights.

use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::servicebus::{Credential, EntraIdentity, EntraProof, Options};
use sluicegate_queue::{
    Broker as _, DeadLetterFilter, Error, Message, Options as QueueOptions, Queue, QueueName,
    WallClock,
};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::servicebus::ServiceBusServer;

use crate::support::{broker, options, options_with_key};

/// Lifetime of the tokens in the tests in which they expire.
const SHORT: Span = Span::from_secs(4);

fn server() -> ServiceBusServer {
    ServiceBusServer::start_with(&[
        "--key",
        "sender:c2VuZA:Send",
        "--key",
        "worker:d29yaw:Send,Listen",
        "--client",
        "app:pass word&+",
        "--client",
        "pod:token of the pod",
        "--token-seconds",
        "4",
    ])
}

async fn created(server: &ServiceBusServer) -> Queue {
    let queue = Queue::new(broker(options(server)), "login", QueueOptions::default());
    queue.create().await.expect("created");
    queue
}

fn refused(error: &Error, words: &str) {
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(!error.is_transient());
}

#[test]
fn a_wrong_key_and_a_missing_right_are_errors_with_a_remedy() {
    run(async {
        let server = server();
        let queue = created(&server).await;
        queue.send(Message::new("x")).await.expect("sent");
        let place = QueueName::Live("login".to_owned());
        let wrong = broker(options_with_key(&server, "sender", "d3Jvbmc="));
        refused(
            &wrong.check(&place).await.expect_err("wrong"),
            "check the key in queue.connection_string",
        );
        refused(&wrong.create(&place).await.expect_err("wrong"), "the right Manage");
        // May send, may not receive.
        let sender = broker(options_with_key(&server, "sender", "c2VuZA"));
        let may_send = Queue::new(sender, "login", QueueOptions::default());
        may_send.send(Message::new("y")).await.expect("it has the right");
        refused(&may_send.consume(1).await.expect_err("no right"), "the rights Send and Listen");
        // May work, may not create or count.
        let worker = broker(options_with_key(&server, "worker", "d29yaw"));
        refused(
            &worker.create(&QueueName::Live("new".to_owned())).await.expect_err("no right"),
            "az servicebus queue create",
        );
        let may_work = Queue::new(worker, "login", QueueOptions::default());
        may_work.check().await.expect("it may use both queues");
        assert_eq!(may_work.depth().await.expect("counted by browsing").ready, 2);
        let missing = Queue::new(
            broker(options_with_key(&server, "worker", "d29yaw")),
            "nowhere",
            QueueOptions::default(),
        );
        assert_eq!(missing.depth().await, Err(Error::NoQueue { queue: "nowhere".to_owned() }));
        let mut consumer = may_work.consume(1).await.expect("a consumer");
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
        assert_eq!(
            may_work.dead_letters().list(&DeadLetterFilter::default(), 1, |_| {}).await,
            Ok(0)
        );
    });
}

#[test]
fn a_signature_that_has_expired_is_an_error_with_a_remedy() {
    run(async {
        let server = server();
        created(&server).await;
        let text = "SharedAccessSignature sr=sb%3A%2F%2Fx&sig=x&se=1&skn=sender";
        let credential = Credential::Signature(text.to_owned());
        let broker = broker(Options { credential, ..options(&server) });
        let error = broker.check(&QueueName::Live("login".to_owned())).await.expect_err("expired");
        refused(&error, "not expired");
    });
}

/// Returns options with an Entra identity that the double knows.
fn entra(server: &ServiceBusServer, client: &str, proof: EntraProof) -> Options {
    let credential = Credential::Entra(EntraIdentity {
        authority: server.admin_url(),
        tenant: "contoso".to_owned(),
        client: client.to_owned(),
        proof,
    });
    Options { credential, ..options(server) }
}

/// Sends and receives for several lifetimes of a token.
async fn works_beyond_its_token(options: Options) {
    let queue = Queue::new(broker(options), "login", QueueOptions::default());
    queue.create().await.expect("there");
    let mut consumer = queue.consume(1).await.expect("a consumer");
    let begin = WallClock.now();
    while WallClock.now().since(begin) < SHORT + SHORT + SHORT {
        queue.send(Message::new("x")).await.expect("sent");
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn tokens_of_a_key_are_renewed() {
    run(async {
        let server = server();
        works_beyond_its_token(Options { token_lifetime: SHORT, ..options(&server) }).await;
    });
}

#[test]
fn a_client_secret_of_entra_logs_in_and_its_tokens_are_renewed() {
    run(async {
        let server = server();
        let secret = EntraProof::Secret("pass word&+".to_owned());
        works_beyond_its_token(entra(&server, "app", secret)).await;
    });
}

#[test]
fn a_workload_identity_logs_in_with_the_token_in_its_file() {
    run(async {
        let server = server();
        created(&server).await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let place = QueueName::Live("login".to_owned());
        let of_file = entra(&server, "pod", EntraProof::TokenFile(path.clone()));
        let error = broker(of_file.clone()).check(&place).await.expect_err("no file");
        refused(&error, "can't read AZURE_FEDERATED_TOKEN_FILE");
        std::fs::write(&path, "token of the pod\n").expect("a file");
        broker(of_file).check(&place).await.expect("it logs in");
    });
}

#[test]
fn an_identity_that_entra_refuses_is_an_error_with_a_remedy() {
    run(async {
        let server = server();
        created(&server).await;
        let place = QueueName::Live("login".to_owned());
        for (client, words) in [("app", "AADSTS7000215"), ("stranger", "AADSTS700016")] {
            let options = entra(&server, client, EntraProof::Secret("geheim".to_owned()));
            let error = broker(options).check(&place).await.expect_err("refused");
            refused(&error, words);
            refused(&error, "check AZURE_TENANT_ID");
            assert!(!error.to_string().contains("geheim"), "{error}");
        }
    });
}
