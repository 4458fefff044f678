//! Reads `auth.tokens`: the tokens of callers and their scopes. No message repeats a token.

use std::collections::HashMap;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Auth, AuthScope, TokenHash};
use crate::location::shorten;
use crate::raw::{Key, Value};
use crate::report::Report;

/// Minimum length of a token: shorter ones can be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// Reads the section `auth`.
pub(super) fn auth(item: Item<'_>, report: &mut Report) -> Auth {
    let Some(fields) = Fields::open(item, &["tokens"], report) else { return Auth::default() };
    let auth = tokens_with(&fields, true, report);
    if let Some(item) = fields.get("tokens")
        && !auth.tokens.is_empty()
        && auth.scopes.is_empty()
        && report.errors() == 0
    {
        let message =
            "no token has scopes, so every token may also set overrides, reset usage and reload";
        let remedy = "write tokens as {token: …, scopes: [decide]}, and give admin to operators \
                      only";
        report.warning(&item.location(), message, remedy);
    }
    auth
}

/// Reads the tokens of a gateway. They have no scopes.
pub(super) fn tokens_of(fields: &Fields<'_>, report: &mut Report) -> Auth {
    tokens_with(fields, false, report)
}

fn tokens_with(fields: &Fields<'_>, scoped: bool, report: &mut Report) -> Auth {
    let mut auth = Auth::default();
    let form = "write a map from caller names to tokens, such as ci: ${CI_TOKEN:?}";
    let callers = fields.read_some("tokens", report, |item, report| item.entries(report, form));
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

/// Reads the long form of a caller: its tokens and its scopes.
fn token_and_scopes<'n>(
    item: Item<'n>,
    report: &mut Report,
) -> (Option<Item<'n>>, Option<Vec<AuthScope>>) {
    let Some(fields) = Fields::open(item, &["token", "scopes"], report) else {
        return (None, None);
    };
    let token = fields.require("token", "write the token, such as token: ${CI_TOKEN:?}", report);
    let form = "write a list of decide, read, admin or queue";
    let known = AuthScope::ALL.map(|scope| (scope.name(), scope));
    let scopes = fields.require("scopes", form, report).map(|item| {
        let items = item.list(report, form).unwrap_or_default();
        if items.is_empty() && matches!(item.node.value, Value::List(_)) {
            item.fail(report, "empty list: the token would have no permissions", form);
        }
        items.iter().filter_map(|item| scalar::word(item, report, &known)).collect()
    });
    (token, scopes)
}

/// Reads the tokens of one caller.
fn tokens<'n>(
    name: &'n Key,
    item: &Item<'n>,
    owners: &mut HashMap<TokenHash, &'n str>,
    report: &mut Report,
) -> Vec<TokenHash> {
    let mut items = item.one_or_more();
    // An empty item is allowed, so that a variable can provide the next token later.
    if matches!(item.node.value, Value::List(_)) {
        let is_empty =
            |item: &Item<'_>| matches!(&item.node.value, Value::Scalar(s) if s.text().is_empty());
        items.retain(|item| !is_empty(item));
    }
    if items.is_empty() {
        item.fail(report, "the caller has no token", "write one, or remove the caller");
    }
    let mut hashes = Vec::new();
    for item in items {
        let Some(hash) = token(&item, report) else { continue };
        match owners.insert(hash, &name.text) {
            None => hashes.push(hash),
            Some(owner) if owner == name.text => {}
            Some(owner) => {
                let message = format!("same token as caller {}", shorten(owner));
                item.fail(report, message, "give each caller its own token");
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
        ("not a SHA-256 hash", "write sha256: followed by 64 hexadecimal digits")
    } else if !text.chars().all(|c| c.is_ascii_graphic()) {
        // A line break at the end of a secret is easily overlooked, and an HTTP header can't
        // contain it.
        ("the token contains spaces, line breaks or non-ASCII characters", "remove them")
    } else if text.len() < TOKEN_CHARS_MIN {
        ("the token has fewer than 16 characters", "generate one with openssl rand -hex 32")
    } else {
        return Some(TokenHash::of(text));
    };
    item.fail(report, message, remedy);
    None
}
