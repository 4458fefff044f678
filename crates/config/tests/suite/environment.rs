//! The configuration of a process without a file.

use sluicegate_config::{RedisTopology, StoreOptions, load, load_defaults};

fn with<'v>(variables: &'v [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'v {
    |name| {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}

/// Checks the store that the variables select, with the reason, or the error.
#[track_caller]
fn check(variables: &[(&str, &str)], expected: &str) {
    let found = match load_defaults(&with(variables)) {
        Err(error) => error.to_string(),
        Ok(loaded) => {
            assert_eq!(loaded.config.groups()[0].rules[0].name, "USER_MODEL");
            assert_eq!(loaded.config.settings().required, ["userId", "modelId"]);
            let store = match &loaded.config.store {
                StoreOptions::Memory { .. } => "memory".to_owned(),
                StoreOptions::Redis(redis) => match &redis.topology {
                    RedisTopology::Single(server) => format!("{server:?}"),
                    other => format!("{other:?}"),
                },
            };
            format!("{store}; {}", loaded.config.store_reason)
        }
    };
    assert_eq!(found, expected, "{variables:?}");
}

#[test]
fn two_variables_select_the_store() {
    let none = "memory; there is no configuration file and REDIS_URL is not set";
    check(&[], none);
    check(&[("REDIS_URL", ""), ("REDIS_CLUSTER_MODE", "")], none);
    check(&[("REDIS_CLUSTER_MODE", "false")], none);
    let one = [("REDIS_URL", "redis://:pw@cache:7000/2")];
    check(&one, "Server(cache:7000/2, tls: false); REDIS_URL is set");
    let reason = "REDIS_URL is set and REDIS_CLUSTER_MODE is true";
    check(
        &[("REDIS_URL", "redis://a:1,redis://b:2"), ("REDIS_CLUSTER_MODE", "true")],
        &format!("Cluster([Server(a:1/0, tls: false), Server(b:2/0, tls: false)]); {reason}"),
    );
    check(
        &[("REDIS_URL", "a:1"), ("REDIS_CLUSTER_MODE", "TRUE")],
        &format!("Cluster([Server(a:1/0, tls: false)]); {reason}"),
    );
}

#[test]
fn variables_that_select_no_store_are_errors_without_their_values() {
    check(
        &[("REDIS_CLUSTER_MODE", "true")],
        "REDIS_CLUSTER_MODE: a cluster without a server: set REDIS_URL to one or more of its \
         servers, separated by commas",
    );
    check(
        &[("REDIS_URL", "redis://a:1"), ("REDIS_CLUSTER_MODE", "on")],
        "REDIS_CLUSTER_MODE: neither true nor false: set it to true or false",
    );
    check(
        &[("REDIS_URL", "redis://a:1,redis://b:2")],
        "REDIS_URL: more than one server: set REDIS_CLUSTER_MODE=true if they are one Redis \
         Cluster, or name one server",
    );
    check(
        &[("REDIS_URL", "http://user:hush@a")],
        "REDIS_URL: unknown scheme in the Redis address: write \
         redis://[[user]:password@]host[:port][/db], rediss:// for TLS, or \
         host:port,password=…,ssl=True",
    );
}

/// A file of the current format names its variables itself.
#[test]
fn a_file_without_a_store_does_not_use_the_variables() {
    let loaded = load("f", "enabled: true", &with(&[("REDIS_URL", "redis://a:1")])).expect("valid");
    assert_eq!(loaded.config.store, StoreOptions::default());
    assert_eq!(loaded.config.store_reason, "the file has no section store");
}

#[test]
fn an_automatic_store_is_redis_if_a_server_is_named() {
    let text = "store:\n  kind: auto\n  url: ${URL:-}\n  cluster: ${MODE:-}\n";
    let reason = |url: &str, mode: &str| {
        let loaded = load("f", text, &with(&[("URL", url), ("MODE", mode)]));
        loaded.map(|loaded| loaded.config.store_reason).map_err(|error| error.to_string())
    };
    let (named, unnamed) = (
        Ok("store.kind is auto and the section names a server"),
        Ok("store.kind is auto and the section names no server"),
    );
    assert_eq!(reason("redis://a:1", "false"), named);
    assert_eq!(reason("redis://a:1", "true"), named);
    assert_eq!(reason("", ""), unnamed);
    assert_eq!(reason("", "false"), unnamed);
    let error = reason("", "true").expect_err("a cluster without a server");
    assert!(error.contains("store.cluster: a cluster without a server"), "{error}");
    let error = reason("", "perhaps").expect_err("no boolean");
    assert!(error.contains("neither a list nor a boolean"), "{error}");
}
