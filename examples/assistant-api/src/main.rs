//! Serves the example: `ASSISTANT_LISTEN` (127.0.0.1:8000) is where, `LIMITER_URL`
//! (http://127.0.0.1:8080) is who limits it.

use anyhow::Context as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let address = variable("ASSISTANT_LISTEN", "127.0.0.1:8000");
    let limiter = variable("LIMITER_URL", "http://127.0.0.1:8080");
    let listener = tokio::net::TcpListener::bind(&address).await;
    let listener = listener.with_context(|| format!("can't listen on {address}"))?;
    axum::serve(listener, assistant_api::router(&limiter)).await.context("can't serve")
}
