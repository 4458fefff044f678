//! The tables of `docs/configuration.md` have a row for every option that the resolver knows, no other
//! rows, and the defaults of the resolver.
//!
//! An unknown key in a map makes the resolver list the known ones, so the resolver itself says which
//! options there are. A default is checked by writing it into a file: the configuration must not
//! change.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_config::load;

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// Cells that every row fills: option, type, default, example. The fifth, the reason, may be empty.
const CELLS: usize = 4;

/// A file with a map of options that contains a key that does not exist.
const UNKNOWN: &str = "zzzz: 1";

/// Tables of a map of options, each with the text before its keys in the first column. A table is
/// named by its heading, and by a number if it is not the first one below it.
type Tables = &'static [(&'static str, &'static str)];

/// Every map of options, with [`UNKNOWN`] in it.
const MAPS: &[(Tables, &str)] = &[
    (&[("listen", "listen.")], "listen: {zzzz: 1}"),
    (&[("listen 2", "")], r#"listen: {http: {address: "127.0.0.1:1", zzzz: 1}}"#),
    (
        &[("listen 2", "tls.")],
        r#"listen: {http: {address: "127.0.0.1:1", tls: {cert: a, key: b, zzzz: 1}}}"#,
    ),
    (&[("auth", "auth.")], "auth: {zzzz: 1}"),
    (&[("Scopes", "")], r#"auth: {tokens: {a: {token: "a-token-that-is-long-enough", zzzz: 1}}}"#),
    (&[("store", "store."), ("Memory", ""), ("Redis", "")], "store: {kind: redis, zzzz: 1}"),
    (&[("store", "store."), ("Memory", ""), ("Redis", "")], "store: {zzzz: 1}"),
    (&[("Memory", "snapshot.")], "store: {kind: memory, snapshot: {path: a, zzzz: 1}}"),
    (
        &[("Redis", "sentinel.")],
        r#"store: {kind: redis, sentinel: {master: m, nodes: ["redis://a:1"], zzzz: 1}}"#,
    ),
    (&[("queue", "queue.")], "queue: {zzzz: 1}"),
    (&[("queue", "queue.")], "queue: {kind: rabbitmq, zzzz: 1}"),
    (&[("queue", "queue.")], "queue: {kind: sqs, zzzz: 1}"),
    (&[("queue", "queue.")], "queue: {kind: pubsub, project: tests, zzzz: 1}"),
    (&[("queue", "queue.")], "queue: {kind: servicebus, namespace: a.example, zzzz: 1}"),
    (&[("queue", "queue.api.")], "queue: {api: {zzzz: 1}}"),
    (&[("outage", "outage.")], "outage: {zzzz: 1}"),
    (&[("limits", "")], "limits: [{name: g, rules: [{name: R, per: [a], limit: 1/s}], zzzz: 1}]"),
    (&[("limits 2", "")], "limits: [{name: g, rules: [{name: R, per: [a], limit: 1/s, zzzz: 1}]}]"),
    (
        &[("limits 2", "")],
        "limits: [{name: g, rules: [{name: R, per: [a], limit: 1 concurrent, zzzz: 1}]}]",
    ),
    (
        &[("limits 2", "")],
        "limits: [{name: g, rules: [{name: R, per: [a], limit: 5 USD/d, zzzz: 1}]}]",
    ),
    (&[("booking", "booking.")], "booking: {zzzz: 1}"),
    (&[("prices", "")], "prices: {default: {input: 1.00 USD/1M, output: 1.00 USD/1M, zzzz: 1}}"),
    (
        &[("prices", "tiers[]."), ("prices", "")],
        "prices: {default: {input: 1.00 USD/1M, output: 1.00 USD/1M, tiers: [{above: 1, zzzz: 1}]}}",
    ),
    (&[("log", "log.")], "log: {zzzz: 1}"),
    (&[("log", "log.decisions.")], "log: {decisions: {zzzz: 1}}"),
    (&[("metrics", "metrics.")], "metrics: {zzzz: 1}"),
    (&[("traces", "traces.")], r#"traces: {endpoint: "http://127.0.0.1:4318", zzzz: 1}"#),
    (&[("server", "server.")], "server: {zzzz: 1}"),
    (&[("envoy", "envoy.")], "envoy: {zzzz: 1}"),
    (
        &[("gateways", "")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a"}], zzzz: 1}]"#,
    ),
    (
        &[("gateways", "auth.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a"}], auth: {zzzz: 1}}]"#,
    ),
    (
        &[("gateways", "dimensions.<name>.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a"}], dimensions: {a: {header: x, zzzz: 1}}}]"#,
    ),
    (
        &[("gateways 2", "")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", limit: 1/s, zzzz: 1}]}]"#,
    ),
    (
        &[("gateways 2", "wait.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", limit: 1/s, wait: {zzzz: 1}}]}]"#,
    ),
    (
        &[("gateways 2", "learn.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", limit: 1/s, learn: {zzzz: 1}}]}]"#,
    ),
    (
        &[("gateways 3", "")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", credentials: {zzzz: 1}}]}]"#,
    ),
    (
        &[("gateways 3", "basic.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", credentials: {basic: {user: a, password: b, zzzz: 1}}}]}]"#,
    ),
    (
        &[("gateways 3", "login.")],
        r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", credentials: {login: {url: "http://a", body: b, zzzz: 1}}}]}]"#,
    ),
    (
        &[("dispatch", "dispatch.")],
        "dispatch: {source: raw, providers: {p: {limit: 1/s}}, zzzz: 1}",
    ),
    (&[("dispatch 2", "")], "dispatch: {source: raw, providers: {p: {zzzz: 1}}}"),
    (
        &[("dispatch 2", "estimate.")],
        "dispatch: {source: raw, providers: {p: {limit: 1/s, estimate: {zzzz: 1}}}}",
    ),
    (&[("workers", "")], "workers: [{provider: p, queue: q, handler: {command: [cat]}, zzzz: 1}]"),
    (
        &[("workers", "learn.")],
        "workers: [{provider: p, queue: q, limit: 1/s, learn: {zzzz: 1}, handler: {command: [cat]}}]",
    ),
    (
        &[("workers", "backoff.")],
        "workers: [{provider: p, queue: q, backoff: {zzzz: 1}, handler: {command: [cat]}}]",
    ),
    (
        &[("handlers", "")],
        r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", zzzz: 1}}}]"#,
    ),
    (
        &[("handlers", "")],
        r#"workers: [{provider: p, queue: q, handler: {http: {method: GET, url: "http://a", zzzz: 1}}}]"#,
    ),
    (
        &[("handlers", "success.")],
        r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", success: {zzzz: 1}}}}]"#,
    ),
    (
        &[("handlers", "pages.")],
        r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", pages: {link: p, zzzz: 1}}}}]"#,
    ),
    (
        &[("handlers", "usage.")],
        r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", usage: {zzzz: 1}}}}]"#,
    ),
    (
        &[("handlers 2", "")],
        "workers: [{provider: p, queue: q, handler: {command: {program: cat, zzzz: 1}}}]",
    ),
    (
        &[("handlers 3", "")],
        "workers: [{provider: p, queue: q, handler: {preset: openai, model: m, api_key: k, prompt: p, zzzz: 1}}]",
    ),
    (
        &[("handlers 4", "")],
        "workers: [{provider: p, queue: q, handler: {command: [cat], emit: [{queue: x, zzzz: 1}]}}]",
    ),
];

/// The map of the whole file. Two of its keys have rows; the others have sections.
const FILE: (Tables, &str) = (&[("enabled", ""), ("envoy", "")], UNKNOWN);

/// Rows of options that no list of known keys has, because other keys of their maps are free: names
/// of dimensions, client types and models.
const AMONG_FREE_KEYS: [(&str, &str); 5] = [
    ("dimensions", "dimensions.<name>"),
    ("outage", "outage.by_client_type.<type>"),
    ("prices 2", "default"),
    ("prices 2", "unknown"),
    ("prices 2", "file"),
];

/// A row of a table of options.
#[derive(Debug)]
struct Row {
    table: String,
    /// Option paths, such as `wait.max`; usually one.
    paths: Vec<String>,
    /// True if no cell but the reason is empty.
    is_complete: bool,
    default: String,
}

impl Row {
    /// Returns the default if it is one literal value.
    fn literal_default(&self) -> Option<&str> {
        let text = self.default.strip_prefix('`')?.strip_suffix('`')?;
        (!text.contains('`')).then_some(text)
    }
}

/// Returns the rows of all tables of options.
fn rows() -> Vec<Row> {
    let (mut rows, mut tables) = (Vec::new(), BTreeMap::<&str, usize>::new());
    let (mut heading, mut in_table) = ("", false);
    for line in PAGE.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        }
        if line.starts_with("| option |") {
            *tables.entry(heading).or_default() += 1;
            in_table = true;
        }
        in_table &= line.starts_with('|');
        if !in_table || !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let table = match tables[heading] {
            1 => heading.to_owned(),
            number => format!("{heading} {number}"),
        };
        rows.push(Row {
            table,
            paths: quoted(cells[0]),
            is_complete: cells.len() > CELLS && cells[..CELLS].iter().all(|cell| !cell.is_empty()),
            default: cells.get(2).copied().unwrap_or_default().to_owned(),
        });
    }
    assert!(rows.len() > 150, "only {} rows", rows.len());
    rows
}

/// Returns the texts in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the keys that the resolver knows in the map with the key `zzzz`.
fn known_keys(file: &str) -> Vec<String> {
    let error = load("test", file, &|_| None).expect_err("an unknown key").to_string();
    let listed = error.lines().find_map(|line| line.split_once("known keys: "));
    let (_, keys) = listed.unwrap_or_else(|| panic!("{file}: no known keys in\n{error}"));
    keys.replace(" and ", ", ").split(", ").map(|key| key.trim().to_owned()).collect()
}

/// Returns true if a row is about an option, or about an option in the map that it names.
fn describes(row: &Row, tables: Tables, key: &str) -> bool {
    tables.iter().any(|(table, prefix)| {
        let option = format!("{prefix}{key}");
        let is_about = |path: &String| {
            let rest = path.strip_prefix(option.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        row.table == *table && row.is_complete && row.paths.iter().any(is_about)
    })
}

#[test]
fn every_option_has_a_row_with_type_default_and_example() {
    let rows = rows();
    let mut undocumented = Vec::new();
    for (tables, map) in MAPS {
        for key in known_keys(map) {
            // The kinds of a handler are paragraphs before their tables.
            let is_paragraph =
                tables[0].0.starts_with("handlers") && PAGE.contains(&format!("\n**{key}**"));
            if !is_paragraph && !rows.iter().any(|row| describes(row, tables, &key)) {
                undocumented.push(format!("{key}, in {map}"));
            }
        }
    }
    assert!(undocumented.is_empty(), "not in the tables:\n{}", undocumented.join("\n"));
}

/// A key of the whole file has a section, or a row.
#[test]
fn every_section_is_described() {
    for key in known_keys(UNKNOWN) {
        let heading = format!("\n## {key}\n");
        let has_row = rows().iter().any(|row| row.paths.contains(&key));
        assert!(has_row || PAGE.contains(&heading), "{key}");
    }
}

#[test]
fn every_row_is_about_an_option_that_exists() {
    let mut known = BTreeSet::new();
    for (tables, map) in MAPS {
        for key in known_keys(map) {
            let options = tables.iter().map(|(table, prefix)| (*table, format!("{prefix}{key}")));
            known.extend(options);
        }
    }
    let sections = known_keys(UNKNOWN);
    let mut stale = Vec::new();
    for row in rows() {
        for path in &row.paths {
            let is_known = known.contains(&(row.table.as_str(), path.clone()));
            let is_among_free = AMONG_FREE_KEYS.contains(&(row.table.as_str(), path.as_str()));
            if !is_known && !is_among_free && !sections.contains(path) {
                stale.push(format!("{path}, in the table {}", row.table));
            }
        }
    }
    assert!(stale.is_empty(), "unknown to the resolver:\n{}", stale.join("\n"));
}

/// Literal defaults that cannot be compared: the configuration says whether the file chose the store,
/// and the others name a value instead of being one.
const UNCHECKED: [&str; 4] = [
    "dispatch 2: outage",
    "limits 2: reason",
    "outage: outage.by_client_type.<type>",
    "store: store.kind",
];

#[test]
fn every_literal_default_is_that_of_the_resolver() {
    let debug = |file: &str| Some(format!("{:?}", load("test", file, &|_| None).ok()?.config));
    let is_unchecked = |option: &String| UNCHECKED.contains(&option.as_str());
    let (mut wrong, mut unchecked, mut checked) = (Vec::new(), BTreeSet::new(), 0);
    for row in rows() {
        let Some(default) = row.literal_default() else { continue };
        for path in &row.paths {
            let option = format!("{}: {path}", row.table);
            let mut accepted = 0;
            for (tables, map) in MAPS.iter().chain([&FILE]).filter(|_| !is_unchecked(&option)) {
                let prefix = tables.iter().filter(|(table, _)| *table == row.table);
                let key = prefix.filter_map(|(_, prefix)| path.strip_prefix(prefix)).next();
                let Some(key) = key.filter(|key| !key.contains('.')) else { continue };
                let without = map.replace(", zzzz: 1", "").replace(UNKNOWN, "");
                let with = |value: &str| debug(&map.replace(UNKNOWN, &format!("{key}: {value}")));
                // Some texts have a special meaning in YAML.
                let with = with(default).or_else(|| with(&format!("\"{default}\"")));
                let Some(with) = with else { continue };
                accepted += 1;
                if debug(&without).as_ref() != Some(&with) {
                    wrong.push(format!("{path}: {default}, in {map}"));
                }
            }
            checked += usize::from(accepted > 0);
            if accepted == 0 {
                unchecked.insert(option);
            }
        }
    }
    println!("{checked} defaults compared");
    assert!(wrong.is_empty(), "the configuration changes with:\n{}", wrong.join("\n"));
    assert_eq!(unchecked, UNCHECKED.into_iter().map(str::to_owned).collect(), "{checked} checked");
}
