//! [`DelayProxy`]: a TCP proxy on loopback that simulates a distant server. It delays every byte by
//! the same time, and does not limit the bandwidth.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// Maximum number of pieces on their way in one direction.
const PIECES_MAX: usize = 10_000;

/// A proxy in front of one server. It runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct DelayProxy {
    /// Port that the proxy listens on, on 127.0.0.1.
    pub port: u16,
}

impl DelayProxy {
    /// Starts a proxy in front of the server on this port, with this round trip.
    pub fn start(server: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let pair =
                    |a: &TcpStream, b: &TcpStream| Some((a.try_clone().ok()?, b.try_clone().ok()?));
                for (from, to) in
                    [pair(&client, &server), pair(&server, &client)].into_iter().flatten()
                {
                    pass(from, to, round_trip / 2);
                }
            }
        });
        Self { port }
    }
}

/// Forwards one direction: one thread reads, another one writes each piece when it is due.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, pieces) = mpsc::sync_channel::<(Moment, Vec<u8>)>(PIECES_MAX);
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            if sender.send((Moment::after(delay), piece[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.left());
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
