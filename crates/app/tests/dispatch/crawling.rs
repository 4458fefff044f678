//! A crawl of an organisation fans out to its repositories while workers are killed.

use std::collections::BTreeSet;
use std::time::Duration;

use simulators::GitHub;
use sluicegate_queue::Message;
use sluicegate_testkit::eventually_get;

use crate::support::{TestSetup, long};

/// Number of repositories that a worker crawls at a time.
const CONCURRENCY: usize = 20;
/// Number of repositories on a page.
const PER_PAGE: usize = 100;

fn config(setup: &TestSetup, url: &str) -> String {
    let name = &setup.name;
    format!(
        "workers:
  - provider: github
    queue: {name}-org
    learn: {{below: 100}}
    handler:
      http:
        method: GET
        url: '{url}/orgs/{{{{org}}}}/repos'
        query: {{per_page: {PER_PAGE}, page: '{{{{page:-1}}}}'}}
        pages: {{link: page}}
        conditional: true
      emit:
        - {{each: ., queue: '{name}-repo', type: crawl_repo, id: '{{{{item.full_name}}}}', body: {{org: '{{{{org}}}}', name: '{{{{item.name}}}}'}}}}
  - provider: github
    queue: {name}-repo
    concurrency: {CONCURRENCY}
    attempts: 3
    results: {name}-documents
    learn: {{below: 100}}
    handler:
      http: {{method: GET, url: '{url}/repos/{{{{org}}}}/{{{{name}}}}'}}
"
    )
}

/// D7: 600 repositories, workers killed every second, a GitHub that allows 300 calls in 4 s.
///
/// At most `refused_max` calls may be refused.
#[expect(clippy::print_stdout, reason = "the number is a measurement")]
fn every_repository_is_crawled_whatever_happens_to_workers(setup: &TestSetup, refused_max: usize) {
    const REPOSITORIES: usize = 600;
    let github = GitHub {
        repositories: REPOSITORIES,
        limit: 300,
        window: Duration::from_secs(4),
        latency: Duration::from_millis(20),
    };
    let (url, record) = setup.github(github);
    let org = setup.queue("org");
    let message = Message::new("{\"org\":\"acme\"}").of_kind("crawl_org");
    setup.runtime.block_on(org.send(message)).expect("sent");
    let config = config(setup, &url);
    let mut workers = [setup.run("worker", &config), setup.run("worker", &config)];
    let kills = if long() { 60 } else { 8 };
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    for number in 0..kills {
        let _ = moment.recv_timeout(Duration::from_millis(700));
        workers[number % 2] = setup.run("worker", &config);
    }
    let expected: BTreeSet<_> =
        (0..REPOSITORIES).map(|number| format!("acme/repo-{number:04}")).collect();
    let crawled = || {
        let documents = setup.queue("documents");
        let mut seen = BTreeSet::new();
        let peeked = documents.peek(10_000, |message| {
            let body: serde_json::Value =
                serde_json::from_slice(&message.body).expect("a document is JSON");
            seen.insert(body["full_name"].as_str().expect("a name").to_owned());
        });
        setup.runtime.block_on(peeked).expect("peeked");
        seen
    };
    eventually_get(|| {
        let waiting = setup.depth("repo");
        let waiting = waiting.ready + waiting.delayed.unwrap_or_default();
        let done = waiting == 0 && record.report(Duration::from_secs(4)).jobs > REPOSITORIES;
        if done && crawled() == expected {
            return Ok(());
        }
        Err((waiting, record.report(Duration::from_secs(4))))
    });
    assert_eq!(setup.dead("repo") + setup.dead("org"), 0);
    let report = record.report(Duration::from_secs(4));
    assert!(report.refused <= refused_max, "{report:?}");
    // A killed worker has called for the jobs in work, and the acknowledgement of the one before may be on
    // its way. A page that is read again sends its repositories again.
    let calls = record.calls();
    let succeeded =
        |job: &str| calls.iter().filter(|call| call.status == 200 && call.job == job).count();
    let repeated: usize = expected.iter().map(|job| succeeded(job) - 1).sum();
    let read_again = succeeded("acme").saturating_sub(REPOSITORIES.div_ceil(PER_PAGE));
    let bound = kills * 2 * CONCURRENCY + read_again * PER_PAGE;
    println!("{repeated} calls repeated after {kills} kills, {read_again} pages read again");
    assert!(repeated <= bound, "{repeated} calls are repeated, at most {bound} may");
}

/// All workers pause together below 100 remaining calls, and fewer are in flight then.
#[test]
fn every_repository_is_crawled_on_rabbitmq_and_redis() {
    every_repository_is_crawled_whatever_happens_to_workers(&TestSetup::shared("crawl"), 0);
}

/// With the memory store, each process learns of a pause by its own calls: those that it has in
/// flight may be refused.
#[test]
fn every_repository_is_crawled_without_a_shared_store() {
    every_repository_is_crawled_whatever_happens_to_workers(
        &TestSetup::alone("crawl").with_short_lease(),
        40,
    );
}
