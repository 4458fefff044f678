//! Tests of chat requests, as the providers receive them.

use serde_json::{Value, json};
use sluicegate_config::{Credentials, SecretSource};
use sluicegate_dispatch::handler::{
    ChatPrompt, ChatProvider, FailureKind, HttpOptions, RequestBody, ResultSource,
};

use crate::support::{Server, body, done, failed, handler, job, options, response, text, tree};

fn asking(provider: ChatProvider, base: &str) -> HttpOptions {
    let key = SecretSource::from("the-key-of-ours");
    let mut options = options(&format!("{base}{}", provider.path("m-1")));
    options.credentials = Some(match provider.key_header() {
        None => Credentials::Bearer(key),
        Some(name) => Credentials::Headers(vec![(name.parse().unwrap(), key)]),
    });
    let fields = provider.headers().iter();
    options.headers = fields.map(|(name, value)| (name.parse().unwrap(), text(value))).collect();
    options.result = ResultSource::Chat(provider);
    options.content = RequestBody::Chat(Box::new(ChatPrompt {
        provider,
        model: "m-1".to_owned(),
        system: Some(text("be brief")),
        prompt: text("look at {{AnalysisId}}"),
        images: Some(tree("{{ImageUrls:-[]}}")),
        max_tokens: Some(100),
        options: None,
    }));
    options
}

#[tokio::test]
async fn a_chat_request_has_the_form_of_its_provider() {
    for (provider, path, key, answer) in [
        (
            ChatProvider::OpenAi,
            "/chat/completions",
            ("authorization", "Bearer the-key-of-ours"),
            r#"{"model": "m", "choices": [{"message": {"content": "leaf rust"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 12, "completion_tokens": 2}}"#,
        ),
        (
            ChatProvider::Anthropic,
            "/v1/messages",
            ("x-api-key", "the-key-of-ours"),
            r#"{"model": "m", "content": [{"type": "text", "text": "leaf rust"}], "stop_reason": "stop",
                "usage": {"input_tokens": 12, "output_tokens": 2}}"#,
        ),
        (
            ChatProvider::Gemini,
            "/v1beta/models/m-1:generateContent",
            ("x-goog-api-key", "the-key-of-ours"),
            r#"{"modelVersion": "m", "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 2},
                "candidates": [{"content": {"parts": [{"text": "leaf rust"}]}, "finishReason": "stop"}]}"#,
        ),
    ] {
        let server = Server::answering(200, &[], answer).await;
        let message = json!({"AnalysisId": "a-17", "ImageUrls": ["https://i.example/1.jpg"]});
        let done = done(&handler(asking(provider, &server.url)), &job(message.to_string())).await;
        let asked = server.asked_once();
        assert_eq!((asked.uri.as_str(), asked.header(key.0)), (path, Some(key.1)));
        let version = (provider == ChatProvider::Anthropic).then_some("2023-06-01");
        assert_eq!(asked.header("anthropic-version"), version);
        assert_eq!(asked.header("idempotency-key"), Some("a-17"));
        let sent = asked.json().to_string();
        assert!(
            sent.contains("look at a-17") && sent.contains("https://i.example/1.jpg"),
            "{sent}"
        );
        let result: Value = serde_json::from_str(body(&done)).unwrap();
        assert_eq!(
            (&result["text"], &result["finish_reason"]),
            (&json!("leaf rust"), &json!("stop"))
        );
        assert_eq!(result["usage"], json!({"input_tokens": 12, "output_tokens": 2}));
    }
}

#[tokio::test]
async fn a_response_without_text_is_not_retried() {
    let blocked = r#"{"promptFeedback": {"blockReason": "SAFETY"}}"#;
    let server = Server::answering(200, &[], blocked).await;
    let failure =
        failed(&handler(asking(ChatProvider::Gemini, &server.url)), &job("{\"AnalysisId\":1}"))
            .await;
    assert_eq!(failure.kind, FailureKind::Permanent);
    assert!(failure.message.ends_with("the model returned no text: SAFETY"), "{}", failure.message);
    assert_eq!(failure.response.as_deref(), Some(blocked));
}

#[tokio::test]
async fn an_api_key_in_a_response_is_not_shown() {
    let server = Server::start(|asked| {
        let said = format!("incorrect key: {}", asked.header("x-api-key").unwrap());
        response(401, &[], said)
    })
    .await;
    let handler = handler(asking(ChatProvider::Anthropic, &server.url));
    let failure = failed(&handler, &job("{\"AnalysisId\":1}")).await;
    assert_eq!(failure.response.as_deref(), Some("incorrect key: …"));
}
