//! Anthropic's Messages API.

use serde_json::{Value, json};

use super::{ChatRequest, ChatResponse, Image, sum};

/// Default of `max_tokens`, which this API requires.
const MAX_TOKENS: u32 = 4_096;

pub(super) fn body(request: &ChatRequest<'_>) -> Value {
    let image = |image: &Image| {
        let source = match image {
            Image::At(url) => json!({"type": "url", "url": url}),
            Image::Data { media_type, base64 } => {
                json!({"type": "base64", "media_type": media_type, "data": base64})
            }
        };
        json!({"type": "image", "source": source})
    };
    // Images first, as Anthropic recommends.
    let mut content: Vec<_> = request.images.iter().map(image).collect();
    content.push(json!({"type": "text", "text": request.prompt}));
    let mut body = json!({
        "model": request.model,
        "max_tokens": request.max_tokens.unwrap_or(MAX_TOKENS),
        "messages": [{"role": "user", "content": content}],
    });
    if let Some(system) = &request.system {
        body["system"] = Value::from(system.as_str());
    }
    body
}

pub(super) fn read(answer: &Value) -> ChatResponse<'_> {
    let blocks = answer.get("content").and_then(Value::as_array);
    let texts = blocks.into_iter().flatten().filter(|block| block["type"] == "text");
    let usage = answer.get("usage");
    let input = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    ChatResponse {
        text: texts.filter_map(|block| block["text"].as_str()).collect(),
        finish: answer.get("stop_reason").and_then(Value::as_str),
        model: answer.get("model").and_then(Value::as_str),
        usage,
        tokens: [sum(usage, &input), sum(usage, &["output_tokens"])],
    }
}
