//! What an upstream says about its own limits, read from its answers.
//!
//! One reader for GitHub, OpenAI, Azure, Anthropic, Gemini, the IETF fields and `Retry-After`. It
//! is pure: the wall time is an argument, and whatever bytes an upstream sends, it gives advice or
//! none.
//!
//! A **refusal** (429, 503, and a 403 that names a limit) closes the upstream for as long as the
//! first of these says: `retry-after-ms`, `x-ms-retry-after-ms`, `Retry-After`, the body, the
//! reset of a window that is used up. A refusal that names no time closes it for longer each time.
//!
//! Any other answer gives advice where a window has less left than the threshold:
//!
//! | the window | a little is left | nothing is left |
//! |---|---|---|
//! | starts anew at its reset (GitHub, IETF) | closed until the reset | closed until the reset |
//! | refills all the time (OpenAI, Azure, Anthropic), counts requests | one request per refill of one | closed until one is back |
//! | the same, counts tokens | closed until 1 % is back | closed until 1 % is back |

mod body;
mod fields;
mod moment;

use fields::Window;
use sluicegate_core::time::{Span, Timestamp};

/// An answer, as far as it may speak of limits.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Its status.
    pub status: u16,
    /// Its header fields, names in lower case; those for which [`speaks_of_limits`] holds are
    /// enough.
    pub headers: &'a [(&'a str, &'a str)],
    /// The beginning of the body of a refusal, if it is at hand.
    pub body: &'a [u8],
    /// The wall time at which it arrived.
    pub at: Timestamp,
}

/// When to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// A window with fewer requests left than this is as good as used up. 1 reacts only when
    /// nothing is left.
    pub below: u64,
    /// How many refusals in a row came before this answer.
    pub refusals: u32,
}

impl Default for Watch {
    fn default() -> Self {
        Self { below: 1, refusals: 0 }
    }
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Send nothing for so long.
    Closed(Span),
    /// Send at most one request per so long.
    Slow {
        /// From one request to the next.
        every: Span,
    },
}

/// The first pause after a refusal that names no time.
const PAUSE: Span = Span::from_secs(1);
/// The longest.
const PAUSE_MAX: Span = Span::from_secs(60);
/// GitHub asks for at least a minute, and more each time.
const GITHUB_PAUSE: Span = Span::from_secs(60);
const GITHUB_PAUSE_MAX: Span = Span::from_secs(3_600);

/// Whether a header field can be of use here.
pub fn speaks_of_limits(name: &str) -> bool {
    name.contains("ratelimit") || name.contains("retry-after")
}

/// Whether the answer refuses the request for a limit of the upstream.
pub fn is_refusal(answer: &Answer<'_>) -> bool {
    match answer.status {
        429 => true,
        503 => answer.field("retry-after").is_some() || answer.field("retry-after-ms").is_some(),
        403 => {
            answer.field("retry-after").is_some()
                || answer.field("x-ratelimit-remaining").is_some_and(|left| left.trim() == "0")
        }
        _ => false,
    }
}

/// What an answer asks for, if anything.
pub fn advice(answer: &Answer<'_>, watch: Watch) -> Option<Advice> {
    if is_refusal(answer) {
        return Some(Advice::Closed(refused_for(answer, watch)));
    }
    let advised = fields::windows(answer).into_iter().filter_map(|window| react(&window, watch));
    advised.reduce(stronger)
}

/// How long an answer keeps the upstream closed, if it does: what it asks for, at most `longest`,
/// and a little more by `chance`, any number, so that those who were told the same do not all come
/// back at once.
pub fn pause(answer: &Answer<'_>, watch: Watch, longest: Span, chance: u64) -> Option<Span> {
    match advice(answer, watch)? {
        Advice::Closed(span) => {
            let span = span.min(longest);
            let most = (span.as_micros() / 20).min(1_000_000);
            Some(span + Span::from_micros(chance % (most + 1)))
        }
        Advice::Slow { every } => Some(every.min(longest)),
    }
}

impl<'a> Answer<'a> {
    fn field(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

/// How long a refusal closes the upstream.
fn refused_for(answer: &Answer<'_>, watch: Watch) -> Span {
    let millis = |name: &str| {
        answer.field(name).and_then(|value| moment::number(value, Span::from_millis(1)))
    };
    let named = millis("retry-after-ms")
        .or_else(|| millis("x-ms-retry-after-ms"))
        .or_else(|| answer.field("retry-after").and_then(|value| moment::until(value, answer.at)));
    let hinted = || body::hint(answer.body);
    let reset = || {
        let windows = fields::windows(answer);
        let used_up = |window: &Window<'_>| window.remaining == Some(0);
        let unclear = !windows.iter().any(used_up);
        let binding = windows.iter().filter(|window| {
            // Where the upstream does not say which, any may be it; a window with room is not.
            used_up(window) || unclear && window.remaining.is_none()
        });
        binding.filter_map(|window| until_some_is_back(window, 1)).max()
    };
    let unnamed = || {
        let github = answer.field("x-ratelimit-resource").is_some();
        let (first, longest) =
            if github { (GITHUB_PAUSE, GITHUB_PAUSE_MAX) } else { (PAUSE, PAUSE_MAX) };
        let factor = 1_u64 << watch.refusals.min(16);
        Span::from_micros(first.as_micros().saturating_mul(factor)).min(longest)
    };
    named.or_else(hinted).or_else(reset).unwrap_or_else(unnamed)
}

/// What a window asks for.
fn react(window: &Window<'_>, watch: Watch) -> Option<Advice> {
    let left = window.remaining?;
    let below = match window.limit {
        Some(limit) if window.refills && !window.counts_requests => limit / 100,
        _ => watch.below,
    };
    if left >= below.max(1) {
        return None;
    }
    if window.refills && window.counts_requests && left > 0 {
        return refill_of(window, 1).map(|every| Advice::Slow { every });
    }
    until_some_is_back(window, watch.below).map(Advice::Closed)
}

/// How long until a window has room again.
fn until_some_is_back(window: &Window<'_>, below: u64) -> Option<Span> {
    if !window.refills {
        return window.reset;
    }
    let some = if window.counts_requests { 1 } else { window.limit.unwrap_or(0) / 100 };
    let lacking = some.max(below.min(1)).saturating_sub(window.remaining.unwrap_or(0)).max(1);
    refill_of(window, lacking)
}

/// How long a window that refills takes for so much.
///
/// Its reset is when it will be full. Where the limit is not known, that is all there is.
fn refill_of(window: &Window<'_>, amount: u64) -> Option<Span> {
    let reset = window.reset?;
    let missing = window.limit.unwrap_or(0).saturating_sub(window.remaining.unwrap_or(0));
    if missing == 0 {
        return Some(reset);
    }
    let micros = u128::from(reset.as_micros()) * u128::from(amount.min(missing));
    let micros = micros.div_ceil(u128::from(missing));
    Some(Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

/// The advice that lets less through.
fn stronger(one: Advice, other: Advice) -> Advice {
    match (one, other) {
        (Advice::Closed(a), Advice::Closed(b)) => Advice::Closed(a.max(b)),
        (closed @ Advice::Closed(_), _) | (_, closed @ Advice::Closed(_)) => closed,
        (Advice::Slow { every: a }, Advice::Slow { every: b }) => Advice::Slow { every: a.max(b) },
    }
}

#[cfg(test)]
mod tests;
