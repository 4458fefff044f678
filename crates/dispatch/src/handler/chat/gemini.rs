//! Gemini's `generateContent` API.

use serde_json::{Value, json};

use super::{ChatRequest, ChatResponse, Image, sum};

pub(super) fn body(request: &ChatRequest<'_>) -> Value {
    let mut parts = vec![json!({"text": request.prompt})];
    parts.extend(request.images.iter().map(|image| match image {
        Image::At(url) => {
            json!({"fileData": {"fileUri": url, "mimeType": media_type(url)}})
        }
        Image::Data { media_type, base64 } => {
            json!({"inlineData": {"mimeType": media_type, "data": base64}})
        }
    }));
    let mut body = json!({"contents": [{"role": "user", "parts": parts}]});
    if let Some(system) = &request.system {
        body["systemInstruction"] = json!({"parts": [{"text": system}]});
    }
    if let Some(max) = request.max_tokens {
        body["generationConfig"] = json!({"maxOutputTokens": max});
    }
    body
}

/// Guesses the media type of an image from the extension of its URL: this API requires one.
fn media_type(url: &str) -> &'static str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let ending = path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref() {
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        Some("gif") => "image/gif",
        Some("heic") => "image/heic",
        Some("heif") => "image/heif",
        _ => "image/jpeg",
    }
}

pub(super) fn read(answer: &Value) -> ChatResponse<'_> {
    let candidate = answer.pointer("/candidates/0");
    let parts = candidate.and_then(|candidate| candidate.pointer("/content/parts")?.as_array());
    let said = parts.into_iter().flatten().filter(|part| part["thought"] != true);
    let finish = candidate.and_then(|candidate| candidate.get("finishReason"));
    let finish = finish.or_else(|| answer.pointer("/promptFeedback/blockReason"));
    let usage = answer.get("usageMetadata");
    let input = ["promptTokenCount", "toolUsePromptTokenCount"];
    let output = ["candidatesTokenCount", "thoughtsTokenCount"];
    ChatResponse {
        text: said.filter_map(|part| part["text"].as_str()).collect(),
        finish: finish.and_then(Value::as_str),
        model: answer.get("modelVersion").and_then(Value::as_str),
        usage,
        tokens: [sum(usage, &input), sum(usage, &output)],
    }
}
