//! Tests of limits: rejected, paced, refunded and learned.

use std::time::Duration;

use futures_util::StreamExt as _;
use sluicegate_config::{CALLER, LearnOptions, PathPattern, ROUTE, RouteOptions};
use sluicegate_core::rule::Pattern;
use sluicegate_core::{Group, Rule, Span};
use sluicegate_testkit::eventually_is_async;

use crate::support::{Proxy, Upstream, limited, options, route, soon};

const DEPTH: &str = r#"sluicegate_gateway_queue_depth{gateway="test",route="all"}"#;

#[tokio::test]
async fn without_a_queue_requests_over_the_limit_get_429_with_retry_after() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "3/h", Duration::ZERO)).await;
    for _ in 0..3 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    let answer = proxy.get("/").await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    let retry: u64 =
        answer.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!((3_590..=3_600).contains(&retry), "{retry}");
    assert_eq!(upstream.count(), 3);
    let text = "the limit of route `all` of gateway `test` is reached: try again in ";
    assert!(answer.text().contains(text), "{}", answer.text());
}

#[tokio::test]
async fn with_a_queue_all_pass_paced() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "25/s", Duration::from_secs(10))).await;
    let answers = futures_util::future::join_all((0..50).map(|_| proxy.get("/"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(upstream.count(), 50);
    let waited =
        proxy.metric(r#"sluicegate_gateway_wait_seconds_count{gateway="test",route="all"}"#);
    assert!(waited >= 25.0, "{waited}");
    assert_eq!(proxy.metric(DEPTH), 0.0);
}

/// Its description said that only requests that had to wait are counted.
#[tokio::test]
async fn the_histogram_of_waits_counts_requests_that_go_at_once() {
    let upstream = Upstream::start().await;
    let free = RouteOptions { name: "free".to_owned(), ..route(upstream.address) };
    let mut paced = limited(upstream.address, "1000/h", Duration::from_secs(10));
    paced.path = PathPattern::Exact("/paced".to_owned());
    let proxy = Proxy::with(options(vec![paced, free]), Vec::new()).await;
    for path in ["/paced", "/paced", "/free"] {
        assert_eq!(proxy.get(path).await.status, 200);
    }
    let wait = |series: &str| proxy.metric(&format!("sluicegate_gateway_wait_seconds_{series}"));
    assert_eq!(wait(r#"count{gateway="test",route="all"}"#), 2.0);
    assert_eq!(wait(r#"bucket{gateway="test",route="all",le="60"}"#), 2.0);
    let shown = proxy.metrics.render();
    assert!(shown.contains("including those that went at once."), "{shown}");
    let free = r#"sluicegate_gateway_wait_seconds_count{gateway="test",route="free"} 0"#;
    assert!(
        shown.lines().any(|line| line == free),
        "a route without a limit has no turns: {shown}"
    );
}

/// A slack that grows shows a store that is too far away, before requests are lost to it.
#[tokio::test]
async fn lead_and_slack_of_a_route_with_a_limit_are_metrics() {
    let upstream = Upstream::start().await;
    let free = RouteOptions { name: "free".to_owned(), ..route(upstream.address) };
    let routes = vec![limited(upstream.address, "1000/h", Duration::from_secs(10)), free];
    let proxy = Proxy::with(options(routes), Vec::new()).await;
    assert_eq!(proxy.get("/").await.status, 200);
    let lead = proxy.metric(r#"sluicegate_gateway_lead_seconds{gateway="test",route="all"}"#);
    let slack = proxy.metric(r#"sluicegate_gateway_slack_seconds{gateway="test",route="all"}"#);
    // The slack is 1 % of the window, because the round trip needs less.
    assert!(lead > 0.0 && lead < 30.0 && (slack - 36.0).abs() < 1e-9, "{lead} {slack}");
    let free = r#"sluicegate_gateway_slack_seconds{gateway="test",route="free"}"#;
    assert!(!proxy.metrics.render().contains(free), "a route without a limit has no turns");
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_refused_at_once() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "1/h", Duration::from_secs(60))).await;
    assert_eq!(proxy.get("/").await.status, 200);
    let answer = proxy.get("/").await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    let retry: u64 =
        answer.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!((3_590..=3_640).contains(&retry), "{retry}");
    let text = "the limit of route `all` of gateway `test` is reached: try again in ";
    assert!(answer.text().contains(text), "{}", answer.text());
}

#[tokio::test]
async fn limits_of_the_caller_apply_as_well() {
    let upstream = Upstream::start().await;
    let tenant = Rule::new("TENANT", ["2/h".parse().expect("a limit")]).per(&["tenantId"]);
    let caller = Rule::new("CALLER", ["5/h".parse().expect("a limit")]).per(&[CALLER]);
    let groups = vec![Group::new("tenant", [tenant]), Group::new("caller", [caller])];
    let to = limited(upstream.address, "100/h", Duration::from_secs(10));
    let proxy = Proxy::with(options(vec![to]), groups).await;
    let ask = |tenant: &'static str| {
        let request = proxy.request("GET", "/").header("x-tenant-id", tenant);
        async { proxy.send(request, "").await }
    };
    assert_eq!((ask("a").await.status, ask("a").await.status), (200, 200));
    let third = ask("a").await;
    assert_eq!(third.status, 429);
    assert!(third.text().contains("TENANT"), "{}", third.text());
    assert_eq!(
        (ask("b").await.status, ask("c").await.status, ask("d").await.status),
        (200, 200, 200)
    );
    let sixth = ask("e").await;
    assert!(sixth.status == 429 && sixth.text().contains("CALLER"), "{}", sixth.text());
}

#[tokio::test]
async fn a_denial_by_a_further_limit_of_a_route_names_the_route_and_the_dimension() {
    let upstream = Upstream::start().await;
    let rule = Rule::new("test/all/1", ["1/h".parse().expect("a limit")]);
    let rule = rule.per(&[ROUTE, "tenantId"]).when(ROUTE, Pattern::exactly("test/all"));
    let groups = vec![Group::new("test/all/1", [rule])];
    let proxy = Proxy::with(options(vec![route(upstream.address)]), groups).await;
    let ask = || proxy.send(proxy.request("GET", "/").header("x-tenant-id", "a"), "");
    assert_eq!(ask().await.status, 200);
    let answer = ask().await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    let text = "the limit per tenantId of route `all` of gateway `test` is reached: try again in ";
    assert!(answer.text().contains(text), "{}", answer.text());
}

#[tokio::test]
async fn a_request_without_a_required_header_can_not_bypass_the_limits_by_it() {
    let upstream = Upstream::start().await;
    let tenant = || Rule::new("TENANT", ["1/h".parse().expect("a limit")]).per(&["tenantId"]);
    let mut required = options(vec![route(upstream.address)]);
    required.dimensions.values_mut().for_each(|dimension| dimension.required = true);
    let proxy = Proxy::with(required, vec![Group::new("tenant", [tenant()])]).await;
    let ask = |value: Option<&'static [u8]>| {
        let request = proxy.request("GET", "/");
        let request = match value {
            Some(value) => request.header("x-tenant-id", value),
            None => request,
        };
        async { proxy.send(request, "").await }
    };
    for value in [None, Some(&b""[..]), Some(b"\xff")] {
        let answer = ask(value).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "MISSING_HEADER"), "{value:?}");
        let text = "the header x-tenant-id is missing, empty or not ASCII: send the tenantId of";
        assert!(answer.text().contains(text), "{}", answer.text());
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!((ask(Some(b"a")).await.status, ask(Some(b"a")).await.status), (200, 429));
    // Without a valid token, a client learns nothing about the headers that the gateway needs.
    let uri = format!("http://{}/", proxy.address);
    let unknown = axum::http::Request::get(uri).header("x-internal-token", "another-token");
    assert_eq!(proxy.send(unknown, "").await.code(), "UNAUTHORIZED");

    // A dimension that is not required may be left out.
    let optional = options(vec![route(upstream.address)]);
    let proxy = Proxy::with(optional, vec![Group::new("tenant", [tenant()])]).await;
    assert_eq!((proxy.get("/").await.status, proxy.get("/").await.status), (200, 200));
}

#[tokio::test]
async fn with_count_if_ok_only_successful_responses_count() {
    let upstream = Upstream::start().await;
    for (count_if_ok, expected) in [(true, 200), (false, 429)] {
        let mut to = limited(upstream.address, "1/h", Duration::ZERO);
        to.count_if_ok = count_if_ok;
        let proxy = Proxy::start(to).await;
        assert_eq!(proxy.get("/status/500").await.status, 500);
        assert_eq!(proxy.get("/").await.status, expected);
    }
}

#[tokio::test]
async fn a_request_that_was_never_sent_is_refunded() {
    let mut to = limited("127.0.0.1:1", "1/h", Duration::from_secs(1));
    to.count_if_ok = true;
    let proxy = Proxy::start(to).await;
    for _ in 0..3 {
        assert_eq!(proxy.get("/").await.code(), "UPSTREAM_UNREACHABLE");
    }
}

#[tokio::test]
async fn a_pause_that_the_upstream_asks_for_holds_for_all_requests() {
    let upstream = Upstream::start().await;
    let learn = Some(LearnOptions { below: 100, pause_max: Span::from_secs(3_600) });
    for (path, field, value) in [
        ("/status/429", "x-answer-retry-after", "300"),
        ("/status/200", "x-answer-x-ratelimit-remaining", "99"),
    ] {
        let mut to = limited(upstream.address, "100/s", Duration::ZERO);
        to.learn = learn;
        let proxy = Proxy::start(to).await;
        let said = proxy.request("GET", path).header(field, value);
        let said = said.header("x-answer-x-ratelimit-reset", "300");
        assert_eq!(proxy.send(said, "").await.status.to_string(), path[8..]);
        let before = upstream.count();
        let answer = proxy.get("/").await;
        assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
        let retry: u64 =
            answer.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
        assert!((300..=316).contains(&retry), "{retry}");
        assert_eq!(upstream.count(), before);
    }
    // Without learning, a 429 is passed on like any other response.
    let proxy = Proxy::start(limited(upstream.address, "100/s", Duration::ZERO)).await;
    let said = proxy.request("GET", "/status/429").header("x-answer-retry-after", "300");
    assert_eq!(proxy.send(said, "").await.status, 429);
    assert_eq!(proxy.get("/").await.status, 200);
}

#[tokio::test]
async fn a_hint_in_the_body_is_read_and_passed_on() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.learn = Some(LearnOptions { below: 1, pause_max: Span::from_secs(3_600) });
    let proxy = Proxy::start(to).await;
    let answer = proxy.send(proxy.request("GET", "/status/429"), "").await;
    assert_eq!((answer.status, answer.text()), (429, "said so"));
    // The response names no time: the pause is one second.
    assert_eq!(proxy.get("/").await.headers["retry-after"], "2");
}

#[tokio::test]
async fn slots_are_released_at_the_end_of_the_response() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "1 concurrent", Duration::ZERO)).await;
    let (first, second) = tokio::join!(proxy.get("/held"), async {
        eventually_is_async(|| upstream.count(), 1).await;
        let second = proxy.get("/").await;
        upstream.held.add_permits(1);
        second
    });
    assert_eq!((first.status, second.status), (200, 429));
    // A separate task releases the slot.
    soon(async { while proxy.get("/").await.status != 200 {} }).await;
}

/// A request without a slot used to get 429 at once, and later to wait for the next of its polls.
#[tokio::test]
async fn a_request_without_a_slot_starts_when_another_one_ends() {
    let upstream = Upstream::start().await;
    let to = limited(upstream.address, "2 concurrent", Duration::from_secs(20));
    let proxy = Proxy::start(to).await;
    let mut running = futures_util::stream::FuturesUnordered::new();
    for _ in 0..2 {
        running.push(proxy.get("/held"));
    }
    let third = async {
        eventually_is_async(|| upstream.count(), 2).await;
        let third = proxy.get("/third");
        let release = async {
            eventually_is_async(|| proxy.metric(DEPTH), 1.0).await;
            assert_eq!(upstream.count(), 2, "it has no slot");
            upstream.held.add_permits(1);
            eventually_is_async(|| upstream.count(), 3).await;
            assert_eq!(upstream.last().uri, "/third");
            upstream.held.add_permits(1);
        };
        tokio::join!(third, release).0
    };
    let (third, held) = tokio::join!(third, running.by_ref().collect::<Vec<_>>());
    assert_eq!(third.status, 200);
    assert!(held.iter().all(|answer| answer.status == 200));
    assert_eq!(proxy.metric(DEPTH), 0.0);
}

/// The lease of a request that runs is renewed again and again, so its end says nothing.
#[tokio::test]
async fn retry_after_of_a_missing_slot_is_not_the_whole_lease() {
    let upstream = Upstream::start().await;
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let proxy = Proxy::start(limited(upstream.address, "1 concurrent", wait)).await;
        let before = upstream.count();
        let (first, second) = tokio::join!(proxy.get("/held"), async {
            eventually_is_async(|| upstream.count(), before + 1).await;
            let second = proxy.get("/").await;
            upstream.held.add_permits(1);
            second
        });
        assert_eq!((first.status, second.status), (200, 429));
        assert_eq!(second.headers["retry-after"], "1");
    }
}

/// The refused caller is told to wait as long as requests take, here more than 3 s.
#[tokio::test]
async fn retry_after_of_a_missing_slot_is_the_time_that_requests_hold_one() {
    let upstream = Upstream::start().await;
    let tenant = Rule::new("TENANT", ["1 concurrent".parse().expect("a limit")]);
    let tenant = Group::new("tenant", [tenant.per(&["tenantId"])]);
    let of_route = limited(upstream.address, "1 concurrent", Duration::ZERO);
    for (to, groups) in [(of_route, Vec::new()), (route(upstream.address), vec![tenant])] {
        let proxy = Proxy::with(options(vec![to]), groups).await;
        let ask = |path: &'static str| {
            let request = proxy.request("GET", path).header("x-tenant-id", "a");
            async { proxy.send(request, "").await }
        };
        // The first request takes more than 3 s.
        let before = upstream.count();
        let (first, ()) = tokio::join!(ask("/held"), async {
            eventually_is_async(|| upstream.count(), before + 1).await;
            tokio::time::sleep(Duration::from_millis(3_100)).await;
            upstream.held.add_permits(1);
        });
        assert_eq!(first.status, 200);
        // The second one has to wait until the slot is free: a separate task releases it.
        let (second, third) = tokio::join!(
            async {
                loop {
                    let second = ask("/held").await;
                    if second.status == 200 {
                        break second;
                    }
                }
            },
            async {
                eventually_is_async(|| upstream.count(), before + 2).await;
                let third = ask("/").await;
                upstream.held.add_permits(1);
                third
            }
        );
        assert_eq!((second.status, third.status), (200, 429));
        let retry: u64 = third.headers["retry-after"].to_str().expect("text").parse().expect("s");
        assert!(retry >= 4, "{retry}");
    }
}

/// The wait for a turn of the route may be longer than a lease under the limits of the caller.
#[tokio::test]
async fn a_slot_of_the_caller_is_kept_while_its_request_waits_for_a_turn() {
    let upstream = Upstream::start().await;
    let mut tenant = Rule::new("TENANT", ["1 concurrent".parse().expect("a limit")]);
    tenant.lease = Span::from_secs(2);
    let groups = vec![Group::new("tenant", [tenant.per(&["tenantId"])])];
    let to = limited(upstream.address, "1/6s", Duration::from_secs(60));
    let proxy = Proxy::with(options(vec![to]), groups).await;
    let ask = |tenant: &'static str| {
        let request = proxy.request("GET", "/").header("x-tenant-id", tenant);
        async { proxy.send(request, "").await }
    };
    assert_eq!(ask("b").await.status, 200, "it takes the turn");
    let waits = ask("a");
    let others = async {
        eventually_is_async(|| proxy.metric(DEPTH), 1.0).await;
        let mut refused = 0;
        while proxy.metric(DEPTH) == 1.0 {
            let answer = ask("a").await;
            // The slot is free when the request that waited has its answer.
            if proxy.metric(DEPTH) == 1.0 {
                assert!(answer.status == 429 && answer.text().contains("TENANT"), "{answer:?}");
                refused += 1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        refused
    };
    let (waited, refused) = tokio::join!(waits, others);
    assert_eq!(waited.status, 200);
    assert!(refused > 0);
}
