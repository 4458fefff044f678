//! [`TraceContext`]: the ids of a span, as they travel in `traceparent` and `tracestate`.

use std::fmt;
use std::sync::Arc;

/// Header fields, and headers of messages, that carry a context.
pub(super) const PARENT: &str = "traceparent";
pub(super) const STATE: &str = "tracestate";

/// Length of a `traceparent` of version 00.
const PARENT_LENGTH: usize = 55;
/// Maximum length of a `tracestate` that is passed on. The specification requires at least this
/// length.
const STATE_BYTES_MAX: usize = 512;

/// The id of a trace: never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub(super) u128);

impl TraceId {
    /// Returns the bytes of the id.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// Prints 32 hexadecimal digits.
impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The id of a span: never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub(super) u64);

impl SpanId {
    /// Returns the bytes of the id.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// Prints 16 hexadecimal digits.
impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The ids of a span, and the data of other vendors that travels with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace.
    pub trace: TraceId,
    /// Id of the span.
    pub span: SpanId,
    /// True if the spans of the trace are recorded.
    pub sampled: bool,
    /// Value of `tracestate`, passed on as it came.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// Reads the context from header fields; `values` returns all values of a field. A field that
    /// is invalid or repeated counts as absent: its request starts a new trace.
    pub fn of_fields<'h, V>(values: impl Fn(&'static str) -> V) -> Option<Self>
    where
        V: Iterator<Item = &'h [u8]>,
    {
        let mut parents = values(PARENT);
        let (parent, None) = (parents.next()?, parents.next()) else { return None };
        let mut context = Self::parse(parent)?;
        let states: Option<Vec<&str>> =
            values(STATE).map(|value| std::str::from_utf8(value).ok()).collect();
        let state = states.unwrap_or_default().join(",");
        let printable = state.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !state.is_empty() && state.len() <= STATE_BYTES_MAX && printable {
            context.state = Some(state.into());
        }
        Some(context)
    }

    /// Parses a `traceparent`. Of later versions it reads the part that version 00 has as well.
    fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(PARENT_LENGTH)?;
        let known = std::str::from_utf8(known).ok()?;
        let mut parts = known.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length: usize| {
            text.len() == length
                && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_well_formed = parts.next().is_none()
            && is_hex(version, 2)
            && is_hex(trace, 32)
            && is_hex(span, 16)
            && is_hex(flags, 2);
        let is_known_version = match version {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        if !is_well_formed || !is_known_version {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|&id| id != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|&id| id != 0)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let sampled = flags & 1 == 1;
        Some(Self { trace: TraceId(trace), span: SpanId(span), sampled, state: None })
    }

    /// Returns the value of `traceparent`.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }

    /// Returns the header fields that pass the context on, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.state.as_ref().map(|state| (STATE, state.to_string()));
        [(PARENT, self.traceparent())].into_iter().chain(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn read(parents: &[&str], states: &[&str]) -> Option<TraceContext> {
        TraceContext::of_fields(|name| {
            let values = if name == PARENT { parents } else { states };
            values.iter().map(|value| value.as_bytes())
        })
    }

    #[test]
    fn a_context_is_passed_on_as_it_came() {
        for flags in ["00", "01"] {
            let parent = format!("00-{TRACE}-{SPAN}-{flags}");
            let context = read(&[&parent], &["a=1", "b=2"]).unwrap();
            assert_eq!(context.sampled, flags == "01");
            let fields: Vec<_> = context.fields().collect();
            assert_eq!(fields, [(PARENT, parent), (STATE, "a=1,b=2".to_owned())]);
        }
    }

    #[test]
    fn an_invalid_parent_counts_as_absent() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        for bad in [
            String::new(),
            "00".to_owned(),
            good.replace("00-4", "ff-4"),
            good.replace("4bf9", "4BF9"),
            good.replace("4bf9", "xbf9"),
            good.replace(TRACE, &"0".repeat(32)),
            good.replace(SPAN, &"0".repeat(16)),
            good.replace("-01", "-0g"),
            good.replace("-01", "-1"),
            format!("{good}-more"),
            format!("{good} "),
            good.replace('-', "_"),
            "é".repeat(40),
        ] {
            assert_eq!(read(&[&bad], &[]), None, "{bad}");
        }
        assert_eq!(read(&[&good, &good], &[]), None, "a repeated field is ambiguous");
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for rest in ["", "-what-comes-later"] {
            let parent = format!("01-{TRACE}-{SPAN}-09{rest}");
            let context = read(&[&parent], &[]).unwrap();
            assert_eq!(context.traceparent(), format!("00-{TRACE}-{SPAN}-01"));
        }
        assert_eq!(read(&[&format!("01-{TRACE}-{SPAN}-01x")], &[]), None);
    }

    #[test]
    fn a_state_that_can_not_be_passed_on_is_dropped() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        for state in ["", "a=\u{7f}", "a=é", &"x".repeat(513)] {
            assert_eq!(read(&[&parent], &[state]).unwrap().state, None, "{state}");
        }
    }
}
