//! Reads the rate limits that an upstream announces in its responses.
//!
//! It understands GitHub, OpenAI, Azure, Anthropic, Gemini, the IETF header fields and
//! `Retry-After`. It is a pure function: the wall time is an argument, and any bytes from an
//! upstream result in a [`BackoffAdvice`] or none.
//!
//! A **refusal** (429, 503, and a 403 that names a limit) closes the upstream for the time in the
//! first of these: `retry-after-ms`, `x-ms-retry-after-ms`, `Retry-After`, the body, the reset of a
//! used-up window. A refusal without a time closes it for longer each time.
//!
//! Any other response gives advice if a window has less left than the threshold:
//!
//! | the window | some is left | nothing is left |
//! |---|---|---|
//! | restarts at its reset (GitHub, IETF) | closed until the reset | closed until the reset |
//! | refills continuously (OpenAI, Azure, Anthropic), counts requests | one request per refill of one | closed until one is refilled |
//! | the same, counts tokens | closed until 1 % is refilled | closed until 1 % is refilled |

mod body;
mod fields;
mod moment;

use std::fmt;

use fields::UpstreamWindow;
use sluicegate_core::time::{Span, Timestamp};

/// The parts of a response that can announce limits.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamResponse<'a> {
    /// Status code.
    pub status: u16,
    /// Header fields, with names in lower case; those for which [`is_limit_header`] returns true
    /// are enough.
    pub headers: &'a [(&'a str, &'a str)],
    /// Beginning of the body of a refusal, if available.
    pub body: &'a [u8],
    /// Wall time of its arrival.
    pub at: Timestamp,
}

/// Threshold and refusal count that decide the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdviceContext {
    /// Number of remaining requests below which a window counts as used up. 1 reacts only if
    /// nothing is left.
    pub below: u64,
    /// Number of consecutive refusals before this response.
    pub refusals: u32,
}

impl Default for AdviceContext {
    fn default() -> Self {
        Self { below: 1, refusals: 0 }
    }
}

/// Recommended reaction to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffAdvice {
    /// Send nothing for this time.
    Closed(Span),
    /// Send at most one request per interval.
    Slow {
        /// The interval.
        every: Span,
    },
}

/// A window that an upstream has described in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedWindow {
    /// Its name, such as `requests` or `input-tokens`.
    pub name: String,
    /// The limit.
    pub limit: Option<u64>,
    /// The remaining amount.
    pub remaining: Option<u64>,
    /// Time until it restarts, or is full again.
    pub reset: Option<Span>,
}

/// First pause after a refusal that names no time.
const PAUSE: Span = Span::from_secs(1);
/// Longest such pause.
const PAUSE_MAX: Span = Span::from_secs(60);
/// First pause for GitHub, which asks for at least a minute, and for more each time.
const GITHUB_PAUSE: Span = Span::from_secs(60);
const GITHUB_PAUSE_MAX: Span = Span::from_secs(3_600);

/// Returns true if a header field can announce a limit.
pub fn is_limit_header(name: &str) -> bool {
    name.contains("ratelimit") || name.contains("retry-after")
}

/// Returns true if the response rejects the request because of a limit of the upstream.
pub fn is_refusal(response: &UpstreamResponse<'_>) -> bool {
    match response.status {
        429 => true,
        503 => {
            response.field("retry-after").is_some() || response.field("retry-after-ms").is_some()
        }
        403 => {
            response.field("retry-after").is_some()
                || response.field("x-ratelimit-remaining").is_some_and(|left| left.trim() == "0")
                || body::names_secondary_limit(response.body)
        }
        _ => false,
    }
}

/// Returns the advice of a response, if it gives any.
pub fn advice(response: &UpstreamResponse<'_>, context: AdviceContext) -> Option<BackoffAdvice> {
    if is_refusal(response) {
        return Some(BackoffAdvice::Closed(refusal_pause(response, context)));
    }
    let advised =
        fields::windows(response).into_iter().filter_map(|window| advice_for(&window, context));
    advised.reduce(stronger)
}

/// Returns the time for which a response closes the upstream: the time it asks for, at most
/// `longest`, plus a jitter computed from the random number `chance`, so that not all clients
/// return at once.
pub fn pause(
    response: &UpstreamResponse<'_>,
    context: AdviceContext,
    longest: Span,
    chance: u64,
) -> Option<Span> {
    match advice(response, context)? {
        BackoffAdvice::Closed(span) => {
            let span = span.min(longest);
            let most = (span.as_micros() / 20).min(1_000_000);
            Some(span + Span::from_micros(chance % (most + 1)))
        }
        BackoffAdvice::Slow { every } => Some(every.min(longest)),
    }
}

/// Returns the windows that a response describes, for people.
pub fn announced(response: &UpstreamResponse<'_>) -> Vec<AnnouncedWindow> {
    let described = |window: &UpstreamWindow<'_>| {
        window.limit.is_some() || window.remaining.is_some() || window.reset.is_some()
    };
    let windows = fields::windows(response).into_iter().filter(described);
    windows.map(|window| AnnouncedWindow::of(&window)).collect()
}

/// Returns the reason for which a response closes the upstream, in words: its status, and the header
/// field or the window with least left.
pub fn pause_reason(response: &UpstreamResponse<'_>) -> String {
    let status = response.status;
    let fields = ["retry-after-ms", "x-ms-retry-after-ms", "retry-after"];
    let asked = fields.iter().find_map(|name| Some((name, response.field(name)?)));
    if let Some((name, value)) = asked.filter(|_| is_refusal(response)) {
        return format!("status {status}, {name}: {}", shortened(value));
    }
    let windows = announced(response);
    let tightest =
        windows.iter().filter(|window| window.remaining.is_some()).min_by_key(|window| {
            // The share that is left, in millionths.
            let left = u128::from(window.remaining.unwrap_or(0));
            left * 1_000_000 / u128::from(window.limit.unwrap_or(1).max(1))
        });
    match tightest {
        Some(window) => format!("status {status}, {window}"),
        None => format!("status {status}"),
    }
}

/// Maximum length of a text of an upstream that is shown to people, in characters.
const SHOWN_MAX: usize = 60;

fn shortened(text: &str) -> String {
    text.trim().chars().take(SHOWN_MAX).collect()
}

impl AnnouncedWindow {
    fn of(window: &UpstreamWindow<'_>) -> Self {
        let name = match (window.name, window.counts_requests) {
            ("", true) => "requests",
            ("", false) => "tokens",
            (name, _) => name,
        };
        let UpstreamWindow { limit, remaining, reset, .. } = *window;
        Self { name: shortened(name), limit, remaining, reset }
    }
}

impl fmt::Display for AnnouncedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, limit, remaining, .. } = self;
        match (remaining, limit) {
            (Some(remaining), Some(limit)) => write!(f, "{name}: {remaining} of {limit} left"),
            (Some(remaining), None) => write!(f, "{name}: {remaining} left"),
            (None, Some(limit)) => write!(f, "{name}: limit {limit}"),
            (None, None) => f.write_str(name),
        }
    }
}

impl<'a> UpstreamResponse<'a> {
    fn field(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

/// Returns the time for which a refusal closes the upstream.
fn refusal_pause(response: &UpstreamResponse<'_>, context: AdviceContext) -> Span {
    let millis = |name: &str| {
        response.field(name).and_then(|value| moment::number(value, Span::from_millis(1)))
    };
    let named = millis("retry-after-ms").or_else(|| millis("x-ms-retry-after-ms")).or_else(|| {
        response.field("retry-after").and_then(|value| moment::until(value, response.at))
    });
    let hinted = || body::hint(response.body);
    let reset = || {
        let windows = fields::windows(response);
        let used_up = |window: &UpstreamWindow<'_>| window.remaining == Some(0);
        let unclear = !windows.iter().any(used_up);
        let binding = windows.iter().filter(|window| {
            // If no window is reported as used up, any without a number may be; one with room is
            // not.
            used_up(window) || unclear && window.remaining.is_none()
        });
        binding.filter_map(|window| time_until_refill(window, 1)).max()
    };
    let unnamed = || {
        let github = response.field("x-ratelimit-resource").is_some();
        let (first, longest) =
            if github { (GITHUB_PAUSE, GITHUB_PAUSE_MAX) } else { (PAUSE, PAUSE_MAX) };
        let factor = 1_u64 << context.refusals.min(16);
        Span::from_micros(first.as_micros().saturating_mul(factor)).min(longest)
    };
    named.or_else(hinted).or_else(reset).unwrap_or_else(unnamed)
}

/// Returns the advice for one window.
fn advice_for(window: &UpstreamWindow<'_>, context: AdviceContext) -> Option<BackoffAdvice> {
    let left = window.remaining?;
    let below = match window.limit {
        Some(limit) if window.refills && !window.counts_requests => limit / 100,
        _ => context.below,
    };
    if left >= below.max(1) {
        return None;
    }
    if window.refills && window.counts_requests && left > 0 {
        return refill_time(window, 1).map(|every| BackoffAdvice::Slow { every });
    }
    time_until_refill(window, context.below).map(BackoffAdvice::Closed)
}

/// Returns the time until a window has room again.
fn time_until_refill(window: &UpstreamWindow<'_>, below: u64) -> Option<Span> {
    if !window.refills {
        return window.reset;
    }
    let some = if window.counts_requests { 1 } else { window.limit.unwrap_or(0) / 100 };
    let lacking = some.max(below.min(1)).saturating_sub(window.remaining.unwrap_or(0)).max(1);
    refill_time(window, lacking)
}

/// Returns the time in which a continuously refilled window gains `amount`.
///
/// Its reset is the time at which it is full. If the limit is unknown, the result is that reset.
fn refill_time(window: &UpstreamWindow<'_>, amount: u64) -> Option<Span> {
    let reset = window.reset?;
    let missing = window.limit.unwrap_or(0).saturating_sub(window.remaining.unwrap_or(0));
    if missing == 0 {
        return Some(reset);
    }
    let micros = u128::from(reset.as_micros()) * u128::from(amount.min(missing));
    let micros = micros.div_ceil(u128::from(missing));
    Some(Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

/// Returns the advice that admits less.
fn stronger(one: BackoffAdvice, other: BackoffAdvice) -> BackoffAdvice {
    match (one, other) {
        (BackoffAdvice::Closed(a), BackoffAdvice::Closed(b)) => BackoffAdvice::Closed(a.max(b)),
        (closed @ BackoffAdvice::Closed(_), _) | (_, closed @ BackoffAdvice::Closed(_)) => closed,
        (BackoffAdvice::Slow { every: a }, BackoffAdvice::Slow { every: b }) => {
            BackoffAdvice::Slow { every: a.max(b) }
        }
    }
}

#[cfg(test)]
mod tests;
