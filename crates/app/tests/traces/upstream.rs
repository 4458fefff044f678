//! [`Upstream`]: an HTTP server that records the head of each request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// A server that answers every request with `{}`.
pub(crate) struct Upstream {
    pub(crate) address: String,
    status: Arc<AtomicU16>,
    requests: Arc<Mutex<Vec<RequestHead>>>,
}

/// The head of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestHead(Vec<String>);

impl RequestHead {
    /// Returns the value of a header field.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.0.iter().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

impl Upstream {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let (status, requests) = (Arc::new(AtomicU16::new(200)), Arc::default());
        let upstream = Self { address, status, requests };
        let (status, requests) = (upstream.status.clone(), upstream.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (status, requests) = (status.clone(), requests.clone());
                std::thread::spawn(move || serve(stream, &status, &requests));
            }
        });
        upstream
    }

    /// Answers with this status from now on.
    pub(crate) fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<RequestHead> {
        self.requests.lock().expect("the requests").clone()
    }
}

/// Serves one connection until it ends.
fn serve(stream: TcpStream, status: &AtomicU16, requests: &Mutex<Vec<RequestHead>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let lines = reader.by_ref().lines().map_while(Result::ok);
        let head = RequestHead(lines.take_while(|line| !line.is_empty()).collect());
        if head.0.is_empty() {
            return;
        }
        let length =
            head.header("content-length").map_or(0, |text| text.parse().expect("a number"));
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        requests.lock().expect("the requests").push(head);
        let status = status.load(Ordering::SeqCst);
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
