//! Processes that hold slots are killed: never more than the limit hold one, and the slot of a killed
//! process becomes free when its lease expires.
//!
//! The test program is also the holder: `leases hold URL` takes a slot, renews it and prints its
//! state. So the program has a `main` of its own.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use common::{RunningService, get, post, sluicegate};
use serde_json::{Value, json};
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::redis::{RedisServer, Version};

const LIMIT: usize = 3;
const LEASE: Span = Span::from_secs(1);
/// Maximum time after the end of a lease until another process takes the slot.
const GRACE: Span = Span::from_secs(1);
const READY: &str = "{\"status\":\"ready\"}";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, hold, url] = arguments.as_slice()
        && hold == "hold"
    {
        holds(url);
    }
    let kills = if sluicegate_testkit::long() { 2_000 } else { 50 };
    slots_of_killed_holders_come_back(kills);
    ExitCode::SUCCESS
}

/// Takes a slot as soon as one is free, and keeps it until the process is killed.
fn holds(url: &str) -> ! {
    let say = |word: &str| {
        let mut out = std::io::stdout();
        // A closed pipe means that the test is about to kill this process.
        let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    };
    loop {
        let ask = json!({ "dimensions": { "userId": std::process::id().to_string() } });
        let (_, answer) = post(&format!("{url}/v1/acquire"), &ask, None);
        if answer["allowed"] != true {
            thread::park_timeout(Duration::from_millis(20));
            continue;
        }
        say("held");
        let renew = json!({ "handle": answer["handle"] });
        loop {
            thread::park_timeout(Duration::from(LEASE) / 4);
            let (status, _) = post(&format!("{url}/v1/renew"), &renew, None);
            if status != 200 {
                say("lost");
                break;
            }
        }
    }
}

/// Running holder processes and their output.
struct Holders {
    urls: Vec<String>,
    alive: Vec<(usize, Child)>,
    holding: Vec<usize>,
    next: usize,
    says: Receiver<(usize, String)>,
    said: SyncSender<(usize, String)>,
}

impl Holders {
    fn new(urls: Vec<String>) -> Self {
        let (said, says) = sync_channel(1_024);
        Self { urls, alive: Vec::new(), holding: Vec::new(), next: 0, says, said }
    }

    fn spawn(&mut self) {
        let number = self.next;
        self.next += 1;
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["hold", &self.urls[number % self.urls.len()]])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = self.said.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = said.send((number, line));
            }
        });
        self.alive.push((number, child));
    }

    /// Waits until all slots are taken, at most until `deadline`.
    fn wait_until_full(&mut self, clock: &MonotonicClock, deadline: Timestamp) {
        while self.holding.len() < LIMIT {
            let left = deadline.since(clock.now());
            let Ok((number, word)) = self.says.recv_timeout(left.into()) else {
                panic!("only {:?} hold a slot when all should be taken", self.holding);
            };
            let alive = self.alive.iter().any(|(other, _)| *other == number);
            match word.as_str() {
                "held" if alive => self.holding.push(number),
                "lost" => self.holding.retain(|other| *other != number),
                _ => {}
            }
        }
    }

    /// Kills a holder with SIGKILL.
    fn kill(&mut self, number: usize) {
        let place = self.alive.iter().position(|(other, _)| *other == number);
        let (_, mut child) = self.alive.remove(place.expect("it is alive"));
        child.kill().expect("killed");
        child.wait().expect("gone");
        self.holding.retain(|other| *other != number);
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        for (_, child) in &mut self.alive {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn slots_of_killed_holders_come_back(kills: usize) {
    let redis = RedisServer::start(Version::System, &[]);
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let config = format!(
        "store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s}}\nlimits:\n\
         - {{name: c, rules: [{{name: SLOTS, per: [], limit: {LIMIT} concurrent, lease: 1s}}]}}\n"
    );
    let nodes = [RunningService::start(&config), RunningService::start(&config)];
    for node in &nodes {
        while get(&format!("{}/ready", node.admin)).1 != READY {
            thread::yield_now();
        }
    }
    let mut holders = Holders::new(nodes.iter().map(|node| node.http.clone()).collect());
    (0..2 * LIMIT).for_each(|_| holders.spawn());
    let clock = MonotonicClock::new();
    holders.wait_until_full(&clock, clock.now() + Span::from_secs(30));
    let (mut killed, mut slowest) = (0, Span::ZERO);
    while killed < kills {
        // Kills from one of them to all of them at once.
        let victims: Vec<usize> =
            holders.holding.iter().copied().take(1 + killed % LIMIT).collect();
        let began = clock.now();
        for &victim in &victims {
            holders.kill(victim);
            killed += 1;
        }
        holders.wait_until_full(&clock, began + LEASE + GRACE);
        slowest = slowest.max(clock.now().since(began));
        // Starts replacements before the next kill, so that process start is not measured.
        victims.iter().for_each(|_| holders.spawn());
    }
    drop(holders);
    verify(nodes);
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{killed} holders killed, every slot taken again within {slowest}");
}

/// Proves from the logs of the nodes that never more than the limit held a slot.
fn verify(nodes: [RunningService; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut verify = sluicegate();
    verify.arg("verify");
    for (number, node) in nodes.into_iter().enumerate() {
        node.signal("-TERM");
        let (_, decisions) = node.end();
        let admitted = decisions.lines().filter(|line| {
            serde_json::from_str::<Value>(line).is_ok_and(|line| line["allowed"] == true)
        });
        assert!(admitted.count() > 0, "a node that admitted nothing proves nothing");
        let log = folder.path().join(format!("{number}.log"));
        std::fs::write(&log, decisions).expect("a file");
        verify.arg(log);
    }
    let said = verify.output().expect("it runs");
    let text = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&said.stderr));
}
