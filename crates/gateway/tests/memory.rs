//! Memory use with large bodies. In a process of its own, because it measures the whole process.

#[expect(dead_code, reason = "each test program uses a part of it")]
#[path = "suite/support.rs"]
mod support;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::{Proxy, TOKEN, odd_upstream, route, soon};

#[tokio::test]
async fn memory_stays_flat_however_large_bodies_are() {
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let mut part = vec![0; 1 << 16];
        let mut left = 200_usize << 20;
        while left > 0 {
            match stream.read(&mut part).await {
                Ok(length @ 1..) => left -= length,
                _ => return,
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 209715200\r\n\r\n").await;
        for _ in 0..200 << 4 {
            if stream.write_all(&part).await.is_err() {
                return;
            }
        }
    })
    .await;
    let mut to = route(upstream);
    to.body_limit = sluicegate_config::ByteSize(1 << 30);
    let proxy = Proxy::start(to).await;
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\ncontent-length: {}\r\n\r\n",
        200 << 20
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let before = resident_kb();
    let part = vec![b'x'; 1 << 20];
    for _ in 0..200 {
        soon(stream.write_all(&part)).await.expect("written");
    }
    let mut read = 0;
    let mut part = part;
    while read < 200 << 20 {
        read += soon(stream.read(&mut part)).await.expect("read");
    }
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KB more for 400 MB that passed");
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
