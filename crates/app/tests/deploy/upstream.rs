//! A server that plays the vendor, a model provider and GitHub.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Starts the server; returns its port. It runs until the test program ends.
///
/// | request | response |
/// |---|---|
/// | its body contains `break` | none: the connection is closed |
/// | its body contains `fail` | 500 |
/// | `GET /orgs/…` | two repositories |
/// | any other | 200 with one repository |
pub(crate) fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || while answer(&connection).is_some() {});
        }
    });
    port
}

/// Answers one request. Returns `None` at the end of the connection.
fn answer(mut connection: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let length = head.to_ascii_lowercase();
    let length = length.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |length| length.trim().parse().expect("a number"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body);
    if body.contains("break") {
        return None;
    }
    let repository = |name: &str| {
        format!(r#"{{"name": "{name}", "full_name": "acme/{name}", "language": "Rust"}}"#)
    };
    let (status, answer) = if body.contains("fail") {
        ("500 Internal Server Error", "{}".to_owned())
    } else if head.starts_with("GET /orgs/") {
        ("200 OK", format!("[{}, {}]", repository("one"), repository("two")))
    } else {
        ("200 OK", repository("one"))
    };
    let length = answer.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{answer}"
    )
    .ok()
}
