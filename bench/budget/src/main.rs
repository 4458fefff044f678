//! Measures overshoot and false denials of a budget: the same random requests against strict and
//! optimistic reservations, and against check-then-add.
//!
//! Time is virtual, and all limiters get the same requests, so every run has the same results. A
//! denial is false if the request would have fit beside the actual costs of all requests that were
//! admitted in the hour before, which no limiter could know at that time.

mod gates;
mod traffic;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gates::{BUDGET, CheckThenAdd, Gate, Ours, WINDOW};
use sluicegate_core::Timestamp;
use sluicegate_core::rule::EstimateMode;
use traffic::{Use, Work, traffic};

const SEEDS: u64 = 9;

/// Results of one run.
#[derive(Clone, Copy, Default)]
struct Outcome {
    /// Highest actual cost in any hour, minus the budget.
    overshoot: u64,
    refused: u64,
    falsely: u64,
    asked: u64,
    spent: u64,
}

/// Actual costs of the requests that were admitted in the last hour.
#[derive(Default)]
struct Truth {
    entries: VecDeque<(Timestamp, u64)>,
    sum: u64,
}

impl Truth {
    fn at(&mut self, now: Timestamp) -> u64 {
        while let Some(&(at, cost)) = self.entries.front()
            && at + WINDOW <= now
        {
            self.sum -= cost;
            self.entries.pop_front();
        }
        self.sum
    }

    fn spend(&mut self, work: &Work) {
        self.sum += work.actual;
        self.entries.push_back((work.at, work.actual));
    }
}

fn run(gate: &mut dyn Gate, all: &[Work]) -> Outcome {
    let mut outcome = Outcome { asked: all.len() as u64, ..Outcome::default() };
    let mut truth = Truth::default();
    let mut under_way = BinaryHeap::new();
    for (number, work) in all.iter().enumerate() {
        while let Some(&Reverse((done, other))) = under_way.peek()
            && done <= work.at
        {
            gate.settle(other, &all[other], done);
            under_way.pop();
        }
        let spent = truth.at(work.at);
        if gate.admit(number, work) {
            truth.spend(work);
            outcome.spent += work.actual;
            outcome.overshoot = outcome.overshoot.max(truth.sum.saturating_sub(BUDGET));
            under_way.push(Reverse((work.at + work.takes, number)));
        } else {
            outcome.refused += 1;
            outcome.falsely += u64::from(spent + work.actual <= BUDGET);
        }
    }
    outcome
}

type Make = fn() -> Box<dyn Gate>;

const GATES: [(&str, Make); 5] = [
    ("strict", || Box::new(Ours::new(EstimateMode::Strict, true))),
    ("optimistic, with estimates", || Box::new(Ours::new(EstimateMode::Optimistic, true))),
    ("optimistic, without", || Box::new(Ours::new(EstimateMode::Optimistic, false))),
    ("check, then add", || Box::new(CheckThenAdd::new(1))),
    ("the same on 4 replicas", || Box::new(CheckThenAdd::new(4))),
];

fn main() {
    for uses in Use::ALL {
        println!("\nAnswers use {}:\n", uses.name());
        println!("| {:<26} | overshoot |   worst | false refusals | of the budget spent |", "");
        println!(
            "|{}|----------:|--------:|---------------:|--------------------:|",
            "-".repeat(28)
        );
        for (name, make) in GATES {
            let mut outcomes: Vec<_> =
                (0..SEEDS).map(|seed| run(&mut *make(), &traffic(seed, uses))).collect();
            outcomes.sort_by_key(|outcome| outcome.overshoot);
            let (median, worst) = (outcomes[outcomes.len() / 2], outcomes[outcomes.len() - 1]);
            let sum = |figure: fn(&Outcome) -> u64| outcomes.iter().map(figure).sum::<u64>() as f64;
            let falsely = sum(|o| o.falsely) / sum(|o| o.asked);
            let spent = sum(|o| o.spent) / (3.0 * SEEDS as f64 * BUDGET as f64);
            let share = |part: f64| format!("{:.1} %", part * 100.0);
            println!(
                "| {name:<26} | {:>9} | {:>7} | {:>14} | {:>19} |",
                share(median.overshoot as f64 / BUDGET as f64),
                share(worst.overshoot as f64 / BUDGET as f64),
                share(falsely),
                share(spent),
            );
        }
    }
}
