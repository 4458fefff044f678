//! Tests of the protocol for calls that timed out and are rolled back.

crate::protocol! {
    timed_out with TimedOutMistake holds in what_was_denied_is_not_charged_and_what_was_admitted_is and sees [
        "allowed",
        "denied",
        "given up",
        "admitted by the policy",
        "given back",
        "relies on an earlier attempt",
        "another relies on it",
        "refused by the fence",
        "connection given up",
        "forgot the script",
        "retried",
        "taken back again",
        "taken back after a denial",
        "crashed",
        "stalled",
    ];
    a_late_arrival_that_is_charged_is_found: NoFence breaks "U4";
    a_fence_that_refuses_its_own_connection_is_found: FenceTooHigh breaks "U5";
    a_fence_for_all_nodes_is_found: FenceForAll breaks "U5";
    a_batch_that_is_sent_again_with_what_was_given_up_is_found: ResendsGivenUp breaks "U4";
    a_denial_that_ends_what_was_sent_before_is_found: DeniedIsDone breaks "U4";
    a_take_back_that_is_sent_once_is_found: TakeBackOnce breaks "U4";
    a_take_back_that_names_only_the_id_is_found: TakeBackById breaks "U2";
    a_retry_that_does_not_rely_on_the_charge_is_found: ReplayNotNoted breaks "U2";
    an_id_that_is_refused_after_a_take_back_is_found: RefusesTheId breaks "U5";
    a_take_back_of_what_the_policy_admitted_is_found: TakesBackAdmitted breaks "U3";
}
