//! Reads `credentials`: the credentials for an upstream. No message repeats any of them.

use http::header::AUTHORIZATION;
use sluicegate_core::Span;

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::{header, header_name, secret, url};
use crate::config::{Credentials, Login};
use crate::report::Report;

const KINDS: [&str; 4] = ["basic", "bearer", "headers", "login"];

/// Reads the option `credentials`.
pub(in super::super) fn credentials(item: &Item<'_>, report: &mut Report) -> Option<Credentials> {
    let fields = Fields::open(item.clone(), &KINDS, report)?;
    let given = KINDS.into_iter().filter_map(|kind| Some((kind, fields.get(kind)?)));
    let mut read: Vec<_> = given.map(|(kind, item)| read(kind, &item, report)).collect();
    if read.len() != 1 {
        item.fail(
            report,
            "needs exactly one of basic, bearer, headers or login",
            "write one of them",
        );
    }
    read.pop().flatten()
}

fn read(kind: &str, item: &Item<'_>, report: &mut Report) -> Option<Credentials> {
    match kind {
        "basic" => {
            let fields = Fields::open(item.clone(), &["user", "password"], report)?;
            let user = fields.require("user", "write the user name", report);
            let password =
                fields.require("password", "write the password, or {file: path}", report);
            let user = user.and_then(|item| secret(&item, report));
            let password = password.and_then(|item| secret(&item, report));
            Some(Credentials::Basic { user: user?, password: password? })
        }
        "bearer" => secret(item, report).map(Credentials::Bearer),
        "headers" => {
            let form = "write a map from header fields to values";
            let mut fields = Vec::new();
            for (key, item) in item.entries(report, form)? {
                let Some(value) = secret(&item, report) else { continue };
                match header_name(&key.text) {
                    Some(name) => fields.push((name, value)),
                    None => {
                        let remedy = "write a name such as x-api-key";
                        item.fail(report, "not a valid header field name", remedy);
                    }
                }
            }
            Some(Credentials::Headers(fields))
        }
        _ => login(item, report).map(|login| Credentials::Login(Box::new(login))),
    }
}

fn login(item: &Item<'_>, report: &mut Report) -> Option<Login> {
    let known = ["url", "body", "content_type", "token", "expires_in", "ttl", "header", "scheme"];
    let fields = Fields::open(item.clone(), &known, report)?;
    let url = fields.require("url", "write the URL of the login endpoint", report);
    let body =
        fields.require("body", "write the body of the login request, or {file: path}", report);
    let url = url.and_then(|item| self::url(&item, report));
    let body = body.and_then(|item| secret(&item, report));
    let text = |key: &str, default: &str, report: &mut Report| {
        fields.read(key, default.to_owned(), report, scalar::text)
    };
    let least = |item: &Item<'_>, report: &mut Report| {
        scalar::span_from(item, report, Span::from_secs(1), "write at least 1s")
    };
    Some(Login {
        content_type: text("content_type", "application/json", report),
        token: pointer(&fields, "token", "/access_token", report),
        expires_in: pointer(&fields, "expires_in", "/expires_in", report),
        ttl: fields.read("ttl", Span::from_secs(600), report, least),
        header: fields.read("header", AUTHORIZATION, report, header),
        scheme: fields.read("scheme", "Bearer".to_owned(), report, |item, report| {
            item.scalar(report, "write a word, or \"\" for none")
                .map(|scalar| scalar.text().to_owned())
        }),
        // Last, so that all mistakes in the other options are reported at once.
        url: url?.uri,
        body: body?,
    })
}

/// Reads a JSON pointer.
fn pointer(fields: &Fields<'_>, key: &str, default: &str, report: &mut Report) -> String {
    let read = |item: &Item<'_>, report: &mut Report| {
        let text = scalar::text(item, report)?;
        if !text.starts_with('/') {
            item.fail(
                report,
                "not a JSON pointer",
                "write a pointer that starts with /, such as /data/token",
            );
            return None;
        }
        Some(text)
    };
    fields.read(key, default.to_owned(), report, read)
}
