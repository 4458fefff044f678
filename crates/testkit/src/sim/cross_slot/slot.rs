//! [`Slot`]: the counters and records of one slot. It handles one message at a time.

use std::collections::BTreeMap;

use sluicegate_core::algorithm::log::LogQuota;
use sluicegate_core::{Span, Timestamp};

use super::check::Check;
use super::{CrossSlotMistake, DELAY_MAX, LIFE, Reply, Work};
use crate::sim::counter::{ChargeMark, Counter, RefundMode};
use crate::sim::rng::Rng;

/// Lifetime of a tombstone that is shorter than the maximum delay of a message.
const SHORT_TOMBSTONE: Span = Span::from_millis(140);
/// Lifetime of a record that is as long as the maximum delay, too short for a retry sent later.
const SHORT_RECORD: Span = DELAY_MAX;

pub(super) struct Slot {
    number: usize,
    /// Time by which its clock is ahead of the true time.
    pub(super) ahead_us: u64,
    pub(super) counters: Vec<Counter>,
    records: BTreeMap<u64, Record>,
    window: Span,
    mistake: Option<CrossSlotMistake>,
}

/// The record of an id.
struct Record {
    /// Charged counters and the marks of their charges; empty if not charged.
    charged: Vec<(usize, ChargeMark)>,
    charged_at: Timestamp,
    attempts: BTreeMap<u64, AttemptState>,
    expires: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptState {
    /// It relies on the charge.
    Holds,
    /// It relied on an earlier charge, which has left its window.
    Held,
    /// It does not rely on a charge, and never will.
    TakenBack,
}

impl Slot {
    pub(super) fn random(
        number: usize,
        quota: LogQuota,
        rng: &mut Rng,
        mistake: Option<CrossSlotMistake>,
    ) -> Self {
        let counters = (0..rng.between(1, 2)).map(|_| Counter::log(vec![quota])).collect();
        Self {
            number,
            ahead_us: rng.between(0, 8_000),
            counters,
            records: BTreeMap::new(),
            window: quota.window,
            mistake,
        }
    }

    /// Checks all counters, then charges all. `by` is the time that decides, normally its own.
    pub(super) fn reserve(
        &mut self,
        now: Timestamp,
        by: Timestamp,
        work: Work,
        counters: &[usize],
        check: &mut Check,
    ) -> Reply {
        self.records.retain(|_, record| record.expires > now);
        if let Some(record) = self.records.get_mut(&work.id) {
            match record.attempts.get(&work.attempt) {
                Some(AttemptState::TakenBack) => return Reply::Refused,
                _ if self.mistake == Some(CrossSlotMistake::ChargedAgain) => {}
                Some(AttemptState::Holds | AttemptState::Held) => return Reply::Reserved,
                None if self.mistake == Some(CrossSlotMistake::TombstoneForAll)
                    && record.charged.is_empty() =>
                {
                    return Reply::Refused;
                }
                None if record.counts(now, self.window, self.mistake) => {
                    if self.mistake == Some(CrossSlotMistake::LastAttemptOwns) {
                        record.attempts.clear();
                    }
                    record.attempts.insert(work.attempt, AttemptState::Holds);
                    record.keep(now + LIFE);
                    for &(counter, _) in &record.charged {
                        check.shared(work, (self.number, counter), now);
                    }
                    return Reply::Reserved;
                }
                None => {}
            }
        }
        if counters.iter().any(|&counter| self.counters[counter].earliest(by) > by) {
            return Reply::Denied;
        }
        let record = self.records.entry(work.id).or_insert_with(Record::new);
        record.begin_anew(now);
        for &counter in counters {
            let mark = self.counters[counter].take(by);
            record.charged.push((counter, mark));
            check.charged(work, (self.number, counter), now);
        }
        record.attempts.insert(work.attempt, AttemptState::Holds);
        record.keep(match self.mistake {
            Some(CrossSlotMistake::ShortRecord) => now + SHORT_RECORD,
            _ => (now + LIFE).max(now + self.window),
        });
        Reply::Reserved
    }

    pub(super) fn take_back(&mut self, now: Timestamp, work: Work, check: &mut Check) {
        self.records.retain(|_, record| record.expires > now);
        let record = self.records.entry(work.id).or_insert_with(Record::new);
        record.attempts.insert(work.attempt, AttemptState::TakenBack);
        record.keep(now + LIFE);
        let held = record.attempts.values().any(|standing| *standing == AttemptState::Holds);
        if !held || self.mistake == Some(CrossSlotMistake::TakeBackForAll) {
            for (counter, mark) in record.charged.drain(..) {
                if self.mistake == Some(CrossSlotMistake::TakeBackByScore) {
                    continue;
                }
                self.counters[counter].give_back(mark, now, RefundMode::Safe);
                check.given_back(work.client, (self.number, counter), now);
            }
        }
        match self.mistake {
            Some(CrossSlotMistake::TakeBackByScore) => {
                self.counters.iter_mut().for_each(Counter::give_back_newest);
            }
            Some(CrossSlotMistake::NoTombstone) => {
                record.attempts.remove(&work.attempt);
            }
            Some(CrossSlotMistake::ShortTombstone) if record.charged.is_empty() => {
                record.expires = now + SHORT_TOMBSTONE;
            }
            _ => {}
        }
    }
}

impl Record {
    const fn new() -> Self {
        Self {
            charged: Vec::new(),
            charged_at: Timestamp::ZERO,
            attempts: BTreeMap::new(),
            expires: Timestamp::ZERO,
        }
    }

    /// Returns true if there is a charge that another attempt may share.
    fn counts(&self, now: Timestamp, window: Span, mistake: Option<CrossSlotMistake>) -> bool {
        let in_window = self.charged_at + window > now;
        !self.charged.is_empty() && (in_window || mistake == Some(CrossSlotMistake::SharesAgedOut))
    }

    /// Forgets an earlier charge, which has left its window.
    fn begin_anew(&mut self, now: Timestamp) {
        self.charged.clear();
        self.charged_at = now;
        for standing in self.attempts.values_mut() {
            if *standing == AttemptState::Holds {
                *standing = AttemptState::Held;
            }
        }
    }

    fn keep(&mut self, until: Timestamp) {
        self.expires = self.expires.max(until);
    }
}
