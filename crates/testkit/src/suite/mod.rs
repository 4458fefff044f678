//! The test suite that every store has to pass.
//!
//! [`store_suite!`](crate::store_suite) makes a test of each function here for a [`StoreSubject`].
//! No test sleeps: the subject's clock is set.

#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod backlogs;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod booking;
pub mod budget;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod decisions;
pub mod model;
pub mod override_store;
pub mod proof;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod records;
pub mod reservation_store;
mod script;

use std::sync::Arc;

use sluicegate_core::price::{PriceBook, UnknownModels};
use sluicegate_core::query::{Cost, Pacing, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Decision, Id, Limit, Plan, Span, Store, Timestamp};

/// A store under test, with its clock.
pub trait StoreSubject {
    /// Type of the store.
    type Store: Store;

    /// True if counters under a literal key work beside the manual clock. In a cluster they may be in
    /// another slot than the clock of the test.
    const LITERAL_KEYS: bool = true;
    /// Number of random sequences in the model test.
    const CASES: u32;

    /// Returns an empty store whose clock shows [`EPOCH`].
    fn fresh() -> Self;

    /// Returns the store.
    fn store(&self) -> &Self::Store;

    /// Sets the clock of the store.
    fn set_now(&self, now: Timestamp);

    /// Runs a future of the store to its end.
    fn run<F: Future>(&self, future: F) -> F::Output;
}

/// Start time of every test: a Monday, away from any midnight.
pub const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A store, its rules and the current time.
pub(crate) struct StoreBench<S> {
    subject: S,
    rules: Ruleset,
    now: Timestamp,
}

/// A request that a test makes.
#[derive(Clone, Debug)]
pub(crate) struct TestRequest {
    id: RequestId,
    who: Vec<(&'static str, &'static str)>,
    cost: Cost,
    hold: Option<Span>,
    pacing: Option<Pacing>,
}

/// Returns a request under an id that the service made.
pub(crate) fn ask(id: u128) -> TestRequest {
    let id = RequestId::ours(Id::from_bits(id));
    TestRequest { id, who: vec![("user", "ann")], cost: Cost::default(), hold: None, pacing: None }
}

impl TestRequest {
    pub(crate) fn by(mut self, user: &'static str) -> Self {
        self.who = vec![("user", user)];
        self
    }

    /// Adds a dimension.
    pub(crate) fn and(mut self, name: &'static str, value: &'static str) -> Self {
        self.who.push((name, value));
        self
    }

    /// Uses an id that the caller chose.
    pub(crate) fn named(mut self) -> Self {
        self.id.keep = Some(RequestId::KEEP);
        self
    }

    pub(crate) fn requests(mut self, requests: u64) -> Self {
        self.cost.requests = Some(requests);
        self
    }

    pub(crate) fn tokens(mut self, tokens: u64) -> Self {
        self.cost.input_tokens = Some(tokens);
        self
    }

    pub(crate) fn hold(mut self, seconds: u64) -> Self {
        self.hold = Some(Span::from_secs(seconds));
        self
    }

    /// Paces the request, with a lead and a slack in milliseconds.
    pub(crate) fn paced(mut self, lead: u64, slack: u64) -> Self {
        let (lead, slack) = (Span::from_millis(lead), Span::from_millis(slack));
        self.pacing = Some(Pacing { lead, slack, owner: None });
        self
    }

    /// Sets the pacer that starts the paced request.
    pub(crate) fn owned_by(mut self, owner: u128) -> Self {
        let pacing = self.pacing.expect("only paced requests have an owner");
        self.pacing = Some(Pacing { owner: Some(Id::from_bits(owner)), ..pacing });
        self
    }

    fn query(&self) -> Query<'static> {
        let mut query = Query::new(self.id);
        for (name, value) in &self.who {
            query.insert(*name, *value).expect("dimensions of tests are valid");
        }
        query.cost = self.cost;
        query.hold = self.hold;
        query.pacing = self.pacing;
        query
    }
}

/// Returns a ruleset with one group per rule, so that all rules apply.
pub(crate) fn rules(rules: impl IntoIterator<Item = Rule>) -> Ruleset {
    let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule])).collect();
    // Costs are stated: no test of a store is about token prices.
    let prices = Arc::new(PriceBook::new(UnknownModels::Free));
    let settings = Settings { prices, ..Settings::default() };
    Ruleset::new(groups, settings).expect("rules of tests compile")
}

/// Returns a rule per user.
pub(crate) fn rule(name: &str, limits: &[&str]) -> Rule {
    let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
    Rule::new(name, limits).per(&["user"])
}

impl<S: StoreSubject> StoreBench<S> {
    pub(crate) fn new(all: impl IntoIterator<Item = Rule>) -> Self {
        Self { subject: S::fresh(), rules: rules(all), now: EPOCH }
    }

    /// Creates a bench with one rule per user with these limits.
    pub(crate) fn of(limits: &[&str]) -> Self {
        Self::new([rule("LIMIT", limits)])
    }

    /// Replaces the rules, as a reload does. Usage stays in the store.
    pub(crate) fn reload(&mut self, all: impl IntoIterator<Item = Rule>) {
        self.rules = rules(all).with_formers(&self.rules.limits_until(self.now), self.now);
    }

    /// Sets the time to this many milliseconds after the start.
    pub(crate) fn at_ms(&mut self, millis: u64) -> &mut Self {
        self.now = EPOCH + Span::from_millis(millis);
        self.subject.set_now(self.now);
        self
    }

    /// Runs an operation of the store on the plan of a request.
    pub(crate) fn with<T>(
        &self,
        ask: &TestRequest,
        run: impl AsyncFnOnce(&S::Store, &Plan<'_>) -> T,
    ) -> T {
        let query = ask.query();
        let plan = self.rules.plan(&query, self.now).expect("requests of tests can be planned");
        self.subject.run(run(self.subject.store(), &plan))
    }

    pub(crate) fn acquire(&self, ask: &TestRequest) -> Decision {
        let result = self.with(ask, async |store, plan| store.acquire(plan).await);
        result.unwrap_or_else(|error| panic!("{ask:?}: {error}"))
    }

    /// Acquires these requests in order, and returns the number of admitted ones.
    pub(crate) fn admitted(&self, asks: impl IntoIterator<Item = TestRequest>) -> usize {
        asks.into_iter().filter(|ask| self.acquire(ask).is_allowed()).count()
    }

    /// Returns the usage that each limit shows.
    pub(crate) fn used(&self, ask: &TestRequest) -> Vec<u64> {
        let usage = self.with(ask, async |store, plan| store.usage(plan).await);
        usage.expect("usage").readings.iter().map(|reading| reading.used).collect()
    }
}

/// Returns the milliseconds since the start.
pub(crate) fn millis(at: Timestamp) -> u64 {
    at.since(EPOCH).as_micros() / 1_000
}

/// Makes a test of every function of the suite, for one [`StoreSubject`].
#[macro_export]
macro_rules! store_suite {
    ($subject:ty) => {
        $crate::store_suite! { @ $subject, decisions:
            limits_decide_as_they_are_written
            all_windows_of_a_rule_must_pass
            a_denial_leaves_every_other_scope_untouched
            the_earliest_start_is_true
            users_do_not_share_a_counter
            what_can_never_fit_is_told_apart
            several_requests_at_once_count_as_many
            tokens_and_requests_are_charged_together
            calendar_windows_start_again_at_their_boundary
            a_node_whose_clock_is_a_day_off_is_told_so
            a_shadow_rule_counts_but_never_denies
            a_ban_admits_nothing_and_a_shadow_ban_everything
            peeking_and_reading_usage_consume_nothing
            a_reset_forgets_usage
            usage_carries_over_when_a_limit_changes_its_shape
            a_changed_amount_applies_at_once_to_usage_that_carries_over
            what_is_settled_after_a_change_of_shape_counts_in_both_counters
            a_refund_gives_back_the_oldest_and_never_more_than_there_is
            what_was_refunded_is_not_given_back_again
            a_denial_says_what_would_fit
            an_empty_plan_is_allowed
            usage_is_kept_when_a_limit_changes
        }
        $crate::store_suite! { @ $subject, records:
            the_same_id_is_counted_once
            a_denial_is_not_remembered
            the_same_id_for_other_work_is_a_conflict
            settling_gives_back_what_was_too_much
            settling_charges_what_was_too_little_as_debt
            settling_twice_is_once
            what_is_not_known_yet_is_charged_when_it_is_settled
            an_exhausted_budget_denies_work_of_unknown_cost
            an_optimistic_budget_admits_until_it_is_used_up
            an_estimate_that_nobody_settles_stays_charged
            an_estimate_is_refunded_where_the_rule_says_so
            cancelling_gives_everything_back
            a_cancelled_id_is_refused_even_if_it_comes_later
            a_slot_is_given_back
            a_slot_comes_back_when_its_holder_dies
            renewing_keeps_a_slot
            an_expired_lease_is_lost
            a_replay_without_its_lease_is_lost
            a_denied_slot_burns_no_request
            a_reset_does_not_let_old_refunds_touch_new_usage
        }
        $crate::store_suite! { @ $subject, booking:
            bookings_are_spaced_by_the_limit
            a_booking_makes_an_acquire_wait
            nothing_starts_while_a_gate_is_closed
            closing_a_gate_only_extends
            what_is_booked_into_a_closed_gate_is_booked_anew
            a_reset_opens_the_gate
            closing_what_has_no_gate_closes_nothing
            a_booking_past_the_horizon_is_denied
            a_claim_on_time_goes
            a_late_claim_is_booked_anew
            a_second_claimant_is_booked_anew
            a_claim_that_states_something_else_than_its_booking_is_refused
            a_booking_whose_rules_were_reloaded_is_booked_anew
            a_booking_goes_under_another_limit_of_its_rule
            only_its_claimant_can_take_a_claimed_booking_back
            who_was_told_to_go_is_remembered_when_a_booking_lapses
            a_cancelled_booking_makes_room
            a_booking_takes_its_lease_when_it_is_claimed
            a_bucket_can_be_booked
            paced_work_is_admitted_ahead_of_its_start
            a_booking_can_be_claimed_ahead_of_its_start
            an_early_claim_can_be_taken_back_by_its_claimant
            an_early_claim_needs_a_gate_that_is_open_at_the_start
            a_rule_that_spreads_costs_one_start_whatever_the_slack
            the_bookings_of_one_pacer_have_no_slack_between_them
            a_booking_does_not_reach_into_the_next_calendar_day
        }
        $crate::store_suite! { @ $subject, backlogs:
            each_queue_learns_the_backlogs_of_the_others
            a_backlog_is_forgotten_when_it_expires_or_is_empty
            a_plan_without_a_limit_has_no_backlogs
        }
        $crate::store_suite! { @ $subject, budget:
            what_is_charged_is_settled_held_or_expired
            a_forecast_is_admitted_and_one_token_more_is_not
        }
        $crate::store_suite! { @ $subject, model:
            random_operations_agree_with_the_model
        }
        $crate::store_suite! { @ $subject, proof:
            random_traffic_is_proven_by_the_checker
        }
    };
    (@ $subject:ty, $module:ident: $($test:ident)*) => {
        mod $module {
            use super::*;

            $(#[test]
            fn $test() {
                $crate::suite::$module::$test::<$subject>();
            })*
        }
    };
}
