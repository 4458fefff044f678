//! [`Credential`]: how a process proves its identity to Service Bus, and the tokens made from it.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use sha2::Sha256;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};

use super::failure::refused;
use super::web_client::WebClient;
use crate::{Error, WallClock};

/// Characters that stay as they are in a signature.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Address that issues Entra tokens in the public cloud.
const AUTHORITY: &str = "https://login.microsoftonline.com";
const SCOPE: &str = "https://servicebus.azure.net/.default";
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A secret or an identity.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A key of the namespace or of a queue.
    SharedKey {
        /// Name of the key.
        name: String,
        /// The key.
        key: String,
    },
    /// A signature that was made from a key elsewhere, which can't be renewed.
    Signature(String),
    /// An identity in Entra.
    Entra(EntraIdentity),
}

/// An identity in Entra.
#[derive(Clone, PartialEq, Eq)]
pub struct EntraIdentity {
    /// Address that issues tokens.
    pub authority: String,
    /// Id of the directory.
    pub tenant: String,
    /// Id of the application.
    pub client: String,
    /// Proof of the identity.
    pub proof: EntraProof,
}

/// The proof of an identity in Entra.
#[derive(Clone, PartialEq, Eq)]
pub enum EntraProof {
    /// A client secret.
    Secret(String),
    /// A file with a token of a trusted issuer, such as Kubernetes, which renews it.
    TokenFile(PathBuf),
}

/// A token for Service Bus.
#[derive(Clone)]
pub(super) struct AccessToken {
    pub(super) value: String,
    /// Type of the token in the AMQP protocol.
    pub(super) kind: &'static str,
    pub(super) expires: Timestamp,
}

impl AccessToken {
    /// Returns the value of the HTTP header `Authorization`.
    pub(super) fn header(&self) -> String {
        if self.kind == "jwt" { format!("Bearer {}", self.value) } else { self.value.clone() }
    }
}

impl Credential {
    /// Reads an Entra identity from the variables that Azure's own tools use: `AZURE_TENANT_ID`,
    /// `AZURE_CLIENT_ID`, and `AZURE_CLIENT_SECRET` or `AZURE_FEDERATED_TOKEN_FILE`.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let read = |name: &str| read(name).filter(|value| !value.is_empty());
        let need = |name: &str| {
            read(name).ok_or_else(|| {
                refused(format!(
                    "{name} is not set: an Entra identity needs AZURE_TENANT_ID, AZURE_CLIENT_ID, \
                     and AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE; or write \
                     queue.connection_string"
                ))
            })
        };
        let proof = match (read("AZURE_CLIENT_SECRET"), read("AZURE_FEDERATED_TOKEN_FILE")) {
            (Some(secret), _) => EntraProof::Secret(secret),
            (None, Some(path)) => EntraProof::TokenFile(path.into()),
            (None, None) => EntraProof::Secret(need("AZURE_CLIENT_SECRET")?),
        };
        let authority = read("AZURE_AUTHORITY_HOST").unwrap_or_else(|| AUTHORITY.to_owned());
        Ok(Self::Entra(EntraIdentity {
            authority: authority.trim_end_matches('/').to_owned(),
            tenant: need("AZURE_TENANT_ID")?,
            client: need("AZURE_CLIENT_ID")?,
            proof,
        }))
    }

    /// Makes a token for an entity.
    pub(super) async fn token(
        &self,
        audience: &str,
        lifetime: Span,
        web: &WebClient,
    ) -> Result<AccessToken, Error> {
        let kind = "servicebus.windows.net:sastoken";
        match self {
            Self::SharedKey { name, key } => {
                let expires = WallClock.now() + lifetime;
                Ok(AccessToken { value: sign(audience, name, key, expires), kind, expires })
            }
            Self::Signature(value) => {
                let expires = signature_expiry(value).unwrap_or(Timestamp::MAX);
                Ok(AccessToken { value: value.clone(), kind, expires })
            }
            Self::Entra(identity) => identity.token(web).await,
        }
    }
}

/// Omits secrets.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SharedKey { .. } => "SharedKey",
            Self::Signature(_) => "Signature",
            Self::Entra(_) => "Entra",
        })
    }
}

/// Signs an audience with a key.
fn sign(audience: &str, name: &str, key: &str, expires: Timestamp) -> String {
    let encode = |text: &str| utf8_percent_encode(text, ENCODED).to_string();
    let (resource, expiry) = (encode(audience), expires.as_micros() / 1_000_000);
    let mut hmac =
        Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key may have any length");
    hmac.update(format!("{resource}\n{expiry}").as_bytes());
    let signature = encode(&BASE64.encode(hmac.finalize().into_bytes()));
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={}", encode(name))
}

/// Returns the expiry of a signature.
fn signature_expiry(value: &str) -> Option<Timestamp> {
    let expiry = value.split(['&', ' ']).find_map(|part| part.strip_prefix("se="))?;
    Some(Timestamp::from_secs(expiry.parse().ok()?))
}

/// The answer of Entra.
#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    expires_in: u64,
}

/// The answer of Entra to a request that failed.
#[derive(Deserialize)]
struct TokenError {
    error_description: String,
}

impl EntraIdentity {
    async fn token(&self, web: &WebClient) -> Result<AccessToken, Error> {
        let Self { authority, tenant, client, proof } = self;
        let mut form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("client_id", client.clone()),
            ("scope", SCOPE.to_owned()),
        ];
        match proof {
            EntraProof::Secret(secret) => form.push(("client_secret", secret.clone())),
            EntraProof::TokenFile(path) => {
                // Read again for each token: Kubernetes replaces it.
                let token = std::fs::read_to_string(path).map_err(|error| {
                    let path = path.display();
                    refused(format!("can't read AZURE_FEDERATED_TOKEN_FILE {path}: {error}"))
                })?;
                form.push(("client_assertion_type", ASSERTION.to_owned()));
                form.push(("client_assertion", token.trim().to_owned()));
            }
        }
        let encode = |text: &str| utf8_percent_encode(text, ENCODED).to_string();
        let form: Vec<_> =
            form.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let url = format!("{authority}/{}/oauth2/v2.0/token", encode(tenant));
        let asked = WallClock.now();
        let (status, body) = web.post_form(&url, form.join("&")).await?;
        if !status.is_success() {
            let text = serde_json::from_str::<TokenError>(&body)
                .map_or_else(|_| format!("status {status}"), |error| error.error_description);
            let text = text.lines().next().unwrap_or_default();
            return Err(refused(format!(
                "Entra issued no token: {text}; check AZURE_TENANT_ID, AZURE_CLIENT_ID and \
                 AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE"
            )));
        }
        let response: TokenResponse = serde_json::from_str(&body)
            .map_err(|_| refused(format!("{url} did not answer with a token")))?;
        let expires = asked + Span::from(Duration::from_secs(response.expires_in));
        Ok(AccessToken { value: response.access_token, kind: "jwt", expires })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a signature was made with Microsoft's SDK for Python.
    #[test]
    fn a_signature_is_the_one_of_the_sdk() {
        let expires = Timestamp::from_secs(1_800_000_000);
        let signed = sign("sb://ns.servicebus.windows.net/jobs", "root", "c2VjcmV0", expires);
        assert_eq!(signed, EXPECTED);
        assert_eq!(signature_expiry(&signed), Some(expires));
    }

    const EXPECTED: &str = "SharedAccessSignature \
         sr=sb%3A%2F%2Fns.servicebus.windows.net%2Fjobs&\
         sig=K%2BH8x1VnF0WzDZSTZem2OJ372TIh%2FbMI9NUwvoG304U%3D&se=1800000000&skn=root";

    #[test]
    fn an_identity_is_read_from_the_variables_of_azure() {
        let with = |given: &[(&str, &str)]| {
            let given: Vec<_> =
                given.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            Credential::from_variables(move |name| {
                given.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            })
        };
        let both = [("AZURE_TENANT_ID", "t"), ("AZURE_CLIENT_ID", "c")];
        let missing = with(&both).expect_err("no proof").to_string();
        assert!(missing.contains("AZURE_CLIENT_SECRET is not set"), "{missing}");
        let file = [both[0], both[1], ("AZURE_FEDERATED_TOKEN_FILE", "/token")];
        let Ok(Credential::Entra(identity)) = with(&file) else { panic!("it is complete") };
        assert_eq!(identity.authority, AUTHORITY);
        assert!(matches!(identity.proof, EntraProof::TokenFile(_)));
        let secret = [both[0], ("AZURE_CLIENT_SECRET", "s")];
        assert!(with(&secret).expect_err("no client").to_string().contains("AZURE_CLIENT_ID"));
    }
}
