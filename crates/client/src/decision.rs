//! [`Decision`]: the answer to a request.

use std::fmt;
use std::time::Duration;

use crate::admission::Admission;
use crate::scope::Scope;

/// The answer to a request. A denial is not an error.
///
/// ```
/// # async fn example(limiter: sluicegate::Limiter) -> Result<(), sluicegate::Error> {
/// use sluicegate::Decision;
///
/// match limiter.acquire(&[("userId", "u1")]).await? {
///     Decision::Allowed(admission) => {
///         // Do the work. A concurrency slot is freed when `admission` is dropped.
///         drop(admission);
///     }
///     Decision::Denied(denial) => println!("{denial}: retry in {:?}", denial.retry_after()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a decision ends its admission"]
pub enum Decision {
    /// The work may start, and all of it is charged.
    Allowed(Admission),
    /// The work may not start now. Nothing is charged.
    Denied(Denial),
}

/// The origin of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store.
    Store,
    /// The outage policy of the rules, because the store did not answer.
    OutagePolicy,
    /// The policy of the client, because the service did not answer.
    ClientPolicy,
}

impl Decision {
    /// Returns true if the work may start.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// Returns the admission, or the denial as an error, for code that passes it on with `?`.
    #[expect(clippy::result_large_err, reason = "both sides are about as large")]
    pub fn admit(self) -> Result<Admission, Denial> {
        match self {
            Self::Allowed(admission) => Ok(admission),
            Self::Denied(denial) => Err(denial),
        }
    }

    /// Returns the origin of the decision.
    pub const fn source(&self) -> DecisionSource {
        self.facts().source
    }

    /// Returns every limit that was checked.
    pub fn scopes(&self) -> &[Scope] {
        &self.facts().scopes
    }

    /// Returns the header fields for an HTTP response: `X-RateLimit-*`, `RateLimit`,
    /// `RateLimit-Policy`, and `Retry-After` of a denial.
    pub fn headers(&self) -> &[(&'static str, String)] {
        &self.facts().headers
    }

    const fn facts(&self) -> &Facts {
        match self {
            Self::Allowed(admission) => admission.facts(),
            Self::Denied(denial) => &denial.facts,
        }
    }
}

/// Facts that admissions and denials have in common.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) source: DecisionSource,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// A denial: the limit that was hit, and the time after which the work would fit.
#[derive(Clone, Debug)]
pub struct Denial {
    pub(crate) facts: Facts,
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) detail: String,
    pub(crate) rule: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) output_tokens_max: Option<u64>,
    /// The body that the service wrote, if it decided.
    pub(crate) body: Option<String>,
}

impl Denial {
    /// Returns the status of an HTTP response: 429, 403 for a ban, 503 if the usage is not known.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Returns the reason as one word, such as `HIT_USER_LIMIT`, `BANNED` or `STORE_UNAVAILABLE`.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the limit in words: `Rate limit exceeded: 10 requests per minute`.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the name of the rule that denies, if one does.
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Returns the time after which the work would fit; `None` if it never does, or if that is not
    /// known.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the largest output cap that would be admitted now, for a denial by tokens or money.
    pub const fn output_tokens_max(&self) -> Option<u64> {
        self.output_tokens_max
    }

    /// Returns the origin of the decision.
    pub const fn source(&self) -> DecisionSource {
        self.facts.source
    }

    /// Returns every limit that was checked.
    pub fn scopes(&self) -> &[Scope] {
        &self.facts.scopes
    }

    /// Returns the header fields for an HTTP response.
    pub fn headers(&self) -> &[(&'static str, String)] {
        &self.facts.headers
    }

    /// Returns a JSON body for an HTTP response, with `detail`, `allowed`, `reason`, `scopeHit` and
    /// `retryAfterMs`.
    pub fn body(&self) -> String {
        if let Some(body) = &self.body {
            return body.clone();
        }
        let mut body = serde_json::json!({
            "detail": self.detail,
            "allowed": false,
            "reason": self.reason,
        });
        if let Some(rule) = &self.rule {
            body["scopeHit"] = rule.as_str().into();
        }
        if let Some(wait) = self.retry_after {
            body["retryAfterMs"] = (wait.as_micros().div_ceil(1_000) as u64).into();
        }
        if let Some(tokens) = self.output_tokens_max {
            body["maxOutputTokens"] = tokens.into();
        }
        body.to_string()
    }

    /// Returns the denial of work that could start only after the longest time that it may wait.
    pub(crate) fn wait_too_long(facts: Facts, wait: Duration, wait_max: Duration) -> Self {
        let detail = format!(
            "the work could start in {} ms, later than wait_max ({} ms)",
            wait.as_millis(),
            wait_max.as_millis()
        );
        Self {
            facts,
            status: 429,
            reason: "WAIT_TOO_LONG".to_owned(),
            detail,
            rule: None,
            retry_after: Some(wait),
            output_tokens_max: None,
            body: None,
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Denial {}
