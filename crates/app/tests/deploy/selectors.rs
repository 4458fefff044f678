//! Finds the selectors of a PromQL expression, such as `sluicegate_redis_up{system="x"}`.

/// Prefixes of the metrics that our files may ask for.
const METRICS: [&str; 3] = ["sluicegate", "rate_limiter_", "redis_"];

/// Returns the selectors of `expression`, each with its labels.
pub(crate) fn selectors(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        let word = &rest[start..];
        let end = word.find(|c| !is_name(c)).unwrap_or(word.len());
        let name = &word[..end];
        rest = &word[end..];
        let labels =
            rest.starts_with('{').then(|| rest.find('}').map_or(rest, |end| &rest[..=end]));
        if METRICS.iter().any(|prefix| name.starts_with(prefix)) || name == "up" {
            found.push(format!("{name}{}", labels.unwrap_or_default()));
        }
        rest = &rest[labels.unwrap_or_default().len()..];
    }
    found
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

#[test]
fn selectors_are_found_with_their_labels() {
    let expression = "sum by (system, le) (rate(rate_limiter_latency_seconds_bucket{a=\"redis_x\"}[5m])) \
                      / (sluicegate:refused:ratio_rate5m > 0) unless up{system!=\"\"} offset 5m";
    let expected = [
        "rate_limiter_latency_seconds_bucket{a=\"redis_x\"}",
        "sluicegate:refused:ratio_rate5m",
        "up{system!=\"\"}",
    ];
    assert_eq!(selectors(expression), expected);
}
