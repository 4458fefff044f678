//! Tests of the protocol for one plan over counters in several slots.

crate::protocol! {
    cross_slot with CrossSlotMistake holds in what_is_admitted_is_charged_in_every_slot_and_the_rest_nowhere and sees [
        "allowed",
        "not admitted",
        "denied by a slot",
        "refused by a tombstone",
        "retried",
        "taken back again",
        "gave up taking back",
        "asked again after a denial",
        "asked another node",
        "crashed",
        "stalled",
    ];
    a_take_back_without_a_tombstone_is_found: NoTombstone breaks "S4";
    a_tombstone_shorter_than_the_slowest_message_is_found: ShortTombstone breaks "S4";
    a_record_shorter_than_the_slowest_retry_is_found: ShortRecord breaks "S3";
    a_retry_under_a_new_id_is_found: RetryUnderNewId breaks "S3";
    a_retry_after_the_deadline_is_found: RetryAfterDeadline breaks "S3";
    a_reserve_that_charges_again_is_found: ChargedAgain breaks "S3";
    a_take_back_by_score_is_found: TakeBackByScore breaks "S2";
    a_take_back_that_spares_the_slots_that_denied_is_found: TakeBackWhereReserved breaks "S4";
    a_take_back_that_is_sent_once_is_found: TakeBackOnce breaks "S4";
    a_take_back_that_ends_every_attempt_is_found: TakeBackForAll breaks "S2";
    a_charge_that_belongs_to_the_last_attempt_is_found: LastAttemptOwns breaks "S2";
    a_tombstone_that_refuses_every_attempt_is_found: TombstoneForAll breaks "S6";
    a_charge_that_is_shared_after_it_left_its_window_is_found: SharesAgedOut breaks "S2";
    a_decision_by_the_clock_of_a_node_is_found: NodeClock breaks "S1";
}
