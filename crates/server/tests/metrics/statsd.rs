//! Tests of the push to StatsD, over a real socket.

use std::net::UdpSocket;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_server::metrics::statsd::{DATAGRAM_BYTES_MAX, Statsd};
use tokio_util::sync::CancellationToken;

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{WHO, watching};

/// Binds a receiver on a free port.
fn receiver() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_nonblocking(true).expect("a flag");
    let port = socket.local_addr().expect("an address").port();
    (socket, port)
}

/// Returns the lines of all received datagrams: on loopback they arrive as soon as they are sent.
fn lines(socket: &UdpSocket) -> Vec<String> {
    let mut lines = Vec::new();
    let mut buffer = [0; 1 << 16];
    while let Ok(bytes) = socket.recv(&mut buffer) {
        assert!((1..=DATAGRAM_BYTES_MAX).contains(&bytes), "{bytes}");
        let text = str::from_utf8(&buffer[..bytes]).expect("text");
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}

#[tokio::test]
async fn counters_are_sent_as_what_was_added() {
    let limiter = Limiter::new(all_of([rule("R", &["userId"], &["2/h"])]));
    let metrics = watching(&limiter);
    let (socket, port) = receiver();
    let mut statsd = Statsd::new(metrics.clone(), "127.0.0.1", port);
    limiter.ask(&metrics, &Ask::new(1, WHO));
    limiter.ask(&metrics, &Ask { latency: Span::from_micros(250), ..Ask::new(2, WHO) });
    statsd.push().await.expect("sent");
    let who = "scope:R,model_id:gpt4,tenant_id:acme";
    let mut got = lines(&socket);
    got.sort();
    assert_eq!(
        got,
        [
            "rate_limiter_latency_seconds_count:2|c|#operation:acquire".to_owned(),
            "rate_limiter_latency_seconds_sum:0.00035|c|#operation:acquire".to_owned(),
            "rate_limiter_requests_total:2|c|#result:allowed,".to_owned() + who,
            "rate_limiter_usage_ratio:1|g|#".to_owned() + who,
            "sluicegate_config_last_load_successful:1|g".to_owned(),
            "sluicegate_decisions_total:2|c|#operation:acquire,result:allowed".to_owned(),
            "sluicegate_user_requests_count:2|c|#window:hour".to_owned(),
            "sluicegate_user_requests_sum:3|c|#window:hour".to_owned(),
        ]
    );
    limiter.ask(&metrics, &Ask::new(3, WHO));
    statsd.push().await.expect("sent");
    let got = lines(&socket);
    let denied = "rate_limiter_requests_total:1|c|#result:denied,".to_owned() + who;
    assert!(got.contains(&denied), "{got:?}");
    assert!(!got.iter().any(|line| line.contains("allowed")), "nothing was: {got:?}");
    assert!(
        got.contains(&"rate_limiter_latency_seconds_sum:0.0001|c|#operation:acquire".to_owned())
    );
}

#[tokio::test]
async fn many_series_become_several_datagrams_and_no_client_writes_a_line() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100000/h"])]));
    let metrics = watching(&limiter);
    for id in 0..60 {
        let model = format!("m{id}\nfake:1|c|#a:b,c\u{85}@{}", "x".repeat(200));
        limiter.ask(&metrics, &Ask::new(id, &[("modelId", &model)]));
    }
    let (socket, port) = receiver();
    Statsd::new(metrics, "127.0.0.1", port).push().await.expect("sent");
    let got = lines(&socket);
    let requests = got.iter().filter(|line| line.starts_with("rate_limiter_requests_total:1|c|#"));
    assert_eq!(requests.count(), 60);
    assert!(!got.iter().any(|line| line.starts_with("fake")), "{got:?}");
    for line in got.iter().filter(|line| line.contains('#')) {
        assert_eq!(line.matches('|').count(), 2, "{line}");
    }
}

#[tokio::test]
async fn the_end_is_pushed_and_a_dead_receiver_harms_nothing() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["5/h"])]));
    let metrics = watching(&limiter);
    limiter.ask(&metrics, &Ask::new(1, WHO));
    let (socket, port) = receiver();
    let shutdown = CancellationToken::new();
    let alive = Statsd::new(metrics.clone(), "127.0.0.1", port);
    let alive = tokio::spawn(alive.run(Duration::from_secs(3_600), shutdown.clone()));
    let (gone, dead) = receiver();
    drop(gone);
    let mut dead = Statsd::new(metrics.clone(), "127.0.0.1", dead);
    for _ in 0..3 {
        dead.push().await.expect("a missing receiver is no error");
    }
    let mut nowhere = Statsd::new(metrics, "no-such-host.invalid", port);
    assert!(nowhere.push().await.is_err());
    shutdown.cancel();
    alive.await.expect("it ends");
    assert!(lines(&socket).iter().any(|line| line.starts_with("sluicegate_decisions_total:1|c")));
}
