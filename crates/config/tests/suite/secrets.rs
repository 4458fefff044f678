//! Tests that no message contains the value of a variable, or a text that looks like a secret.

use std::fs;

use crate::files::{files, variable};
use sluicegate_config::load;

const PLANTED: &str = "pl4nted-s3cret-of-somebody";
/// A secret that is also valid in a limit, so that messages about valid limits are tested, too.
const NUMBER: &str = "48151623";

#[test]
fn the_value_of_a_variable_is_in_no_message() {
    for folder in ["bad", "warning", "good"] {
        for path in files(folder) {
            let text = fs::read_to_string(&path).unwrap();
            for (text, secret) in planted(&text).iter().flat_map(|t| [(t, PLANTED), (t, NUMBER)]) {
                let env = |name: &str| env(text, name, secret);
                let messages = match load("f", text, &env) {
                    Ok(loaded) => format!("{:?}", loaded.warnings),
                    Err(errors) => format!("{errors}\n{errors:?}"),
                };
                assert!(!messages.contains(secret), "{}\n{text}\n{messages}", path.display());
            }
        }
    }
}

/// Returns copies of a text, each with one value replaced by a variable.
fn planted(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().collect();
    let mut texts = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        for separator in [": ", "- "] {
            let Some((before, value)) = line.split_once(separator) else { continue };
            for value in variants(value) {
                let mut lines = lines.clone();
                let line = format!("{before}{separator}{value}");
                lines[number] = &line;
                texts.push(lines.join("\n"));
            }
        }
    }
    texts
}

/// Returns replacements for a value; in a list on one line, also for each item.
fn variants(value: &str) -> Vec<String> {
    let variables = ["${PLANTED}", "${PLANTED}/s", "${PLANTED:-9} concurrent"];
    let mut variants: Vec<_> = variables.map(str::to_owned).into();
    if let Some(items) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let items: Vec<_> = items.split(", ").take(8).collect();
        for (index, variable) in (0..items.len()).flat_map(|index| variables.map(|v| (index, v))) {
            let mut items = items.clone();
            let item = format!("\"{variable}\"");
            items[index] = &item;
            variants.push(format!("[{}]", items.join(", ")));
        }
    }
    variants
}

fn env(text: &str, name: &str, secret: &str) -> Option<String> {
    if name == "PLANTED" { Some(secret.to_owned()) } else { variable(text, name) }
}

#[test]
fn secrets_do_not_print() {
    let text = "
auth:
  tokens:
    a: ${PLANTED}
    b: [another-s3cret-of-somebody]
store:
  kind: redis
  url: redis://user:${PLANTED}@host
";
    let loaded = load("f", text, &|name| env(text, name, PLANTED)).unwrap();
    let printed = format!("{loaded:?}");
    assert!(!printed.contains("s3cret"), "{printed}");
    let azure = "store: {kind: redis, url: \"${PLANTED}\"}";
    let azure_env = |_: &str| Some("h:1,password=pl4nted-s3cret,ssl=True".to_owned());
    let printed = format!("{:?}", load("f", azure, &azure_env).unwrap());
    assert!(!printed.contains("s3cret"), "{printed}");
}

#[test]
fn secrets_that_are_written_out_are_not_repeated_either() {
    for text in [
        "auth: {tokens: {a: s3cret}}",
        "auth: {tokens: {a: s3cret-s3cret-s3cret, b: s3cret-s3cret-s3cret}}",
        "auth: {tokens: [s3cret]}",
        "auth:\n  tokens: s3cret",
        "auth:\n  token:\n    a: s3cret",
        "auht:\n  tokens: {a: s3cret}",
        "auth:\n  tokens:\n    a: >\n      s3cret\n    b: [",
        "auth:\n  tokens:\n    a: s3cret: s3cret",
        "auth:\n  tokens:\n    a: 's3cret",
        "auth:\n  tokens:\n    a: !!str s3cret",
        "auth:\n  tokens: {a: s3cret, a: s3cret}",
        "store: {kind: redis, url: 'redis://:s3cret@host:x', timeuot: 5s}",
        "store: {kind: redis, ulr: 'redis://:s3cret@host'}",
        "store: {kind: 'redis://:s3cret@host'}",
        "store: {kind: redis, url: 'host:1,password=s3cret,x'}",
        "store: {kind: redis, key_prefix: 'host:1, password=s3cret'}",
        "store: {kind: redis, cluster: 'redis://:s3cret@host'}",
        "store: {kind: redis, password: s3cret}",
        "store:\n  kind: redis\n  sentinel:\n    password: s3cret",
        "store:\n  kind: redis\n  password: 's3cret",
        "gateways: {auth: {tokens: {a: s3cret}}}",
        "gateways: [{auth: {header: s3cret s3cret, tokens: s3cret}, nmae: a}]",
        "gateways: [{auht: {tokens: {a: [s3cret]}}, nmae: a}]",
        "gateways: [{routes: [{upstream: 'http://a:s3cret@b'}]}]",
        "gateways: [{routes: [{upstream: 'http://b/?key=s3cret'}]}]",
        "gateways: [{routes: [{credentials: {basic: {user: s3cret, password: s3cret}, ttl: 1}}]}]",
        "gateways: [{routes: [{credentails: {headers: {x-key: s3cret}}}]}]",
        "gateways: [{routes: [{credentials: {login: {url: b, body: 'name=s3cret', ttl: 1}}}]}]",
        "gateways:\n- routes:\n  - credentials:\n      headers:\n        x-key: s3cret: x",
        "gateways:\n- routes:\n  - credentials:\n      headers:\n        x-key: 's3cret",
        "workers: [{handler: {preset: openai, api_key: s3cret, modle: x}}]",
        "workers: [{handler: {http: {url: a, headers: {x-key: s3cret}, query: {k: s3cret}}}}]",
        "workers: [{handler: {http: {url: a, body: {apiKey: s3cret}}}}]",
        "workers: [{handler: {command: {program: a, env: {GITHUB_PAT: s3cret}, agrs: []}}}]",
        "workers: [{handler: {command: [psql, --password, s3cret, '{{x}}']}}]",
        "workers: [{handler: {command: [curl, -H, 'Authorization: Bearer s3cret', '{{x}}']}}]",
        "traces: {headers: {x-key: s3cret}, endpoint: b}",
        "tokens: s3cret",
        "s3cret",
        "- s3cret",
    ] {
        let errors = load("f", text, &|_| None).expect_err(text);
        assert!(!format!("{errors}\n{errors:?}").contains("s3cret"), "{text}\n{errors}");
    }
}

/// A file with credentials of every kind.
const CREDENTIALS: &str = "
gateways:
  - name: vendor
    listen: 127.0.0.1:3001
    auth:
      tokens:
        a: s3cret-s3cret-s3cret
    routes:
      - path: /a
        upstream: http://127.0.0.1
        credentials:
          headers:
            x-key: s3cret
      - path: /b
        upstream: http://127.0.0.1
        credentials:
          login:
            url: http://127.0.0.1
            body: s3cret
workers:
  - provider: p
    queue: q
    handler:
      http:
        url: http://127.0.0.1
        headers:
          x-key: \"s3cret {{id}}\"
        query:
          key: s3cret
";

/// Braces are not among the signs: one makes a key of the secret behind it, and messages name keys.
#[test]
fn no_stray_sign_reveals_a_credential() {
    let count = |text: &str, word: &str| text.matches(word).count();
    let words = ["s3cret", "gateways:", "auth:", "tokens:", "credentials:", "headers:", "workers:"];
    for (at, _) in CREDENTIALS.char_indices() {
        for sign in ["'", "\"", "]", "|", "!!x ", "&a ", "*a "] {
            let mut text = CREDENTIALS.to_owned();
            text.insert_str(at, sign);
            // A sign inside one of these words makes another word of it.
            if words.iter().any(|word| count(&text, word) < count(CREDENTIALS, word)) {
                continue;
            }
            let Err(errors) = load("f", &text, &|_| None) else { continue };
            assert!(!format!("{errors}\n{errors:?}").contains("s3cret"), "{text}\n{errors}");
        }
    }
}

#[test]
fn values_that_are_no_credentials_are_shown() {
    for (text, shown) in [
        ("gateways: [{name: a/b, listen: '127.0.0.1:1', routes: []}]", "name: a/b, listen"),
        ("gateways: [{routes: [{path: graphql, upstream: 'ftp://a'}]}]", "upstream: 'ftp://a'"),
        ("gateways:\n- auth: {tokens: {a: s3cret}}\n  routes: [{retries: 11}]", "retries: 11"),
        ("dispatch: {providers: {p: {estimate: {tokens: much}}}}", "estimate: {tokens: much}"),
        ("workers: [{handler: {preset: openia, max_tokens: none}}]", "max_tokens: none"),
        ("workers: [{handler: {http: {url: 'ftp://a', method: FETCH}}}]", "method: FETCH"),
        ("workers: [{handler: {command: [cat, '{{x}}']}}]", "[cat, '{{x}}']"),
        ("traces: {endpoint: nowhere}", "endpoint: nowhere"),
    ] {
        let errors = load("f", text, &|_| None).expect_err(text).to_string();
        assert!(errors.contains(shown) && !errors.contains("s3cret"), "{text}\n{errors}");
    }
}
