//! The floor: an axum server that reads the request of `POST /rate-limit/allow` and sends its
//! response, and decides nothing. It uses the same runtime and JSON library, and the response has
//! the same fields and length. It counts and logs nothing.
//!
//! Frozen: all ratios refer to it, so a change needs a decision page.

use axum::serve::ListenerExt as _;
use axum::{Json, Router, routing::post};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    user_id: String,
    model_id: String,
    tenant_id: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    allowed: bool,
    remaining: u64,
    reset_at: &'static str,
    effective_limit: u64,
    scopes: Vec<Scope>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Scope {
    name: &'static str,
    window: &'static str,
    limit: u64,
    current: u64,
    remaining: u64,
    reset_at: &'static str,
}

const RESET_AT: &str = "2027-01-15T08:00:59.123456Z";

async fn allow(Json(question): Json<Question>) -> Json<Answer> {
    // The answer depends on the request, so the compiler can't remove the code that reads it.
    let length = question.user_id.len() + question.model_id.len();
    let current = (length + question.tenant_id.map_or(0, |tenant| tenant.len())) as u64;
    let scope = |name, window, limit: u64| Scope {
        name,
        window,
        limit,
        current,
        remaining: limit.saturating_sub(current),
        reset_at: RESET_AT,
    };
    Json(Answer {
        allowed: true,
        remaining: 1_000 - current.min(1_000),
        reset_at: RESET_AT,
        effective_limit: 1_000,
        scopes: vec![
            scope("USER_MODEL", "1000/min", 1_000),
            scope("TENANT", "100000/min", 100_000),
            scope("GLOBAL_MODEL", "10000000/min windowed", 10_000_000),
        ],
    })
}

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await?.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let app = Router::new().route("/rate-limit/allow", post(allow));
        Ok(axum::serve(listener, app).await?)
    })
}
