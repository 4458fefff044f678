//! Checks the Redis servers of a configuration: version, persistence, eviction, permissions, round
//! trip and clock.

use sluicegate_config::{RedisStore, RedisWorkload};
use sluicegate_core::Group;
use sluicegate_store::redis::{ServerInspection, inspect};

use super::Finding;

/// Clock difference in milliseconds above which the times in logs mislead a reader.
const CLOCK_OFFSET_MS_MAX: u64 = 1_000;

pub(super) async fn check(store: &RedisStore, groups: &[Group]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (address, result) in inspect(&store.topology, &store.key_prefix).await {
        let error = match result {
            Ok(server) => {
                findings.extend(judge(&address, &server, store, groups));
                continue;
            }
            Err(error) => error,
        };
        findings.push(match forbidden_command(&error) {
            // The server runs and accepts the login.
            Some(command) => {
                missing_permissions(&address, &[format!("+{command}")], store, groups)
            }
            None => Finding::problem(
                "redis",
                format!("{address}: {error}"),
                "check that Redis runs, that this machine can reach it, and user, password and TLS in \
                 store.url; until then the outage policies decide",
            ),
        });
    }
    findings
}

fn judge(
    address: &str,
    server: &ServerInspection,
    store: &RedisStore,
    groups: &[Group],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = &server.version;
    findings.push(match server.is_supported() {
        true => Finding::ok("redis", format!("{address}: Redis {version}")),
        false => Finding::problem(
            "redis",
            format!("{address}: Redis {version} is too old"),
            "install Redis 6.2 or newer",
        ),
    });
    findings.push(match server.appends {
        true => Finding::ok("persistence", format!("{address}: appendonly is on")),
        false => Finding::warning(
            "persistence",
            format!("{address}: a restart of Redis loses usage, and limits start again from zero"),
            "set `appendonly yes` in redis.conf, or store.on_loss: closed",
        ),
    });
    let policy = &server.eviction_policy;
    findings.push(match policy.as_str() {
        "noeviction" => Finding::ok("eviction", format!("{address}: maxmemory-policy is noeviction")),
        _ => Finding::problem(
            "eviction",
            format!("{address}: maxmemory-policy is {policy}: a full Redis deletes counters, and limits are exceeded"),
            "run `redis-cli CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf",
        ),
    });
    // From here on Redis refuses writes soon.
    if server.memory_max > 0 && server.memory_used >= server.memory_max / 10 * 9 {
        findings.push(Finding::problem(
            "memory",
            format!("{address}: {} of {} bytes are used", server.memory_used, server.memory_max),
            "raise maxmemory: a full Redis refuses writes, and the outage policies decide",
        ));
    }
    findings.push(match server.forbidden.as_slice() {
        [] => Finding::ok("permissions", format!("{address}: all commands are permitted")),
        forbidden => missing_permissions(address, forbidden, store, groups),
    });
    let timeout = store.timeouts(RedisWorkload::Requests).timeout;
    let round_trip = server.round_trip;
    let words =
        format!("{address}: a round trip takes {:.1} ms", round_trip.as_micros() as f64 / 1e3);
    findings.push(match round_trip.as_micros() * 2 <= timeout.as_micros() {
        true => Finding::ok("round trip", words),
        false => Finding::warning(
            "round trip",
            format!("{words}, which is close to store.timeout ({timeout})"),
            "set store.timeout to at least four round trips and store.deadline to at least ten, or move closer",
        ),
    });
    let offset = server.clock_offset_ms;
    findings.push(match offset.unsigned_abs() <= CLOCK_OFFSET_MS_MAX {
        true => Finding::ok("clock", format!("{address}: the clocks differ by {offset} ms")),
        false => Finding::warning(
            "clock",
            format!("{address}: its clock differs from the clock of this machine by {offset} ms"),
            "run an NTP client on both; limits follow the clock of Redis, log times the clock of this machine",
        ),
    });
    findings
}

/// Returns the command that Redis refused for lack of a permission, if the error is about that.
fn forbidden_command(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("no permissions to run the '")?;
    rest.split('\'').next()
}

fn missing_permissions(
    address: &str,
    forbidden: &[String],
    store: &RedisStore,
    groups: &[Group],
) -> Finding {
    let forbidden = forbidden.join(" ");
    Finding::problem(
        "permissions",
        format!("{address}: the user has no permission for {forbidden}"),
        format!(
            "run `redis-cli ACL SETUSER <user> {forbidden} ~{}*`; docs/configuration.md lists all commands{}",
            store.key_prefix,
            literal_keys(groups)
        ),
    )
}

/// Returns a note about literal keys, which the prefix does not cover.
fn literal_keys(groups: &[Group]) -> &'static str {
    let has_literal = groups.iter().flat_map(|group| &group.rules).any(|rule| rule.key.is_some());
    if has_literal { ". Rules with a literal key need its pattern, too" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;
    use sluicegate_core::Span;

    /// A server without problems.
    fn healthy() -> ServerInspection {
        ServerInspection {
            version: "7.0.15".to_owned(),
            appends: true,
            eviction_policy: "noeviction".to_owned(),
            memory_max: 1_000,
            memory_used: 899,
            round_trip: Span::from_micros(10_000),
            clock_offset_ms: 1_000,
            forbidden: Vec::new(),
        }
    }

    /// Returns the findings about a server that are not ok, as JSON.
    fn findings(server: &ServerInspection) -> Vec<String> {
        let findings = judge("redis:6379", server, &RedisStore::default(), &[]);
        let findings = findings.iter().filter(|finding| finding.severity != Severity::Ok);
        findings.map(Finding::json).collect()
    }

    #[test]
    fn a_server_at_the_edge_of_each_range_is_healthy() {
        assert_eq!(findings(&healthy()), [""; 0]);
        let server = ServerInspection {
            version: "6.2.0".to_owned(),
            memory_max: 0,
            memory_used: u64::MAX,
            clock_offset_ms: -1_000,
            ..healthy()
        };
        assert_eq!(findings(&server), [""; 0]);
    }

    #[test]
    fn each_problem_of_a_server_is_found_with_its_remedy() {
        for (server, check, result, message, remedy) in [
            (
                ServerInspection { version: "6.0.16".to_owned(), ..healthy() },
                "redis",
                "problem",
                "redis:6379: Redis 6.0.16 is too old",
                "install Redis 6.2 or newer",
            ),
            (
                ServerInspection { memory_used: 900, ..healthy() },
                "memory",
                "problem",
                "900 of 1000 bytes are used",
                "raise maxmemory",
            ),
            (
                ServerInspection { round_trip: Span::from_micros(10_001), ..healthy() },
                "round trip",
                "warning",
                "a round trip takes 10.0 ms, which is close to store.timeout (20ms)",
                "at least four round trips",
            ),
            (
                ServerInspection { clock_offset_ms: 1_001, ..healthy() },
                "clock",
                "warning",
                "differs from the clock of this machine by 1001 ms",
                "run an NTP client",
            ),
            (
                ServerInspection { clock_offset_ms: -3_600_000, ..healthy() },
                "clock",
                "warning",
                "differs from the clock of this machine by -3600000 ms",
                "run an NTP client",
            ),
        ] {
            let found = findings(&server);
            let [finding] = found.as_slice() else { panic!("{server:?}: {found:?}") };
            let finding: serde_json::Value = serde_json::from_str(finding).expect("JSON");
            assert_eq!((&finding["check"], &finding["result"]), (&check.into(), &result.into()));
            for (field, expected) in [("message", message), ("remedy", remedy)] {
                let text = finding[field].as_str().expect("a text");
                assert!(text.contains(expected), "{expected}: {finding}");
            }
        }
    }
}
