//! The reason that an action gives for the audit log.

use axum::http::{HeaderMap, header};

use super::Problem;
use crate::overrides::REASON_BYTES_MAX;

/// Returns the reason of an action without surrounding spaces. A person at the dashboard must give one.
/// A program may leave it out; the audit log has its name. Browsers send `Origin` with every change, and
/// programs do not.
pub(crate) fn of_action(headers: &HeaderMap, given: &str) -> Result<String, Problem> {
    let reason = given.trim();
    if reason.len() > REASON_BYTES_MAX {
        let right = format!("write at most {REASON_BYTES_MAX} bytes");
        return Err(Problem::field("reason", right));
    }
    if reason.is_empty() && headers.contains_key(header::ORIGIN) {
        return Err(Problem::field("reason", "is missing: write why, for the audit log"));
    }
    Ok(reason.to_owned())
}
