//! Errors at the start.

use sluicegate_queue::{Broker as _, Error, QueueName, Sqs};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::sqs::SqsServer;

use crate::support::{config, moto};

#[test]
fn a_missing_server_a_fifo_queue_and_a_bad_name_are_errors_with_a_remedy() {
    run(async {
        let unreachable = Sqs::with_config(&config(1)).expect("a client");
        let error =
            unreachable.check(&QueueName::Live("q".to_owned())).await.expect_err("no server");
        assert!(error.to_string().contains("queue.endpoint"), "{error}");
        let moto = Sqs::with_config(&config(moto().port)).expect("a client");
        let error = moto.check(&QueueName::Live("q.fifo".to_owned())).await.expect_err("FIFO");
        assert!(matches!(&error, Error::Unusable { detail, .. } if detail.contains("standard")));
        let error = moto.create(&QueueName::Live("a b".to_owned())).await.expect_err("a bad name");
        assert!(error.to_string().contains("letters, digits"), "{error}");
    });
}

#[test]
fn a_refused_login_is_an_error_with_a_remedy() {
    run(async {
        let server = SqsServer::wary_moto();
        let sqs = Sqs::with_config(&config(server.port)).expect("a client");
        let place = QueueName::Live("q".to_owned());
        for refused in [sqs.check(&place).await, sqs.create(&place).await] {
            let error = refused.expect_err("unknown login");
            assert!(matches!(error, Error::Refused { .. }), "{error}");
            assert!(error.to_string().contains("check the credentials"), "{error}");
            assert!(!error.is_transient(), "{error}");
        }
    });
}
