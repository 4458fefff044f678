//! protocols
use sluicegate_testkit::sim::cross_slot::{self, Mistake};
use sluicegate_testkit::sim::explore::Exploration;
#[test]
fn cross() {
    println!("{}", Exploration::from_env("cross", 5000).holds(&[], |s, t| cross_slot::run(s, None, t)));
}
#[test]
fn mistakes() {
    use Mistake::*;
    for (m, i) in [(NoTombstone, "S4"), (ShortTombstone, "S4"), (ShortRecord, "S3"), (RetryUnderNewId, "S3"), (RetryAfterDeadline, "S3"), (ChargedAgain, "S3"),
        (TakeBackByScore, "S"), (TakeBackWhereReserved, "S4"), (TakeBackOnce, "S4"), (TakeBackForAll, "S2"), (LastAttemptOwns, "S2"), (NodeClock, "S1")] {
      let r = std::panic::catch_unwind(|| Exploration::from_env("x", 20000).finds(i, |s, t| cross_slot::run(s, Some(m), t)));
      println!("{m:?} {r:?}");
    }
}
