//! The way out: pooled connections to an upstream, and the credentials that it wants to see.

mod client;
mod credentials;
mod secret;

pub use client::{CaError, SendError, Upstream, Ways, is_address};
pub use credentials::{Credentials, CredentialsError, Login, LoginFailed, Signer};
pub use secret::{Secret, Secrets, Unreadable};
