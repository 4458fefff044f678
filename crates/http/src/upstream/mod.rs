//! HTTP client for upstreams: pooled connections and credentials.

mod client;
mod credentials;
mod secret;

pub use client::{CaError, SendError, Upstream, Ways, is_address};
pub use credentials::{Credentials, CredentialsError, Login, LoginFailed, Signer};
pub use secret::{Secret, Secrets, Unreadable};
