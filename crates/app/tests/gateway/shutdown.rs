//! SIGTERM while callers wait for their turn: `/ready` reports it, and every caller gets an answer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use sluicegate_testkit::eventually_is;

use crate::replica::{Replica, TOKEN, gateway, get};
use crate::vendor::Vendor;

const WAITING: usize = 3;

/// Starts callers that each send a request and read until the connection ends. Returns when all of
/// them wait for their turn.
fn start_waiting(replica: &Replica) -> Vec<JoinHandle<String>> {
    let address = replica.url.trim_start_matches("http://").to_owned();
    let caller = |_| {
        let address = address.clone();
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect(&address).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            let request = format!(
                "POST /graphql HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\ncontent-length: 2\r\n\r\n{{}}"
            );
            stream.write_all(request.as_bytes()).expect("written");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("a whole answer");
            answer
        })
    };
    let callers: Vec<_> = (0..WAITING).map(caller).collect();
    eventually_is(|| replica.waiting(), WAITING);
    callers
}

fn answers(callers: Vec<JoinHandle<String>>) -> Vec<String> {
    callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
}

fn assert_not_ready(replica: &Replica) {
    let not_ready = (503, r#"{"status":"unhealthy","reason":"shutting_down"}"#.to_owned());
    eventually_is(|| replica.ready(), not_ready.clone());
    assert_eq!(get(&format!("{}/ready", replica.admin)), not_ready);
}

#[test]
fn sigterm_lets_waiting_callers_have_their_turn() {
    let vendor = Vendor::start();
    let grace = "server: {shutdown_grace: 60s}\n".to_owned();
    let mut replica =
        Replica::start(&(grace + &gateway(&vendor, &["limit: 1/3s", "wait: {max: 60s}"])));
    replica.wait_for(200);
    let callers = start_waiting(&replica);
    replica.terminate();
    assert_not_ready(&replica);
    let (status, code) = replica.ask();
    assert_eq!((status, code.as_str()), (503, "SHUTTING_DOWN"), "a new caller");
    for answer in answers(callers) {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    assert_eq!(replica.exit_code(), Some(0));
    assert_eq!(vendor.arrivals().len(), 1 + WAITING);
}

#[test]
fn sigterm_answers_callers_whose_turn_comes_too_late() {
    let vendor = Vendor::start();
    let grace = "server: {shutdown_grace: 5s}\n".to_owned();
    let mut replica =
        Replica::start(&(grace + &gateway(&vendor, &["limit: 1/h", "wait: {max: 9h}"])));
    replica.wait_for(200);
    let callers = start_waiting(&replica);
    replica.terminate();
    assert_not_ready(&replica);
    for answer in answers(callers) {
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        for part in ["SHUTTING_DOWN", "retry-after: 1\r\n", "connection: close\r\n"] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
    }
    assert_eq!(replica.exit_code(), Some(0));
    assert_eq!(vendor.arrivals().len(), 1);
    // Reads the log up to its end.
    replica.decisions();
    let cut = replica.requests().iter().filter(|line| line["code"] == "SHUTTING_DOWN").count();
    assert_eq!(cut, WAITING);
}
