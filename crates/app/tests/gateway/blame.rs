//! The request log names the side that broke an exchange.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use sluicegate_testkit::eventually;

use crate::replica::{Replica, TOKEN, gateway};
use crate::vendor::Vendor;

/// Opens a connection and sends a request with these header lines and body.
fn send(replica: &Replica, more: &str) -> TcpStream {
    let address = replica.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!("POST /graphql HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n");
    stream.write_all(format!("{head}{more}").as_bytes()).expect("written");
    stream
}

/// Waits for a log line of a request with this code, and returns it.
fn logged(replica: &Replica, code: &str) -> Value {
    let find = || replica.requests().into_iter().find(|line| line["code"] == code);
    eventually(|| find().is_some());
    find().expect("it was there")
}

#[test]
fn errors_of_callers_are_not_logged_as_errors_of_the_upstream() {
    let vendor = Vendor::start();
    let replica = Replica::start(&gateway(&vendor, &["limit: 1000/s", "graphql: false"]));
    drop(send(&replica, "content-length: 100\r\n\r\nhalf"));
    assert_eq!(logged(&replica, "CLIENT_CLOSED_REQUEST")["status"], 499);
    let _stream = send(&replica, "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
    assert_eq!(logged(&replica, "BAD_REQUEST")["status"], 400);
    let upstream =
        |line: &Value| line["code"].as_str().is_some_and(|code| code.contains("UPSTREAM"));
    assert!(!replica.requests().iter().any(upstream), "{:?}", replica.requests());
}

#[test]
fn a_response_that_breaks_in_the_middle_is_logged_with_its_code() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // The upstream closes the connection once the caller has the first half.
    let (close, closes) = std::sync::mpsc::sync_channel::<()>(1);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
            let _ = closes.recv();
        }
    });
    let vendor = Vendor::start();
    let config = gateway(&vendor, &["limit: 1000/s", "graphql: false"]);
    let replica = Replica::start(&config.replace(&vendor.port.to_string(), &port.to_string()));
    let mut stream = send(&replica, "content-length: 0\r\n\r\n");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\nhalf") {
        stream.read_exact(&mut byte).expect("the first half");
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    drop(close);
    let line = logged(&replica, "UPSTREAM_BROKEN");
    assert_eq!(line["status"], 200, "the status that the caller got");
    assert!(line["cause"].as_str().is_some_and(|cause| cause.contains("response body")), "{line}");
}
