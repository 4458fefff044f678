//! The URI that a request is forwarded to: the upstream's address with the request's path.
//!
//! | upstream | `/graphql` takes `/graphql` | `/vendor/*` takes `/vendor/v1/x?y` |
//! |---|---|---|
//! | `https://api.example` | `/graphql` | `/vendor/v1/x?y` |
//! | `https://api.example/` | `/` | `/v1/x?y` |
//! | `https://api.example/base` | `/base` | `/base/v1/x?y` |
//!
//! If the upstream is configured with a path, even `/`, that path replaces the part that the route
//! matched.

use axum::http::{Uri, uri};

/// Returns the URI for a request. `rest` is the part of the path after the match.
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

/// The address of an upstream, parsed once.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    scheme: uri::Scheme,
    authority: uri::Authority,
    /// Path that replaces the matched part, if one is configured.
    path: Option<String>,
}

impl Upstream {
    /// Parses an address. `has_path` is true if a path is configured: the parsed URI is the same
    /// for `https://api.example` and `https://api.example/`.
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
    fn a_configured_path_replaces_the_matched_part() {
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
