//! A vendor that remembers when each request came.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;
use sluicegate_store::MonotonicClock;

/// A running vendor, for as long as the test runs.
#[derive(Clone)]
pub(crate) struct Vendor {
    pub(crate) port: u16,
    arrivals: Arc<Mutex<Vec<Timestamp>>>,
    down: Arc<AtomicBool>,
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

    /// Cuts every connection as soon as something comes.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// When requests came, in order.
    pub(crate) fn arrivals(&self) -> Vec<Timestamp> {
        let mut arrivals = self.arrivals.lock().expect("the lock").clone();
        arrivals.sort_unstable();
        arrivals
    }

    fn serve(&self, stream: TcpStream, clock: MonotonicClock) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length, mut first) = (String::new(), 0, true);
            loop {
                line.clear();
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    return;
                }
                if self.down.load(Ordering::SeqCst) {
                    return;
                }
                if std::mem::take(&mut first) {
                    self.arrivals.lock().expect("the lock").push(clock.now());
                }
                let field = line.trim().to_ascii_lowercase();
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
