//! Reads options that gateways and handlers share: addresses of upstreams, header fields and
//! secrets.

mod credentials;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Secret, SecretSource, UpstreamUrl};
use crate::raw::Value;
use crate::report::Report;

pub(super) use credentials::credentials;

/// Reads an address with http:// or https://.
pub(super) fn url(item: &Item<'_>, report: &mut Report) -> Option<UpstreamUrl> {
    let form = "write a URL, such as https://api.example:8443/v1";
    let text = scalar::text(item, report)?;
    let parsed = url::Url::parse(&text).ok();
    let sound = parsed.filter(|url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none()
    });
    let Some(sound) = sound else {
        item.fail(report, "not an HTTP address", form);
        return None;
    };
    if !sound.username().is_empty() || sound.password().is_some() || sound.query().is_some() {
        item.fail(report, "contains a user, a password or a query", "move them to credentials");
        return None;
    }
    let after_scheme = text.split_once("://").map_or("", |(_, rest)| rest);
    let has_path = after_scheme.contains('/');
    Some(UpstreamUrl { text, has_path })
}

/// Reads the name of a header field, in lower case.
pub(super) fn header(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let form = "write a header field, such as x-tenant-id";
    let name = item.scalar(report, form)?.text().to_ascii_lowercase();
    if !is_header(&name) {
        item.fail(report, "not a valid header field name", form);
        return None;
    }
    Some(name)
}

/// Returns true if the name is valid for a header field.
pub(super) fn is_header(name: &str) -> bool {
    let in_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    (1..=100).contains(&name.len()) && name.chars().all(in_name)
}

/// Reads a secret, or the file that contains it.
pub(super) fn secret(item: &Item<'_>, report: &mut Report) -> Option<SecretSource> {
    if matches!(item.node.value, Value::Map(_)) {
        let fields = Fields::open(item.clone(), &["file"], report)?;
        let file = fields.require("file", "write the path of the file", report)?;
        return scalar::path(&file, report).map(SecretSource::File);
    }
    let form = "write the secret, such as ${PASSWORD:?}, or {file: path}";
    let text = item.scalar(report, form)?.text();
    if text.is_empty() || text.contains(['\r', '\n']) {
        item.fail(report, "empty, or contains line breaks", form);
        return None;
    }
    Some(SecretSource::Value(Secret::new(text)))
}
