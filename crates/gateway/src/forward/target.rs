//! Where a request goes: the address of the upstream with the path of the request in it.
//!
//! | upstream | `/graphql` takes `/graphql` | `/vendor/*` takes `/vendor/v1/x?y` |
//! |---|---|---|
//! | `https://api.example` | `/graphql` | `/vendor/v1/x?y` |
//! | `https://api.example/` | `/` | `/v1/x?y` |
//! | `https://api.example/base` | `/base` | `/base/v1/x?y` |
//!
//! An upstream that is written with a path, be it `/`, takes the place of what the route matched.

use axum::http::{Uri, uri};

/// The address for a request with this path and query, of which `rest` was not matched.
pub(crate) fn target(upstream: &Upstream, uri: &Uri, rest: &str) -> Option<Uri> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = match &upstream.path {
        None => uri.path().to_owned(),
        Some(base) if rest.is_empty() => base.clone(),
        Some(base) => format!("{}/{}", base.trim_end_matches('/'), rest.trim_start_matches('/')),
    };
    let mut parts = uri::Parts::default();
    parts.scheme = Some(upstream.scheme.clone());
    parts.authority = Some(upstream.authority.clone());
    parts.path_and_query = Some(format!("{path}{query}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// The address of an upstream, taken apart once.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    scheme: uri::Scheme,
    authority: uri::Authority,
    /// What takes the place of the path that a route matched, if it is written.
    path: Option<String>,
}

impl Upstream {
    /// `has_path` says whether a path is written: `https://api.example` reads the same as
    /// `https://api.example/`.
    pub(crate) fn new(uri: &Uri, has_path: bool) -> Option<Self> {
        Some(Self {
            scheme: uri.scheme()?.clone(),
            authority: uri.authority()?.clone(),
            path: has_path.then(|| uri.path().to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_path_takes_the_place_of_what_matched() {
        for (upstream, path, rest, expected) in [
            ("http://up", "/graphql", "", "http://up/graphql"),
            ("http://up/", "/graphql", "", "http://up/"),
            ("http://up:81/base", "/graphql?a=b", "", "http://up:81/base?a=b"),
            ("http://up", "/vendor/v1/x?y", "v1/x", "http://up/vendor/v1/x?y"),
            ("http://up/", "/vendor/v1/x?y", "v1/x", "http://up/v1/x?y"),
            ("http://up/base", "/vendor/v1/x?y", "v1/x", "http://up/base/v1/x?y"),
            ("http://up/base/", "/vendor/v1/", "v1/", "http://up/base/v1/"),
            ("http://up/base", "/v%20w", "", "http://up/base"),
        ] {
            let written = upstream.trim_start_matches("http://").contains('/');
            let upstream = Upstream::new(&upstream.parse().unwrap(), written).unwrap();
            let found = target(&upstream, &path.parse().unwrap(), rest).unwrap();
            assert_eq!(found.to_string(), expected);
        }
    }
}
