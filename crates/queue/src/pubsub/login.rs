//! [`Login`]: the access tokens of requests, from a key file or from the application default
//! credentials of the machine.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gcp_auth::{CustomServiceAccount, TokenProvider};
use tonic::metadata::{Ascii, MetadataValue};

use super::NAME;
use crate::Error;

/// The right that tokens ask for.
const SCOPES: &[&str] = &["https://www.googleapis.com/auth/pubsub"];

/// A source of tokens, which renews them in time; none for an emulator.
#[derive(Clone)]
pub(super) struct Login(Option<Arc<dyn TokenProvider>>);

impl Login {
    /// An emulator accepts everyone.
    pub(super) const NONE: Self = Self(None);

    /// Reads the credentials, and gets a first token: an expired credential is an error at the start.
    pub(super) async fn open(key_file: Option<&Path>) -> Result<Self, Error> {
        let provider: Arc<dyn TokenProvider> = match key_file {
            Some(path) => {
                let account = CustomServiceAccount::from_file(path).map_err(|error| {
                    let path = path.display();
                    refused(&error, &format!("check queue.credentials: {path} must be the JSON key file of a service account"))
                })?;
                Arc::new(account)
            }
            None => gcp_auth::provider().await.map_err(|error| {
                refused(&error, "write queue.credentials, set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`")
            })?,
        };
        let login = Self(Some(provider));
        login.header().await?;
        Ok(login)
    }

    /// Returns the project of the credentials.
    pub(super) async fn project(&self) -> Option<String> {
        let project = self.0.as_ref()?.project_id().await;
        project.ok().map(|project| project.to_string())
    }

    /// Returns the value of the header `authorization`.
    pub(super) async fn header(&self) -> Result<Option<MetadataValue<Ascii>>, Error> {
        let Some(provider) = &self.0 else { return Ok(None) };
        let token = provider.token(SCOPES).await.map_err(|error| {
            refused(&error, "the credential may be expired, deleted or without a network: renew it, or write queue.credentials")
        })?;
        let header = format!("Bearer {}", token.as_str()).parse();
        header.map(Some).map_err(|_| Error::Refused {
            broker: NAME,
            detail: "the token server sent an invalid token".to_owned(),
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

fn refused(error: &gcp_auth::Error, remedy: &str) -> Error {
    let detail = format!("no access token: {error}; {remedy}");
    match error {
        // The token server did not answer.
        gcp_auth::Error::Http(..) | gcp_auth::Error::Other(..) => {
            Error::Unavailable { broker: NAME, detail }
        }
        _ => Error::Refused { broker: NAME, detail },
    }
}
