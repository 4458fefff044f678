//! `cargo xtask bench`: builds and runs a benchmark of the `bench/` folder.
//!
//! Benchmarks have their own workspace, so that the programs they compare with stay out of our
//! lockfile.

use anyhow::{Context, bail};

use crate::python::{self, Tool};
use crate::services::{self, Service};
use crate::sh;

/// A benchmark.
struct Bench {
    name: &'static str,
    /// The measurement in one line, for `--list`.
    measures: &'static str,
    program: Program,
    /// Programs that must be installed before it runs.
    needs: &'static [&'static Service],
    /// Python programs that it runs.
    python: &'static [&'static Tool],
}

/// The form of a benchmark.
enum Program {
    /// A binary of the bench workspace, which has the name of the benchmark.
    Binary {
        /// Features of the workspace that it needs.
        features: &'static str,
    },
    /// A script that the Python of the benchmark runs.
    Script {
        path: &'static str,
        /// Builds the programs that it measures.
        builds: &'static [&'static str],
    },
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "engine",
        measures: "time and memory of a decision in memory, compared with governor, throttlecrab and limitador",
        program: Program::Binary { features: "" },
        needs: &[],
        python: &[],
    },
    Bench {
        name: "budget",
        measures: "overshoot and false denials of strict and optimistic budgets, compared with check-then-add",
        program: Program::Binary { features: "" },
        needs: &[],
        python: &[],
    },
    Bench {
        name: "redis",
        measures: "decisions per second on Redis, compared with the usual plain script and limitador",
        program: Program::Binary { features: "redis" },
        needs: &[&services::REDIS],
        python: &[],
    },
    Bench {
        name: "http",
        measures: "a decision over HTTP, compared with an axum server that decides nothing and throttlecrab-server",
        program: Program::Binary { features: "" },
        needs: &[&services::WRK, &services::PROTOC],
        python: &[],
    },
    Bench {
        name: "dashboard",
        measures: "decisions over HTTP with ten open tabs of the dashboard, compared with none",
        program: Program::Binary { features: "" },
        needs: &[&services::WRK],
        python: &[],
    },
    Bench {
        name: "grpc",
        measures: "Allow and ShouldRateLimit over gRPC, compared with a tonic server that decides nothing",
        program: Program::Binary { features: "" },
        needs: &[&services::H2LOAD],
        python: &[],
    },
    Bench {
        name: "tower",
        measures: "the time that the tower layer of the library adds to a request, compared with tower_governor",
        program: Program::Binary { features: "" },
        needs: &[],
        python: &[],
    },
    Bench {
        name: "gateway",
        measures: "a request through a gateway, compared with a direct request and with the rate limits of nginx and Envoy",
        program: Program::Binary { features: "" },
        needs: &[&services::WRK, &services::NGINX, &services::PYTHON],
        python: &[&python::ENVOY],
    },
    Bench {
        name: "queue",
        measures: "send, receive and delayed send through the queue port, compared with the client library of each broker",
        program: Program::Binary { features: "" },
        needs: &[
            &services::RABBITMQ,
            &services::PYTHON,
            &services::GO,
            &services::GOOGLE_CLOUD,
            &services::PUBSUB,
        ],
        python: &[&python::MOTO, &python::SERVICEBUS],
    },
    Bench {
        name: "dispatch",
        measures: "a backlog with three ways to wait, the dispatcher compared with a bare loop of confirmed sends, and jobs per second from end to end",
        program: Program::Binary { features: "" },
        needs: &[&services::RABBITMQ, &services::REDIS],
        python: &[],
    },
    Bench {
        name: "clients",
        measures: "a call by the Rust, Python and Node clients, compared with the bare HTTP call, and the ASGI middleware, compared with slowapi",
        program: Program::Script {
            path: "bench/clients/main.py",
            builds: &[
                "cargo build --profile dist --target-dir target/dist-build --locked --package sluicegate-cli --bin sluicegate",
                "clients/node/node_modules/.bin/node clients/node/scripts/build.mjs",
                "cargo build --release --target-dir target/client-bench --locked --manifest-path bench/Cargo.toml --bin rust-caller",
            ],
        },
        needs: &[
            &services::PYTHON,
            &services::REDIS,
            &services::WRK,
            &services::NPM,
            &services::NODE_CLIENT,
        ],
        python: &[&python::CLIENT_BENCH],
    },
];

/// Not `cargo run`, which passes variables of its package to the program: see [`sh::command`].
const BUILD: &str = "cargo build --release --locked --manifest-path bench/Cargo.toml --bin";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Benchmark to run
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// Arguments passed to the benchmark
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        for bench in BENCHES {
            println!("{:<12} {}", bench.name, bench.measures);
        }
        return Ok(true);
    };
    let bench = find(name)?;
    services::install(bench.needs)?;
    let installed = bench.python.iter().map(|tool| Ok((tool.variable, tool.install()?)));
    let installed = installed.collect::<anyhow::Result<Vec<_>>>()?;
    let env: Vec<_> = installed.iter().map(|(name, path)| (*name, path.as_str())).collect();
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "bench/target".to_owned());
    let binary = format!("{target}/release/{}", bench.name);
    let (builds, program) = match bench.program {
        Program::Binary { features } => {
            let there = ["--features", features, "--target-dir", &target];
            (vec![BUILD.split(' ').chain([bench.name]).chain(there).collect()], vec![&*binary])
        }
        Program::Script { path, builds } => {
            let (_, python) = env.first().context("a script needs the Python of its benchmark")?;
            let lines = builds.iter().map(|line| line.split(' ').collect::<Vec<_>>());
            (lines.collect(), vec![python, path])
        }
    };
    for build in builds {
        if !sh::run(&build, &env)? {
            return Ok(false);
        }
    }
    let line: Vec<_> = program.into_iter().chain(args.args.iter().map(String::as_str)).collect();
    sh::run(&line, &env)
}

fn find(name: &str) -> anyhow::Result<&'static Bench> {
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        let known: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("unknown benchmark {name:?} (known: {})", known.join(", "));
    };
    Ok(bench)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_benchmark_names_the_known_ones() {
        let error = find("engin").err().expect("there is no such benchmark");
        assert!(error.to_string().starts_with("unknown benchmark \"engin\" (known: engine"));
    }
}
