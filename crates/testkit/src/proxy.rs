//! [`FaultProxy`]: a TCP proxy on loopback that injects network faults.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The network condition that the proxy simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// All data is forwarded.
    Healthy,
    /// Connections are accepted, and no data is forwarded in either direction.
    BlackHole,
    /// Connections are closed as soon as they are made.
    Cut,
}

/// A TCP proxy in front of one server.
#[derive(Debug)]
pub struct FaultProxy {
    /// Port that the proxy listens on, on 127.0.0.1.
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: AtomicU8,
    /// Number of replies still to be dropped together with their connection.
    replies_to_cut: AtomicU32,
    /// Number of replies still to be dropped while their connection stays open.
    replies_to_swallow: AtomicU32,
    /// Number of replies dropped so far.
    lost: AtomicU32,
    delay_us: AtomicU64,
    /// Number of connections made so far.
    connections: AtomicU64,
    /// Number of the first connection whose requests are not held back.
    held_below: AtomicU64,
    /// Number of the first connection whose replies are held back, plus one; 0 if there is none.
    replies_held_from: AtomicU64,
    ended: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl FaultProxy {
    /// Starts a proxy in front of the server on this port, without faults.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                accepting.forward(client, server);
            }
        });
        Self { port, shared }
    }

    /// Changes the network condition. Only [`NetworkState::Cut`] closes open connections.
    pub fn set(&self, state: NetworkState) {
        self.shared.state.store(state as u8, Ordering::SeqCst);
        if state == NetworkState::Cut {
            self.shared.cut();
        }
    }

    /// Delays every reply by this time.
    pub fn delay(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Drops the next reply, after the server has executed the request, and closes the connection.
    pub fn cut_next_reply(&self) {
        self.shared.replies_to_cut.fetch_add(1, Ordering::SeqCst);
    }

    /// Drops the next reply, after the server has executed the request, and keeps the connection
    /// open, but silent: a later reply would be taken for the dropped one.
    pub fn swallow_next_reply(&self) {
        self.shared.replies_to_swallow.fetch_add(1, Ordering::SeqCst);
    }

    /// Holds back requests on the connections that are open now, even if they are closed meanwhile.
    /// New connections are not affected.
    pub fn hold_requests(&self) {
        let next = self.shared.connections.load(Ordering::SeqCst);
        self.shared.held_below.store(next, Ordering::SeqCst);
    }

    /// Delivers the requests that were held back.
    pub fn release_requests(&self) {
        self.shared.held_below.store(0, Ordering::SeqCst);
    }

    /// Holds back replies on connections that are made from now on, so that no TLS handshake
    /// completes on them. Open connections are not affected.
    pub fn hold_new_connections(&self) {
        let next = self.shared.connections.load(Ordering::SeqCst);
        self.shared.replies_held_from.store(next + 1, Ordering::SeqCst);
    }

    /// Delivers the replies that were held back on new connections.
    pub fn release_new_connections(&self) {
        self.shared.replies_held_from.store(0, Ordering::SeqCst);
    }

    /// Returns the number of connections made so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of dropped replies.
    pub fn lost(&self) -> u32 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.cut();
        // Wakes the thread that waits for the next connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn state(&self) -> NetworkState {
        match self.state.load(Ordering::SeqCst) {
            0 => NetworkState::Healthy,
            1 => NetworkState::BlackHole,
            _ => NetworkState::Cut,
        }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Forwards one connection with one thread per direction.
    fn forward(self: &Arc<Self>, client: TcpStream, server: u16) {
        if self.state() == NetworkState::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
        let pair = |a: &TcpStream, b: &TcpStream| Some((a.try_clone().ok()?, b.try_clone().ok()?));
        let (Some(there), Some(back), Some(kept)) =
            (pair(&client, &server), pair(&server, &client), pair(&client, &server))
        else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).extend([kept.0, kept.1]);
        let (requests, replies) = (self.clone(), self.clone());
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || {
            let shared = requests.clone();
            requests.pass(there, move || shared.action_on_request(number));
        });
        thread::spawn(move || {
            let shared = replies.clone();
            replies.pass(back, move || shared.action_on_reply(number));
        });
    }

    fn action_on_request(&self, connection: u64) -> ChunkAction {
        while connection < self.held_below.load(Ordering::SeqCst)
            && !self.ended.load(Ordering::SeqCst)
        {
            thread::sleep(Duration::from_millis(1));
        }
        ChunkAction::Forward
    }

    fn action_on_reply(&self, connection: u64) -> ChunkAction {
        let is_held = || {
            let from = self.replies_held_from.load(Ordering::SeqCst);
            from > 0 && connection >= from - 1
        };
        while is_held() && !self.ended.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let take = |count: &AtomicU32| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        };
        let action = if take(&self.replies_to_cut) {
            ChunkAction::Cut
        } else if take(&self.replies_to_swallow) {
            ChunkAction::Drop
        } else {
            let delay = self.delay_us.load(Ordering::SeqCst);
            thread::sleep(Duration::from_micros(delay));
            return ChunkAction::Forward;
        };
        self.lost.fetch_add(1, Ordering::SeqCst);
        action
    }

    /// Forwards data chunk by chunk.
    fn pass(&self, (mut from, mut to): (TcpStream, TcpStream), action: impl Fn() -> ChunkAction) {
        let mut piece = vec![0; 1 << 16];
        let mut is_silent = false;
        while let Ok(length @ 1..) = from.read(&mut piece) {
            if is_silent {
                continue;
            }
            let action = action();
            is_silent = matches!(action, ChunkAction::Drop);
            let passed = match (self.state(), action) {
                (NetworkState::Healthy, ChunkAction::Forward) => {
                    to.write_all(&piece[..length]).is_ok()
                }
                (NetworkState::BlackHole, _) | (_, ChunkAction::Drop) => true,
                (NetworkState::Cut, _) | (_, ChunkAction::Cut) => false,
            };
            if !passed {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// The action on one chunk of data.
enum ChunkAction {
    Forward,
    Drop,
    Cut,
}
