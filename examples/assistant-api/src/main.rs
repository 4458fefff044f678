//! Runs the assistant API.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    assistant_api::serve().await
}
