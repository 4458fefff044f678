//! The command line of the simulated servers.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{GitHub, Provider, serve};

/// Run a simulated server with a rate limit, to try Sluicegate on
#[derive(Parser)]
#[command(name = "simulators", version, about)]
pub struct Cli {
    /// Port to listen on, on 127.0.0.1
    #[arg(long, global = true, default_value_t = 18_080)]
    port: u16,
    /// Latency of a response, in milliseconds
    #[arg(long, global = true, default_value_t = 50)]
    latency_ms: u64,
    #[command(subcommand)]
    server: Server,
}

#[derive(Subcommand)]
enum Server {
    /// Run a model provider: POST /v1/analyze answers 429 above the limit; GET /report
    Provider {
        /// Maximum number of calls in a window
        #[arg(long, default_value_t = 500)]
        limit: usize,
        /// Length of the window, in seconds
        #[arg(long, default_value_t = 60)]
        window: u64,
        /// Percentage of calls that fail
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
        failures: u64,
    },
    /// Run a GitHub with one organisation: answers 403 above the limit; GET /report
    Github {
        /// Number of repositories of the organisation
        #[arg(long, default_value_t = 600)]
        repositories: usize,
        /// Maximum number of calls in a window
        #[arg(long, default_value_t = 400)]
        limit: u64,
        /// Length of the window, in seconds
        #[arg(long, default_value_t = 15)]
        window: u64,
    },
}

impl Cli {
    /// Runs the server until it is interrupted.
    pub async fn run(self) -> anyhow::Result<()> {
        let Self { port, latency_ms, server } = self;
        let latency = Duration::from_millis(latency_ms);
        let (router, _) = match server {
            Server::Provider { limit, window, failures } => {
                let window = Duration::from_secs(window);
                Provider { limit, window, latency, failures_percent: failures }.router()
            }
            Server::Github { repositories, limit, window } => {
                let window = Duration::from_secs(window);
                GitHub { repositories, limit, window, latency }.router()
            }
        };
        let served = serve(port, router).await;
        let (address, serving) = served.with_context(|| format!("can't listen on port {port}"))?;
        println!("listening on http://{address}");
        tokio::signal::ctrl_c().await.context("can't wait for Ctrl-C")?;
        serving.abort();
        Ok(())
    }
}
