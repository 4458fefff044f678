//! Simulated servers with rate limits, to try Sluicegate on: a model provider that answers 429 above
//! its limit, and a GitHub that reports its remaining calls. Both record the calls they receive, so
//! that a test can check the rate at which they arrive.

#![allow(clippy::disallowed_methods, reason = "a standalone server uses the system time")]
#![allow(clippy::print_stdout, reason = "the program prints the address it listens on")]

mod cli;
mod clock;
mod github;
mod provider;
mod record;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use cli::Cli;
pub use github::GitHub;
pub use provider::Provider;
pub use record::{Call, Record, Report};

/// Starts a server on the loopback address; returns its address and a handle to abort it.
pub async fn serve(port: u16, app: Router) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        // It runs until its task is aborted.
        let _ = axum::serve(listener, app).await;
    });
    Ok((address, serving))
}
