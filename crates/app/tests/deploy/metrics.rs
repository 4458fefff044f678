//! The metrics in `docs/monitoring.md` beside those of running services.

use std::collections::BTreeSet;

use serde_json::json;
use sluicegate_testkit::eventually_get;

use crate::common::{RunningService, get};
use crate::systems::Systems;
use crate::{read, repository};

/// Returns the names of the metrics in inline code, such as `a_total{label}` and `b_{one,two}_total`.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_metric =
        |word: &&str| word.starts_with("sluicegate_") || word.starts_with("rate_limiter_");
    let names = code.filter(is_metric).flat_map(|word| match word.split_once('{') {
        None => vec![word.to_owned()],
        Some((start, rest)) => match rest.split_once('}') {
            // Several names, not labels.
            Some((parts, end)) if end.starts_with('_') => {
                let end = end.split('{').next().unwrap_or_default();
                parts.split(',').map(|part| format!("{start}{part}{end}")).collect()
            }
            _ => vec![start.to_owned()],
        },
    });
    names.collect()
}

/// Returns the names of the metrics in the first column of the tables of a page.
fn documented(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.flat_map(named).collect()
}

/// Returns the names of the metrics that a service exports.
fn exported(admin: &str) -> BTreeSet<String> {
    let (_, text) = get(&format!("{admin}/metrics"));
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_documentation_is_exported_and_the_other_way_round() {
    let documented = documented(&read("docs/monitoring.md"));
    let names = named("`a`, `sluicegate_x{y}` and `rate_limiter_{a,b}_total{c}`");
    assert_eq!(
        Vec::from_iter(names),
        ["rate_limiter_a_total", "rate_limiter_b_total", "sluicegate_x"]
    );
    assert!(documented.len() > 30, "{documented:?}");
    let systems = Systems::start();
    systems.load();
    systems.wait_for_jobs();
    // A store in memory, a shadow rule, and traces to a collector that does not exist.
    let memory = RunningService::start(
        "traces: {endpoint: 'http://127.0.0.1:9/v1/traces'}\n\
         limits: [{name: user, rules: [{name: TRIAL, shadow: true, per: [userId], limit: 1/h}]}]\n",
    );
    for _ in 0..2 {
        let (status, answer) = memory.allow(&json!({"userId": "ann", "modelId": "gpt4"}));
        assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    }
    let services: Vec<_> = systems
        .admin()
        .iter()
        .map(|host| format!("http://{host}"))
        .chain([memory.admin.clone()])
        .collect();
    let all = || services.iter().flat_map(|admin| exported(admin)).collect::<BTreeSet<_>>();
    let exported = eventually_get(|| {
        let exported = all();
        let missing: Vec<_> = documented.difference(&exported).cloned().collect();
        if missing.is_empty() { Ok(exported) } else { Err(missing) }
    });

    let mut pages = String::new();
    for entry in std::fs::read_dir(repository("docs")).expect("the pages") {
        let path = entry.expect("a page").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages += &std::fs::read_to_string(path).expect("a page");
        }
    }
    let known = named(&pages);
    let unknown = exported.iter().filter(|name| {
        // Also in the text of a code block.
        !known.contains(*name) && !pages.contains(name.as_str())
    });
    let unknown: Vec<_> = unknown.collect();
    assert!(unknown.is_empty(), "no page of docs/ mentions {unknown:?}");
}
