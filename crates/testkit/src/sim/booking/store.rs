//! [`Store`]: the simulated store, with one counter and one record per id. It handles one request
//! at a time.

use std::collections::BTreeMap;

use sluicegate_core::algorithm::Slack;
use sluicegate_core::{Id, Span, Timestamp};

use super::{BookingMistake, DriftingClock, Reply, SLACK};
use crate::sim::counter::{ChargeMark, Counter, RefundMode};

pub(super) struct Store {
    pub(super) clock: DriftingClock,
    pub(super) counter: Counter,
    horizon: Span,
    /// Time before its start at which a booking may be claimed.
    lead: Span,
    /// Time until which the gate is closed.
    closed_until: Timestamp,
    records: BTreeMap<u64, Record>,
    written: u64,
    given_back: u64,
    mistake: Option<BookingMistake>,
}

#[derive(Default)]
struct Record {
    state: RecordState,
    /// Claimants that received `Go`. Their charges stay.
    had_go: Vec<u64>,
}

#[derive(Clone, Copy, Default)]
enum RecordState {
    /// No booking.
    #[default]
    Unbooked,
    Booked(Booking),
    /// The claimant may start, or may have started.
    Open {
        claimant: u64,
        booking: Booking,
        /// Time of the first `Go`; a repeated one adds nothing.
        decided: Timestamp,
    },
    /// Acquired without a booking.
    Acquired {
        at: Timestamp,
    },
    Cancelled,
}

#[derive(Clone, Copy)]
struct Booking {
    start: Timestamp,
    mark: ChargeMark,
}

impl Store {
    pub(super) const fn new(
        counter: Counter,
        clock: DriftingClock,
        (horizon, lead): (Span, Span),
        mistake: Option<BookingMistake>,
    ) -> Self {
        let records = BTreeMap::new();
        let (closed_until, written, given_back) = (Timestamp::ZERO, 0, 0);
        Self { clock, counter, horizon, lead, closed_until, records, written, given_back, mistake }
    }

    /// Closes the gate: nothing that is decided from now on starts before `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    /// Acquires: a booking that is accepted only if it starts now.
    pub(super) fn acquire(&mut self, now: Timestamp, id: u64) -> Reply {
        if let Some(RecordState::Acquired { at }) = self.records.get(&id).map(|record| record.state)
        {
            return Reply::Allow { at };
        }
        let start = match self.mistake {
            Some(BookingMistake::AcquireIgnoresBookings) => {
                self.counter.earliest_without_bookings(now)
            }
            _ => self.counter.earliest(now),
        };
        if start > now || now < self.closed_until {
            return Reply::Deny;
        }
        self.written += 1;
        self.counter.take(now);
        self.set(id, RecordState::Acquired { at: now });
        Reply::Allow { at: now }
    }

    /// Acquires ahead: a booking that is accepted only if it starts within the lead, and is claimed
    /// at once.
    pub(super) fn acquire_ahead(
        &mut self,
        now: Timestamp,
        id: u64,
        claimant: u64,
        owner: Option<Id>,
    ) -> Reply {
        let owner = self.seen_owner(owner);
        match self.records.get(&id).map(|record| record.state).unwrap_or_default() {
            RecordState::Unbooked => {
                let start = self.counter.earliest_for(owner, now.max(self.closed_until));
                if start > now + self.lead {
                    return Reply::Deny;
                }
                let booking = self.charge(start, owner);
                self.go(now, id, claimant, booking)
            }
            RecordState::Open { booking, .. } if self.is_good(booking, now) => {
                self.go(now, id, claimant, booking)
            }
            RecordState::Cancelled => Reply::Gone,
            _ => Reply::Spent,
        }
    }

    pub(super) fn book(&mut self, now: Timestamp, id: u64, owner: Option<Id>) -> Reply {
        let state = self.records.get(&id).map(|record| record.state).unwrap_or_default();
        match state {
            RecordState::Booked(booking) if self.mistake != Some(BookingMistake::BookedAgain) => {
                Reply::Booked { wait: booking.start.since(now) }
            }
            RecordState::Unbooked | RecordState::Booked(_) => {
                match self.book_anew(now, id, owner) {
                    Some(start) => Reply::Booked { wait: start.since(now) },
                    None => Reply::Deny,
                }
            }
            RecordState::Open { .. } | RecordState::Acquired { .. } => Reply::Claimed,
            RecordState::Cancelled => Reply::Gone,
        }
    }

    pub(super) fn claim(
        &mut self,
        now: Timestamp,
        id: u64,
        claimant: u64,
        owner: Option<Id>,
    ) -> Reply {
        let Some(record) = self.records.get(&id) else {
            return Reply::Unknown;
        };
        let had_go = record.had_go.contains(&claimant);
        match record.state {
            RecordState::Unbooked if had_go => Reply::Spent,
            RecordState::Unbooked => Reply::Unknown,
            RecordState::Booked(_)
                if had_go && self.mistake != Some(BookingMistake::SpentClaimantGoes) =>
            {
                Reply::Spent
            }
            RecordState::Booked(booking) if now + self.lead < booking.start => {
                Reply::Early { wait: booking.start.since(now) }
            }
            RecordState::Booked(booking)
                if self.is_good(booking, now) && self.is_open(booking.start.max(now)) =>
            {
                self.go(now, id, claimant, booking)
            }
            RecordState::Booked(booking) => {
                self.give_back(booking.mark, now);
                self.rebook(now, id, owner)
            }
            RecordState::Open { claimant: first, booking, .. } => {
                let mine =
                    first == claimant || self.mistake == Some(BookingMistake::SecondClaimantGoes);
                if mine && self.is_good(booking, now) {
                    return self.go(now, id, claimant, booking);
                }
                if had_go && self.mistake != Some(BookingMistake::LateRepetitionRebooks) {
                    return Reply::Spent;
                }
                if self.mistake == Some(BookingMistake::RebookingRemovesUsed) {
                    self.give_back(booking.mark, now);
                }
                self.rebook(now, id, owner)
            }
            RecordState::Acquired { .. } | RecordState::Cancelled => Reply::Gone,
        }
    }

    pub(super) fn cancel(&mut self, now: Timestamp, id: u64, claimant: u64) -> Reply {
        match self.records.get(&id).map(|record| record.state) {
            Some(RecordState::Booked(booking)) => self.give_back(booking.mark, now),
            Some(RecordState::Open { claimant: first, booking, .. })
                if first == claimant
                    || self.mistake == Some(BookingMistake::CancelGivesBackUsed) =>
            {
                self.give_back(booking.mark, now);
                if let Some(record) = self.records.get_mut(&id) {
                    record.had_go.retain(|other| *other != first);
                }
            }
            _ => {}
        }
        match self.mistake {
            Some(BookingMistake::CancelWithoutTombstone) => self.set(id, RecordState::Unbooked),
            _ => self.set(id, RecordState::Cancelled),
        }
        Reply::Cancelled
    }

    fn is_open(&self, at: Timestamp) -> bool {
        at >= self.closed_until || self.mistake == Some(BookingMistake::EarlyClaimIgnoresGate)
    }

    fn is_good(&self, booking: Booking, now: Timestamp) -> bool {
        now <= booking.start + SLACK || self.mistake == Some(BookingMistake::LateClaimGoes)
    }

    fn go(&mut self, now: Timestamp, id: u64, claimant: u64, booking: Booking) -> Reply {
        let record = self.records.entry(id).or_default();
        let decided = match record.state {
            RecordState::Open { claimant: first, decided, .. } if first == claimant => decided,
            _ => now,
        };
        record.state = RecordState::Open { claimant, booking, decided };
        if !record.had_go.contains(&claimant) {
            record.had_go.push(claimant);
        }
        let good_until = match self.mistake {
            Some(BookingMistake::LateClaimGoes) => now + SLACK,
            _ => booking.start + SLACK,
        };
        Reply::Go { decided, start: booking.start, good_until }
    }

    fn rebook(&mut self, now: Timestamp, id: u64, owner: Option<Id>) -> Reply {
        self.set(id, RecordState::Unbooked);
        match self.book_anew(now, id, owner) {
            Some(start) => Reply::Rebooked { wait: start.since(now) },
            None => Reply::Deny,
        }
    }

    /// Books, and charges at the latest time at which the booking may be used.
    fn book_anew(&mut self, now: Timestamp, id: u64, owner: Option<Id>) -> Option<Timestamp> {
        let owner = self.seen_owner(owner);
        // There is time left for its claim.
        let from = (now + self.lead).max(self.closed_until);
        let start = self.counter.earliest_for(owner, from);
        if start > now + self.horizon {
            return None;
        }
        let booking = self.charge(start, owner);
        self.set(id, RecordState::Booked(booking));
        Some(start)
    }

    fn charge(&mut self, start: Timestamp, owner: Option<Id>) -> Booking {
        let span = match self.mistake {
            Some(BookingMistake::WrittenAtStart) => Span::ZERO,
            _ => SLACK,
        };
        self.written += 1;
        Booking { start, mark: self.counter.take_within(start, Slack { span, owner }) }
    }

    /// Returns the owner that a booking is counted for.
    fn seen_owner(&self, owner: Option<Id>) -> Option<Id> {
        match self.mistake {
            Some(BookingMistake::OwnersShareRun) => owner.map(|_| Id::from_bits(0)),
            _ => owner,
        }
    }

    fn give_back(&mut self, mark: ChargeMark, now: Timestamp) {
        self.given_back += 1;
        let how = match self.mistake {
            Some(BookingMistake::BucketForgetsLater) => RefundMode::ForgetsLater,
            Some(BookingMistake::BucketForgetsGivenBack) => RefundMode::ForgetsGivenBack,
            _ => RefundMode::Safe,
        };
        self.counter.give_back(mark, now, how);
    }

    fn set(&mut self, id: u64, state: RecordState) {
        self.records.entry(id).or_default().state = state;
    }

    /// Returns the latest start that is booked or claimed; without an owner if its holder has died.
    pub(super) fn last_start(&self) -> Option<Timestamp> {
        let booked = self.records.values().filter_map(|record| match record.state {
            RecordState::Booked(booking) | RecordState::Open { booking, .. } => Some(booking.start),
            _ => None,
        });
        booked.max()
    }

    /// Checks B3: every charge was acquired, received `Go`, or is booked for a job that has not
    /// ended.
    pub(super) fn orphaned_charges(&self, ended: impl Fn(u64) -> bool) -> Option<String> {
        let mut stands = 0;
        for (&id, record) in &self.records {
            stands += record.had_go.len();
            match record.state {
                RecordState::Booked(_) if ended(id) => {
                    return Some(format!("B3: job {id} has ended and stays booked"));
                }
                RecordState::Booked(_) | RecordState::Acquired { .. } => stands += 1,
                _ => {}
            }
        }
        let charged = self.written - self.given_back;
        let stands = u64::try_from(stands).expect("the jobs of a run are few");
        (charged != stands).then(|| format!("B3: {charged} are charged, {stands} stand for them"))
    }
}
