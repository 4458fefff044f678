//! The benchmarked programs: Sluicegate, the plain script and limitador.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use limitador_redis::limit::Namespace;
use limitador_redis::storage::AsyncStorage;
use limitador_redis::storage::redis::AsyncRedisStorage;
use limitador_redis::{AsyncRateLimiter, AsyncRateLimiterBuilder};
use sluicegate_core::query::RequestId;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Id, Limit, Limiter, Query, Rule, Ruleset, Store as _};
use sluicegate_store::redis::RedisEndpoint as Address;
use sluicegate_store::redis::{Options, Redis, RetryPolicy, Traffic};

use crate::server::Server;

/// Numbers of users, tenants and models in the requests.
pub(crate) const USERS: u64 = 10_000;
const TENANTS: u64 = 100;
const MODELS: u64 = 10;
/// Limit that is never reached.
const AMOUNT: u64 = 1_000_000_000;
const SCOPES: [(&str, &[&str]); 3] =
    [("USER_MODEL", &["userId", "modelId"]), ("TENANT", &["tenantId"]), ("MODEL", &["modelId"])];

/// The dimension values of a request.
struct Caller {
    user: String,
    tenant: String,
    model: String,
}

/// Returns the values of a random user.
fn random_caller(random: &mut fastrand::Rng) -> Caller {
    let user = random.u64(0..USERS);
    Caller {
        user: format!("user-{user}"),
        tenant: format!("tenant-{}", user % TENANTS),
        model: format!("model-{}", user % MODELS),
    }
}

/// Sluicegate: rules and the Redis store.
pub(crate) struct Ours {
    limiter: Arc<Limiter<Redis>>,
}

impl Ours {
    /// Connects with one exact log per scope, each with this window.
    pub(crate) async fn new(server: &Server, scopes: usize, window: &str) -> anyhow::Result<Self> {
        let groups = SCOPES.iter().take(scopes).map(|(name, per)| {
            let limit: Limit = format!("{AMOUNT}/{window}").parse().expect("a limit");
            Group::new(*name, [Rule::new(*name, [limit]).per(per)])
        });
        let rules = Ruleset::new(groups.collect(), Settings::default());
        let rules = rules.map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        // A busy machine may delay an answer; that is not a failure of Redis.
        let patient = Duration::from_secs(5);
        let options = Options {
            // Every decision is made by Redis, not by the denial cache.
            deny_cache: Duration::ZERO,
            retry: RetryPolicy { timeout: patient, retries: 0, deadline: patient },
            ..Options::new(Address::at("127.0.0.1", server.port))
        };
        let store = Redis::new(options);
        anyhow::ensure!(store.wait_until_up(Duration::from_secs(5)).await, "no connection");
        Ok(Self { limiter: Arc::new(Limiter::new(rules, store)) })
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.limiter.store().traffic()
    }

    /// Returns the Redis key of the log of user 0.
    pub(crate) const fn first_log() -> &'static str {
        "sg:{USER_MODEL:user-0:model-0#requests}"
    }

    /// Sends one request. Returns true if it is admitted.
    pub(crate) async fn ask(&self, id: u128, user: &str, tenant: &str, model: &str) -> bool {
        ask(&self.limiter, id, user, tenant, model).await
    }

    /// Measures decisions per second with a number of concurrent callers.
    pub(crate) async fn rate(&self, callers: usize, length: Duration) -> f64 {
        let limiter = self.limiter.clone();
        rate(callers, length, move |caller, id| {
            let limiter = limiter.clone();
            async move { ask(&limiter, id, &caller.user, &caller.tenant, &caller.model).await }
        })
        .await
    }
}

async fn ask(limiter: &Limiter<Redis>, id: u128, user: &str, tenant: &str, model: &str) -> bool {
    let query = Query::new(RequestId::ours(Id::from_bits(id)));
    let query = query.with("userId", user).and_then(|q| q.with("tenantId", tenant));
    let query = query.and_then(|q| q.with("modelId", model)).expect("values are valid");
    let rules = limiter.rules();
    let plan = rules.plan(&query, sluicegate_core::Timestamp::ZERO).expect("a plan");
    let decision = limiter.store().acquire(&plan).await;
    decision.expect("Redis answers").is_allowed()
}

/// limitador, with the same limits as fixed windows.
pub(crate) struct Limitador {
    limiter: Arc<AsyncRateLimiter>,
}

impl Limitador {
    pub(crate) async fn new(server: &Server, scopes: usize) -> anyhow::Result<Self> {
        let storage = AsyncRedisStorage::new(&server.url()).await?;
        let storage = AsyncStorage::with_counter_storage(Box::new(storage));
        let limiter = AsyncRateLimiterBuilder::new(storage).build();
        for (name, per) in SCOPES.iter().take(scopes) {
            let mut limit = limitador_redis::limit::Limit::new(
                "bench",
                AMOUNT as i64,
                3_600,
                Vec::<String>::new(),
                per.to_vec(),
            );
            limit.set_name((*name).to_owned());
            limiter.add_limit(limit);
        }
        Ok(Self { limiter: Arc::new(limiter) })
    }

    pub(crate) async fn rate(&self, callers: usize, length: Duration) -> f64 {
        let limiter = self.limiter.clone();
        rate(callers, length, move |caller, _| {
            let limiter = limiter.clone();
            async move {
                let values = [
                    ("userId", caller.user),
                    ("tenantId", caller.tenant),
                    ("modelId", caller.model),
                ];
                let values: HashMap<String, String> =
                    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                let namespace: Namespace = "bench".into();
                let asked = limiter.check_rate_limited_and_update(&namespace, &values, 1, false);
                !asked.await.expect("Redis answers").limited
            }
        })
        .await
    }
}

/// Measures answers per second. Each caller sends its next request as soon as it has an answer.
async fn rate<F: Future<Output = bool> + Send>(
    callers: usize,
    length: Duration,
    ask: impl Fn(Caller, u128) -> F + Clone + Send + 'static,
) -> f64 {
    let (count, counting, done) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (count, counting, done) = (count.clone(), counting.clone(), done.clone());
            let ask = ask.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::new();
                let mut id = random.u128(..);
                while !done.load(Ordering::Relaxed) {
                    id = id.wrapping_add(1);
                    let allowed = ask(random_caller(&mut random), id).await;
                    assert!(allowed, "the limits are never reached");
                    if counting.load(Ordering::Relaxed) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(length / 5).await;
    counting.store(true, Ordering::Relaxed);
    let began = Instant::now();
    tokio::time::sleep(length).await;
    counting.store(false, Ordering::Relaxed);
    let counted = count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no caller panics");
    }
    counted
}

/// Measures the plain script with redis-benchmark: 16 connections with 16 pipelined calls each.
pub(crate) fn plain(server: &mut Server, scopes: usize, calls: u64) -> anyhow::Result<f64> {
    let script: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(include_str!("plain.lua"))
        .query(server.connection())?;
    let keys = ["u:__rand_int__", "tenant:1", "model:1"];
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port.to_string(), "-c", "16", "-P", "16", "-q"])
        .args(["-n", &calls.to_string(), "-r", &USERS.to_string()])
        .args(["EVALSHA", &script, &scopes.to_string()])
        .args(&keys[..scopes])
        .args([&AMOUNT.to_string(), "3600000000", "__rand_int__"])
        .stdin(Stdio::null())
        .output()
        .context("can't start redis-benchmark: it comes with redis-tools")?;
    std::io::stderr().write_all(&output.stderr)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.rsplit(['\r', '\n']).find(|line| line.contains("requests per second"));
    let rate = last.and_then(|line| {
        line.split(" requests per second").next()?.rsplit(' ').next()?.parse().ok()
    });
    rate.with_context(|| format!("redis-benchmark printed no rate: {text}"))
}
