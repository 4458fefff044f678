//! [`Process`]: a simulated process that may be suspended or killed between any two of its steps.

use std::fmt::Debug;

use sluicegate_core::Span;

use super::rng::Rng;
use super::scheduler::Scheduler;

/// The rates at which processes are suspended and killed, drawn at random per seed.
#[derive(Clone, Copy)]
pub(crate) struct FaultRates {
    stall_per_mille: u64,
    stall_us_max: u64,
    crash_per_mille: u64,
}

impl FaultRates {
    pub(crate) fn random(rng: &mut Rng, stall_max: Span) -> Self {
        Self {
            stall_per_mille: rng.between(0, 60),
            stall_us_max: stall_max.as_micros(),
            crash_per_mille: rng.between(0, 25),
        }
    }
}

/// The state of a process when its next event is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// It handles the event.
    Runs,
    /// It is suspended (SIGSTOP, a long pause of a virtual machine) and handles the event later.
    Stalls,
    /// It crashes before it handles the event.
    Crashes,
    /// It has crashed before.
    Dead,
}

/// A process, which runs, is suspended or is down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    stalled_until_us: u64,
    down_until_us: u64,
}

impl Process {
    pub(crate) const fn new() -> Self {
        Self { stalled_until_us: 0, down_until_us: 0 }
    }

    /// Draws the state of the process `name` for its next event. A suspended process gets the event
    /// again later.
    ///
    /// The events that wait for a suspended process arrive in any order when it continues: a reply
    /// and its timeout are then both due, and the process may see either first.
    pub(crate) fn draw_state<E: Clone + Debug>(
        &mut self,
        sim: &mut Scheduler<E>,
        faults: FaultRates,
        name: impl Fn() -> String,
        event: &E,
    ) -> ProcessState {
        let now_us = sim.now_us();
        if self.down_until_us > now_us {
            return ProcessState::Dead;
        }
        if sim.stormy() && self.stalled_until_us <= now_us {
            if sim.rng.chance(faults.crash_per_mille) {
                sim.count("crashed");
                sim.note(|| format!("{} crashes", name()));
                return ProcessState::Crashes;
            }
            if sim.rng.chance(faults.stall_per_mille) {
                self.stalled_until_us = now_us + sim.rng.between(1_000, faults.stall_us_max);
            }
        }
        if self.stalled_until_us > now_us {
            let jitter_us = sim.rng.between(1, 50);
            let for_us = self.stalled_until_us - now_us + jitter_us;
            sim.count("stalled");
            sim.note(|| format!("{} is stopped for {for_us} us more", name()));
            sim.after(for_us, event.clone());
            return ProcessState::Stalls;
        }
        ProcessState::Runs
    }

    /// Marks the process as down. It comes back without its memory at `until_us`, if ever.
    pub(crate) const fn down_until(&mut self, until_us: u64) {
        self.down_until_us = until_us;
    }

    /// Returns true if the process never comes back.
    pub(crate) const fn is_dead(&self) -> bool {
        self.down_until_us == u64::MAX
    }
}
