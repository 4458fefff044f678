//! A process that may be stopped for a while or killed between any two of its steps.

use std::fmt::Debug;

use sluicegate_core::Span;

use super::rng::Rng;
use super::scheduler::Scheduler;

/// How often processes are stopped and killed; each seed draws its own.
#[derive(Clone, Copy)]
pub(crate) struct Misfortune {
    stall_per_mille: u64,
    stall_us_max: u64,
    crash_per_mille: u64,
}

impl Misfortune {
    pub(crate) fn drawn(rng: &mut Rng, stall_max: Span) -> Self {
        Self {
            stall_per_mille: rng.between(0, 60),
            stall_us_max: stall_max.as_micros(),
            crash_per_mille: rng.between(0, 25),
        }
    }
}

/// What happens to a process when its next event comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It handles the event.
    Runs,
    /// It is stopped (SIGSTOP, a long pause of a virtual machine) and handles it so much later.
    Stalls { for_us: u64 },
    /// It dies before it handles the event.
    Crashes,
    /// It has died.
    Dead,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    stalled_until_us: u64,
    down_until_us: u64,
}

impl Process {
    pub(crate) const fn new() -> Self {
        Self { stalled_until_us: 0, down_until_us: 0 }
    }

    /// Draws what happens to it now.
    ///
    /// Events that wait for a stalled process come in any order when it goes on: a reply and
    /// the timer that waits for it are then both due, and the process may see either first.
    pub(crate) fn fate<E: Clone + Debug>(
        &mut self,
        sim: &mut Scheduler<E>,
        misfortune: Misfortune,
    ) -> Fate {
        let now_us = sim.now_us();
        if self.down_until_us > now_us {
            return Fate::Dead;
        }
        if sim.stormy() && self.stalled_until_us <= now_us {
            if sim.rng.chance(misfortune.crash_per_mille) {
                return Fate::Crashes;
            }
            if sim.rng.chance(misfortune.stall_per_mille) {
                self.stalled_until_us = now_us + sim.rng.between(1_000, misfortune.stall_us_max);
            }
        }
        if self.stalled_until_us > now_us {
            let jitter_us = sim.rng.between(1, 50);
            return Fate::Stalls { for_us: self.stalled_until_us - now_us + jitter_us };
        }
        Fate::Runs
    }

    /// It is gone, and comes back without a memory at `until_us`, if ever.
    pub(crate) const fn down_until(&mut self, until_us: u64) {
        self.down_until_us = until_us;
    }

    /// Whether it has died for good.
    pub(crate) const fn is_dead(&self) -> bool {
        self.down_until_us == u64::MAX
    }
}
