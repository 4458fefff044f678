//! Tests of the lease protocol.

crate::protocol! {
    lease with LeaseMistake holds in no_more_work_than_there_are_slots_and_dead_holders_free_theirs and sees [
        "held",
        "renewed",
        "denied",
        "lost",
        "released",
        "answer came too late",
        "stopped at its deadline",
        "gave up releasing",
        "crashed",
        "stalled",
    ];
    a_lease_that_never_expires_is_found: NeverExpires breaks "L2";
    a_renewal_that_changes_nothing_is_found: RenewalIgnored breaks "L1";
    a_lease_shorter_than_promised_is_found: ShortLease breaks "L1";
    a_release_by_slot_is_found: ReleaseBySlot breaks "L1";
    a_replay_of_an_expired_lease_is_found: ReplayOfExpired breaks "L1";
    a_deadline_counted_from_the_answer_is_found: CountsFromAnswer breaks "L1";
    a_deadline_of_a_whole_lease_after_a_replay_is_found: CountsWholeLease breaks "L1";
    a_replacement_under_the_same_id_is_found: ReplacementSharesId breaks "L1";
    a_release_without_a_tombstone_is_found: ReleaseWithoutTombstone breaks "L2";
    a_renewal_that_revives_is_found: RenewalRevives breaks "L3";
}
