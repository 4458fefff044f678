//! [`LineFormat`]: the log for people, with one short line per event.
//!
//! ```text
//! 09:30:00.123Z INFO  listening                        listener=http address=127.0.0.1:8080
//! 09:30:04.008Z WARN  store is not reachable           retry_in_ms=500 error="connection refused"
//! ```

use std::fmt::{self, Write as _};

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::WallClock;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Column in which the fields begin, unless the message is longer.
const MESSAGE_WIDTH: usize = 32;

/// Formats events as lines of text.
pub(crate) struct LineFormat {
    has_colour: bool,
}

/// Message and fields of an event.
#[derive(Default)]
struct EventText {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl LineFormat {
    pub(crate) const fn new(has_colour: bool) -> Self {
        Self { has_colour }
    }

    fn line(&self, now: Timestamp, level: Level, text: &EventText) -> String {
        let paint = |code: &'static str| if self.has_colour { code } else { "" };
        let (dim, reset) = (paint("\x1b[2m"), paint("\x1b[0m"));
        let colour = match level {
            Level::ERROR => paint("\x1b[1;31m"),
            Level::WARN => paint("\x1b[33m"),
            Level::INFO => paint("\x1b[32m"),
            _ => dim,
        };
        let at = now.to_string();
        let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
        let level = level.as_str();
        let mut line = format!("{dim}{}{reset} {colour}{level:<5}{reset} ", to_millis(time));
        match text.fields.is_empty() {
            true => line += &text.message,
            false => line += &format!("{:<MESSAGE_WIDTH$}", text.message),
        }
        for (name, value) in &text.fields {
            let _ = write!(line, " {dim}{name}={reset}{value}");
        }
        line
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = EventText::default();
        event.record(&mut text);
        writeln!(writer, "{}", self.line(WallClock.now(), *event.metadata().level(), &text))
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

impl EventText {
    fn add(&mut self, field: &Field, value: &str) {
        match field.name() {
            // Errors of a configuration have several lines.
            "message" => self.message = without_controls(value, true),
            name => self.fields.push((name, shown(value))),
        }
    }
}

/// Formats a value; one with spaces is quoted.
fn shown(value: &str) -> String {
    let text = without_controls(value, false);
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    match !is_quoted && (text.is_empty() || text.contains(char::is_whitespace)) {
        true => format!("\"{text}\""),
        false => text,
    }
}

/// Escapes control characters: values of requests must not change the terminal.
fn without_controls(text: &str, keeps_lines: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !(keeps_lines && c == '\n') {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Shortens a time such as `09:30:00.123456Z` to milliseconds, so that lines are aligned.
fn to_millis(time: &str) -> String {
    let (whole, fraction) = time.trim_end_matches('Z').split_once('.').unwrap_or((time, ""));
    let whole = whole.trim_end_matches('Z');
    let millis: String = fraction.chars().chain("000".chars()).take(3).collect();
    format!("{whole}.{millis}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: &str, fields: &[(&'static str, &str)]) -> EventText {
        let fields = fields.iter().map(|&(name, value)| (name, shown(value))).collect();
        EventText { message: without_controls(message, true), fields }
    }

    #[track_caller]
    fn check(at: &str, level: Level, event: &EventText, expected: &str) {
        let now = at.parse().expect("a timestamp");
        assert_eq!(LineFormat::new(false).line(now, level, event), expected);
    }

    #[test]
    fn lines_are_short_and_aligned() {
        check(
            "2026-01-02T03:04:05.678901Z",
            Level::INFO,
            &text("listening", &[("listener", "http"), ("address", "127.0.0.1:1")]),
            "03:04:05.678Z INFO  listening                        listener=http address=127.0.0.1:1",
        );
        check(
            "2026-01-02T03:04:05Z",
            Level::ERROR,
            &text("stopped", &[]),
            "03:04:05.000Z ERROR stopped",
        );
    }

    #[test]
    fn values_with_spaces_are_quoted_and_controls_are_escaped() {
        check(
            "2026-01-02T03:04:05.5Z",
            Level::WARN,
            &text("a\nb\x1b[2J", &[("error", "not found"), ("user", "x\n\x1b"), ("none", "")]),
            "03:04:05.500Z WARN  a\nb\\u{1b}[2J                     error=\"not found\" \
             user=x\\n\\u{1b} none=\"\"",
        );
    }

    #[test]
    fn levels_are_coloured_only_if_the_terminal_has_colours() {
        let line = LineFormat::new(true).line(Timestamp::ZERO, Level::WARN, &text("m", &[]));
        assert!(line.contains("\x1b[33mWARN \x1b[0m m"), "{line:?}");
    }
}
