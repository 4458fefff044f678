//! The pages of the dashboard: files that are compiled into the program and compressed once.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::rest::Problem;

/// A page may load only what this listener serves, and nothing inline. Nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, media type and contents of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("", "text/html; charset=utf-8", include_str!("assets/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("theme.js", SCRIPT, include_str!("assets/theme.js")),
    ("app.js", SCRIPT, include_str!("assets/app.js")),
    ("api.js", SCRIPT, include_str!("assets/api.js")),
    ("chart.js", SCRIPT, include_str!("assets/chart.js")),
    ("parts.js", SCRIPT, include_str!("assets/parts.js")),
    ("nodes.js", SCRIPT, include_str!("assets/nodes.js")),
    ("overview.js", SCRIPT, include_str!("assets/overview.js")),
    ("limits.js", SCRIPT, include_str!("assets/limits.js")),
    ("caller.js", SCRIPT, include_str!("assets/caller.js")),
    ("money.js", SCRIPT, include_str!("assets/money.js")),
    ("gateways.js", SCRIPT, include_str!("assets/gateways.js")),
    ("queues.js", SCRIPT, include_str!("assets/queues.js")),
    ("activity.js", SCRIPT, include_str!("assets/activity.js")),
    ("audit.js", SCRIPT, include_str!("assets/audit.js")),
    ("vendor/preact.js", SCRIPT, include_str!("assets/vendor/preact.js")),
    (
        "vendor/LICENSES.txt",
        "text/plain; charset=utf-8",
        include_str!("assets/vendor/LICENSES.txt"),
    ),
];

struct Asset {
    name: &'static str,
    kind: &'static str,
    plain: &'static str,
    gzip: Bytes,
    tag: HeaderValue,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let asset = |&(name, kind, plain): &(&'static str, &'static str, &'static str)| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(plain.as_bytes()).and_then(|()| encoder.finish());
        let gzip = written.expect("a buffer takes every write").into();
        let tag = format!("\"{}\"", &blake3::hash(plain.as_bytes()).to_hex()[..16]);
        let tag = HeaderValue::try_from(tag).expect("hexadecimal digits");
        Asset { name, kind, plain, gzip, tag }
    };
    FILES.iter().map(asset).collect()
});

/// Returns the page.
pub(super) async fn index(headers: HeaderMap) -> Response {
    serve("", &headers)
}

/// Returns a file of the page.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return Problem::new(StatusCode::NOT_FOUND, "unknown file of the dashboard")
            .into_response();
    };
    let is_known = headers.get(header::IF_NONE_MATCH) == Some(&asset.tag);
    let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let gzip = accepts.is_some_and(|accepts| accepts.contains("gzip"));
    let body = match (is_known, gzip) {
        (true, _) => Body::empty(),
        (false, true) => asset.gzip.clone().into(),
        (false, false) => asset.plain.into(),
    };
    let mut response = Response::new(body);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let fields = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, asset.kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    if gzip && !is_known {
        fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    fields.insert(header::ETAG, asset.tag.clone());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
        assert!(bytes < 150_000, "{bytes} bytes");
        // The documentation says how much it is, rounded up to 5 KB.
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dashboard.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let documented = format!("less than {} KB together, compressed", bytes.div_ceil(5_000) * 5);
        assert!(page.contains(&documented), "{bytes} bytes: write {documented}");
    }

    #[test]
    fn a_script_loads_only_files_that_are_served() {
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            for line in asset.plain.lines().filter(|line| line.starts_with("import ")) {
                let from = line.rsplit(['"', '\'']).nth(1).expect("a file");
                let name = from.trim_start_matches("./");
                assert!(FILES.iter().any(|(known, ..)| *known == name), "{line}");
            }
        }
    }

    #[test]
    fn the_page_has_no_inline_script_or_style() {
        let page = FILES[0].2;
        assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("onclick"));
        assert_eq!(page.matches("<script").count(), page.matches("<script src=").count() + 1);
        assert!(page.contains("<script type=\"module\" src="), "{page}");
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let tag = ASSETS[0].tag.clone();
        let response = serve("", &HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]));
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(serve("app.css", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
