//! OpenAI's Chat Completions API.

use serde_json::{Value, json};

use super::{ChatRequest, ChatResponse, Image, sum};

pub(super) fn body(request: &ChatRequest<'_>) -> Value {
    let mut content = vec![json!({"type": "text", "text": request.prompt})];
    content.extend(request.images.iter().map(|image| {
        let url = match image {
            Image::At(url) => url.clone(),
            Image::Data { media_type, base64 } => format!("data:{media_type};base64,{base64}"),
        };
        json!({"type": "image_url", "image_url": {"url": url}})
    }));
    let system = request.system.iter().map(|text| json!({"role": "system", "content": text}));
    let user = json!({"role": "user", "content": content});
    let messages: Vec<_> = system.chain([user]).collect();
    let mut body = json!({"model": request.model, "messages": messages});
    if let Some(max) = request.max_tokens {
        body["max_completion_tokens"] = Value::from(max);
    }
    body
}

pub(super) fn read(answer: &Value) -> ChatResponse<'_> {
    let choice = answer.pointer("/choices/0");
    let message = choice.and_then(|choice| choice.get("message"));
    let text = message.and_then(|message| message.get("content")).and_then(Value::as_str);
    let refusal = message.and_then(|message| message.get("refusal")).and_then(Value::as_str);
    let finish = choice.and_then(|choice| choice.get("finish_reason")).and_then(Value::as_str);
    let usage = answer.get("usage");
    ChatResponse {
        text: text.unwrap_or_default().to_owned(),
        // The refusal text says more than `stop`.
        finish: refusal.or(finish),
        model: answer.get("model").and_then(Value::as_str),
        usage,
        tokens: [sum(usage, &["prompt_tokens"]), sum(usage, &["completion_tokens"])],
    }
}
