//! HTTP client for upstreams: pooled connections and credentials.

mod client;
mod connection;
mod connector;
mod credentials;
mod latest_start;
mod pool;
mod secret;

pub use client::{CaError, ClientOptions, ConnectionPool, SendError, Upstream, is_address};
pub use connection::{ExchangeError, ReadyConnection};
pub use connector::ConnectError;
pub use credentials::{CredentialsError, LoginError, Signer};
pub use latest_start::LatestStart;
pub use pool::ExpectedRequest;
pub use secret::{SecretError, Secrets, read_secret};
