//! The example as a program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    assistant_api::serve().await
}
