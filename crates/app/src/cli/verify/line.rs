//! Parser of one decision log line, as `sluicegate serve` writes it.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use sluicegate_core::{Span, Timestamp};

/// Largest difference between the clocks of node and store during one operation.
const CLOCK_DRIFT: Span = Span::from_millis(100);

/// Times under a literal key are whole milliseconds, rounded up.
pub(super) const ROUNDING: Span = Span::from_millis(1);

/// A parsed line.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most lines are entries, and one is read at a time")]
pub(super) enum Line {
    /// A line of a decision log.
    LogEntry(LogEntry),
    /// Another line in the same file, such as an ordinary log message.
    Other,
}

/// A line of a decision log.
#[derive(Debug, PartialEq)]
pub(super) struct LogEntry {
    /// Process and sequence numbers; none in logs of versions that did not write them.
    pub(super) stamp: Option<Stamp>,
    /// Number of admissions per million that are logged; none if all are.
    pub(super) sample_ppm: Option<u32>,
    /// Number of lines that the process dropped before this one.
    pub(super) dropped: u64,
    /// Time by the clock of the store, or of the node if the store did not respond.
    pub(super) at: Timestamp,
    /// Difference between the clocks of the node and the store, in microseconds.
    pub(super) ahead: Option<i64>,
    /// Duration of the call.
    pub(super) latency: Span,
    pub(super) event: Event,
}

/// The process that wrote a line, and the sequence numbers of the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Name of the node and start time of the process.
    pub(super) process: String,
    /// Number of admissions of the process up to this line.
    pub(super) seq: u64,
    /// Line number within the process.
    pub(super) line: u64,
    /// True if this line is one of the admissions that `seq` counts.
    pub(super) admits: bool,
    /// Time at which the line got its number, by the clock of the node. Lines of older versions have
    /// none.
    pub(super) written: Option<Timestamp>,
}

/// The event that a line records.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Decision(Decision),
    Update(DecisionUpdate),
    /// The store did not respond, so it may have made charges that no admission reports.
    Unanswered(UnansweredCall),
    /// The process shut down cleanly.
    End,
}

/// A decision about a request.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    /// Request id.
    pub(super) id: String,
    /// True if the caller was allowed.
    pub(super) allowed: bool,
    pub(super) by: Decider,
    /// Time of the decision by the store's clock.
    pub(super) at: Timestamp,
    /// Earliest time at which the store can have charged it: a reply may have been lost.
    pub(super) earliest: Timestamp,
    /// Time at which the work may start: `at`, or the start of the booking. Earlier than `at` if the
    /// reply to an earlier attempt was lost, which made the charges.
    pub(super) start: Timestamp,
    /// Latest time at which the work may start: later than `start` only for a booking and for paced
    /// work.
    pub(super) latest: Timestamp,
    /// Expiry of a reservation or booking.
    pub(super) until: Option<Timestamp>,
    /// True if it can't be given back: it is neither a reservation nor a booking.
    pub(super) firm: bool,
    /// Claimant, if this is the claim of a booking.
    pub(super) claimant: Option<String>,
    /// Charges made; usually none for a denial.
    pub(super) charges: Vec<Charge>,
    /// True if the store did not respond.
    pub(super) unanswered: bool,
    /// Charges that the store may have made although it did not respond.
    pub(super) unconfirmed: Vec<UnconfirmedCharge>,
    /// True if only a sample of such decisions is logged.
    pub(super) sampled: bool,
}

/// The component that admitted a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    /// The store.
    Store,
    /// A node on its own, while the store did not respond.
    Node,
    /// Replay of an earlier admission by the store or by a node.
    Replay { node: bool },
    /// None: it was denied, or nothing was charged.
    None,
}

/// A store call without a response.
#[derive(Debug, PartialEq)]
pub(super) struct UnansweredCall {
    /// Request id.
    pub(super) id: String,
    /// Charges that it may have made.
    pub(super) unconfirmed: Vec<UnconfirmedCharge>,
    /// Actual cost by unit, if it was a settlement: it may have charged a debt.
    pub(super) cost: HashMap<String, u64>,
}

/// A charge that the store may have made.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct UnconfirmedCharge {
    pub(super) key: String,
    pub(super) take: u64,
}

/// A change of an earlier decision, such as its settlement.
#[derive(Debug, PartialEq)]
pub(super) struct DecisionUpdate {
    pub(super) id: String,
    /// Time by the clock of the store.
    pub(super) at: Timestamp,
    /// Earliest time at which the store can have applied it.
    pub(super) earliest: Timestamp,
    pub(super) effect: Effect,
}

#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    /// Actual cost by unit. Units that are not listed keep their estimate.
    Settled(HashMap<String, u64>),
    /// Its slots were released.
    Released,
    /// All of it was given back, unless another claimant had claimed it.
    Cancelled { claimant: Option<String> },
    /// Its leases were extended.
    Renewed,
    /// Its booking was moved to a later start.
    Rebooked { start: Timestamp, charges: Vec<Charge> },
    /// These amounts were given back, without naming the admissions.
    Refunded { charges: Vec<Charge> },
    /// These counters were reset to zero.
    Reset { keys: Vec<String> },
    /// Nothing changed.
    Nothing,
}

/// An amount charged on a counter.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Charge {
    pub(super) key: String,
    /// Limits of the counter, in the configuration's limit syntax.
    pub(super) limits: Vec<String>,
    pub(super) take: u64,
    /// Amount that had to fit into the limit, if it differs from `take`.
    pub(super) need: Option<u64>,
    pub(super) unit: String,
    /// Length of the lease of a slot.
    pub(super) lease: Option<String>,
    /// True for a shadow rule, which counts but never denies.
    #[serde(default)]
    shadow: bool,
    /// True if it is counted even when it does not fit and the request is denied.
    #[serde(default)]
    tally: bool,
    /// Time of the charge by the clock of the counter's own server in a cluster.
    at: Option<String>,
    /// `at`, parsed.
    #[serde(skip)]
    pub(super) charged_at: Option<Timestamp>,
    #[serde(skip)]
    pub(super) shown: Vec<ShownCount>,
}

/// The count of one limit that a line shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownCount {
    /// Amount of the limit.
    pub(super) limit: u64,
    /// The store's count including this charge.
    pub(super) count: u64,
    /// True if the count contains usage of other keys: the store was full (`store.keys_max`).
    pub(super) shared: bool,
    /// Time at which the oldest usage leaves the window, if the line states it for this limit.
    pub(super) reset: Option<Timestamp>,
}

impl Charge {
    /// Returns true if its limits are to be proven: shadow rules are not enforced.
    pub(super) const fn is_checked(&self) -> bool {
        !self.shadow || self.tally
    }

    pub(super) const MONEY: &str = "nano-USD";
}

/// The state of one limit, as logged with the decision.
#[derive(Deserialize)]
struct Scope<'l> {
    #[serde(borrow)]
    window: Cow<'l, str>,
    /// Dollars for money. A count below 2^53 is exact as a float.
    count: f64,
    limit: f64,
    remaining: f64,
    #[serde(default)]
    shared: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'l> {
    #[serde(borrow)]
    operation: Cow<'l, str>,
    #[serde(borrow)]
    timestamp: Option<Cow<'l, str>>,
    /// Present only in decisions.
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
    #[serde(borrow, default)]
    latest: Option<Cow<'l, str>>,
    remaining: Option<f64>,
    #[serde(borrow, default)]
    window_reset_at: Option<Cow<'l, str>>,
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
    unconfirmed: Vec<UnconfirmedCharge>,
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
    written_us: Option<u64>,
}

/// Parses a line; the error says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let line = line.trim_ascii();
    if line.first() != Some(&b'{') {
        return Ok(Line::Other);
    }
    match serde_json::from_slice::<Fields<'_>>(line) {
        Ok(fields) if fields.is_entry() => fields.entry().map(Line::LogEntry),
        Ok(_) => Ok(Line::Other),
        Err(error) if is_entry(line) => Err(error.to_string()),
        Err(_) => Ok(Line::Other),
    }
}

/// Returns true if a line that can't be parsed was meant as a log entry: it is broken JSON, or it
/// has the fields of one.
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

    fn entry(mut self) -> Result<LogEntry, String> {
        let stamp = self.stamp()?;
        // A denial may have been counted. Denials without charges may be missing from the log
        // without affecting the proof.
        let written = self.allowed != Some(false) || !self.charges.is_empty();
        let (sample_ppm, dropped) = (self.sample_ppm.filter(|_| written), self.dropped);
        let own = self.timestamp.as_deref().map(|own| instant("timestamp", own)).transpose()?;
        let at = self.at.as_deref().map(|at| instant("at", at)).transpose()?;
        let ahead = own.zip(at).map(|(own, at)| own.as_micros() as i64 - at.as_micros() as i64);
        let at = at.or(own).ok_or("missing field `at`")?;
        let latency = self.latency();
        let event = match (self.allowed, self.operation.as_ref(), self.effect.as_deref()) {
            (Some(_), ..) => Event::Decision(self.decision(at)?),
            (None, "end", _) => Event::End,
            (None, _, Some("unknown")) => Event::Unanswered(UnansweredCall {
                id: self.request_id,
                unconfirmed: self.unconfirmed,
                cost: self.cost,
            }),
            (None, ..) => Event::Update(self.update(at)?),
        };
        Ok(LogEntry { stamp, sample_ppm, dropped, at, ahead, latency, event })
    }

    fn stamp(&self) -> Result<Option<Stamp>, String> {
        let (node, started, seq, line) = (&self.node, &self.started, self.seq, self.line);
        let (Some(node), Some(started), Some(seq), Some(line)) = (node, started, seq, line) else {
            return Ok(None);
        };
        let began = instant("started", started)?;
        let written = self.written_us.map(|micros| began + Span::from_micros(micros));
        if line == 0 {
            return Err("line: 0 is not valid, line numbers start at 1".to_owned());
        }
        let admits = self.allowed == Some(true) && self.operation != "peek";
        if admits && seq == 0 {
            return Err("seq: 0 is not valid for an admission".to_owned());
        }
        Ok(Some(Stamp { process: format!("{node} ({started})"), seq, line, admits, written }))
    }

    fn decision(&mut self, at: Timestamp) -> Result<Decision, String> {
        let start = self.start.as_deref().map(|start| instant("start", start)).transpose()?;
        let until = self.until.as_deref().map(|until| instant("until", until)).transpose()?;
        let latest = self.latest.as_deref().map(|latest| instant("latest", latest)).transpose()?;
        let allowed = self.allowed == Some(true);
        let by = self.by()?;
        if allowed && by != Decider::None {
            self.check_charges()?;
        }
        // The time of the node says nothing about the windows of a store that has its own.
        if allowed && by == Decider::Store && self.at.is_none() {
            return Err("there is no `at`, the time of the store".to_owned());
        }
        self.count()?;
        let start = start.unwrap_or(at);
        // Work that is admitted at once is charged while its operation runs.
        if allowed && by == Decider::Store && self.operation == "acquire" {
            let (from, to) = (at - self.latency() - CLOCK_DRIFT, latest.unwrap_or(at) + ROUNDING);
            if !(from..=to).contains(&start) {
                return Err(format!("`start` is not between {from} and {to}"));
            }
        }
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
            latest: latest.or(until.filter(|_| booked)).map_or(start, |latest| latest.max(start)),
            until,
            // Paced work that misses its start is given back.
            firm: until.is_none() && latest.is_none() && !booked,
            claimant: self.claimant.take(),
            charges,
            unanswered: self.outage.is_some(),
            unconfirmed: std::mem::take(&mut self.unconfirmed),
            sampled: self.sample_ppm.is_some(),
        })
    }

    fn latency(&self) -> Span {
        // Rounded up, because timestamps have whole microseconds.
        Span::from_micros((self.latency_ms.max(0.0) * 1_000.0).ceil() as u64)
    }

    fn by(&self) -> Result<Decider, String> {
        if self.operation == "peek" || self.allowed == Some(false) && self.charges.is_empty() {
            return Ok(Decider::None);
        }
        match self.decided.as_deref() {
            Some("store") if self.outage.is_none() && !self.replayed => Ok(Decider::Store),
            Some("fallback" | "unlimited") if self.outage.is_some() => Ok(Decider::Node),
            Some("replay") if self.replayed => Ok(Decider::Replay { node: self.outage.is_some() }),
            Some(by @ ("store" | "fallback" | "unlimited" | "replay")) => {
                Err(format!("decided: {by:?} contradicts the fields `outage` and `replayed`"))
            }
            Some(other) => Err(format!(
                "decided: unknown value {other:?} (known: store, fallback, unlimited, replay)"
            )),
            None => Err("missing field `decided` in an admission".to_owned()),
        }
    }

    /// Checks that an admission contains its charges, or the reason for which there are none.
    fn check_charges(&self) -> Result<(), String> {
        if self.charges.is_empty() && self.uncharged.is_none() {
            return Err("an admission has neither `charges` nor `uncharged`".to_owned());
        }
        for charge in &self.charges {
            if charge.take == 0 && charge.need.is_none() {
                let key = &charge.key;
                return Err(format!("charges: `take` is 0 on {key}, without `need`"));
            }
            if charge.limits.is_empty() {
                return Err(format!("charges: no limits on {}", charge.key));
            }
        }
        Ok(())
    }

    /// Copies the counts that the store reported from `scopes` to the charges.
    fn count(&mut self) -> Result<(), String> {
        let limits: usize = self.charges.iter().map(|charge| charge.limits.len()).sum();
        // A booking lists concurrency limits, too, but is charged for them only when it is claimed.
        if limits != self.scopes.len() && self.operation == "book" || self.charges.is_empty() {
            return Ok(());
        }
        if limits != self.scopes.len() {
            return Err(format!("charges have {limits} limits, but scopes {}", self.scopes.len()));
        }
        let shown = self.window_reset_at.as_deref();
        let shown = shown.map(|reset| instant("windowResetAt", reset)).transpose()?;
        // A line states `remaining` and `windowResetAt` of its tightest limit on requests, if it has
        // any, and does not say which one that is.
        let is_tightest = |charge: &Charge, scope: &Scope<'_>| {
            charge.unit == "requests" && !charge.shadow && Some(scope.remaining) == self.remaining
        };
        let scopes_of = |charge: &Charge| charge.limits.len();
        let owners = self.charges.iter().flat_map(|one| std::iter::repeat_n(one, scopes_of(one)));
        let tightest = owners.zip(&self.scopes).filter(|(one, scope)| is_tightest(one, scope));
        let is_unique = tightest.count() == 1;
        let mut scopes = self.scopes.iter();
        for charge in &mut self.charges {
            for (limit, scope) in charge.limits.iter().zip(&mut scopes) {
                if *limit != scope.window {
                    let (key, shown) = (&charge.key, &scope.window);
                    return Err(format!("{key} is charged under {limit}, but scopes has {shown}"));
                }
                let factor = if charge.unit == Charge::MONEY { 1e9 } else { 1.0 };
                let number = |number: f64| (number * factor).round() as u64;
                let (limit, count) = (number(scope.limit), number(scope.count));
                // Dollars are parsed as floats, so the last digit may be off. While the store did not
                // answer, a node had its share of the limit left.
                if self.outage.is_none()
                    && limit.saturating_sub(count).abs_diff(number(scope.remaining)) > 2
                {
                    let key = &charge.key;
                    return Err(format!("{key}: `count` and `remaining` contradict each other"));
                }
                let reset = shown.filter(|_| is_unique && is_tightest(charge, scope));
                charge.shown.push(ShownCount { limit, count, shared: scope.shared, reset });
            }
        }
        Ok(())
    }

    fn update(self, at: Timestamp) -> Result<DecisionUpdate, String> {
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
            (other, _) => return Err(format!("operation: unknown value {other:?}")),
        };
        Ok(DecisionUpdate { id: self.request_id, at, earliest, effect })
    }
}

fn instant(field: &str, text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error| format!("{field}: {text:?} {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> LogEntry {
        match read(line.as_bytes()) {
            Ok(Line::LogEntry(entry)) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn decision(line: &str) -> Decision {
        match entry(line).event {
            Event::Decision(decision) => decision,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_admission_contains_its_charges() {
        let line = r#"{"timestamp":"2026-01-05T00:00:01Z","level":"INFO","requestId":"00","operation":"acquire",
            "userId":"u1","allowed":true,"decided":"store","latencyMs":0.100,"at":"2026-01-05T00:00:00.000201Z",
            "scopes":[{"window":"5/5s","limit":5,"count":3,"remaining":2},
            {"window":"100/h","limit":100,"count":17,"remaining":83}],"charges":
            [{"key":"K#requests","limits":["5/5s","100/h"],"take":1,"unit":"requests"}],
            "node":"a","started":"2026-01-04T00:00:00Z","seq":7,"line":9,"writtenUs":5000000}"#;
        let read = decision(line);
        let [charge] = &read.charges[..] else { panic!("{read:?}") };
        assert_eq!((charge.key.as_str(), charge.take, charge.need), ("K#requests", 1, None));
        let shown = [(5, 3), (100, 17)];
        let shown =
            shown.map(|(limit, count)| ShownCount { limit, count, shared: false, reset: None });
        assert_eq!((&charge.shown[..], charge.is_checked()), (&shown[..], true));
        assert!(read.firm && read.at == read.start && read.by == Decider::Store);
        assert_eq!(read.at.to_string(), "2026-01-05T00:00:00.000201Z");
        assert_eq!(read.earliest.to_string(), "2026-01-05T00:00:00.000101Z");
        let process = "a (2026-01-04T00:00:00Z)".to_owned();
        let written = "2026-01-04T00:00:05Z".parse().ok();
        let stamp = Stamp { process, seq: 7, line: 9, admits: true, written };
        assert_eq!(entry(line).stamp, Some(stamp));
    }

    /// Builds an admission with further fields.
    fn admission(further: &str) -> String {
        let known =
            r#""allowed":true,"requestId":"1","at":"2026-01-05T00:00:00Z","uncharged":"a test""#;
        format!("{{{known},{further}}}")
    }

    #[test]
    fn an_admission_is_charged_within_its_operation() {
        let at_once = |start: &str| {
            let fields = r#""decided":"store","operation":"acquire","latencyMs":5000,"start""#;
            read(admission(&format!("{fields}:\"{start}\"")).as_bytes())
        };
        for honest in ["2026-01-05T00:00:00Z", "2026-01-04T23:59:55Z", "2026-01-05T00:00:00.001Z"] {
            assert!(matches!(at_once(honest), Ok(Line::LogEntry(_))), "{honest}");
        }
        for forged in ["2030-01-01T00:00:00Z", "2026-01-05T00:00:01Z", "2026-01-04T23:00:00Z"] {
            assert!(at_once(forged).is_err(), "{forged}");
        }
    }

    #[test]
    fn reservations_and_bookings_are_not_firm() {
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
    fn other_lines_are_not_errors() {
        for line in ["", "listening on 8080", "[1]", r#"{"level":"INFO"}"#, r#"{"at":1}"#] {
            assert_eq!(read(line.as_bytes()), Ok(Line::Other), "{line}");
        }
    }

    #[test]
    fn a_malformed_decision_is_an_error() {
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
            (admission(r#""operation":"acquire""#), "missing field `decided`"),
            (admission(r#""operation":"acquire","decided":"me""#), "known: store, fallback"),
            (admission(r#""operation":"acquire","decided":"store""#).replace("uncharged", "x"), "neither"),
            (charged(&free, r#"{"window":"5/s","limit":5,"count":1,"remaining":4}"#), "`take` is 0 on K"),
            (charged(charge, r#"{"window":"6/s","limit":6,"count":1,"remaining":5}"#), "but scopes has 6/s"),
            (
                charged(charge, r#"{"window":"5/s","limit":5,"count":1,"remaining":1}"#),
                "`count` and `remaining` contradict",
            ),
            (charged(charge, ""), "charges have 1 limits, but scopes 0"),
            (r#"{"requestId":"1","operation":"x","at":"2026-01-05T00:00:00Z"}"#.to_owned(), "unknown value"),
        ] {
            let error = read(line.as_bytes()).expect_err(&line);
            assert!(error.contains(expected), "{error}");
        }
    }
}
