//! Tests of the values that configurations are loaded to, through the public types.

use crate::files::{files, load_file};
use sluicegate_config::{
    Config, LogFormat, LogLevel, OutagePolicy, RedisTimeouts, RedisTopology, RedisWorkload,
    SampleRate, StoreOptions, TokenHash, TraceProtocol, load,
};
use sluicegate_core::Span;
use sluicegate_core::price::{Quote, TokenCounts};
use sluicegate_core::rule::{EstimateMode, OnExpiry, Pattern};

fn good(name: &str) -> Config {
    let path = files("good").into_iter().find(|path| path.ends_with(format!("{name}.yaml")));
    load_file(&path.unwrap_or_else(|| panic!("{name}"))).unwrap_or_else(|e| panic!("{e}")).config
}

fn loaded(text: &str) -> Config {
    load("test.yaml", text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")).config
}

fn rules(config: &Config) -> Vec<String> {
    let rules = config.groups().iter().flat_map(|group| &group.rules);
    rules
        .map(|rule| {
            let limits: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
            format!("{} {} by {}", rule.name, limits.join(" "), rule.per.join(" "))
        })
        .collect()
}

#[test]
fn an_empty_file_has_every_default() {
    for name in ["empty", "only_comments", "null"] {
        let config = good(name);
        assert!(config.enabled);
        assert_eq!(config.listen.http.address.to_string(), "127.0.0.1:8080");
        assert_eq!(config.listen.grpc.address.to_string(), "127.0.0.1:8081");
        assert_eq!(config.listen.admin.address.to_string(), "127.0.0.1:9090");
        assert!(config.auth.tokens.is_empty());
        assert_eq!(config.store, StoreOptions::default());
        assert_eq!(config.settings().outage.policy(Some("INTERNAL")), OutagePolicy::Closed);
        assert_eq!(rules(&config), ["USER_MODEL 100/h by userId modelId"]);
        assert_eq!(config.settings().required, ["userId", "modelId"]);
        assert_eq!(config.settings().secret, ["apiKey"]);
        assert_eq!(config.settings().horizon, Span::from_secs(3_600));
        assert_eq!(config.settings().prices.of("any"), Quote::Unknown);
        assert_eq!(config.log.decisions.allowed, SampleRate::ALL);
        assert_eq!(config.server.body_limit.0, 65_536);
        assert_eq!(config.ruleset().groups().count(), 1);
    }
}

#[test]
fn a_dimension_is_required_if_a_group_matches_no_rule_without_it() {
    let needs = |dimensions: &str, rules: &str| {
        let limits = format!("limits: [{{name: g, rules: [{rules}]}}]");
        let config = loaded(&format!("dimensions: {{{dimensions}}}\n{limits}"));
        let needs = config.settings().needs.iter().map(ToString::to_string);
        needs.collect::<Vec<_>>().join("; ")
    };
    let tenant = "{name: TIER, when: {modelTier: PREMIUM}, per: [tenantId], limit: 5/s}, \
                  {name: TENANT, per: [tenantId], limit: 5/s}";
    assert_eq!(needs("", tenant), "tenantId");
    assert_eq!(needs("tenantId: secret", tenant), "tenantId", "a secret may not be left out");
    assert_eq!(needs("tenantId: optional", tenant), "");
    let for_envoy =
        format!("{tenant}, {{name: E, when: {{envoy.domain: a}}, per: [], limit: 5/s}}");
    assert_eq!(needs("", &for_envoy), "tenantId");
    let everybody = format!("{tenant}, {{name: ALL, per: [], limit: 5/s}}");
    assert_eq!(needs("", &everybody), "");
    let text = "gateways: [{name: g, listen: '127.0.0.1:1', routes: [{path: /, upstream: \
                'http://a', limit: 5/s, limits: [{per: [caller], limit: 5/s}]}]}]";
    let config = loaded(text);
    assert_eq!(config.settings().needs.len(), 1, "{:?}", config.settings().needs);
    assert_eq!(config.settings().needs[0].to_string(), "modelId and userId");
}

#[test]
fn a_gateway_requires_the_dimensions_that_the_file_marks_as_required() {
    let text = "dimensions: {tenantId: required, userId: required, region: optional}
gateways:
- name: g
  listen: 127.0.0.1:1
  dimensions: {tenantId: X-Tenant, userId: {header: x-user, required: false}, region: {header: x-region}, modelId: {header: x-model, required: true}}
  routes: [{path: /, upstream: 'http://a'}]
- name: h
  listen: 127.0.0.1:2
  dimensions: {modelId: x-model}
  routes: [{path: /, upstream: 'http://a'}]
";
    let config = loaded(text);
    let found = |gateway: usize| {
        let dimensions = config.gateways[gateway].dimensions.iter();
        let found = dimensions.map(|(name, of)| format!("{name} {} {}", of.header, of.required));
        found.collect::<Vec<_>>()
    };
    let expected = ["modelId x-model true", "region x-region false", "tenantId x-tenant true"];
    assert_eq!(found(0), [&expected[..], &["userId x-user false"]].concat());
    // The default rule counts by modelId, but the file does not mark it as required.
    assert_eq!(found(1), ["modelId x-model false"]);
}

#[test]
fn a_route_buffers_small_bodies_unless_told_otherwise() {
    let buffer = |more: &str| {
        let route = format!("{{path: /, upstream: 'http://a', {more}}}");
        let text = format!("gateways: [{{name: g, listen: '127.0.0.1:1', routes: [{route}]}}]");
        loaded(&text).gateways[0].routes[0].body_buffer.0
    };
    assert_eq!(buffer(""), 64 << 10);
    assert_eq!(buffer("body_limit: 1KB"), 1 << 10);
    assert_eq!(buffer("body_buffer: 1MB"), 1 << 20);
    assert_eq!(buffer("body_buffer: 0B"), 0);
}

#[test]
fn limits_that_count_everybody_together_require_nothing() {
    let text = "limits: [{name: g, rules: [{name: R, per: [], limit: 5/s}]}]";
    let config = loaded(text);
    assert!(config.settings().required.is_empty() && config.settings().needs.is_empty());
    assert_eq!(loaded("dimensions: {tenantId: required}").settings().required.len(), 3);
}

#[test]
fn the_example_of_the_design_is_read_as_it_is_meant() {
    let config = good("all_parts");
    let StoreOptions::Redis(redis) = &config.store else { panic!("{:?}", config.store) };
    let given = (Some(Span::from_millis(20)), Some(Span::from_millis(45)));
    assert_eq!((redis.timeout, redis.deadline), given);
    assert_eq!((redis.retries, redis.nodes_max), (1, 4));
    assert_eq!(redis.deny_cache, Span::from_secs(1));
    assert_eq!((redis.partition.as_deref(), redis.key_prefix.as_str()), (Some("tenantId"), "sg:"));
    assert_eq!(config.settings().partition.as_deref(), Some("tenantId"));
    let RedisTopology::Single(address) = &redis.topology else { panic!("{:?}", redis.topology) };
    assert_eq!((address.host.as_str(), address.port, address.tls), ("127.0.0.1", 6_379, false));
    assert_eq!(config.settings().required, ["userId", "modelId"]);
    assert_eq!(config.settings().outage.policy(Some("INTERNAL")), OutagePolicy::Local);
    assert_eq!(config.settings().outage.policy(Some("OTHER")), OutagePolicy::Closed);
    assert_eq!(
        rules(&config),
        [
            "API_KEY_MODEL 200/h by apiKey modelId",
            "USER_MODEL 8/5s 20/min 100/h by userId modelId",
            "TENANT_MODEL_TIER 5000/h by tenantId modelTier",
            "TENANT_GLOBAL 1000/h by tenantId",
            "GLOBAL_MODEL 10000/h by modelId",
            "USER_BUDGET 5.00 USD/day by userId",
            "GLOBAL_CONCURRENT 100 concurrent by ",
        ]
    );
    let first = &config.groups()[0].rules[0];
    let expected = [("apiKey", Pattern::exactly("K1")), ("modelId", Pattern::exactly("gpt4"))];
    assert_eq!(first.when, expected.map(|(name, pattern)| (name.to_owned(), pattern)));
    assert!(config.groups()[0].effective && !config.groups()[1].effective);
    let Quote::Priced(prices) = config.settings().prices.of("any model") else {
        panic!("there is a default price");
    };
    let tokens = TokenCounts { input: 12 + 856, output: 145, ..TokenCounts::default() };
    assert_eq!(prices.cost(&tokens), "0.00026060".parse().unwrap());
}

#[test]
fn jobs_have_longer_redis_timeouts_than_requests() {
    let waits = |timeout, deadline| RedisTimeouts {
        timeout: Span::from_millis(timeout),
        deadline: Span::from_millis(deadline),
    };
    for (store, requests, jobs) in [
        ("{kind: redis}", waits(20, 45), waits(500, 1_500)),
        ("{kind: redis, deadline: 2s}", waits(20, 2_000), waits(500, 2_000)),
        ("{kind: redis, timeout: 1ms}", waits(1, 45), waits(1, 1_500)),
    ] {
        let config = loaded(&format!("store: {store}\n"));
        let StoreOptions::Redis(redis) = config.store else { panic!("kind: redis is Redis") };
        assert_eq!(redis.timeouts(RedisWorkload::Requests), requests);
        assert_eq!(redis.timeouts(RedisWorkload::Jobs), jobs);
    }
}

#[test]
fn variables_are_typed_after_they_are_replaced() {
    let config = good("assistant_api");
    assert!(!config.enabled);
    assert_eq!(
        rules(&config),
        [
            "PREMIUM 100/min by userId",
            "USER 10/min 100/h 500/day by userId",
            "GLOBAL 1000/h 100 concurrent by ",
            "USER_COST 7.50 USD/day by userId",
            "GLOBAL_COST 100.00 USD/calendar day Europe/Berlin by ",
        ]
    );
    let [user, everybody, money, _] = config.groups() else { panic!("four groups") };
    assert_eq!(user.rules[0].when[0].1, Pattern::Glob("premium_*".to_owned()));
    assert_eq!(everybody.rules[0].lease, Span::from_secs(120));
    assert_eq!(money.rules[0].mode, EstimateMode::Optimistic);
    assert_eq!(money.rules[0].on_expiry, OnExpiry::Refund);
    assert_eq!(money.rules[0].outage, Some(OutagePolicy::Closed));
    assert_eq!(user.rules.last().and_then(|rule| rule.outage), None);
    assert_eq!(config.settings().outage.default, OutagePolicy::Open);
    let premium = user.rules[0].description.as_deref();
    assert_eq!(premium, Some("users of the premium plan"));
    assert_eq!(config.metrics.statsd, None);
    let Quote::Priced(gpt4) = config.settings().prices.of("gpt4") else { panic!("a price") };
    let rates = gpt4.rates(1);
    assert!(rates.cached_input < rates.input && rates.reasoning > rates.output);
}

#[test]
fn an_empty_item_in_a_list_of_tokens_is_ignored() {
    let text = "auth:\n  tokens:\n    a:\n      - 0123456789abcdef\n      - ${NEXT:-}\n    \
                b: [fedcba9876543210, fedcba9876543210]";
    let config = loaded(text);
    assert_eq!(config.auth.tokens["a"], [TokenHash::of("0123456789abcdef")]);
    assert_eq!(config.auth.tokens["b"], [TokenHash::of("fedcba9876543210")]);
}

#[test]
fn a_collector_without_a_path_gets_the_path_of_traces() {
    for (endpoint, expected) in [
        ("http://c:4318", Some("http://c:4318/v1/traces")),
        ("http://c:4318/", Some("http://c:4318/v1/traces")),
        ("https://c/otlp/v1/traces", Some("https://c/otlp/v1/traces")),
        ("${NO_COLLECTOR:-}", None),
    ] {
        let text = format!("traces:\n  endpoint: {endpoint}\n");
        let found = loaded(&text).traces.map(|traces| traces.endpoint.to_string());
        assert_eq!(found.as_deref(), expected, "{endpoint}");
    }
}

#[test]
fn every_option_arrives() {
    let config = good("every_option");
    let tls = config.listen.http.tls.as_ref().unwrap();
    assert_eq!(tls.client_ca.as_deref(), Some("/etc/sluicegate/ca.crt".as_ref()));
    assert!(config.listen.grpc.insecure && !config.listen.http.insecure);
    assert_eq!(config.listen.admin.address.to_string(), "limiter.internal:9191");
    let hash = TokenHash::of("a-token-of-more-than-16-characters");
    assert_eq!(config.auth.tokens["gateway"], [hash]);
    let hashes = ["the-token-that-comes-after-it", "abc"].map(TokenHash::of);
    assert_eq!(config.auth.tokens["ci"], hashes);
    let StoreOptions::Memory {
        keys_max: 5_000,
        records_max: 600,
        snapshot: Some(snapshot),
        overrides: Some(overrides),
    } = &config.store
    else {
        panic!("{:?}", config.store)
    };
    assert_eq!(overrides, "/var/lib/sluicegate/overrides.jsonl");
    assert_eq!(snapshot.every, Span::from_secs(60));
    assert_eq!(config.settings().required, ["userId", "tenantId"]);
    assert_eq!(config.settings().secret, ["apiKey", "userId", "sessionKey"]);
    assert_eq!(config.settings().slack, Some(Span::from_millis(25)));
    assert_eq!(config.settings().horizon, Span::from_secs(7_200));
    let [shadow, worker] = &config.groups()[0].rules[..] else { panic!("two rules") };
    assert!(shadow.shadow && !worker.shadow);
    assert_eq!(shadow.when[0].1, Pattern::OneOf(vec!["eu".to_owned(), "us".to_owned()]));
    assert_eq!(shadow.when[1].1, Pattern::exactly("2"));
    assert_eq!(worker.key.as_deref(), Some("ziraai:worker:ratelimit:<provider>"));
    assert_eq!((config.log.level, config.log.format), (LogLevel::Debug, LogFormat::Json));
    assert_eq!(config.log.decisions.allowed.parts_per_million(), 10_000);
    assert_eq!(config.metrics.statsd.as_ref().unwrap().port, 8_125);
    assert_eq!(config.server.connections_max, 2_000);
    assert_eq!(config.server.body_limit.0, 1 << 20);
    assert_eq!(config.server.shutdown_grace, Span::from_secs(30));
    assert_eq!(config.server.drain_timeout, Some(Span::from_secs(25)));
    let traces = config.traces.as_ref().unwrap();
    assert_eq!(traces.endpoint, "https://collector.example:4317");
    assert_eq!((traces.protocol, traces.timeout), (TraceProtocol::Grpc, Span::from_secs(2)));
    assert_eq!(traces.sample_ratio.parts_per_million(), 250_000);
    assert_eq!((traces.service_name.as_str(), traces.headers.len()), ("limiter", 1));
}

#[test]
fn redis_is_found_in_every_topology() {
    let topology = |name: &str| match good(name).store {
        StoreOptions::Redis(redis) => redis.topology,
        store => panic!("{store:?}"),
    };
    let RedisTopology::Cluster(nodes) = topology("redis_cluster") else { panic!("a cluster") };
    assert_eq!((nodes.len(), nodes[0].host.as_str(), nodes[0].port), (1, "10.0.0.1", 7_000));
    let RedisTopology::Cluster(nodes) = topology("redis_cluster_seeds") else {
        panic!("a cluster")
    };
    assert_eq!((nodes.len(), nodes[2].host.as_str()), (3, "10.0.0.3"));
    let RedisTopology::Sentinel(found) = topology("redis_sentinel") else { panic!("sentinels") };
    let of_sentinel = found.nodes[1].password.as_deref();
    assert_eq!((found.master.as_str(), of_sentinel), ("mymaster", Some("sentinel-password")));
    let login = (found.login.username.as_deref(), found.login.password.as_deref());
    assert_eq!(login, (Some("limiter"), Some("master-password")));
    let RedisTopology::Single(azure) = topology("redis_azure") else { panic!("a server") };
    assert_eq!((azure.port, azure.tls, azure.db), (6_380, true, 0));
    assert_eq!(azure.password.unwrap(), "pl4nted+s3cret=");
    assert!(matches!(good("store_by_variable").store, StoreOptions::Memory { keys_max: 100, .. }));
}

#[test]
fn ten_thousand_rules_are_a_file_like_any_other() {
    let mut text = "limits:\n  - name: caller\n    rules:\n".to_owned();
    for n in 0..10_000 {
        text += &format!(
            "      - name: KEY_{n}\n        when:\n          apiKey: key-{n}\n          modelId: [a, b]\n        \
             per: [apiKey, modelId]\n        limit: [5/s, {}/h]\n",
            n + 1
        );
    }
    let config = loaded(&text);
    assert_eq!(config.groups()[0].rules.len(), 10_000);
    let broken = text.replace("limit: [5/s", "limt: [5/s");
    let errors = load("test.yaml", &broken, &|_| None).expect_err("limt");
    assert_eq!((errors.iter().count(), errors.omitted()), (1_000, 19_000));
}

#[test]
fn prices_have_patterns_tiers_and_a_word_for_the_unknown() {
    let config = good("prices");
    let file = "/etc/sluicegate/model_prices_and_context_window.json";
    assert_eq!(config.prices.file.as_deref(), Some(std::path::Path::new(file)));
    let book = &config.settings().prices;
    assert_eq!(book.of("claude"), Quote::Free);
    let Quote::Priced(gemini) = book.of("gemini-2.5-pro") else { panic!("a price") };
    let [short, long] =
        [200_000, 200_001].map(|input| TokenCounts { input, ..TokenCounts::default() });
    assert_eq!(gemini.cost(&short).to_string(), "0.25");
    assert_eq!(gemini.cost(&long).to_string(), "0.5000025");
}

#[test]
fn imported_prices_are_for_models_that_have_none() {
    let mut config = good("prices");
    let text = r#"{
        "gpt-4o": {"input_cost_per_token": 9e-06, "output_cost_per_token": 9e-06},
        "claude": {"input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05}
    }"#;
    assert_eq!(config.import_prices(text).unwrap(), 2);
    let book = &config.settings().prices;
    let one = TokenCounts { input: 1_000, ..TokenCounts::default() };
    for (model, expected) in [("gpt-4o", "0.0025"), ("claude", "0.003")] {
        let Quote::Priced(prices) = book.of(model) else { panic!("{model} has a price") };
        assert_eq!(prices.cost(&one).to_string(), expected, "{model}");
    }
}
