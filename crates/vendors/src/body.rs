//! Parses hints in the body of a refusal, as Google and GitHub write them.

use serde::Deserialize;

use super::moment;
use sluicegate_core::time::Span;

/// Pause for a daily quota, which does not return within the delay that the body contains.
const OF_A_DAY: Span = Span::from_secs(3_600);

#[derive(Deserialize)]
struct Refusal {
    error: Error,
}

#[derive(Deserialize)]
struct Error {
    #[serde(default)]
    status: String,
    #[serde(default)]
    details: Vec<Detail>,
}

#[derive(Deserialize)]
struct Detail {
    #[serde(rename = "retryDelay")]
    retry_delay: Option<String>,
    #[serde(default)]
    violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(rename = "quotaId", default)]
    quota_id: String,
}

/// Returns the time to wait, if the body contains one.
pub(super) fn hint(body: &[u8]) -> Option<Span> {
    let Refusal { error } = refusal(body)?;
    if error.status != "RESOURCE_EXHAUSTED" {
        return None;
    }
    let mut violations = error.details.iter().flat_map(|detail| &detail.violations);
    if violations.any(|violation| violation.quota_id.contains("PerDay")) {
        return Some(OF_A_DAY);
    }
    error.details.iter().filter_map(|detail| moment::duration(detail.retry_delay.as_deref()?)).max()
}

/// Texts in GitHub's refusals by a secondary limit, in the words of GitHub and of older versions of
/// GitHub Enterprise. Such a refusal may have no header field that names a limit.
const SECONDARY: [&str; 3] =
    ["secondary rate limit", "secondary-rate-limits", "abuse detection mechanism"];

/// Returns true if GitHub refuses a request because of a secondary limit.
pub(super) fn names_secondary_limit(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct GitHubError {
        message: String,
        #[serde(default)]
        documentation_url: String,
    }
    let Ok(error) = serde_json::from_slice::<GitHubError>(body) else { return false };
    let message = error.message.to_ascii_lowercase();
    SECONDARY.iter().any(|text| message.contains(text) || error.documentation_url.contains(text))
}

/// Parses an error, or the first of a list of errors, with which a failed stream begins.
fn refusal(body: &[u8]) -> Option<Refusal> {
    let list = body.trim_ascii_start().starts_with(b"[");
    if !list {
        return serde_json::from_slice(body).ok();
    }
    serde_json::from_slice::<Vec<Refusal>>(body).ok()?.into_iter().next()
}
