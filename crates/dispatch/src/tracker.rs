//! Where jobs are, as far as this process had to do with them: the answer to "why does it not run".

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_core::Timestamp;
use sluicegate_queue::{JobId, Message};

/// The most jobs that are remembered; the first to come is forgotten first.
const JOBS_MAX: usize = 100_000;

/// Remembers what became of jobs. Clones share one memory.
#[derive(Clone, Debug, Default)]
pub struct Tracker(Arc<Mutex<Jobs>>);

#[derive(Debug, Default)]
struct Jobs {
    last: HashMap<JobId, Sighting>,
    order: VecDeque<JobId>,
}

/// What was last seen of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When, by the clock of the queue.
    pub at: Timestamp,
    /// What had happened.
    pub event: Event,
    /// The queue that it is in now, or was.
    pub queue: String,
    /// Whom it is for, if that is known.
    pub provider: Option<String>,
    /// Nothing happens before this, if there is something to wait for.
    pub until: Option<Timestamp>,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// How often it has failed.
    pub attempt: u32,
    /// How often it had to wait for a limit.
    pub deferrals: u32,
}

/// What can happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A dispatcher sent it to its provider's queue.
    Dispatched,
    /// A dispatcher did so, for later: the limit of the provider is reached.
    Delayed,
    /// A worker holds it and waits for the limit of the provider.
    Waiting,
    /// A worker gave it back until the limit of the provider lets it go.
    Deferred,
    /// A worker works on it.
    InWork,
    /// It failed, and is tried again.
    Retried,
    /// It is done.
    Done,
    /// It lies with the dead letters.
    Dead,
}

impl Event {
    /// A word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::Delayed => "delayed",
            Self::Waiting => "waiting",
            Self::Deferred => "deferred",
            Self::InWork => "in_work",
            Self::Retried => "retried",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }
}

impl Sighting {
    /// Something happened to a message.
    pub(crate) fn new(message: &Message, event: Event, queue: &str, at: Timestamp) -> Self {
        Self {
            at,
            event,
            queue: queue.to_owned(),
            provider: None,
            until: None,
            error: None,
            attempt: message.meta.attempt,
            deferrals: message.meta.deferrals,
        }
    }

    pub(crate) fn of(mut self, provider: &str) -> Self {
        self.provider = Some(provider.to_owned());
        self
    }

    pub(crate) const fn until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    pub(crate) fn because(mut self, error: &str) -> Self {
        self.error = Some(error.to_owned());
        self
    }
}

impl Tracker {
    /// What was last seen of a job.
    pub fn find(&self, job: &str) -> Option<Sighting> {
        let job = JobId::try_from(job.to_owned()).ok()?;
        self.lock().last.get(&job).cloned()
    }

    pub(crate) fn saw(&self, job: &JobId, sighting: Sighting) {
        let mut jobs = self.lock();
        if let Some(last) = jobs.last.get_mut(job) {
            *last = sighting;
            return;
        }
        if jobs.order.len() == JOBS_MAX
            && let Some(first) = jobs.order.pop_front()
        {
            jobs.last.remove(&first);
        }
        jobs.order.push_back(job.clone());
        jobs.last.insert(job.clone(), sighting);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_forgotten_first_and_the_last_sighting_counts() {
        let tracker = Tracker::default();
        let message = Message::new("{}");
        let seen = |event| Sighting::new(&message, event, "q", Timestamp::from_micros(1));
        let job = |n: usize| JobId::try_from(format!("job-{n}")).expect("a job id");
        for n in 0..=JOBS_MAX {
            tracker.saw(&job(n), seen(Event::Dispatched));
        }
        tracker.saw(&job(7), seen(Event::Done));
        assert_eq!(tracker.find("job-0"), None);
        assert_eq!(tracker.find("job-7").map(|seen| seen.event), Some(Event::Done));
        assert_eq!(tracker.find("job-8").map(|seen| seen.event), Some(Event::Dispatched));
        assert_eq!(tracker.find("\n"), None);
    }
}
