//! `examples/two-tier-dispatch`: every variable of the system that it replaces (SPEC C6) has its
//! effect.

use sluicegate_config::{Config, DelayMode, QueueBroker, StoreOptions, Strategy, load};
use sluicegate_core::Span;

const BOTH_TIERS: &str = include_str!("../../../../examples/two-tier-dispatch/sluicegate.yaml");
const ONE_WORKER: &str = include_str!("../../../../examples/two-tier-dispatch/worker.yaml");

fn with(text: &str, variables: &[(&str, &str)]) -> Config {
    let value = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    match load("example.yaml", text, &value) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{variables:?}: {problems}"),
    }
}

fn names(config: &Config) -> Vec<&str> {
    let dispatch = config.dispatch.as_ref().expect("a dispatcher");
    dispatch.providers.iter().map(|provider| provider.name.as_str()).collect()
}

/// Returns the limits of all rules with their literal keys, as `key limit`.
fn limits(config: &Config) -> Vec<String> {
    let rules = config.groups().iter().flat_map(|group| &group.rules);
    let rules = rules.filter_map(|rule| Some((rule.key.as_ref()?, rule.limits.first()?)));
    rules.map(|(key, limit)| format!("{key} {limit}")).collect()
}

fn redis(config: &Config) -> (String, Span) {
    let StoreOptions::Redis(redis) = &config.store else { panic!("{:?}", config.store) };
    (format!("{:?}", redis.topology), redis.ttl_min)
}

#[test]
fn the_defaults_are_those_of_the_old_system() {
    let config = with(BOTH_TIERS, &[("STORE", "redis"), ("QUEUE", "rabbitmq")]);
    let dispatch = config.dispatch.as_ref().expect("a dispatcher");
    assert_eq!(
        (dispatch.strategy.clone(), dispatch.fixed.as_deref()),
        (Strategy::Fixed, Some("openai"))
    );
    assert_eq!(names(&config), ["openai", "gemini", "anthropic"]);
    assert_eq!(dispatch.id, "dispatcher-001");
    assert_eq!(dispatch.delay, DelayMode::Fixed(Span::from_secs(30)));
    // Left out, so that booked delays get as many as they need.
    assert_eq!((dispatch.prefetch, config.workers[0].prefetch), (1, None));
    assert!(dispatch.enabled);
    assert_eq!(dispatch.source, "raw-analysis-queue");
    let queue = config.queue.as_ref().expect("a queue");
    assert_eq!(queue.dead_letter.as_deref(), Some("analysis-dlq"));
    let QueueBroker::RabbitMq { url, .. } = &queue.broker else { panic!("{queue:?}") };
    assert_eq!(url.expose(), "amqp://dev:devpass@localhost:5672/");
    let (servers, ttl) = redis(&config);
    assert!(servers.contains("localhost") && servers.contains("6379"), "{servers}");
    assert_eq!(ttl, Span::from_secs(120));
    let worker = &config.workers[0];
    assert_eq!((worker.attempts, worker.backoff_from), (3, Span::from_secs(1)));
    let limits = limits(&config);
    for expected in [
        "ziraai:dispatcher:ratelimit:openai 5000/min",
        "ziraai:dispatcher:ratelimit:gemini 500/min",
        "ziraai:dispatcher:ratelimit:anthropic 400/min",
        "ziraai:worker:ratelimit:openai 5000/min",
        "ziraai:worker:ratelimit:gemini 500/min",
        "ziraai:worker:ratelimit:anthropic 400/min",
    ] {
        assert!(limits.iter().any(|limit| limit == expected), "{expected} in {limits:?}");
    }
}

#[test]
fn every_variable_has_its_effect() {
    let config = with(
        BOTH_TIERS,
        &[
            ("STORE", "redis"),
            ("QUEUE", "rabbitmq"),
            ("PROVIDER_SELECTION_STRATEGY", "PRIORITY_ORDER"),
            ("PROVIDER_FIXED", "gemini"),
            ("PROVIDER_PRIORITY_ORDER", "anthropic,gemini"),
            ("AVAILABLE_PROVIDERS", "gemini,anthropic"),
            ("GEMINI_RATE_LIMIT", "51"),
            ("OPENAI_RATE_LIMIT", "52"),
            ("ANTHROPIC_RATE_LIMIT", "53"),
            ("RATE_LIMIT_ENABLED", "false"),
            ("RATE_LIMIT_DELAY_MS", "1500"),
            ("REDIS_URL", "redis://redis.example:7000"),
            ("REDIS_KEY_PREFIX", "mine:"),
            ("REDIS_TTL", "600"),
            ("RABBITMQ_URL", "amqp://a:b@rabbit.example:5673/"),
            ("RAW_ANALYSIS_QUEUE", "raw"),
            ("OPENAI_QUEUE", "o"),
            ("GEMINI_QUEUE", "g"),
            ("ANTHROPIC_QUEUE", "a"),
            ("DLQ_QUEUE", "d"),
            ("DISPATCHER_ID", "dispatcher-7"),
            ("MAX_RETRY_ATTEMPTS", "5"),
            ("RETRY_DELAY_MS", "250"),
            ("PREFETCH", "9"),
        ],
    );
    let dispatch = config.dispatch.as_ref().expect("a dispatcher");
    assert_eq!(dispatch.strategy, Strategy::PriorityOrder);
    assert_eq!((dispatch.prefetch, config.workers[0].prefetch), (9, Some(9)));
    assert_eq!(dispatch.fixed.as_deref(), Some("gemini"));
    assert_eq!(dispatch.priority, ["anthropic", "gemini"]);
    assert_eq!(names(&config), ["gemini", "anthropic"]);
    assert!(!dispatch.enabled && !config.workers[0].enabled);
    assert_eq!(dispatch.delay, DelayMode::Fixed(Span::from_millis(1_500)));
    assert_eq!((dispatch.id.as_str(), dispatch.source.as_str()), ("dispatcher-7", "raw"));
    let queues: Vec<_> =
        dispatch.providers.iter().map(|provider| provider.queue.as_str()).collect();
    assert_eq!(queues, ["g", "a"]);
    let queues: Vec<_> = config.workers.iter().map(|worker| worker.queue.as_str()).collect();
    assert_eq!(queues, ["o", "g", "a"]);
    let (servers, ttl) = redis(&config);
    assert!(servers.contains("redis.example") && servers.contains("7000"), "{servers}");
    assert_eq!(ttl, Span::from_secs(600));
    let queue = config.queue.as_ref().expect("a queue");
    assert_eq!(queue.dead_letter.as_deref(), Some("d"));
    let QueueBroker::RabbitMq { url, .. } = &queue.broker else { panic!("{queue:?}") };
    assert_eq!(url.expose(), "amqp://a:b@rabbit.example:5673/");
    for worker in &config.workers {
        assert_eq!((worker.attempts, worker.backoff_from), (5, Span::from_millis(250)));
    }
    let limits = limits(&config);
    for expected in ["mine:gemini 51/min", "mine:anthropic 53/min"] {
        assert!(limits.iter().any(|limit| limit == expected), "{expected} in {limits:?}");
    }
    assert!(limits.contains(&"ziraai:worker:ratelimit:openai 52/min".to_owned()), "{limits:?}");
}

#[test]
fn a_worker_of_one_provider_has_variables_of_its_own() {
    let config = with(ONE_WORKER, &[]);
    assert_eq!(limits(&config), ["ziraai:worker:ratelimit:openai 1000/min"]);
    let config = with(
        ONE_WORKER,
        &[
            ("STORE", "redis"),
            ("PROVIDER_FIXED", "gemini"),
            ("RATE_LIMIT", "500"),
            ("REDIS_KEY_PREFIX", "w:"),
            ("REDIS_TTL", "300"),
            ("RATE_LIMIT_ENABLED", "false"),
            ("DLQ_QUEUE", "d"),
            ("MAX_RETRY_ATTEMPTS", "2"),
            ("RETRY_DELAY_MS", "10"),
        ],
    );
    let named = with(ONE_WORKER, &[("PROVIDER_FIXED", "gemini"), ("WORKER_QUEUE", "g")]);
    assert_eq!(named.workers[0].queue, "g");
    let [worker] = &config.workers[..] else { panic!("one worker") };
    assert_eq!(
        (worker.provider.as_str(), worker.queue.as_str()),
        ("gemini", "gemini-analysis-queue")
    );
    assert_eq!(limits(&config), ["w:gemini 500/min"]);
    assert_eq!(redis(&config).1, Span::from_secs(300));
    assert!(!worker.enabled);
    assert_eq!((worker.attempts, worker.backoff_from), (2, Span::from_millis(10)));
    assert_eq!(config.queue.as_ref().expect("a queue").dead_letter.as_deref(), Some("d"));
    assert!(config.dispatch.is_none());
}

/// Limiting is on unless the variable is literally `false`.
#[test]
fn only_the_word_false_turns_limits_off() {
    let values = [("false", false), ("true", true), ("", true), ("0", true), ("FALSE", true)];
    for (value, enabled) in values {
        let config = with(BOTH_TIERS, &[("RATE_LIMIT_ENABLED", value)]);
        assert_eq!(config.dispatch.expect("a dispatcher").enabled, enabled, "{value:?}");
    }
}
