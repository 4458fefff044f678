//! Every job ends with a result or a dead letter although messages are poison or a provider misbehaves, on
//! every broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use jiff::fmt::rfc2822::DateTimePrinter;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetterFilter, DeliveryTime, Error, JobId, Message, WallClock};
use sluicegate_testkit::eventually_is;

use crate::common::get;
use crate::support::{TestSetup, lock, patient, receive_all, worked};

/// Maximum number of attempts of a job.
const ATTEMPTS: usize = 3;

pub(crate) fn config(setup: &TestSetup, url: &str, limit: &str) -> String {
    let name = &setup.name;
    format!(
        "dispatch:
  source: {name}-raw
  strategy: MESSAGE_BASED
  field: Provider
  fixed: gemini
  delay: 1s
  providers:
    gemini: {{queue: {name}-gemini, limit: {limit}}}
workers:
  - provider: gemini
    limit: {limit}
    concurrency: 50
    attempts: {ATTEMPTS}
    backoff: {{from: 20ms, to: 200ms}}
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze', result: analysis}}}}
"
    )
}

/// Depth of a body that no JSON tree can hold.
const DEPTH: usize = 5_000;

/// A good message beside them is done.
pub(crate) fn poison_messages_become_dead_letters_unchanged(setup: &TestSetup) {
    let unknown = r#"{"AnalysisId": "unknown-provider", "Provider": "nobody"}"#;
    let poison = [
        ("no-utf-8", b"\xff\x00{".to_vec()),
        ("no-json", b"{\"AnalysisId\": ".to_vec()),
        ("deep", ["[".repeat(DEPTH), "]".repeat(DEPTH)].concat().into_bytes()),
        ("unknown-provider", unknown.as_bytes().to_vec()),
        ("empty", Vec::new()),
    ];
    let poison = BTreeMap::from(poison.map(|(job, body)| (job.to_owned(), body)));
    let good = ("good".to_owned(), br#"{"Provider": "gemini"}"#.to_vec());
    let batch = poison.clone().into_iter().chain([good]).map(|(job, body)| {
        let job = JobId::try_from(job).expect("a job id");
        (Message::of_job(job, body), DeliveryTime::Now)
    });
    let (url, record) = setup.provider(patient(0));
    let running = setup.run("dispatch,worker", &config(setup, &url, "100/s"));
    let raw = setup.queue("raw");
    for sent in setup.runtime.block_on(raw.send_batch(batch.collect())) {
        sent.expect("sent");
    }
    let rejected = || running.metric("sluicegate_dispatch_rejected_total");
    eventually_is(|| (rejected(), worked(&running, "gemini", "done")), (poison.len() as u64, 1));
    eventually_is(|| letters(setup), Ok::<_, Error>(poison.clone()));
    let name = &setup.name;
    let page = format!("{}/v1/dashboard/dead-letters?queue={name}-raw", running.admin);
    let (status, shown) = get(&page);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((status, shown["letters"].as_array().map(Vec::len)), (200, Some(poison.len())));
    assert_eq!(receive_all(setup, "results", 1, |_| {}), BTreeMap::from([("good".to_owned(), 1)]));
    let called: Vec<_> = record.calls().into_iter().map(|call| call.job).collect();
    assert_eq!(called, ["good"]);
    assert_eq!(setup.dead_jobs("gemini"), BTreeSet::new());
}

/// Returns the dead letters of the dispatcher by job, as their producers sent them.
fn letters(setup: &TestSetup) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let dead = setup.queue("raw").dead_letters();
    let (all, mut letters) = (DeadLetterFilter::default(), BTreeMap::new());
    let listed = dead.list(&all, u64::MAX, |letter| {
        letters.insert(letter.message.meta.job.to_string(), letter.original());
    });
    setup.runtime.block_on(listed)?;
    Ok(letters)
}

/// A faulty answer of the provider.
#[derive(Clone, Copy)]
enum Fault {
    /// 429 with `Retry-After` in seconds.
    Seconds,
    /// 429 with `Retry-After` as a date.
    Date,
    /// 500.
    ServerError,
    /// 200 with a body that is not JSON.
    Garbage,
}

/// Faulty answers to the first calls of a job. Later calls succeed, except for the last job, whose
/// attempts all fail.
const FAULTS: [&[Fault]; 7] = [
    &[],
    &[Fault::Seconds],
    &[Fault::Date],
    &[Fault::ServerError],
    &[Fault::Garbage],
    &[Fault::Seconds, Fault::ServerError, Fault::Date, Fault::Garbage],
    &[Fault::ServerError, Fault::Garbage, Fault::ServerError],
];
/// Number of jobs: each of these four times.
const FAULTY_JOBS: usize = 4 * FAULTS.len();

impl Fault {
    /// Returns true if it is a failed attempt. A job that is refused because of a limit waits.
    const fn is_failure(self) -> bool {
        matches!(self, Self::ServerError | Self::Garbage)
    }

    fn response(self) -> Response {
        match self {
            Self::Seconds => refusal("1".to_owned()),
            Self::Date => {
                let second = WallClock.now().as_micros() / 1_000_000 + 2;
                let at = jiff::Timestamp::from_second(second as i64).expect("a time");
                let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
                refusal(date.expect("a date"))
            }
            Self::ServerError => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Self::Garbage => "<html>{".into_response(),
        }
    }
}

/// Returns 429 with this `Retry-After`.
fn refusal(retry_after: String) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", retry_after)]).into_response()
}

/// Returns the faulty answers to the first calls of a job.
fn faults_of(job: &str) -> &'static [Fault] {
    let number = job.rsplit('-').next().and_then(|number| number.parse::<usize>().ok());
    FAULTS[number.expect("a job of the test") % FAULTS.len()]
}

/// Returns true if all attempts of a job fail.
fn is_dead(job: &str) -> bool {
    faults_of(job).iter().filter(|fault| fault.is_failure()).count() >= ATTEMPTS
}

/// Number of calls by job.
type Calls = Arc<Mutex<BTreeMap<String, usize>>>;

async fn analyze(State(calls): State<Calls>, headers: HeaderMap, _: Bytes) -> Response {
    let job = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let job = job.expect("the id of the job").to_owned();
    let faults = faults_of(&job);
    let earlier = {
        let mut calls = lock(&calls);
        let count = calls.entry(job).or_default();
        *count += 1;
        *count - 1
    };
    match faults.get(earlier) {
        Some(fault) => fault.response(),
        None => r#"{"analysis": "healthy leaves"}"#.into_response(),
    }
}

/// Every job has one result, or is a dead letter after its attempts. A refusal is no attempt.
pub(crate) fn a_misbehaving_provider_loses_no_job(setup: &TestSetup) {
    setup.produce("raw", FAULTY_JOBS);
    let calls = Calls::default();
    let router = Router::new().route("/v1/analyze", post(analyze)).with_state(calls.clone());
    let served = setup.runtime.block_on(simulators::serve(0, router));
    let (address, _) = served.expect("a port");
    let config = config(setup, &format!("http://{address}"), "1000/s");
    let running = setup.run("dispatch,worker", &config);
    let jobs = setup.jobs(FAULTY_JOBS);
    let expected = jobs.iter().map(|job| {
        let success = usize::from(!is_dead(job));
        (job.clone(), faults_of(job).len() + success)
    });
    let expected: BTreeMap<_, _> = expected.collect();
    let (dead, done): (BTreeSet<_>, BTreeSet<_>) = jobs.into_iter().partition(|job| is_dead(job));
    let counted = || ["done", "dead"].map(|what| worked(&running, "gemini", what));
    eventually_is(counted, [done.len() as u64, dead.len() as u64]);
    assert_eq!(*lock(&calls), expected, "calls");
    let results = receive_all(setup, "results", done.len(), |_| {});
    assert_eq!(results, done.into_iter().map(|job| (job, 1)).collect::<BTreeMap<_, _>>());
    eventually_is(|| setup.dead_jobs("gemini"), dead);
    assert_eq!(setup.dead_jobs("raw"), BTreeSet::new());
}
