//! The reference scenarios of a two-tier dispatch (`tests/dispatch/scenarios.rs`) in a short form: 200
//! jobs and 100 calls in 10 s. `tests/dispatch` runs the full form, 1,000 jobs and 500 calls per minute,
//! on the embedded queue and on RabbitMQ. The test servers here are slower by an order of magnitude:
//! Google's fake and fauxqs look through all messages for each that they hand out.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use simulators::Record;
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{PubSub, ServiceBus, Sqs, WallClock};
use sluicegate_testkit::eventually_is;
use sluicegate_testkit::pubsub::PubSubServer;
use sluicegate_testkit::servicebus::ServiceBusServer;
use sluicegate_testkit::sqs::SqsServer;

use crate::common::RunningService;
use crate::support::{TestSetup, patient, prove, receive_all, worked};

const JOBS: usize = 200;
const LIMIT: usize = 100;
const WINDOW: Span = Span::from_secs(10);

static PUBSUB: LazyLock<PubSubServer> = LazyLock::new(PubSubServer::start);
static SQS: LazyLock<SqsServer> = LazyLock::new(SqsServer::fauxqs);
static SERVICE_BUS: LazyLock<ServiceBusServer> = LazyLock::new(ServiceBusServer::start);

/// Returns a setup with queues of Pub/Sub.
pub(crate) fn pubsub(name: &str) -> TestSetup {
    let endpoint = PUBSUB.endpoint();
    let section = format!(
        "queue: {{kind: pubsub, project: tests, endpoint: '{endpoint}', job_id: AnalysisId, visibility: 60s}}\n"
    );
    TestSetup::cloud(name, section, |runtime| {
        let options = sluicegate_queue::pubsub::Options {
            project: Some("tests".to_owned()),
            endpoint: Some(endpoint),
            visibility: Span::from_secs(60),
            ..Default::default()
        };
        Arc::new(runtime.block_on(PubSub::connect(options)).expect("a client"))
    })
}

/// Returns a setup with queues of Service Bus.
pub(crate) fn servicebus(name: &str) -> TestSetup {
    let (connection_string, admin_url) = (SERVICE_BUS.connection_string(), SERVICE_BUS.admin_url());
    let section = format!(
        "queue: {{kind: servicebus, connection_string: '{connection_string}', admin_url: '{admin_url}', job_id: AnalysisId, visibility: 60s}}\n"
    );
    TestSetup::cloud(name, section, |_| {
        let options =
            sluicegate_queue::servicebus::Options::from_connection_string(&connection_string);
        let mut options = options.expect("a complete string");
        options.admin_url = Some(admin_url);
        Arc::new(ServiceBus::new(options).expect("valid options"))
    })
}

/// Returns a setup with queues of SQS.
pub(crate) fn sqs(name: &str) -> TestSetup {
    let endpoint = format!("http://127.0.0.1:{}", SQS.port);
    let section = format!(
        "queue: {{kind: sqs, region: us-east-1, endpoint: '{endpoint}', job_id: AnalysisId, visibility: 60s}}\n"
    );
    TestSetup::cloud(name, section, |_| {
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let login = Credentials::new("test", "test", None, None, "tests");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(endpoint)
            .http_client(http)
            .credentials_provider(SharedCredentialsProvider::new(login))
            .build();
        Arc::new(Sqs::with_config(&config).expect("a client"))
    })
}

/// Configuration with a limit of the dispatcher, and the limit of the worker.
fn config(setup: &TestSetup, url: &str, dispatch_limit: &str, delay: &str) -> String {
    let name = &setup.name;
    format!(
        "booking: {{slack: 4s}}
dispatch:
  source: {name}-raw
  {delay}
  providers:
    gemini: {{queue: {name}-gemini, limit: {dispatch_limit}, key: '{name}:dispatcher:<provider>'}}
workers:
  - provider: gemini
    limit: {LIMIT}/10s
    key: '{name}:worker:<provider>'
    concurrency: 50
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// C10 (i): the dispatcher alone. Half of the messages go at once, half after the delay and not
/// before.
pub(crate) fn half_goes_at_once_and_half_after_the_delay(setup: &TestSetup) {
    setup.produce("raw", JOBS);
    let config = config(setup, "http://127.0.0.1:1", &format!("{LIMIT}/h"), "delay: 5s");
    let dispatcher = setup.run("dispatch", &config);
    let dispatched = |what: &str| {
        dispatcher.metric(&format!("sluicegate_dispatch_{what}_total{{provider=\"gemini\"}}"))
    };
    // A message is counted after it was sent.
    let counted = || ["checked", "allowed", "delayed"].map(dispatched);
    eventually_is(counted, [JOBS as u64, LIMIT as u64, (JOBS - LIMIT) as u64]);
    let [mut at_once, mut later] = [BTreeSet::new(), BTreeSet::new()];
    let times = receive_all(setup, "gemini", JOBS, |message| {
        let job = message.meta.job.to_string();
        match message.meta.not_before {
            None => at_once.insert(job),
            Some(at) => {
                assert!(at <= WallClock.now(), "{job} came before {at}");
                later.insert(job)
            }
        };
    });
    assert_eq!((at_once.len(), later.len()), (LIMIT, JOBS - LIMIT));
    assert_eq!(times.into_keys().collect::<BTreeSet<_>>(), setup.jobs(JOBS));
    dispatcher.stop();
    assert_eq!(setup.dead_jobs("raw"), BTreeSet::new());
}

/// C10 (ii): the dispatcher is bypassed; the worker's own counter keeps the limit.
pub(crate) fn a_bypassed_worker_keeps_the_limit(setup: &TestSetup) {
    setup.produce("gemini", JOBS);
    let (url, record) = setup.provider(patient(5));
    let worker = setup.run("worker", &config(setup, &url, "100/10s", "delay: 5s"));
    eventually_is(|| worked(&worker, "gemini", "done"), JOBS as u64);
    assert!(worked(&worker, "gemini", "requeued") > 0);
    all_succeeded(setup, worker, &record);
}

/// C10 (iii): end to end, a fixed delay: all succeed.
pub(crate) fn everything_succeeds_with_a_fixed_delay(setup: &TestSetup) {
    setup.produce("raw", JOBS);
    let (url, record) = setup.provider(patient(5));
    let running = setup.run("dispatch,worker", &config(setup, &url, "100/10s", "delay: 5s"));
    eventually_is(|| worked(&running, "gemini", "done"), JOBS as u64);
    all_succeeded(setup, running, &record);
}

/// C10 (iii), booked: all succeed, and nothing is requeued.
pub(crate) fn everything_succeeds_booked(setup: &TestSetup) {
    setup.produce("raw", JOBS);
    let (url, record) = setup.provider(patient(5));
    let delay = "delay: booked\n  burst: 20";
    let running = setup.run("dispatch,worker", &config(setup, &url, "100/10s", delay));
    eventually_is(|| worked(&running, "gemini", "done"), JOBS as u64);
    assert_eq!(worked(&running, "gemini", "requeued"), 0);
    all_succeeded(setup, running, &record);
}

/// Asserts that all jobs succeeded, none failed or is a dead letter, each was called once and has one
/// result, and no window had more calls than the limit.
fn all_succeeded(setup: &TestSetup, running: RunningService, record: &Record) {
    assert_eq!(worked(&running, "gemini", "failed"), 0);
    assert_eq!(worked(&running, "gemini", "dead"), 0);
    setup.each_was_called_once(JOBS, record);
    let results = receive_all(setup, "results", JOBS, |_| {});
    assert_eq!(results.into_keys().collect::<BTreeSet<_>>(), setup.jobs(JOBS));
    for queue in ["gemini", "raw"] {
        assert_eq!(setup.dead_jobs(queue), BTreeSet::new(), "{queue}");
    }
    prove(LIMIT, WINDOW, &[running.stop()], record);
}
