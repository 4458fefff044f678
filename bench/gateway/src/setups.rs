//! The proxies in front of one upstream, each with its own rate limit, which is never reached.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::server::{Server, free_port};

/// Starts the upstream and the proxies. The upstream is the first server of the result.
pub(crate) fn start(folder: &Path) -> anyhow::Result<Vec<Server>> {
    build(OURS)?;
    let ours = PathBuf::from("target/dist-build/dist/sluicegate");
    build(BARE)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "bench/target".into());
    let bare = PathBuf::from(target).join("release/bare");
    let envoy = std::env::var_os("SLUICEGATE_ENVOY").map(PathBuf::from);
    let envoy =
        envoy.context("SLUICEGATE_ENVOY names no Envoy: run `cargo xtask bench gateway`")?;
    let upstream = free_port()?;
    let direct = nginx(folder, "direct", upstream, "location / { return 200 'ok'; }", "")?;
    let port = free_port()?;
    let location = "location / { limit_req zone=all burst=100000 nodelay; proxy_pass http://up; \
                    proxy_http_version 1.1; proxy_set_header Connection ''; }";
    let zone = format!(
        "limit_req_zone $server_name zone=all:1m rate=1000000r/s; \
         upstream up {{ server 127.0.0.1:{upstream}; keepalive 128; }}"
    );
    let nginx = nginx(folder, "nginx", port, location, &zone)?;
    Ok(vec![
        direct,
        sluicegate(folder, &ours, upstream)?,
        nginx,
        with_envoy(folder, &envoy, upstream)?,
        with_bare(&bare, upstream)?,
    ])
}

const OURS: &str = "build --profile dist --target-dir target/dist-build --locked --package sluicegate-cli --bin sluicegate";
const BARE: &str = "build --release --locked --manifest-path bench/Cargo.toml --package sluicegate-bench-gateway --bin bare";

fn build(line: &str) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(line.split(' ')).status().context("can't start cargo")?;
    ensure!(status.success(), "`cargo {line}` failed");
    Ok(())
}

fn nginx(
    folder: &Path,
    name: &'static str,
    port: u16,
    location: &str,
    more: &str,
) -> anyhow::Result<Server> {
    let config = folder.join(format!("{name}.conf"));
    let root = folder.display();
    let text = format!(
        "daemon off; worker_processes 1; pid {root}/{name}.pid; error_log /dev/null crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {root}/{name}-body;
  proxy_temp_path {root}/{name}-proxy; fastcgi_temp_path {root}/{name}-f; uwsgi_temp_path {root}/{name}-u;
  scgi_temp_path {root}/{name}-s; {more}
  server {{ listen 127.0.0.1:{port}; server_name all; {location} }} }}"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new("target/services/nginx/usr/sbin/nginx");
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg("/dev/null");
    Server::start(name, command, port)
}

fn sluicegate(folder: &Path, program: &Path, upstream: u16) -> anyhow::Result<Server> {
    let (port, admin) = (free_port()?, free_port()?);
    let config = folder.join("sluicegate.yaml");
    // No log lines per request, as for nginx and Envoy.
    let text = format!(
        "listen: {{admin: '127.0.0.1:{admin}'}}
log: {{level: warn, decisions: {{allowed: 0.0, denied: 0.0}}}}
gateways:
  - name: bench
    listen: 127.0.0.1:{port}
    routes:
      - {{path: /*, name: all, upstream: 'http://127.0.0.1:{upstream}', limit: 1000000/s burst 1000000, wait: {{max: 10s}}}}
"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.args(["serve", "--only", "gateway", "--config"]).arg(config);
    Server::start("sluicegate", command, port)
}

/// Starts a proxy of only the HTTP crates that the gateway uses, to measure their share of the
/// time.
fn with_bare(program: &Path, upstream: u16) -> anyhow::Result<Server> {
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args([port.to_string(), upstream.to_string()]);
    Server::start("bare hyper", command, port)
}

fn with_envoy(folder: &Path, program: &Path, upstream: u16) -> anyhow::Result<Server> {
    let port = free_port()?;
    let config = folder.join("envoy.yaml");
    std::fs::write(
        &config,
        ENVOY.replace("PORT", &port.to_string()).replace("UPSTREAM", &upstream.to_string()),
    )?;
    let mut command = Command::new(program);
    command
        .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "off", "-c"])
        .arg(config);
    Server::start("envoy", command, port)
}

const ENVOY: &str = r#"
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: bench
                generate_request_id: false
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{match: {prefix: /}, route: {cluster: up}}]
                http_filters:
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: bench
                      token_bucket: {max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s}
                      filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}
                      filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: up
      type: STATIC
      circuit_breakers: {thresholds: [{max_connections: 4096, max_pending_requests: 100000, max_requests: 100000}]}
      load_assignment:
        cluster_name: up
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: UPSTREAM}}}
"#;
