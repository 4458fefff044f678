//! Reads `REDIS_URL` and `REDIS_CLUSTER_MODE`, which select the store of a process without a
//! configuration file, and of a process with a file of the old inference limiter.

use super::redis;
use crate::config::{RedisStore, RedisTopology, StoreOptions};
use crate::resolve::store::SelectedStore;

const URL: &str = "REDIS_URL";
const CLUSTER_MODE: &str = "REDIS_CLUSTER_MODE";

/// A variable that can't be used. The message does not contain its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {message}: {remedy}")]
pub struct VariableError {
    /// Name of the variable.
    pub variable: &'static str,
    message: &'static str,
    remedy: &'static str,
}

/// Returns the store that the variables select; `None` if they are not set. An empty variable
/// counts as not set.
pub(crate) fn store(
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<SelectedStore>, VariableError> {
    let fail = |variable, message, remedy| VariableError { variable, message, remedy };
    let variable = |name| env(name).filter(|value| !value.trim().is_empty());
    let in_cluster = match variable(CLUSTER_MODE) {
        None => false,
        Some(text) => redis::cluster_mode(text.trim()).ok_or_else(|| {
            fail(CLUSTER_MODE, "neither true nor false", "set it to true or false")
        })?,
    };
    let Some(url) = variable(URL) else {
        if in_cluster {
            let remedy = "set REDIS_URL to one or more of its servers, separated by commas";
            return Err(fail(CLUSTER_MODE, "a cluster without a server", remedy));
        }
        return Ok(None);
    };
    let mut servers =
        redis::parse(url.trim()).map_err(|message| fail(URL, message, redis::FORM))?;
    let topology = match (in_cluster, servers.len()) {
        (true, _) => RedisTopology::Cluster(servers),
        (false, 1) => RedisTopology::Single(servers.remove(0)),
        (false, _) => {
            let remedy =
                "set REDIS_CLUSTER_MODE=true if they are one Redis Cluster, or name one server";
            return Err(fail(URL, "more than one server", remedy));
        }
    };
    let reason = match in_cluster {
        true => "REDIS_URL is set and REDIS_CLUSTER_MODE is true",
        false => "REDIS_URL is set",
    };
    let options = StoreOptions::Redis(RedisStore { topology, ..RedisStore::default() });
    Ok(Some(SelectedStore { options, reason }))
}
