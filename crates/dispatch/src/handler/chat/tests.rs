use serde_json::{Value, json};
use sluicegate_queue::{JobId, Message};
use sluicegate_template::{Root, Text, Tree};

use super::super::Job;
use super::super::job_scope::JobScope;
use super::*;

fn job(body: &Value) -> Job {
    let id = JobId::try_from("a-7".to_owned()).unwrap();
    Job::new(Message::of_job(id, body.to_string()), "p".to_owned())
}

fn chat(provider: ChatProvider) -> ChatPrompt {
    ChatPrompt {
        provider,
        model: "m-1".to_owned(),
        system: Some(Text::parse("be {{mood:-kind}}", Root::BEFORE).unwrap()),
        prompt: Text::parse("what ails {{plant}}?", Root::BEFORE).unwrap(),
        images: Some(Tree::text("{{images:-[]}}", Root::BEFORE).unwrap()),
        max_tokens: Some(50),
        options: None,
    }
}

fn body(chat: &ChatPrompt, message: &Value) -> Result<Value, String> {
    super::body(chat, &JobScope::new(&job(message))).map_err(|error| error.to_string())
}

#[test]
fn each_provider_gets_the_body_that_it_wants() {
    let message = json!({"plant": "a \"rose\"", "images": ["https://i.example/a.png?x=1.gif",
                         "data:image/webp;base64,AAAA"]});
    let prompt = "what ails a \"rose\"?";
    for (provider, expected) in [
        (
            ChatProvider::OpenAi,
            json!({
                "model": "m-1",
                "max_completion_tokens": 50,
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": [
                        {"type": "text", "text": prompt},
                        {"type": "image_url", "image_url": {"url": "https://i.example/a.png?x=1.gif"}},
                        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AAAA"}},
                    ]},
                ],
            }),
        ),
        (
            ChatProvider::Anthropic,
            json!({
                "model": "m-1",
                "max_tokens": 50,
                "system": "be kind",
                "messages": [{"role": "user", "content": [
                    {"type": "image", "source": {"type": "url", "url": "https://i.example/a.png?x=1.gif"}},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "AAAA"}},
                    {"type": "text", "text": prompt},
                ]}],
            }),
        ),
        (
            ChatProvider::Gemini,
            json!({
                "systemInstruction": {"parts": [{"text": "be kind"}]},
                "generationConfig": {"maxOutputTokens": 50},
                "contents": [{"role": "user", "parts": [
                    {"text": prompt},
                    {"fileData": {"fileUri": "https://i.example/a.png?x=1.gif", "mimeType": "image/png"}},
                    {"inlineData": {"mimeType": "image/webp", "data": "AAAA"}},
                ]}],
            }),
        ),
    ] {
        assert_eq!(body(&chat(provider), &message).unwrap(), expected, "{provider:?}");
    }
}

#[test]
fn optional_parts_are_left_out() {
    let message = json!({"plant": "fern"});
    let bare =
        |provider| ChatPrompt { system: None, images: None, max_tokens: None, ..chat(provider) };
    let openai = body(&bare(ChatProvider::OpenAi), &message).unwrap();
    assert_eq!(openai.as_object().unwrap().len(), 2, "{openai}");
    let anthropic = body(&bare(ChatProvider::Anthropic), &message).unwrap();
    assert_eq!(anthropic["max_tokens"], 4_096, "this API requires it");
    let gemini = body(&bare(ChatProvider::Gemini), &message).unwrap();
    assert_eq!(
        gemini,
        json!({"contents": [{"role": "user", "parts": [{"text": "what ails fern?"}]}]})
    );
}

#[test]
fn options_are_merged_into_the_body() {
    let options = Tree::Map(vec![
        ("temperature".to_owned(), Tree::Fixed(json!(0))),
        (
            "generationConfig".to_owned(),
            Tree::Map(vec![("topK".to_owned(), Tree::text("{{k}}", Root::BEFORE).unwrap())]),
        ),
    ]);
    let chat = ChatPrompt { options: Some(options), ..chat(ChatProvider::Gemini) };
    let body = body(&chat, &json!({"plant": "fern", "k": 3})).unwrap();
    assert_eq!(body["generationConfig"], json!({"maxOutputTokens": 50, "topK": 3}));
    assert_eq!(body["temperature"], 0);
}

#[test]
fn an_error_names_the_field_of_the_chat_request() {
    let chat = chat(ChatProvider::OpenAi);
    for (message, expected) in [
        (json!({}), "prompt: {{plant}} can't be filled: it is missing"),
        (json!({"plant": "x", "images": [7]}), "images: expected a URL or a list of URLs"),
        (
            json!({"plant": "x", "images": "file:///etc/passwd"}),
            "images: expected an http:// or https:// URL, or data:<type>;base64,<data>",
        ),
    ] {
        assert_eq!(body(&chat, &message).unwrap_err(), expected);
    }
}

#[test]
fn text_and_usage_have_the_same_form_for_every_provider() {
    let openai = json!({
        "model": "gpt-x",
        "choices": [{"message": {"content": "water", "refusal": null}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5,
                  "completion_tokens_details": {"reasoning_tokens": 3}},
    });
    let anthropic = json!({
        "model": "claude-x",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "wa"},
                    {"type": "text", "text": "ter"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 2, "cache_creation_input_tokens": 4,
                  "cache_read_input_tokens": 6, "output_tokens": 5},
    });
    let gemini = json!({
        "modelVersion": "gemini-x",
        "candidates": [{"content": {"parts": [{"text": "hm", "thought": true}, {"text": "water"}]},
                        "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 2, "thoughtsTokenCount": 3},
    });
    for (provider, answer, model, finish) in [
        (ChatProvider::OpenAi, openai, "gpt-x", "stop"),
        (ChatProvider::Anthropic, anthropic, "claude-x", "end_turn"),
        (ChatProvider::Gemini, gemini, "gemini-x", "STOP"),
    ] {
        let read = read(provider, &answer).unwrap();
        assert_eq!(read["text"], "water");
        assert_eq!(read["usage"], json!({"input_tokens": 12, "output_tokens": 5}), "{provider:?}");
        assert_eq!((&read["model"], &read["finish_reason"]), (&json!(model), &json!(finish)));
        assert!(read["provider_usage"].is_object());
    }
}

#[test]
fn an_answer_without_text_says_why() {
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}});
    let refused = json!({"choices": [{"message": {"content": null, "refusal": "no"}, "finish_reason": "stop"}]});
    let cut = json!({"content": [], "stop_reason": "max_tokens"});
    for (provider, answer, expected) in [
        (ChatProvider::Gemini, blocked, "the model returned no text: SAFETY"),
        (ChatProvider::OpenAi, refused, "the model returned no text: no"),
        (ChatProvider::Anthropic, cut, "the model returned no text: max_tokens"),
        (ChatProvider::OpenAi, json!([]), "the model returned no text: no reason given"),
    ] {
        assert_eq!(read(provider, &answer).unwrap_err(), expected);
    }
}
