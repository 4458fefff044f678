//! HTTP client for upstreams: pooled connections and credentials.

mod client;
mod credentials;
mod secret;

pub use client::{CaError, ClientOptions, SendError, Upstream, is_address};
pub use credentials::{Credentials, CredentialsError, Login, LoginError, Signer};
pub use secret::{Secret, SecretError, Secrets};
