//! One line of a decision log, as `sluicegate serve` writes it.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use sluicegate_core::Timestamp;

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Decision(Decision),
    Followed(Followed),
    /// Something else that stands in the same file.
    Other,
}

/// What is read of a decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The name of the work.
    pub(super) id: String,
    /// When the store decided.
    pub(super) at: Timestamp,
    /// When the work may go: then, or at the start of a booking.
    pub(super) start: Timestamp,
    /// Nothing can give it back any more: it is neither held nor booked.
    pub(super) firm: bool,
    /// Who claimed it, if it was booked before.
    pub(super) claimant: Option<String>,
    /// What was written; nothing by a denial, a peek or a replay.
    pub(super) charges: Vec<Charge>,
    /// So many of a million admissions are logged, if not all.
    pub(super) sample_ppm: Option<u32>,
    /// So many lines are missing before this one.
    pub(super) dropped: u64,
}

/// What became of what was decided before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) id: String,
    /// When, by the clock of the store.
    pub(super) at: Timestamp,
    pub(super) effect: Effect,
    /// So many of a million are logged, if not all.
    pub(super) sample_ppm: Option<u32>,
    /// So many lines are missing before this one.
    pub(super) dropped: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It cost so much of each unit; what is not known stays as it was.
    Settled(HashMap<String, u64>),
    /// Its slots are free.
    Released,
    /// All of it is given back, unless somebody else had claimed it.
    Cancelled { claimant: Option<String> },
    /// Its slots are leased as long again.
    Renewed,
    /// It is charged for a later start.
    Rebooked { start: Timestamp, charges: Vec<Charge> },
    /// So much was given back of whatever was there.
    Refunded { charges: Vec<Charge> },
    /// These counters begin anew.
    Reset { keys: Vec<String> },
    /// Nothing changed.
    Nothing,
}

/// An amount on a counter.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Charge {
    pub(super) key: String,
    /// In the limit grammar.
    pub(super) limits: Vec<String>,
    pub(super) take: u64,
    pub(super) unit: String,
    /// How long a slot is held without renewal.
    pub(super) lease: Option<String>,
    /// Counted, but never a reason to deny.
    #[serde(default)]
    pub(super) shadow: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'l> {
    /// Only decisions have it.
    allowed: Option<bool>,
    #[serde(borrow)]
    operation: Cow<'l, str>,
    request_id: String,
    at: Cow<'l, str>,
    start: Option<Cow<'l, str>>,
    until: Option<Cow<'l, str>>,
    claimant: Option<String>,
    #[serde(default)]
    replayed: bool,
    #[serde(default)]
    charges: Vec<Charge>,
    #[serde(default)]
    cost: HashMap<String, u64>,
    #[serde(default)]
    keys: Vec<String>,
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
        Ok(fields) if fields.allowed.is_some() => fields.decision().map(Line::Decision),
        Ok(fields) => fields.followed(),
        Err(error) if is_decision(line) => Err(error.to_string()),
        Err(_) => Ok(Line::Other),
    }
}

/// Whether a line that can't be read should have been: it is no JSON, or it has the fields.
fn is_decision(line: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Map<_, _>>(line) {
        Ok(fields) => {
            ["requestId", "operation", "at"].iter().all(|&name| fields.contains_key(name))
        }
        Err(_) => true,
    }
}

impl Fields<'_> {
    fn decision(self) -> Result<Decision, String> {
        let at = instant("at", &self.at)?;
        let start = self.start.as_deref().map(|start| instant("start", start)).transpose()?;
        // What is told no may have been counted.
        let written = self.allowed == Some(true) || !self.charges.is_empty();
        let sampled = self.sample_ppm.filter(|_| written);
        Ok(Decision {
            id: self.request_id,
            claimant: self.claimant,
            at,
            start: start.unwrap_or(at),
            firm: self.until.is_none() && self.operation != "book",
            charges: self.charges,
            // Denials that are missing take nothing away from a proof.
            sample_ppm: sampled,
            dropped: self.dropped,
        })
    }

    fn followed(self) -> Result<Line, String> {
        let at = instant("at", &self.at)?;
        let effect = match (self.operation.as_ref(), self.start.as_deref()) {
            _ if self.replayed => Effect::Nothing,
            ("settle", _) => Effect::Settled(self.cost),
            ("release", _) => Effect::Released,
            ("cancel", _) => Effect::Cancelled { claimant: self.claimant },
            ("renew", _) => Effect::Renewed,
            ("refund", _) => Effect::Refunded { charges: self.charges },
            ("reset", _) => Effect::Reset { keys: self.keys },
            ("claim", Some(start)) if !self.charges.is_empty() => {
                Effect::Rebooked { start: instant("start", start)?, charges: self.charges }
            }
            ("claim", _) => Effect::Nothing,
            _ => return Ok(Line::Other),
        };
        let (id, sample_ppm, dropped) = (self.request_id, self.sample_ppm, self.dropped);
        Ok(Line::Followed(Followed { id, at, effect, sample_ppm, dropped }))
    }
}

fn instant(field: &str, text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error| format!("{field}: {text:?} {error}"))
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
            unit: "requests".to_owned(),
            lease: None,
            shadow: false,
        };
        assert_eq!(read.charges, [charge]);
        assert!(read.firm && read.at == read.start && read.sample_ppm.is_none());
        assert_eq!(read.at.to_string(), "2026-01-05T00:00:00.000001Z");
    }

    #[test]
    fn what_can_be_given_back_is_not_firm() {
        let at = r#""allowed":true,"requestId":"1","at":"2026-01-05T00:00:00Z""#;
        let held =
            decision(&format!(r#"{{{at},"operation":"acquire","until":"2026-01-05T00:00:30Z"}}"#));
        let booked =
            decision(&format!(r#"{{{at},"operation":"book","start":"2026-01-05T00:00:09Z"}}"#));
        assert!(!held.firm && !booked.firm && booked.start > booked.at);
    }

    #[test]
    fn only_a_sample_of_admissions_matters() {
        let line = |allowed| {
            let rest = r#""requestId":"1","operation":"acquire","at":"2026-01-05T00:00:00Z","samplePpm":10"#;
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
            (
                r#"{"allowed":1,"requestId":"1","operation":"acquire","at":""}"#,
                "expected a boolean",
            ),
            (r#"{"allowed":true,"requestId":"1","operation":"acquire","at":"soon"}"#, "at: "),
            (
                r#"{"allowed":true,"requestId":"1","operation":"acquire","at":"1960-01-01T00:00:00Z"}"#,
                "1970",
            ),
        ] {
            let error = read(line.as_bytes()).expect_err(line);
            assert!(error.contains(expected), "{error}");
        }
    }
}
