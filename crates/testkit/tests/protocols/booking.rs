//! Tests of the booking protocol.

crate::protocol! {
    booking with BookingMistake holds in what_goes_never_exceeds_the_limit_however_holders_stall and sees [
        "allowed",
        "booked",
        "early",
        "go",
        "go ahead of the start",
        "closed",
        "go came too late",
        "rebooked",
        "spent",
        "claimed before",
        "unknown",
        "denied",
        "cancelled",
        "gone",
        "waited for its owner",
        "crashed",
        "stalled",
    ];
    an_acquire_that_ignores_bookings_is_found: AcquireIgnoresBookings breaks "B1";
    a_booking_written_at_its_start_is_found: WrittenAtStart breaks "B1";
    a_second_claimant_that_goes_is_found: SecondClaimantGoes breaks "B1";
    a_late_claim_that_goes_is_found: LateClaimGoes breaks "B1";
    a_rebooking_that_removes_what_was_used_is_found: RebookingRemovesUsed breaks "B1";
    a_cancel_that_gives_back_what_was_used_is_found: CancelGivesBackUsed breaks "B1";
    a_go_that_is_used_long_after_is_found: StaleGo breaks "B1";
    a_holder_that_goes_before_its_start_is_found: GoesBeforeStart breaks "B1";
    a_start_that_is_counted_from_the_question_is_found: StartCountedFromSent breaks "B1";
    a_decision_that_is_taken_for_the_middle_of_its_round_trip_is_found: DecidedInTheMiddle breaks "B1";
    a_clock_that_drifts_faster_than_assumed_is_found: FastDrift breaks "B1";
    an_early_claim_that_ignores_a_gate_is_found: EarlyClaimIgnoresGate breaks "B5";
    a_bucket_that_gives_back_beside_later_bookings_is_found: BucketForgetsLater breaks "B1";
    a_bucket_that_gives_back_twice_is_found: BucketForgetsGivenBack breaks "B1";
    an_owner_that_does_not_space_its_starts_is_found: OwnerIgnoresRealStarts breaks "B1";
    a_change_of_the_owner_without_slack_is_found: OwnersShareRun breaks "B1";
    a_holder_that_waits_by_its_own_clock_is_found: OwnClock breaks "liveness";
    a_late_repetition_that_books_anew_is_found: LateRepetitionRebooks breaks "B3";
    a_claimant_that_goes_twice_is_found: SpentClaimantGoes breaks "B3";
    a_cancel_without_a_tombstone_is_found: CancelWithoutTombstone breaks "B3";
    a_booking_that_is_written_again_is_found: BookedAgain breaks "B3";
}
