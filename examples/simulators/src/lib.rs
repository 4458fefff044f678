//! Servers with the manners of those that Sluicegate is for: a model provider that answers 429 over
//! its limit, and a GitHub that tells how much is left. Both write down what they see, because what
//! matters is what arrives there.

#![allow(clippy::disallowed_methods, reason = "a server of its own, whose time is the wall's")]
#![allow(clippy::print_stdout, reason = "it tells whoever started it where it listens")]

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

/// Serves on loopback until the handle is aborted; where it listens.
pub async fn serve(port: u16, app: Router) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        // It ends with its task.
        let _ = axum::serve(listener, app).await;
    });
    Ok((address, serving))
}
