//! A fake vendor that records the arrival time of each request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;
use sluicegate_store::MonotonicClock;

use crate::replica::THROUGH;

/// A vendor that runs until the end of the test.
#[derive(Clone)]
pub(crate) struct Vendor {
    pub(crate) port: u16,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    down: Arc<AtomicBool>,
}

/// A received request.
struct Arrival {
    at: Timestamp,
    /// Replica that forwarded it: see [`crate::replica::THROUGH`].
    through: String,
}

impl Vendor {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let vendor = Self { port, arrivals: Arc::default(), down: Arc::default() };
        let accepting = vendor.clone();
        let clock = MonotonicClock::new();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let vendor = accepting.clone();
                thread::spawn(move || vendor.serve(stream, clock));
            }
        });
        vendor
    }

    /// Closes every connection at the first byte.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Returns the arrival times of all requests, in order.
    pub(crate) fn arrivals(&self) -> Vec<Timestamp> {
        self.arrivals_if(|_| true)
    }

    /// Returns the arrival times of requests that other replicas forwarded, in order.
    pub(crate) fn arrivals_not_through(&self, url: &str) -> Vec<Timestamp> {
        self.arrivals_if(|arrival| arrival.through != url)
    }

    fn arrivals_if(&self, counts: impl Fn(&Arrival) -> bool) -> Vec<Timestamp> {
        let arrivals = self.arrivals.lock().expect("the lock");
        let counted = arrivals.iter().filter(|arrival| counts(arrival));
        let mut times: Vec<_> = counted.map(|arrival| arrival.at).collect();
        times.sort_unstable();
        times
    }

    /// Records a request and returns its number.
    fn arrived(&self, at: Timestamp) -> usize {
        let mut arrivals = self.arrivals.lock().expect("the lock");
        arrivals.push(Arrival { at, through: String::new() });
        arrivals.len() - 1
    }

    fn serve(&self, stream: TcpStream, clock: MonotonicClock) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length, mut number) = (String::new(), 0, None);
            loop {
                line.clear();
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    return;
                }
                if self.down.load(Ordering::SeqCst) {
                    return;
                }
                let number = *number.get_or_insert_with(|| self.arrived(clock.now()));
                let field = line.trim().to_ascii_lowercase();
                if let Some(value) = field.strip_prefix(THROUGH).and_then(|v| v.strip_prefix(':')) {
                    self.arrivals.lock().expect("the lock")[number].through =
                        value.trim().to_owned();
                }
                if let Some(value) = field.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap_or(0);
                }
                if field.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            if reader.read_exact(&mut body).is_err() || reader.get_mut().write_all(answer).is_err()
            {
                return;
            }
        }
    }
}
