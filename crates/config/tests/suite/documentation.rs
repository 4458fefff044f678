//! `docs/configuration.md` and `docs/handlers.md` describe every option that the resolver knows.
//!
//! An unknown key in a map makes the resolver list the known ones, so the resolver itself says which
//! options there are.

use std::collections::BTreeSet;

use sluicegate_config::load;

/// A file for every map of options, with one key in it that does not exist.
const MAPS: &[&str] = &[
    r#"zzzz: 1"#,
    r#"listen: {zzzz: 1}"#,
    r#"listen: {http: {address: "127.0.0.1:1", zzzz: 1}}"#,
    r#"listen: {http: {address: "127.0.0.1:1", tls: {cert: a, key: b, zzzz: 1}}}"#,
    r#"store: {kind: redis, zzzz: 1}"#,
    r#"store: {kind: memory, snapshot: {path: a, zzzz: 1}}"#,
    r#"store: {kind: redis, sentinel: {master: m, nodes: ["redis://a:1"], zzzz: 1}}"#,
    r#"auth: {zzzz: 1}"#,
    r#"auth: {tokens: {a: {token: "x", zzzz: 1}}}"#,
    r#"outage: {zzzz: 1}"#,
    r#"booking: {zzzz: 1}"#,
    r#"server: {zzzz: 1}"#,
    r#"log: {zzzz: 1}"#,
    r#"log: {decisions: {zzzz: 1}}"#,
    r#"metrics: {zzzz: 1}"#,
    r#"traces: {endpoint: "http://127.0.0.1:4318", zzzz: 1}"#,
    r#"envoy: {zzzz: 1}"#,
    r#"limits: [{name: g, rules: [], zzzz: 1}]"#,
    r#"limits: [{name: g, rules: [{name: R, limit: 1/s, zzzz: 1}]}]"#,
    r#"prices: {default: {zzzz: 1}}"#,
    r#"queue: {zzzz: 1}"#,
    r#"queue: {api: {zzzz: 1}}"#,
    r#"dispatch: {source: raw, providers: {p: {limit: 1/s}}, zzzz: 1}"#,
    r#"dispatch: {source: raw, providers: {p: {limit: 1/s, zzzz: 1}}}"#,
    r#"dispatch: {source: raw, providers: {p: {limit: 1/s, estimate: {zzzz: 1}}}}"#,
    r#"workers: [{provider: p, queue: q, handler: {command: [cat]}, zzzz: 1}]"#,
    r#"workers: [{provider: p, queue: q, learn: {zzzz: 1}, handler: {command: [cat]}}]"#,
    r#"workers: [{provider: p, queue: q, handler: {zzzz: 1}}]"#,
    r#"workers: [{provider: p, queue: q, handler: {command: [cat], emit: [{queue: x, zzzz: 1}]}}]"#,
    r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", zzzz: 1}}}]"#,
    r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", pages: {link: p, zzzz: 1}}}}]"#,
    r#"workers: [{provider: p, queue: q, handler: {http: {url: "http://a", usage: {zzzz: 1}}}}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", zzzz: 1}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", auth: {zzzz: 1}}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", dimensions: {a: {zzzz: 1}}}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", zzzz: 1}]}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", wait: {zzzz: 1}}]}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", learn: {zzzz: 1}}]}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", credentials: {zzzz: 1}}]}]"#,
    r#"gateways: [{name: g, listen: "127.0.0.1:1", routes: [{path: /a, upstream: "http://a", credentials: {login: {zzzz: 1}}}]}]"#,
];

/// Keys whose value is a map or a list of maps: the options in it have rows, and the key itself has
/// a section.
const SECTIONS: [&str; 8] =
    ["api", "command", "emit", "handler", "preset", "providers", "routes", "rules"];

/// The pages, and the cells that a row of an option fills at least: option, type, default, example.
const PAGES: [&str; 2] = [
    include_str!("../../../../docs/configuration.md"),
    include_str!("../../../../docs/handlers.md"),
];
const CELLS_MIN: usize = 4;

#[test]
fn every_option_has_a_row_with_type_default_and_example() {
    let documented = documented();
    let mut undocumented = Vec::new();
    for map in MAPS {
        for key in known_keys(map) {
            let is_section = SECTIONS.contains(&key.as_str());
            if !is_section && !documented.iter().any(|path| names(path, &key)) {
                undocumented.push(format!("{key}, in {map}"));
            }
        }
    }
    assert!(undocumented.is_empty(), "not in the pages:\n{}", undocumented.join("\n"));
}

/// Returns true if an option path such as `wait.max` is about a key: as the option itself, or as a
/// map around it.
fn names(path: &str, key: &str) -> bool {
    path.split('.').any(|part| part.trim_end_matches("[]") == key)
}

/// Returns the option paths that have a complete row in a table, and the headings.
fn documented() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for line in PAGES.iter().flat_map(|page| page.lines()) {
        if let Some(heading) = line.strip_prefix('#') {
            paths.extend(quoted(heading));
            paths.insert(heading.trim_start_matches('#').trim().to_lowercase());
        }
        let mut cells = line.split('|').skip(1);
        let first = cells.next().unwrap_or_default();
        // The text behind the last bar is no cell.
        let filled = cells.filter(|cell| !cell.trim().is_empty()).count();
        if line.starts_with("| `") && filled + 1 >= CELLS_MIN {
            paths.extend(quoted(first));
        }
    }
    paths
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
