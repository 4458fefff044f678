//! Producers and consumers that use Microsoft's SDK and do not know our format.

use sluicegate_queue::{DeliveryTime, Options, Queue};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::servicebus::python;

use crate::support::{broker, calm, options};

/// Runs a Python program with `sender` and `receiver` of a queue.
fn foreign(queue: &str, program: &str) {
    let begin = "import sys; from azure.servicebus import ServiceBusClient, ServiceBusMessage\n\
        client = ServiceBusClient.from_connection_string(sys.argv[1], retry_total=0)\n\
        sender, receiver = client.get_queue_sender(sys.argv[2]), client.get_queue_receiver(sys.argv[2])\n";
    let end = "\nsender.close(); receiver.close(); client.close()";
    let program = format!("{begin}{program}{end}");
    let connection = calm().connection_string();
    let output = python().args(["-c", &program, &connection, queue]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// SPEC C1: bare JSON, identified by its field; the body and what the producer wrote beside it travel
/// unchanged.
#[test]
fn a_message_of_microsofts_sdk_is_passed_on_with_all_its_properties() {
    run(async {
        let options_of_queue =
            Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        let queue = Queue::new(broker(options(calm())), "foreign", options_of_queue);
        queue.create().await.expect("created");
        foreign(
            "foreign",
            "sender.send_messages(ServiceBusMessage(b'{\"AnalysisId\": 17}', message_id='m-1', \
             content_type='application/json', subject='crawl', reply_to='answers', \
             correlation_id='c-1', application_properties={'tries': 7, 'tenant': 't1'}))",
        );
        let delivery =
            queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        let message = delivery.message();
        assert_eq!((message.meta.job.as_str(), message.kind.as_deref()), ("17", Some("crawl")));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.headers["tenant"], "t1");
        delivery.defer(DeliveryTime::Now).await.expect("deferred");
        foreign(
            "foreign",
            "[m] = receiver.receive_messages(1, max_wait_time=60)\n\
             assert b''.join(m.body) == b'{\"AnalysisId\": 17}', m\n\
             p = {k.decode(): v.decode() if isinstance(v, bytes) else v for k, v in m.application_properties.items()}\n\
             assert (p['tries'], p['tenant']) == (7, 't1') and '\"deferrals\":1' in p['sluicegate'], p\n\
             assert (m.reply_to, m.correlation_id, m.subject) == ('answers', 'c-1', 'crawl'), m\n\
             assert m.message_id == '17/1', m\n\
             receiver.complete_message(m)",
        );
    });
}

#[test]
fn a_message_that_is_due_in_a_year_waits_in_service_bus_and_can_be_cancelled() {
    run(async {
        let queue = Queue::new(broker(options(calm())), "next-year", Options::default());
        queue.create().await.expect("created");
        let year = DeliveryTime::After(sluicegate_core::Span::from_secs(365 * 86_400));
        let [first, second] = ["x", "y"].map(sluicegate_queue::Message::new);
        for message in [&first, &second] {
            queue.send_at(message.clone(), year).await.expect("sent");
        }
        assert_eq!(queue.cancel(&first.meta.job).await, Ok(1));
        let depth = queue.depth().await.expect("a depth");
        assert_eq!((depth.ready, depth.delayed), (0, Some(1)));
        assert_eq!(queue.purge().await, Ok(Some(1)));
        assert_eq!(queue.depth().await.expect("a depth").delayed, Some(0));
    });
}
