//! Builds the job handlers of a configuration: HTTP calls, chat completions and commands.

use std::sync::Arc;

use anyhow::Context as _;
use sluicegate_config::{self as config, HttpContent, Work};
use sluicegate_dispatch::Handler;
use sluicegate_dispatch::handler::{
    CommandHandler, CommandOptions, EmittingHandler, HttpHandler, HttpOptions, RequestBody,
    ResultSource,
};
use sluicegate_http::upstream::Credentials;
use sluicegate_queue::WallClock;
use sluicegate_template::Text;

use crate::upstream::{credentials, header, secret};

/// Builds a handler.
pub(crate) fn handler(handler: &config::HandlerOptions) -> anyhow::Result<Arc<dyn Handler>> {
    let made: Arc<dyn Handler> = match &handler.work {
        Work::Http(work) => Arc::new(called(http(work)?)?),
        Work::Chat(work) => Arc::new(called(chat(work)?)?),
        Work::Command(work) => Arc::new(CommandHandler::new(command(work))?),
    };
    Ok(match handler.emit.is_empty() {
        true => made,
        false => Arc::new(EmittingHandler::new(made, handler.emit.clone())),
    })
}

fn called(options: HttpOptions) -> anyhow::Result<HttpHandler> {
    Ok(HttpHandler::new(options, Arc::new(WallClock))?)
}

fn http(work: &config::HttpWork) -> anyhow::Result<HttpOptions> {
    let headers = work.headers.iter().map(|(name, text)| Ok((header(name)?, text.clone())));
    Ok(HttpOptions {
        method: work.method.parse().context("method")?,
        url: work.url.clone(),
        headers: headers.collect::<anyhow::Result<_>>()?,
        content: match &work.content {
            HttpContent::Nothing => RequestBody::Nothing,
            HttpContent::Message => RequestBody::Message,
            HttpContent::Json(tree) => RequestBody::Json(tree.clone()),
            HttpContent::Text(text) => RequestBody::Text(text.clone()),
        },
        credentials: work.credentials.as_ref().map(credentials).transpose()?,
        idempotency_header: work.idempotency_header.as_deref().map(header).transpose()?,
        success: work.success.clone(),
        condition: work.condition.clone(),
        retry: work.retry.clone(),
        result: work.result.clone().map_or(ResultSource::Whole, ResultSource::Member),
        response_bytes_max: bytes(work.response_limit),
        connect_timeout: work.connect_timeout.into(),
        http2_only: work.http2,
        ca: work.ca.clone(),
    })
}

/// Builds the HTTP call of a chat completion, with the URL, headers and body of its provider.
fn chat(work: &config::ChatWork) -> anyhow::Result<HttpOptions> {
    let provider = work.provider;
    let base = work.base_url.as_ref().map_or(provider.base_url(), |url| url.text.as_str());
    let url = format!("{}{}", base.trim_end_matches('/'), provider.path(&work.model));
    let key = work.api_key.as_ref().map(secret);
    let credentials = key.map(|key| match provider.key_header() {
        None => Ok(Credentials::Bearer(key)),
        Some(name) => header(name).map(|name| Credentials::Headers(vec![(name, key)])),
    });
    let field = |(name, value): &(&str, &str)| Ok((header(name)?, Text::from((*value).to_owned())));
    Ok(HttpOptions {
        method: "POST".parse().context("method")?,
        url: Text::from(url),
        headers: provider.headers().iter().map(field).collect::<anyhow::Result<_>>()?,
        content: RequestBody::Chat(Box::new(work.clone())),
        credentials: credentials.transpose()?,
        idempotency_header: work.idempotency_header.as_deref().map(header).transpose()?,
        success: vec![200..=299],
        condition: None,
        retry: Vec::new(),
        result: ResultSource::Chat(provider),
        response_bytes_max: bytes(work.response_limit),
        connect_timeout: work.connect_timeout.into(),
        http2_only: false,
        ca: work.ca.clone(),
    })
}

fn command(work: &config::CommandWork) -> CommandOptions {
    CommandOptions {
        program: work.program.clone(),
        args: work.args.clone(),
        dir: work.dir.clone(),
        env: work.env.iter().map(|(name, value)| (name.clone(), secret(value))).collect(),
        output_bytes_max: bytes(work.output_limit),
    }
}

fn bytes(size: config::ByteSize) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config::{ByteSize, ChatProvider, ChatWork, Secret, SecretSource, UpstreamUrl};
    use sluicegate_core::Span;

    fn asking(provider: ChatProvider, base_url: Option<&str>) -> ChatWork {
        let base_url = base_url
            .map(|text| UpstreamUrl { text: text.to_owned(), has_path: text.ends_with('/') });
        ChatWork {
            provider,
            model: "m-1".to_owned(),
            api_key: Some(SecretSource::Value(Secret::new("k3y-of-ours"))),
            base_url,
            system: None,
            prompt: Text::from("hello".to_owned()),
            images: None,
            max_tokens: None,
            options: None,
            idempotency_header: None,
            response_limit: ByteSize(1 << 20),
            connect_timeout: Span::from_secs(1),
            ca: None,
        }
    }

    #[test]
    fn a_chat_request_goes_to_its_provider_or_to_base_url() {
        for (provider, base, expected) in [
            (ChatProvider::OpenAi, None, "https://api.openai.com/v1/chat/completions"),
            (ChatProvider::Anthropic, None, "https://api.anthropic.com/v1/messages"),
            (
                ChatProvider::Gemini,
                None,
                "https://generativelanguage.googleapis.com/v1beta/models/m-1:generateContent",
            ),
            (
                ChatProvider::OpenAi,
                Some("http://127.0.0.1:9000/"),
                "http://127.0.0.1:9000/chat/completions",
            ),
            (ChatProvider::Anthropic, Some("http://proxy/a"), "http://proxy/a/v1/messages"),
        ] {
            let options = chat(&asking(provider, base)).unwrap();
            assert_eq!(options.url.fixed().collect::<String>(), expected);
            let bearer = matches!(options.credentials, Some(Credentials::Bearer(_)));
            assert_eq!(bearer, provider == ChatProvider::OpenAi);
            assert!(!format!("{options:?}").contains("k3y"), "{options:?}");
        }
    }
}
