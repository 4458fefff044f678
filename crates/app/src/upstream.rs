//! Converts upstream options of the configuration (credentials, headers, URLs) to the types of the
//! HTTP client.

use anyhow::Context as _;
use axum::http::{HeaderName, Uri};
use sluicegate_config::{self as config, SecretSource};
use sluicegate_http::upstream::{Credentials, Login, Secret};

pub(crate) fn credentials(credentials: &config::Credentials) -> anyhow::Result<Credentials> {
    Ok(match credentials {
        config::Credentials::Basic { user, password } => {
            Credentials::Basic { user: secret(user), password: secret(password) }
        }
        config::Credentials::Bearer(token) => Credentials::Bearer(secret(token)),
        config::Credentials::Headers(fields) => {
            let field =
                |(name, value): (&String, &SecretSource)| Ok((header(name)?, secret(value)));
            Credentials::Headers(fields.iter().map(field).collect::<anyhow::Result<_>>()?)
        }
        config::Credentials::Login(login) => Credentials::Login(Box::new(Login {
            url: uri(&login.url)?,
            body: secret(&login.body),
            content_type: login.content_type.clone(),
            token: login.token.clone(),
            expires_in: Some(login.expires_in.clone()),
            ttl: login.ttl.into(),
            header: header(&login.header)?,
            scheme: login.scheme.clone(),
        })),
    })
}

pub(crate) fn secret(source: &SecretSource) -> Secret {
    match source {
        SecretSource::Value(secret) => Secret::Text(secret.expose().to_owned()),
        SecretSource::File(path) => Secret::File(path.clone()),
    }
}

pub(crate) fn header(name: &str) -> anyhow::Result<HeaderName> {
    name.parse().with_context(|| format!("{name:?} is not a valid header name"))
}

pub(crate) fn uri(url: &config::UpstreamUrl) -> anyhow::Result<Uri> {
    // The message omits the URL: it may come from a variable and contain a secret.
    url.text.parse().context("the URL of an upstream is not valid")
}
