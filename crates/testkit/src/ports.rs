//! Free ports for servers that tests start.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The range that ports are taken from: below the one that Linux uses for outgoing connections, any of
/// which could take a port between the moment it is found free and the start of the server.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Sockets that reserve the ports found so far. A UDP socket does not hinder a TCP server on the same
/// port, and no other test process can have the same one.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Returns a port that no server uses, and that no other test gets while this process runs.
pub fn free_port() -> u16 {
    // Each process begins elsewhere, so that few ports are tried twice.
    let first = std::process::id().wrapping_mul(7_919);
    for _ in 0..COUNT {
        let number = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let Ok(port) = u16::try_from(FIRST + number) else { continue };
        let Ok(reserved) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        // On all addresses: some servers listen on more than loopback.
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reserved);
            return port;
        }
    }
    panic!("no free port");
}

/// Returns different free ports.
pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_not_those_of_outgoing_connections() {
        let mut ports = free_ports::<100>();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ports[99] < 32_768);
        let _server = TcpListener::bind(("127.0.0.1", ports[0])).expect("the port is free");
    }
}
