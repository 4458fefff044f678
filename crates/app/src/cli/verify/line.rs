//! One line of a decision log, as `sluicegate serve` writes it.

use std::borrow::Cow;

use serde::Deserialize;
use sluicegate_core::Timestamp;

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Decision(Decision),
    /// Something else that stands in the same file.
    Other,
}

/// What is read of a decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// When the store decided.
    pub(super) at: Timestamp,
    /// When the work may go: then, or at the start of a booking.
    pub(super) start: Timestamp,
    /// Nothing can give it back any more: it is neither held nor booked.
    pub(super) firm: bool,
    /// What was written; nothing by a denial, a peek or a replay.
    pub(super) charges: Vec<Charge>,
    /// So many of a million admissions are logged, if not all.
    pub(super) sample_ppm: Option<u32>,
    /// So many lines are missing before this one.
    pub(super) dropped: u64,
}

/// An amount on a counter.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Charge {
    pub(super) key: String,
    /// In the limit grammar.
    pub(super) limits: Vec<String>,
    pub(super) take: u64,
    /// Counted, but never a reason to deny.
    #[serde(default)]
    pub(super) shadow: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'l> {
    allowed: bool,
    #[serde(borrow)]
    operation: Cow<'l, str>,
    at: Cow<'l, str>,
    start: Option<Cow<'l, str>>,
    until: Option<Cow<'l, str>>,
    #[serde(default)]
    charges: Vec<Charge>,
    sample_ppm: Option<u32>,
    #[serde(default)]
    dropped: u64,
}

/// Reads a line; the error says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let line = line.trim_ascii();
    if line.first() != Some(&b'{') {
        return Ok(Line::Other);
    }
    match serde_json::from_slice::<Fields<'_>>(line) {
        Ok(fields) => fields.decision().map(Line::Decision),
        Err(error) if is_decision(line) => Err(error.to_string()),
        Err(_) => Ok(Line::Other),
    }
}

/// Whether a line that can't be read should have been: it is no JSON, or it has the fields.
fn is_decision(line: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Map<_, _>>(line) {
        Ok(fields) => ["allowed", "operation", "at"].iter().all(|&name| fields.contains_key(name)),
        Err(_) => true,
    }
}

impl Fields<'_> {
    fn decision(self) -> Result<Decision, String> {
        let at = instant("at", &self.at)?;
        let start = self.start.as_deref().map(|start| instant("start", start)).transpose()?;
        let sampled = self.allowed.then_some(self.sample_ppm).flatten();
        Ok(Decision {
            at,
            start: start.unwrap_or(at),
            firm: self.until.is_none() && self.operation != "book",
            charges: self.charges,
            // Denials that are missing take nothing away from a proof.
            sample_ppm: sampled,
            dropped: self.dropped,
        })
    }
}

fn instant(field: &str, text: &str) -> Result<Timestamp, String> {
    let at: jiff::Timestamp = text.parse().map_err(|error| format!("{field}: {error}"))?;
    let micros = u64::try_from(at.as_microsecond());
    micros.map(Timestamp::from_micros).map_err(|_| format!("{field}: time begins in 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(line: &str) -> Decision {
        match read(line.as_bytes()) {
            Ok(Line::Decision(decision)) => decision,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_admission_says_what_was_charged() {
        let read = decision(
            r#"{"timestamp":"2026-01-05T00:00:01Z","level":"INFO","requestId":"00","operation":"acquire",
                "userId":"u1","allowed":true,"at":"2026-01-05T00:00:00.000001Z","scopes":[],"charges":
                [{"key":"K#requests","limits":["5/5s","100/h"],"take":1,"unit":"requests"}]}"#,
        );
        let charge = Charge {
            key: "K#requests".to_owned(),
            limits: vec!["5/5s".to_owned(), "100/h".to_owned()],
            take: 1,
            shadow: false,
        };
        assert_eq!(read.charges, [charge]);
        assert!(read.firm && read.at == read.start && read.sample_ppm.is_none());
        assert_eq!(read.at.to_string(), "2026-01-05T00:00:00.000001Z");
    }

    #[test]
    fn what_can_be_given_back_is_not_firm() {
        let at = r#""allowed":true,"at":"2026-01-05T00:00:00Z""#;
        let held =
            decision(&format!(r#"{{{at},"operation":"acquire","until":"2026-01-05T00:00:30Z"}}"#));
        let booked =
            decision(&format!(r#"{{{at},"operation":"book","start":"2026-01-05T00:00:09Z"}}"#));
        assert!(!held.firm && !booked.firm && booked.start > booked.at);
    }

    #[test]
    fn only_a_sample_of_admissions_matters() {
        let line = |allowed| {
            let rest = r#""operation":"acquire","at":"2026-01-05T00:00:00Z","samplePpm":10"#;
            decision(&format!(r#"{{"allowed":{allowed},{rest}}}"#)).sample_ppm
        };
        assert_eq!((line(true), line(false)), (Some(10), None));
    }

    #[test]
    fn other_lines_are_no_mistakes() {
        for line in ["", "listening on 8080", "[1]", r#"{"level":"INFO"}"#, r#"{"at":1}"#] {
            assert_eq!(read(line.as_bytes()), Ok(Line::Other), "{line}");
        }
    }

    #[test]
    fn a_decision_that_cannot_be_read_is_a_mistake() {
        for (line, expected) in [
            (r#"{"allowed":true,"operation":"acq"#, "EOF while parsing"),
            (r#"{"allowed":1,"operation":"acquire","at":""}"#, "expected a boolean"),
            (r#"{"allowed":true,"operation":"acquire","at":"soon"}"#, "at: "),
            (r#"{"allowed":true,"operation":"acquire","at":"1960-01-01T00:00:00Z"}"#, "1970"),
        ] {
            let error = read(line.as_bytes()).expect_err(line);
            assert!(error.contains(expected), "{error}");
        }
    }
}
