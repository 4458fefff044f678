//! One line of a decision log, as `sluicegate serve` writes it.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use sluicegate_core::{Span, Timestamp};

/// What a line says.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most lines are entries, and one is read at a time")]
pub(super) enum Line {
    /// A line of a decision log.
    Entry(Entry),
    /// Something else that stands in the same file.
    Other,
}

/// A line of a decision log.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    /// Who wrote it, and its numbers; none in logs of versions that did not write them.
    pub(super) stamp: Option<Stamp>,
    /// So many of a million admissions are logged, if not all.
    pub(super) sample_ppm: Option<u32>,
    /// So many lines are missing before this one.
    pub(super) dropped: u64,
    /// When, by the clock of the store; by the clock of the node if the store was not heard.
    pub(super) at: Timestamp,
    /// How far the clock of the node was ahead of that of the store, in microseconds.
    pub(super) ahead: Option<i64>,
    /// How long it took.
    pub(super) latency: Span,
    pub(super) event: Event,
}

/// The process that wrote a line, and the numbers of the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The node and when its process started.
    pub(super) process: String,
    /// Admissions of the process until then.
    pub(super) seq: u64,
    /// The number of the line.
    pub(super) line: u64,
    /// It is one of the admissions that `seq` counts.
    pub(super) admits: bool,
}

/// What happened.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Decided(Decision),
    Followed(Followed),
    /// The store did not answer, so it may have charged something that no admission tells of.
    Unanswered,
    /// The process ended in good order.
    End,
}

/// A decision.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    /// The name of the work.
    pub(super) id: String,
    /// Whoever asked was told yes.
    pub(super) allowed: bool,
    pub(super) by: By,
    /// When the store decided.
    pub(super) at: Timestamp,
    /// The store may have charged it as early as this: a reply may have been lost.
    pub(super) earliest: Timestamp,
    /// When the work may go: then, or at the start of a booking.
    pub(super) start: Timestamp,
    /// The latest instant at which the work may go: later than the start only for a booking.
    pub(super) latest: Timestamp,
    /// When a hold or a booking is over, if it is one.
    pub(super) until: Option<Timestamp>,
    /// Nothing can give it back any more: it is neither held nor booked.
    pub(super) firm: bool,
    /// Who claimed it, if it was booked before.
    pub(super) claimant: Option<String>,
    /// What was charged; nothing by a denial.
    pub(super) charges: Vec<Charge>,
    /// The store did not answer: it may have charged something all the same.
    pub(super) unanswered: bool,
    /// Only a part of decisions like it is logged.
    pub(super) sampled: bool,
}

/// Who let something through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The store.
    Store,
    /// A node on its own, while the store did not answer.
    Node,
    /// It was let through before, by the store or by a node.
    Before { node: bool },
    /// Nobody: it was denied, or nothing was to be charged.
    Nobody,
}

/// What became of what was decided before.
#[derive(Debug, PartialEq)]
pub(super) struct Followed {
    pub(super) id: String,
    /// When, by the clock of the store.
    pub(super) at: Timestamp,
    /// The store may have done it as early as this.
    pub(super) earliest: Timestamp,
    pub(super) effect: Effect,
}

#[derive(Debug, PartialEq)]
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
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Charge {
    pub(super) key: String,
    /// In the limit grammar.
    pub(super) limits: Vec<String>,
    pub(super) take: u64,
    /// What had to fit, if that is not the amount.
    pub(super) need: Option<u64>,
    pub(super) unit: String,
    /// How long a slot is held without renewal.
    pub(super) lease: Option<String>,
    /// Counted, but never a reason to deny.
    #[serde(default)]
    shadow: bool,
    /// Counted also if it does not fit, and denied then.
    #[serde(default)]
    tally: bool,
    /// When it was written, if the servers of a cluster differ.
    at: Option<String>,
    /// The same.
    #[serde(skip)]
    pub(super) charged_at: Option<Timestamp>,
    /// What each limit showed: its amount, and what the store had counted, this charge included.
    #[serde(skip)]
    pub(super) shown: Vec<(u64, u64)>,
}

impl Charge {
    /// Whether its limits are to be proven: those of shadow rules were never promised.
    pub(super) const fn is_judged(&self) -> bool {
        !self.shadow || self.tally
    }

    pub(super) const MONEY: &str = "nano-USD";
}

/// What a limit showed.
#[derive(Deserialize)]
struct Scope<'l> {
    #[serde(borrow)]
    window: Cow<'l, str>,
    /// Money is a decimal number of dollars. A count below 2^53 survives as a float.
    count: f64,
    limit: f64,
    remaining: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'l> {
    #[serde(borrow)]
    operation: Cow<'l, str>,
    #[serde(borrow)]
    timestamp: Option<Cow<'l, str>>,
    /// Only decisions have it.
    allowed: Option<bool>,
    #[serde(borrow)]
    decided: Option<Cow<'l, str>>,
    #[serde(borrow)]
    outage: Option<Cow<'l, str>>,
    #[serde(borrow)]
    uncharged: Option<Cow<'l, str>>,
    #[serde(borrow)]
    effect: Option<Cow<'l, str>>,
    #[serde(default)]
    request_id: String,
    #[serde(borrow)]
    at: Option<Cow<'l, str>>,
    #[serde(borrow)]
    start: Option<Cow<'l, str>>,
    #[serde(borrow)]
    until: Option<Cow<'l, str>>,
    #[serde(default)]
    latency_ms: f64,
    claimant: Option<String>,
    #[serde(default)]
    replayed: bool,
    #[serde(default, borrow)]
    scopes: Vec<Scope<'l>>,
    #[serde(default)]
    charges: Vec<Charge>,
    #[serde(default)]
    cost: HashMap<String, u64>,
    #[serde(default)]
    keys: Vec<String>,
    sample_ppm: Option<u32>,
    #[serde(default)]
    dropped: u64,
    #[serde(borrow)]
    node: Option<Cow<'l, str>>,
    #[serde(borrow)]
    started: Option<Cow<'l, str>>,
    seq: Option<u64>,
    line: Option<u64>,
}

/// Reads a line; the error says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let line = line.trim_ascii();
    if line.first() != Some(&b'{') {
        return Ok(Line::Other);
    }
    match serde_json::from_slice::<Fields<'_>>(line) {
        Ok(fields) if fields.is_entry() => fields.entry().map(Line::Entry),
        Ok(_) => Ok(Line::Other),
        Err(error) if is_entry(line) => Err(error.to_string()),
        Err(_) => Ok(Line::Other),
    }
}

/// Whether a line that can't be read should have been: it is no JSON, or it has the fields.
fn is_entry(line: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Map<_, _>>(line) {
        Ok(fields) => ["requestId", "operation"].iter().all(|&name| fields.contains_key(name)),
        Err(_) => true,
    }
}

impl Fields<'_> {
    fn is_entry(&self) -> bool {
        !self.request_id.is_empty() || self.operation == "end"
    }

    fn entry(mut self) -> Result<Entry, String> {
        let stamp = self.stamp()?;
        // What is told no may have been counted. Denials that are missing take nothing away from
        // a proof.
        let written = self.allowed != Some(false) || !self.charges.is_empty();
        let (sample_ppm, dropped) = (self.sample_ppm.filter(|_| written), self.dropped);
        let own = self.timestamp.as_deref().map(|own| instant("timestamp", own)).transpose()?;
        let at = self.at.as_deref().map(|at| instant("at", at)).transpose()?;
        let ahead = own.zip(at).map(|(own, at)| own.as_micros() as i64 - at.as_micros() as i64);
        let at = at.or(own).ok_or("there is no `at`")?;
        let latency = self.latency();
        let event = match (self.allowed, self.operation.as_ref(), self.effect.as_deref()) {
            (Some(_), ..) => Event::Decided(self.decision(at)?),
            (None, "end", _) => Event::End,
            (None, _, Some("unknown")) => Event::Unanswered,
            (None, ..) => Event::Followed(self.followed(at)?),
        };
        Ok(Entry { stamp, sample_ppm, dropped, at, ahead, latency, event })
    }

    fn stamp(&self) -> Result<Option<Stamp>, String> {
        let (node, started, seq, line) = (&self.node, &self.started, self.seq, self.line);
        let (Some(node), Some(started), Some(seq), Some(line)) = (node, started, seq, line) else {
            return Ok(None);
        };
        instant("started", started)?;
        if line == 0 {
            return Err("line: numbers begin with 1".to_owned());
        }
        let admits = self.allowed == Some(true) && self.operation != "peek";
        if admits && seq == 0 {
            return Err("seq: 0, but this is an admission".to_owned());
        }
        Ok(Some(Stamp { process: format!("{node} ({started})"), seq, line, admits }))
    }

    fn decision(&mut self, at: Timestamp) -> Result<Decision, String> {
        let start = self.start.as_deref().map(|start| instant("start", start)).transpose()?;
        let until = self.until.as_deref().map(|until| instant("until", until)).transpose()?;
        let allowed = self.allowed == Some(true);
        let by = self.by()?;
        if allowed && by != By::Nobody {
            self.check_charges()?;
        }
        self.count()?;
        let start = start.unwrap_or(at);
        let booked = self.operation == "book";
        let mut charges = std::mem::take(&mut self.charges);
        for charge in &mut charges {
            let own = charge.at.as_deref().map(|at| instant("charges.at", at));
            charge.charged_at = own.transpose()?;
        }
        Ok(Decision {
            id: std::mem::take(&mut self.request_id),
            allowed,
            by,
            at,
            earliest: at - self.latency(),
            start,
            latest: until.filter(|_| booked).map_or(start, |until| until.max(start)),
            until,
            firm: until.is_none() && !booked,
            claimant: self.claimant.take(),
            charges,
            unanswered: self.outage.is_some(),
            sampled: self.sample_ppm.is_some(),
        })
    }

    fn latency(&self) -> Span {
        // Rounded up: the line has whole microseconds.
        Span::from_micros((self.latency_ms.max(0.0) * 1_000.0).ceil() as u64)
    }

    fn by(&self) -> Result<By, String> {
        if self.operation == "peek" || self.allowed == Some(false) && self.charges.is_empty() {
            return Ok(By::Nobody);
        }
        match self.decided.as_deref() {
            Some("store") if self.outage.is_none() && !self.replayed => Ok(By::Store),
            Some("fallback" | "unlimited") if self.outage.is_some() => Ok(By::Node),
            Some("replay") if self.replayed => Ok(By::Before { node: self.outage.is_some() }),
            Some(by @ ("store" | "fallback" | "unlimited" | "replay")) => {
                Err(format!("decided: {by:?} does not fit the fields `outage` and `replayed`"))
            }
            Some(other) => {
                Err(format!("decided: {other:?} is none of store, fallback, unlimited and replay"))
            }
            None => {
                Err("an admission does not say who decided it: `decided` is missing".to_owned())
            }
        }
    }

    /// Whether an admission says what it was charged, or why it was charged nothing.
    fn check_charges(&self) -> Result<(), String> {
        if self.charges.is_empty() && self.uncharged.is_none() {
            return Err("an admission says neither what it was charged nor why nothing".to_owned());
        }
        for charge in &self.charges {
            if charge.take == 0 && charge.need.is_none() {
                let key = &charge.key;
                return Err(format!("an admission was charged nothing on {key}, and not why"));
            }
            if charge.limits.is_empty() {
                return Err(format!("an admission on {} has no limits", charge.key));
            }
        }
        Ok(())
    }

    /// Puts what the store had counted beside the limits of the charges.
    fn count(&mut self) -> Result<(), String> {
        let limits: usize = self.charges.iter().map(|charge| charge.limits.len()).sum();
        // A booking shows the limits of leases, and is charged for them only when it is claimed.
        if limits != self.scopes.len() && self.operation == "book" || self.charges.is_empty() {
            return Ok(());
        }
        if limits != self.scopes.len() {
            return Err(format!("{limits} limits are charged, {} are shown", self.scopes.len()));
        }
        let mut scopes = self.scopes.iter();
        for charge in &mut self.charges {
            for (limit, scope) in charge.limits.iter().zip(&mut scopes) {
                if *limit != scope.window {
                    let (key, shown) = (&charge.key, &scope.window);
                    return Err(format!("{key} is charged under {limit}, but {shown} is shown"));
                }
                let factor = if charge.unit == Charge::MONEY { 1e9 } else { 1.0 };
                let number = |number: f64| (number * factor).round() as u64;
                let (limit, count) = (number(scope.limit), number(scope.count));
                // The last digit of dollars may be wrong.
                if limit.saturating_sub(count).abs_diff(number(scope.remaining)) > 2 {
                    let key = &charge.key;
                    return Err(format!("{key} shows a count that does not fit what remains"));
                }
                charge.shown.push((limit, count));
            }
        }
        Ok(())
    }

    fn followed(self, at: Timestamp) -> Result<Followed, String> {
        let earliest = at - self.latency();
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
            (other, _) => return Err(format!("operation: {other:?} is not known")),
        };
        Ok(Followed { id: self.request_id, at, earliest, effect })
    }
}

fn instant(field: &str, text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error| format!("{field}: {text:?} {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> Entry {
        match read(line.as_bytes()) {
            Ok(Line::Entry(entry)) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn decision(line: &str) -> Decision {
        match entry(line).event {
            Event::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_admission_says_what_was_charged() {
        let line = r#"{"timestamp":"2026-01-05T00:00:01Z","level":"INFO","requestId":"00","operation":"acquire",
            "userId":"u1","allowed":true,"decided":"store","latencyMs":0.100,"at":"2026-01-05T00:00:00.000201Z",
            "scopes":[{"window":"5/5s","limit":5,"count":3,"remaining":2},
            {"window":"100/h","limit":100,"count":17,"remaining":83}],"charges":
            [{"key":"K#requests","limits":["5/5s","100/h"],"take":1,"unit":"requests"}],
            "node":"a","started":"2026-01-04T00:00:00Z","seq":7,"line":9}"#;
        let read = decision(line);
        let [charge] = &read.charges[..] else { panic!("{read:?}") };
        assert_eq!((charge.key.as_str(), charge.take, charge.need), ("K#requests", 1, None));
        assert_eq!((&charge.shown[..], charge.is_judged()), (&[(5, 3), (100, 17)][..], true));
        assert!(read.firm && read.at == read.start && read.by == By::Store);
        assert_eq!(read.at.to_string(), "2026-01-05T00:00:00.000201Z");
        assert_eq!(read.earliest.to_string(), "2026-01-05T00:00:00.000101Z");
        let process = "a (2026-01-04T00:00:00Z)".to_owned();
        assert_eq!(entry(line).stamp, Some(Stamp { process, seq: 7, line: 9, admits: true }));
    }

    /// An admission with these further fields.
    fn admission(further: &str) -> String {
        let known =
            r#""allowed":true,"requestId":"1","at":"2026-01-05T00:00:00Z","uncharged":"a test""#;
        format!("{{{known},{further}}}")
    }

    #[test]
    fn what_can_be_given_back_is_not_firm() {
        let held = r#""decided":"store","operation":"acquire","until":"2026-01-05T00:00:30Z""#;
        let booked = r#""decided":"store","operation":"book","start":"2026-01-05T00:00:09Z","until":"2026-01-05T00:00:10Z""#;
        let (held, booked) = (decision(&admission(held)), decision(&admission(booked)));
        assert!(!held.firm && held.latest == held.start);
        assert!(!booked.firm && booked.start > booked.at && booked.latest > booked.start);
    }

    #[test]
    fn only_a_sample_of_admissions_matters() {
        let line = |allowed| {
            let rest = r#""decided":"store","requestId":"1","operation":"peek","at":"2026-01-05T00:00:00Z","samplePpm":10"#;
            entry(&format!(r#"{{"allowed":{allowed},{rest}}}"#)).sample_ppm
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
        let charged = |charge: &str, scope: &str| {
            format!(
                r#"{{"allowed":true,"decided":"store","requestId":"1","operation":"acquire","at":"2026-01-05T00:00:00Z","charges":[{charge}],"scopes":[{scope}]}}"#
            )
        };
        let charge = r#"{"key":"K","limits":["5/s"],"take":1,"unit":"requests"}"#;
        let free = charge.replace(r#""take":1"#, r#""take":0"#);
        for (line, expected) in [
            (r#"{"allowed":true,"operation":"acq"#.to_owned(), "EOF while parsing"),
            (
                r#"{"allowed":1,"requestId":"1","operation":"acquire","at":""}"#.to_owned(),
                "expected a boolean",
            ),
            (r#"{"allowed":true,"requestId":"1","operation":"peek","at":"soon"}"#.to_owned(), "at: "),
            (
                r#"{"allowed":true,"requestId":"1","operation":"peek","at":"1960-01-01T00:00:00Z"}"#
                    .to_owned(),
                "1970",
            ),
            (admission(r#""operation":"acquire""#), "`decided` is missing"),
            (admission(r#""operation":"acquire","decided":"me""#), "none of store, fallback"),
            (admission(r#""operation":"acquire","decided":"store""#).replace("uncharged", "x"), "neither"),
            (charged(&free, r#"{"window":"5/s","limit":5,"count":1,"remaining":4}"#), "charged nothing on K"),
            (charged(charge, r#"{"window":"6/s","limit":6,"count":1,"remaining":5}"#), "but 6/s is shown"),
            (
                charged(charge, r#"{"window":"5/s","limit":5,"count":1,"remaining":1}"#),
                "does not fit what remains",
            ),
            (charged(charge, ""), "1 limits are charged, 0 are shown"),
            (r#"{"requestId":"1","operation":"x","at":"2026-01-05T00:00:00Z"}"#.to_owned(), "is not known"),
        ] {
            let error = read(line.as_bytes()).expect_err(&line);
            assert!(error.contains(expected), "{error}");
        }
    }
}
