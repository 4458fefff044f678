//! Rule for `cargo tree`: a build needs only a Rust toolchain and a C compiler.

use std::collections::BTreeSet;

use super::Finding;

/// The command that prints every crate of the shipped programs, one per line.
pub(super) const COMMAND: &str =
    "cargo tree --workspace --all-features --locked --edges normal,build --prefix none";

/// Prefixes of crates that need cmake or a system library to build.
const BANNED: &[&str] = &["aws-lc", "openssl-sys", "native-tls"];

/// Finds banned crates in the output of [`COMMAND`].
pub(super) fn native_crates(printed: &str) -> Vec<Finding> {
    let names: BTreeSet<_> =
        printed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names
        .into_iter()
        .filter(|name| BANNED.iter().any(|banned| name.starts_with(banned)))
        .map(|name| {
            let remedy = format!(
                "find the dependent crate with `cargo tree --invert {name}` and choose its rustls and \
                 ring features instead"
            );
            Finding::new("Cargo.lock", 1, format!("{name} is compiled in"), remedy)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(printed: &str) -> Vec<String> {
        native_crates(printed).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn each_native_crate_is_found_once() {
        let printed = "rustls v0.23.1\naws-lc-rs v1.13.0\naws-lc-sys v0.29.0\n\
                       aws-lc-rs v1.13.0 (*)\nopenssl-sys v0.9.1\nnative-tls v0.2.1";
        let names = ["aws-lc-rs", "aws-lc-sys", "native-tls", "openssl-sys"];
        assert_eq!(found(printed), names.map(|name| format!("{name} is compiled in")));
    }

    #[test]
    fn ring_and_crates_with_similar_names_are_fine() {
        assert!(
            found("ring v0.17.14\nrustls-native-certs v0.8.1\n\nopenssl-probe v0.1.6").is_empty()
        );
    }
}
