//! Tests of the distributed protocols: they keep their invariants under every fault that a seed
//! draws, and the exploration finds every planted mistake.
//!
//! A failing seed prints the command that repeats it, and its trace. `SLUICEGATE_LONG=1` tries
//! fifty times as many seeds.

#[path = "protocols/booking.rs"]
mod booking;
#[path = "protocols/cross_slot.rs"]
mod cross_slot;
#[path = "protocols/lease.rs"]
mod lease;
#[path = "protocols/timed_out.rs"]
mod timed_out;

/// Number of seeds for which each protocol has to hold.
const SEEDS: u64 = 20_000;
/// Maximum number of seeds to find each mistake.
const SEEDS_PER_MISTAKE: u64 = 20_000;

/// The tests of one protocol: it holds, and each mistake breaks the invariant beside it.
macro_rules! protocol {
    (
        $protocol:ident with $mistakes:ident holds in $holds:ident and sees $must_see:expr;
        $($finds:ident: $mistake:ident breaks $invariant:literal;)*
    ) => {
        use sluicegate_testkit::sim::explore::{Exploration, Tracing};
        use sluicegate_testkit::sim::$protocol::{$mistakes, run};

        #[test]
        fn $holds() {
            let name = concat!(stringify!($protocol), "::", stringify!($holds));
            let exploration = Exploration::from_env(name, crate::SEEDS);
            println!("{}", exploration.holds(&$must_see, |seed, tracing| run(seed, None, tracing)));
        }

        #[test]
        fn a_seed_always_plays_the_same_run() {
            for seed in 0..20 {
                assert_eq!(run(seed, None, Tracing::On), run(seed, None, Tracing::On));
            }
        }

        $(
            #[test]
            fn $finds() {
                let name = concat!(stringify!($protocol), "::", stringify!($finds));
                let exploration = Exploration::of_mistake(name, crate::SEEDS_PER_MISTAKE);
                let run = |seed, tracing| run(seed, Some($mistakes::$mistake), tracing);
                println!("{}", exploration.finds($invariant, run));
            }
        )*
    };
}
use protocol;
