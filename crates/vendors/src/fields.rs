//! Parses header fields that describe windows: their limit, the remaining amount and the reset.

use sfv::{BareItem, List, ListEntry, Parser};

use super::{UpstreamResponse, moment};
use sluicegate_core::time::Span;

/// Maximum number of windows, more than any upstream has.
const WINDOWS_MAX: usize = 32;

/// The state of one window of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpstreamWindow<'a> {
    family: HeaderFamily,
    /// Its name in the header fields, such as `tokens`; empty if it has none.
    pub(super) name: &'a str,
    /// The limit.
    pub(super) limit: Option<u64>,
    /// The remaining amount.
    pub(super) remaining: Option<u64>,
    /// Time until it restarts, or is full again.
    pub(super) reset: Option<Span>,
    /// True if it refills continuously: the reset is the time at which it is full.
    pub(super) refills: bool,
    /// True if it counts requests, false if it counts tokens.
    pub(super) counts_requests: bool,
}

/// Naming scheme of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderFamily {
    /// `x-ratelimit-remaining`: GitHub and many others; `ratelimit-remaining`: early IETF drafts.
    Plain,
    /// `x-ratelimit-remaining-tokens`: OpenAI and Azure.
    Suffixed,
    /// `anthropic-ratelimit-tokens-remaining`.
    Anthropic,
    /// `ratelimit: "name";r=50;t=30`.
    Ietf,
}

/// One value of a window.
#[derive(Clone, Copy)]
enum WindowField {
    Limit,
    Remaining,
    Reset,
}

impl WindowField {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "limit" => Self::Limit,
            "remaining" => Self::Remaining,
            "reset" => Self::Reset,
            _ => return None,
        })
    }
}

/// Returns every window that the response describes.
pub(super) fn windows<'a>(response: &UpstreamResponse<'a>) -> Vec<UpstreamWindow<'a>> {
    let mut windows = Vec::new();
    for &(field, value) in response.headers {
        if field == "ratelimit" {
            ietf(value, &mut windows);
        } else if let Some((family, name, part)) = parse_name(field)
            && let Some(window) = window(&mut windows, family, name)
        {
            match part {
                WindowField::Limit => window.limit = count(value),
                WindowField::Remaining => window.remaining = count(value),
                WindowField::Reset => window.reset = moment::until(value, response.at),
            }
        }
    }
    windows
}

/// Parses the name of a field: the scheme, the window and the value.
fn parse_name(field: &str) -> Option<(HeaderFamily, &str, WindowField)> {
    if let Some(rest) = field.strip_prefix("anthropic-ratelimit-") {
        let (name, part) = rest.rsplit_once('-')?;
        return Some((HeaderFamily::Anthropic, name, WindowField::of(part)?));
    }
    let rest = field.strip_prefix("x-ratelimit-").or_else(|| field.strip_prefix("ratelimit-"))?;
    match rest.split_once('-') {
        None => Some((HeaderFamily::Plain, "", WindowField::of(rest)?)),
        Some((part, name)) => Some((HeaderFamily::Suffixed, name, WindowField::of(part)?)),
    }
}

/// Returns the window of this name, which is added if it is new; `None` if there are too many.
fn window<'w, 'a>(
    windows: &'w mut Vec<UpstreamWindow<'a>>,
    family: HeaderFamily,
    name: &'a str,
) -> Option<&'w mut UpstreamWindow<'a>> {
    let known = windows.iter().position(|window| window.family == family && window.name == name);
    let place = match known {
        Some(place) => place,
        None if windows.len() == WINDOWS_MAX => return None,
        None => {
            windows.push(UpstreamWindow {
                family,
                name,
                limit: None,
                remaining: None,
                reset: None,
                refills: matches!(family, HeaderFamily::Suffixed | HeaderFamily::Anthropic),
                counts_requests: !name.contains("token"),
            });
            windows.len() - 1
        }
    };
    windows.get_mut(place)
}

/// Parses a whole number; some upstreams write `100, 100;w=60` or `99.0`.
fn count(value: &str) -> Option<u64> {
    let end = value.trim().find(|c: char| !c.is_ascii_digit()).unwrap_or(value.trim().len());
    value.trim()[..end].parse().ok()
}

/// Parses the policies of `RateLimit`, draft 11: `r` is the amount available now, `t` the time
/// until there is more.
fn ietf<'a>(value: &str, windows: &mut Vec<UpstreamWindow<'a>>) {
    let Ok(list) = Parser::new(value).parse::<List>() else { return };
    for entry in list {
        let ListEntry::Item(item) = entry else { continue };
        let number = |key: &str| {
            item.params.get(key).and_then(BareItem::as_integer).and_then(|number| {
                let number: i64 = number.into();
                u64::try_from(number).ok()
            })
        };
        if windows.len() == WINDOWS_MAX {
            return;
        }
        windows.push(UpstreamWindow {
            family: HeaderFamily::Ietf,
            name: "",
            limit: None,
            remaining: number("r"),
            reset: number("t").map(Span::from_secs),
            refills: false,
            counts_requests: true,
        });
    }
}
