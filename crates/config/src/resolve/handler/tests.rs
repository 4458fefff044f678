use super::*;
use crate::config::{
    ChatPrompt, ChatProvider, Config, Credentials, HttpOptions, RequestBody, ResultSource,
};
use crate::location::Path;
use crate::source_text::SourceText;
use crate::{interpolate, raw};

fn env(name: &str) -> Option<String> {
    (name == "KEY").then(|| "pl4nted-s3cret {{".to_owned())
}

/// Returns the handler, or all messages about it.
fn read(text: &str) -> Result<HandlerOptions, String> {
    read_with(text, &env)
}

fn read_with(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<HandlerOptions, String> {
    let mut report = Report::default();
    let (tree, hidden) = raw::parse(text, &mut report);
    let mut tree = tree.expect("a text");
    interpolate::tree(&mut tree, env, &mut report);
    let found = handler(&Item { node: &tree, path: Path::default().key("handler") }, &mut report);
    match (found, report.errors()) {
        (Some(found), 0) => Ok(found),
        _ => {
            let message = report.finish(&SourceText::new("f", text, hidden), None::<Config>);
            Err(message.map(|_| ()).unwrap_err().to_string())
        }
    }
}

fn work(text: &str) -> HandlerAction {
    read(text).unwrap_or_else(|message| panic!("{text}\n{message}")).action
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let message = read(text).err().unwrap_or_else(|| panic!("{text} was not refused"));
    assert!(message.contains(expected), "{text}\n{message}");
    assert!(!message.contains("s3cret"), "{message}");
}

#[test]
fn a_call_has_every_default() {
    let HandlerAction::Http(http) = work("http: {url: 'https://api.example/x'}") else {
        panic!("http")
    };
    assert_eq!(*http, HttpOptions::to(http.url.clone()));
    assert_eq!((http.method.as_str(), &http.content), ("POST", &RequestBody::Message));
    assert_eq!(http.idempotency_header.unwrap(), "idempotency-key");
    assert_eq!((http.success, http.retry, http.condition), (vec![200..=299], vec![], None));
    assert_eq!(
        (http.response_limit.0, http.connect_timeout.to_string()),
        (10 << 20, "5s".to_owned())
    );
    assert_eq!((http.credentials, http.result, http.ca), (None, ResultSource::Whole, None));
    assert!(!http.http2);
    let HandlerAction::Http(get) = work("http: {url: 'http://a/', method: GET}") else {
        panic!("http")
    };
    assert_eq!(get.content, RequestBody::Nothing);
}

#[test]
fn every_option_of_a_call_arrives() {
    let text = r#"
http:
  method: PUT
  url: https://api.example/users/{{user.id}}?page={{page:-1}}
  headers:
    X-Kind: "{{job.type}}"
  body:
    a: "{{a}}"
    n: 5
    f: 0.5
    id: 12345678901234567890123
    quoted: "5"
    on: true
    none: null
    left: ${NOTHING:-}
    list: [x, "{{b}} c"]
  credentials:
    bearer: ${KEY}
  idempotency_key: X-Job
  success:
    status: [200, 3xx]
    path: data.state
    is: [done, 1]
  retry: 404
  result: data.items
  response_limit: 1MB
  connect_timeout: 1s
  http2: true
  ca: ca.pem
emit:
  - each: .
    when: next
    queue: repos
    type: crawl_repo
    body: {repo: "{{item.name}}", org: "{{org}}", all: "{{result.total}}"}
    id: "{{job.id}}-{{item.id}}"
"#;
    let handler = read(text).unwrap();
    let printed = format!("{handler:?}");
    assert!(!printed.contains("s3cret") && printed.contains("{{user.id}}"), "{printed}");
    let HandlerAction::Http(http) = handler.action else { panic!("http") };
    assert_eq!((http.success, http.retry), (vec![200..=200, 300..=399], vec![404..=404]));
    let condition = http.condition.unwrap();
    assert_eq!(condition.path.to_string(), "data.state");
    assert_eq!(condition.values, [serde_json::json!("done"), serde_json::json!(1)]);
    assert_eq!(http.idempotency_header.unwrap(), "x-job");
    assert!(http.headers.iter().any(|(name, _)| name == "x-kind"));
    let RequestBody::Json(body) = http.content else { panic!("a body") };
    let rendered = body.render(&Message(serde_json::json!({"a": [1], "b": "B"}))).unwrap();
    let expected = serde_json::json!({
        "a": [1], "n": 5, "f": 0.5, "id": "12345678901234567890123", "quoted": "5", "on": true,
        "none": null, "list": ["x", "B c"],
    });
    assert_eq!(rendered, expected);
    let [emit] = &handler.emit[..] else { panic!("one") };
    assert_eq!((emit.queue.as_str(), emit.kind.as_deref()), ("repos", Some("crawl_repo")));
    assert!(emit.each.as_ref().unwrap().is_whole() && emit.when.is_some() && emit.id.is_some());
}

struct Message(serde_json::Value);

impl sluicegate_template::ValueSource for Message {
    fn value(&self, _: sluicegate_template::Root) -> Option<&serde_json::Value> {
        Some(&self.0)
    }
}

#[test]
fn a_command_is_a_list_or_a_map() {
    let HandlerAction::Command(short) = work("command: [python3, crawl.py, -v]") else {
        panic!("command")
    };
    assert_eq!((short.program.as_str(), short.args.len()), ("python3", 2));
    let HandlerAction::Command(braces) = work("command: [docker, ps, --format, '{{{{.ID}}']")
    else {
        panic!("command")
    };
    assert_eq!(braces.args[2], "{{.ID}}");
    let text = "command: {program: ./x, args: ['1'], dir: /tmp, env: {A: '${KEY}', B: {file: k}, C: '${N:-x}'}, output_limit: 1KB}";
    let HandlerAction::Command(long) = work(text) else { panic!("command") };
    assert_eq!((long.env.len(), long.output_limit.0), (3, 1_024));
    assert!(!format!("{long:?}").contains("s3cret"));
}

#[test]
fn a_preset_is_a_question() {
    let text = "
preset: anthropic
model: claude-sonnet-4-5
api_key: ${KEY}
system: you are a plant doctor
prompt: 'look at {{AnalysisId}}'
images: '{{ImageUrls}}'
max_tokens: 500
options:
  temperature: 0
base_url: http://127.0.0.1:9000/proxy
";
    let (http, chat) = chat(text);
    assert_eq!((chat.provider, chat.max_tokens), (ChatProvider::Anthropic, Some(500)));
    assert!(chat.system.is_some() && chat.images.is_some() && chat.options.is_some());
    assert!(!format!("{http:?}").contains("s3cret"));
    let (local, _) = self::chat("{preset: openai, model: a/b, prompt: x, base_url: 'http://a'}");
    assert!(local.credentials.is_none(), "a server of one's own may need none");
}

fn chat(text: &str) -> (HttpOptions, ChatPrompt) {
    let HandlerAction::Http(http) = work(text) else { panic!("http") };
    let RequestBody::Chat(chat) = http.content.clone() else { panic!("a chat") };
    (*http, *chat)
}

#[test]
fn a_chat_request_goes_to_its_provider_or_to_base_url() {
    for (preset, base, expected) in [
        ("openai", "", "https://api.openai.com/v1/chat/completions"),
        ("anthropic", "", "https://api.anthropic.com/v1/messages"),
        (
            "gemini",
            "",
            "https://generativelanguage.googleapis.com/v1beta/models/m-1:generateContent",
        ),
        (
            "openai",
            ", base_url: 'http://127.0.0.1:9000/'",
            "http://127.0.0.1:9000/chat/completions",
        ),
        ("anthropic", ", base_url: 'http://proxy/a'", "http://proxy/a/v1/messages"),
    ] {
        let text =
            format!("{{preset: {preset}, model: m-1, api_key: '${{KEY}}', prompt: x{base}}}");
        let (http, chat) = chat(&text);
        assert_eq!(http.url.fixed().collect::<String>(), expected);
        let bearer = matches!(http.credentials, Some(Credentials::Bearer(_)));
        assert_eq!(bearer, preset == "openai");
        assert_eq!(http.result, ResultSource::Chat(chat.provider));
        assert!(!format!("{http:?}").contains("s3cret"), "{http:?}");
    }
}

#[test]
fn one_kind_of_work_is_chosen() {
    let one = "handler: a handler needs exactly one of http, command or preset: write one of them";
    refused("{}", one);
    refused("{http: {url: 'http://a/'}, command: [x]}", one);
    refused("{htp: {url: 'http://a/'}}", "handler.htp: unknown key: did you mean http?");
    refused(
        "{command: [x], prompt: y}",
        "handler.prompt: only preset handlers have this option here",
    );
    refused("{preset: opnai, model: x, prompt: y, api_key: k}", "did you mean openai?");
}

#[test]
fn an_address_leads_where_the_file_says() {
    let url = |url: &str| format!("http: {{url: '{url}'}}");
    refused("http: {}", "handler.http: missing url");
    for (written, expected) in [
        ("{{url}}", "not an HTTP address"),
        ("ftp://a/", "not an HTTP address"),
        ("https://{{host}}/x", "not an HTTP address"),
        ("https://api.{{host}}/x", "placeholders are not allowed in the host"),
        ("https://ann:pw@a/", "contains a user or a password"),
        ("https://a/b c", "contains characters that are not allowed"),
        ("https://a/#x", "contains characters that are not allowed"),
        ("https://a/ü", "contains characters that are not allowed"),
        ("https://a/../b", "contains . or .. in its path"),
        ("https://a/{{x}", "is not closed: write }}"),
        ("https://a/{{x | y}}", "{{x | y}} is not a placeholder"),
        ("https://a/{{item}}", "is unknown here: item exists only in emit"),
        ("https://a/{{job.name}}", "job has id, attempt, type and provider"),
    ] {
        refused(&url(written), expected);
    }
    refused("http: {url: 'https://a/${KEY}'}", "a placeholder is not closed");
}

#[test]
fn options_that_can_not_be_sent_are_refused() {
    for (rest, expected) in [
        (
            "headers: {host: x}",
            "handler.http.headers.host: this header field is set by the HTTP client",
        ),
        ("headers: {'a b': x}", "not a valid header field name"),
        ("headers: {a: \"x\\r\\ny\"}", "contains control characters"),
        ("headers: {Idempotency-Key: x}", "headers.idempotency-key is also the header field"),
        ("body: {a: 1}, text: x", "can't be combined with body"),
        ("body: {a: 1}, method: GET", "GET requests have no body"),
        (
            "text: '{\"a\": \"{{x}}\"}', headers: {content-type: application/json}",
            "text is not allowed for JSON",
        ),
        ("body: {'{{a}}': 1}", "placeholders are not allowed in names"),
        ("body: ['{{a']", "handler.http.body[0]: {{a}} is not closed"),
        ("success: {status: 2x}", "\"2x\" is not an HTTP status"),
        ("success: {status: 99}", "\"99\" is not an HTTP status"),
        ("success: {is: 1}", "needs path"),
        ("result: 'a[0]'", "\"a[0]\" is not a valid path"),
        ("retry: [600]", "\"600\" is not an HTTP status"),
        ("response_limit: 2GB", "is not a size"),
        ("connect_timeout: 0s", "less than 1ms: write at least 1ms"),
        ("credentials: {}", "needs exactly one of basic, bearer, headers or login"),
        ("timeout: 5s", "handler.http.timeout: unknown key"),
        ("idempotency_key: 'a b'", "not a valid header field name"),
    ] {
        refused(&format!("http: {{url: 'http://a/', {rest}}}"), expected);
    }
}

#[test]
fn a_command_takes_nothing_from_messages() {
    for (command, expected) in [
        ("[]", "handler.command: empty command"),
        (
            "rm -rf x",
            "handler.command: a single value is not allowed here: write a list of the program",
        ),
        ("[sh, -c, 'echo {{a}}']", "handler.command[2]: placeholders are not allowed"),
        ("[\"a\\0b\"]", "contains a NUL character"),
        ("{args: [a]}", "handler.command: missing program"),
        ("{program: x, env: {'A-B': x}}", "not a valid variable name"),
        ("{program: x, env: {SLUICEGATE_JOB_ID: x}}", "choose another name"),
        ("{program: x, shell: true}", "unknown key"),
    ] {
        refused(&format!("command: {command}"), expected);
    }
}

#[test]
fn a_question_needs_a_model_a_prompt_and_a_key() {
    refused("preset: gemini", "handler: missing model");
    refused("preset: gemini", "handler: missing prompt");
    refused("preset: gemini", "handler: missing api_key");
    let rest = "model: m, prompt: p, api_key: k";
    for (more, expected) in [
        ("model: 'a b', prompt: p, api_key: k", "not a valid model name"),
        ("model: ../x, prompt: p, api_key: k", "not a valid model name"),
        ("model: m, prompt: '', api_key: k", "handler.prompt: empty text"),
        ("model: m, prompt: '{{', api_key: k", "is not closed"),
        (&format!("{rest}, max_tokens: 0"), "handler.max_tokens"),
        (&format!("{rest}, options: [a]"), "handler.options: not a map"),
        (&format!("{rest}, base_url: 'a'"), "not an HTTP address"),
    ] {
        refused(&format!("{{preset: openai, {more}}}"), expected);
    }
}

#[test]
fn emit_names_a_queue_and_knows_items_of_a_list_only() {
    for (emit, expected) in [
        ("x", "handler.emit: a single value is not allowed here: write a list of messages"),
        ("[{}]", "handler.emit[0]: missing queue"),
        ("[{queue: q, body: '{{item}}'}]", "item needs `each`, which names a list"),
        ("[{queue: q, each: 'a b'}]", "is not a valid path"),
        ("[{queue: q, to: x}]", "handler.emit[0].to: unknown key"),
    ] {
        refused(&format!("{{command: [x], emit: {emit}}}"), expected);
    }
}

#[test]
fn the_examples_of_the_page_are_handlers() {
    let page = include_str!("../../../../../docs/handlers.md");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut examples = 0;
    for example in blocks {
        let lines = example.strip_prefix("handler:\n").expect("a handler").lines();
        let inside: Vec<_> = lines.map(|line| line.strip_prefix("  ").expect("is below")).collect();
        let value_of = |name: &str| match name.ends_with("_URL") {
            true => Some("https://api.vendor.example".to_owned()),
            false => Some(format!("the-value-of-{name}")),
        };
        let read = read_with(&inside.join("\n"), &value_of);
        read.unwrap_or_else(|message| panic!("{example}\n{message}"));
        examples += 1;
    }
    assert_eq!(examples, 5);
}
