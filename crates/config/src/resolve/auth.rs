//! Tokens. No message repeats one.

use std::collections::HashMap;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Auth, TokenHash, TokenScope};
use crate::place::brief;
use crate::raw::{Key, Value};
use crate::report::Report;

/// Fewer characters can be guessed.
const TOKEN_CHARS_MIN: usize = 16;

pub(super) fn auth(item: Item<'_>, report: &mut Report) -> Auth {
    let Some(fields) = Fields::open(item, &["tokens"], report) else { return Auth::default() };
    let auth = tokens_with(&fields, true, report);
    if let Some(item) = fields.get("tokens")
        && !auth.tokens.is_empty()
        && auth.scopes.is_empty()
        && report.errors() == 0
    {
        let message = "no token has scopes, so each may do everything: also set overrides, reset \
                       usage and reload";
        let remedy = "write a token as {token: …, scopes: [decide]}, and give admin to operators";
        report.warning(&item.place(), message, remedy);
    }
    auth
}

const SCOPES: [(&str, TokenScope); 4] = [
    ("decide", TokenScope::Decide),
    ("read", TokenScope::Read),
    ("admin", TokenScope::Admin),
    ("queue", TokenScope::Queue),
];

/// The tokens of a gateway, in a map that may hold other options. They have no scopes.
pub(super) fn tokens_of(fields: &Fields<'_>, report: &mut Report) -> Auth {
    tokens_with(fields, false, report)
}

fn tokens_with(fields: &Fields<'_>, scoped: bool, report: &mut Report) -> Auth {
    let mut auth = Auth::default();
    let form = "write a map of callers and their tokens, such as ci: ${CI_TOKEN:?}";
    let callers = fields.read_some("tokens", report, |item, report| item.names(report, form));
    let mut owners = HashMap::new();
    for (name, item) in callers.unwrap_or_default() {
        let mut token = Some(item.clone());
        if scoped && matches!(item.node.value, Value::Map(_)) {
            let (of_map, scopes) = token_and_scopes(item, report);
            token = of_map;
            auth.scopes.extend(scopes.map(|scopes| (name.text.clone(), scopes)));
        }
        let hashes = token.map(|item| tokens(name, &item, &mut owners, report));
        auth.tokens.insert(name.text.clone(), hashes.unwrap_or_default());
    }
    auth
}

/// A caller in full: its tokens, and what they may do.
fn token_and_scopes<'n>(
    item: Item<'n>,
    report: &mut Report,
) -> (Option<Item<'n>>, Option<Vec<TokenScope>>) {
    let Some(fields) = Fields::open(item, &["token", "scopes"], report) else {
        return (None, None);
    };
    let token = fields.require("token", "write the token, such as token: ${CI_TOKEN:?}", report);
    let form = "write a list of decide, read, admin and queue";
    let scopes = fields.require("scopes", form, report).map(|item| {
        let items = item.list(report, form).unwrap_or_default();
        if items.is_empty() && matches!(item.node.value, Value::List(_)) {
            item.fail(report, "is empty, so the token may do nothing", form);
        }
        items.iter().filter_map(|item| scalar::word(item, report, &SCOPES)).collect()
    });
    (token, scopes)
}

/// The tokens of one caller.
fn tokens<'n>(
    name: &'n Key,
    item: &Item<'n>,
    owners: &mut HashMap<TokenHash, &'n str>,
    report: &mut Report,
) -> Vec<TokenHash> {
    let mut items = item.one_or_more();
    // The place of the next token may stay empty until there is one.
    if matches!(item.node.value, Value::List(_)) {
        items.retain(|item| !matches!(&item.node.value, Value::Scalar(s) if s.is_left_out()));
    }
    if items.is_empty() {
        item.fail(report, "has no token", "write one, or remove the caller");
    }
    let mut hashes = Vec::new();
    for item in items {
        let Some(hash) = token(&item, report) else { continue };
        match owners.insert(hash, &name.text) {
            None => hashes.push(hash),
            Some(owner) if owner == name.text => {}
            Some(owner) => {
                let message = format!("is the same token as that of {}", brief(owner));
                item.fail(report, message, "give each caller its own, or nobody knows who called");
            }
        }
    }
    hashes
}

fn token(item: &Item<'_>, report: &mut Report) -> Option<TokenHash> {
    let text = item.scalar(report, "write the token, such as ${CI_TOKEN:?}")?.text();
    let (message, remedy) = if let Some(digits) = text.strip_prefix("sha256:") {
        let hash = TokenHash::from_hex(digits);
        if hash.is_some() {
            return hash;
        }
        ("is not a SHA-256", "write sha256: and 64 hexadecimal digits")
    } else if !text.chars().all(|c| c.is_ascii_graphic()) {
        // A line break at the end of a secret is easily overlooked, and no header can hold it.
        ("has spaces, line breaks or letters outside of ASCII", "remove them from the token")
    } else if text.len() < TOKEN_CHARS_MIN {
        ("has fewer than 16 characters", "make a longer one, such as by openssl rand -hex 32")
    } else {
        return Some(TokenHash::of(text));
    };
    item.fail(report, message, remedy);
    None
}
