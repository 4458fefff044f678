//! Reads options that gateways and handlers share: addresses of upstreams, header fields and
//! secrets.

mod credentials;

use http::HeaderName;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{SecretSource, UpstreamUrl};
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
    let Some((sound, uri)) = sound.zip(text.parse().ok()) else {
        item.fail(report, "not an HTTP address", form);
        return None;
    };
    if !sound.username().is_empty() || sound.password().is_some() || sound.query().is_some() {
        item.fail(report, "contains a user, a password or a query", "move them to credentials");
        return None;
    }
    let after_scheme = text.split_once("://").map_or("", |(_, rest)| rest);
    let has_path = after_scheme.contains('/');
    Some(UpstreamUrl { uri, has_path })
}

/// Reads the name of a header field.
pub(super) fn header(item: &Item<'_>, report: &mut Report) -> Option<HeaderName> {
    let form = "write a header field, such as x-tenant-id";
    let name = header_name(item.scalar(report, form)?.text());
    if name.is_none() {
        item.fail(report, "not a valid header field name", form);
    }
    name
}

/// Parses the name of a header field, which has at most 100 characters.
pub(super) fn header_name(name: &str) -> Option<HeaderName> {
    name.parse().ok().filter(|_| name.len() <= 100)
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
    Some(text.into())
}
