//! Rules for `Cargo.toml`: the crates that each crate may depend on, and one set of lints for all.
//!
//! ```text
//! {core, template} ← {checker, vendors} ← {store, queue} ← config ← {http, service}
//!   ← {pace, traces} ← {server, gateway, dispatch, client} ← app
//! ```
//!
//! A crate may use any crate of a lower layer, never one of its own. `testkit` serves
//! tests only, and stands on `core`, `checker`, `store` and `queue`.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Finding;

/// The folders under `crates/`, lowest layer first.
const LAYERS: [&[&str]; 8] = [
    &["core", "template"],
    &["checker", "vendors"],
    &["store", "queue"],
    &["config"],
    &["http", "service"],
    &["pace", "traces"],
    &["server", "gateway", "dispatch", "client"],
    &["app"],
];
const TESTKIT: &str = "testkit";
const TESTKIT_USES: [&str; 4] = ["core", "checker", "store", "queue"];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    // The bench workspace has other rules: it contains programs of others, too.
    if !is_manifest(path) || path.starts_with("bench/") {
        return Vec::new();
    }
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            return vec![Finding::new(path, line, error.message(), "write valid TOML")];
        }
    };
    let mut findings = Vec::new();
    if path == "Cargo.toml" {
        findings.extend(shared_lints(path, &table));
        findings.extend(renames(path, text, &table));
    } else {
        findings.extend(lints(path, &table));
    }
    if let Some(name) =
        path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
    {
        findings.extend(package_name(path, &table, name));
        findings.extend(edges(path, text, &table, name));
    }
    findings
}

/// Checks that the lints of the workspace forbid unsafe code.
fn shared_lints(path: &str, root: &DeTable<'_>) -> Option<Finding> {
    let level = get(root, &["workspace", "lints", "rust", "unsafe_code"]).and_then(DeValue::as_str);
    let remedy = "set unsafe_code = \"forbid\" in [workspace.lints.rust]";
    (level != Some("forbid")).then(|| Finding::new(path, 1, "unsafe code is not forbidden", remedy))
}

/// Finds crates that the workspace table renames: that would hide their edges from [`edges`].
fn renames(path: &str, text: &str, root: &DeTable<'_>) -> Vec<Finding> {
    let table = get(root, &["workspace", "dependencies"]).and_then(DeValue::as_table);
    dependencies(table)
        .filter(|dependency| crate_of(dependency.package).is_some())
        .filter(|dependency| dependency.package != dependency.key)
        .map(|Dependency { key, package, at }| {
            let what = format!("{package} is renamed to {key}");
            Finding::new(path, line_of(text, at), what, "call it by its own name")
        })
        .collect()
}

/// Checks that the crate inherits the lints of the workspace.
fn lints(path: &str, table: &DeTable<'_>) -> Option<Finding> {
    let inherits = get(table, &["lints", "workspace"]).and_then(DeValue::as_bool);
    let remedy = "add `workspace = true` under [lints]";
    (inherits != Some(true))
        .then(|| Finding::new(path, 1, "does not take the lints of the workspace", remedy))
}

/// Checks that the package is named after its folder: [`edges`] reads packages, people read
/// folders.
fn package_name(path: &str, table: &DeTable<'_>, name: &str) -> Option<Finding> {
    let package = get(table, &["package", "name"]).and_then(DeValue::as_str).unwrap_or_default();
    let what = format!("package {package:?} is not called after its folder");
    let remedy = format!("call it sluicegate-{name}");
    (crate_of(package) != Some(name)).then(|| Finding::new(path, 1, what, remedy))
}

/// Checks that the crate `name` uses only crates that its layer allows.
fn edges(path: &str, text: &str, table: &DeTable<'_>, name: &str) -> Vec<Finding> {
    if name != TESTKIT && layer(name).is_none() {
        let remedy = "add it to LAYERS in xtask/src/tidy/manifest.rs";
        return vec![Finding::new(path, 1, format!("crate {name} has no layer"), remedy)];
    }
    let per_target = get(table, &["target"]).and_then(DeValue::as_table);
    let per_target = per_target.into_iter().flat_map(DeTable::values);
    let tables = per_target.filter_map(|value| value.get_ref().as_table()).chain([table]);

    let mut findings = Vec::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for dependency in dependencies(get(table, &[kind]).and_then(DeValue::as_table)) {
                let Some(used) = crate_of(dependency.package) else {
                    continue;
                };
                let for_tests = used == TESTKIT && kind == "dev-dependencies";
                if for_tests || may_use(name, used) {
                    continue;
                }
                let remedy = match used {
                    TESTKIT => "testkit serves tests: move it to [dev-dependencies]",
                    _ => "use crates of lower layers only: move the shared part down",
                };
                let line = line_of(text, dependency.at);
                findings.push(Finding::new(path, line, format!("{name} uses {used}"), remedy));
            }
        }
    }
    findings
}

fn may_use(name: &str, used: &str) -> bool {
    match name {
        TESTKIT => TESTKIT_USES.contains(&used),
        _ => layer(used).is_some_and(|below| Some(below) < layer(name)),
    }
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&name))
}

/// Returns the folder under `crates/` of one of our packages.
fn crate_of(package: &str) -> Option<&str> {
    match package {
        "sluicegate" => Some("client"),
        "sluicegate-cli" => Some("app"),
        other => other.strip_prefix("sluicegate-"),
    }
}

/// One entry of a dependency table.
struct Dependency<'a> {
    /// Key in the manifest.
    key: &'a str,
    /// Name of the package.
    package: &'a str,
    /// Byte offset in the text.
    at: usize,
}

fn dependencies<'a>(table: Option<&'a DeTable<'_>>) -> impl Iterator<Item = Dependency<'a>> {
    table.into_iter().flatten().map(|(key, value)| {
        let renamed = value.get_ref().get("package").and_then(|name| name.get_ref().as_str());
        let at = key.span().start;
        let key = key.get_ref().as_ref();
        Dependency { key, package: renamed.unwrap_or(key), at }
    })
}

fn get<'a, 'text>(table: &'a DeTable<'text>, keys: &[&str]) -> Option<&'a DeValue<'text>> {
    let (first, rest) = keys.split_first()?;
    let value = table.get(*first).map(Spanned::get_ref)?;
    rest.iter().try_fold(value, |value, key| value.get(*key).map(Spanned::get_ref))
}

fn is_manifest(path: &str) -> bool {
    path == "Cargo.toml" || path.ends_with("/Cargo.toml")
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(path, text);
        findings.iter().map(|finding| format!("{} {}", finding.line, finding.what)).collect()
    }

    /// Returns the findings in a manifest of `crates/<name>` that is valid up to `rest`, from line
    /// 5 on.
    fn found_in(name: &str, rest: &str) -> Vec<String> {
        let head = format!("[package]\nname = 'sluicegate-{name}'\n[lints]\nworkspace = true\n");
        found(&format!("crates/{name}/Cargo.toml"), &(head + rest))
    }

    fn uses(name: &str, used: &str) -> bool {
        found_in(name, &format!("[dependencies]\nsluicegate-{used}.workspace = true")).is_empty()
    }

    #[test]
    fn a_crate_uses_lower_layers() {
        assert!(uses("store", "core"));
        assert!(uses("server", "core") && uses("server", "config"));
        assert!(uses("app", "gateway") && uses("app", "store"));
        assert!(uses("server", "service") && uses("gateway", "http"));
        assert!(["core", "store", "queue"].iter().all(|used| uses("testkit", used)));
    }

    #[test]
    fn a_crate_uses_neither_siblings_nor_higher_layers() {
        assert!(!uses("core", "store"));
        assert!(!uses("store", "http"));
        assert!(!uses("gateway", "server"));
        assert!(!uses("client", "app"));
        assert!(!uses("testkit", "server"));
    }

    #[test]
    fn a_forbidden_edge_is_found_with_its_line() {
        let rest = "[dependencies]\nserde = '1'\nsluicegate-queue = { path = '../queue' }";
        assert_eq!(found_in("store", rest), ["7 store uses queue"]);
    }

    #[test]
    fn a_forbidden_edge_can_not_hide() {
        for hidden in [
            "[dev-dependencies]\nsluicegate-queue.workspace = true",
            "[build-dependencies]\nsluicegate-queue.workspace = true",
            "[target.'cfg(unix)'.dependencies]\nsluicegate-queue.workspace = true",
            "[dependencies]\nharmless = { path = '../queue', package = 'sluicegate-queue' }",
            "[dependencies.sluicegate-queue]\npath = '../queue'",
        ] {
            assert_eq!(found_in("store", hidden).len(), 1, "{hidden}");
        }
    }

    #[test]
    fn testkit_is_for_tests_only() {
        assert!(!uses("app", "testkit"));
        let dev = "[dev-dependencies]\nsluicegate-testkit.workspace = true";
        assert!(found_in("core", dev).is_empty());
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        assert_eq!(found_in("misc", ""), ["1 crate misc has no layer"]);
    }

    #[test]
    fn a_package_is_called_after_its_folder() {
        let text = "[package]\nname = 'sluicegate-kernel'\n[lints]\nworkspace = true";
        let what = "1 package \"sluicegate-kernel\" is not called after its folder";
        assert_eq!(found("crates/core/Cargo.toml", text), [what]);
    }

    #[test]
    fn the_library_and_the_program_have_names_for_their_users() {
        for (folder, name) in [("client", "sluicegate"), ("app", "sluicegate-cli")] {
            let text = format!("[package]\nname = '{name}'\n[lints]\nworkspace = true");
            assert!(found(&format!("crates/{folder}/Cargo.toml"), &text).is_empty());
        }
        assert_eq!(found_in("client", "").len(), 0, "also by its folder");
        let uses_library = "[dependencies]\nsluicegate.workspace = true";
        assert_eq!(found_in("server", uses_library), ["6 server uses client"]);
    }

    #[test]
    fn a_crate_with_lints_of_its_own_is_found() {
        let what = "1 does not take the lints of the workspace";
        assert_eq!(found("xtask/Cargo.toml", "[package]\nname = 'xtask'"), [what]);
        assert_eq!(found("xtask/Cargo.toml", "[lints.rust]\nunsafe_code = 'allow'"), [what]);
        assert!(found("bench/Cargo.toml", "[package]\nname = 'bench'").is_empty());
    }

    #[test]
    fn the_workspace_forbids_unsafe_code() {
        let lints = |level| format!("[workspace.lints.rust]\nunsafe_code = '{level}'");
        assert!(found("Cargo.toml", &lints("forbid")).is_empty());
        assert_eq!(found("Cargo.toml", &lints("deny")), ["1 unsafe code is not forbidden"]);
    }

    #[test]
    fn the_workspace_does_not_rename_our_crates() {
        let text = "[workspace.lints.rust]\nunsafe_code = 'forbid'\n[workspace.dependencies]\n\
                    harmless = { path = 'crates/queue', package = 'sluicegate-queue' }";
        assert_eq!(found("Cargo.toml", text), ["4 sluicegate-queue is renamed to harmless"]);
    }

    #[test]
    fn broken_toml_is_found_with_its_line() {
        let findings = check("xtask/Cargo.toml", "[package]\nname = ");
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].line, findings[0].remedy.as_str()), (2, "write valid TOML"));
    }
}
