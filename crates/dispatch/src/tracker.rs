//! [`JobTracker`]: the last known status of each job in this process, which answers "why does it
//! not run", and the events before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sluicegate_core::Timestamp;
use sluicegate_queue::{JobId, Message};

use crate::limits::{ProviderLimits, ProviderState};

/// Maximum number of tracked jobs; the oldest is forgotten first.
const JOBS_MAX: usize = 100_000;
/// Maximum number of earlier events of all jobs; those of the oldest jobs are forgotten first.
const EVENTS_MAX: usize = 500_000;
/// Maximum number of earlier events of one job. The first is kept, and errors longer than others.
const EVENTS_OF_JOB_MAX: usize = 15;
/// Maximum length of the error of an earlier event, in bytes.
const ERROR_MAX: usize = 500;

/// Remembers the status and the events of jobs, and knows the limits of their providers. Clones share
/// the same data.
#[derive(Clone, Default)]
pub struct JobTracker {
    jobs: Arc<Mutex<Jobs>>,
    providers: Arc<Mutex<Vec<Weak<ProviderLimits>>>>,
}

impl fmt::Debug for JobTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobTracker").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Jobs {
    records: HashMap<JobId, JobRecord>,
    order: VecDeque<JobId>,
    /// Number of earlier events of all jobs.
    events: usize,
    /// Number of jobs at the begin of `order` whose earlier events were forgotten.
    without_events: usize,
}

/// Everything that is known about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Last known status.
    pub status: JobStatus,
    /// Events before that, the oldest first. Some in the middle may have been forgotten.
    pub earlier: Vec<PastEvent>,
}

/// An event of a job that was followed by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastEvent {
    /// Time of the event, by the clock of the queue.
    pub at: Timestamp,
    /// The event.
    pub event: JobEvent,
    /// Queue that the job was in.
    pub queue: String,
    /// Error, if the job failed.
    pub error: Option<String>,
}

/// The last known status of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Time of the event, by the clock of the queue.
    pub at: Timestamp,
    /// Last event.
    pub event: JobEvent,
    /// Queue that the job is in, or was in.
    pub queue: String,
    /// Provider, if one is chosen.
    pub provider: Option<String>,
    /// Time before which nothing happens, if the job waits.
    pub until: Option<Timestamp>,
    /// Error, if the job failed.
    pub error: Option<String>,
    /// Number of failed attempts.
    pub attempt: u32,
    /// Number of times the job waited for a limit.
    pub deferrals: u32,
}

/// An event in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// A client of the queue API sent the job.
    Sent,
    /// A client of the queue API has the job.
    Leased,
    /// A dispatcher sent the job to its provider's queue.
    Dispatched,
    /// A dispatcher sent the job with a delay, because the provider's limit is reached.
    Delayed,
    /// A worker holds the job and waits for the provider's limit.
    Waiting,
    /// A worker returned the job to the queue until the provider's limit admits it.
    Deferred,
    /// A worker runs the job.
    InWork,
    /// The job failed and is retried.
    Retried,
    /// The job is done.
    Done,
    /// The job is a dead letter.
    Dead,
}

impl JobEvent {
    /// Returns the name of the event in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Leased => "leased",
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

impl JobStatus {
    /// Creates the status of a message after an event.
    pub(crate) fn new(message: &Message, event: JobEvent, queue: &str, at: Timestamp) -> Self {
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

impl JobRecord {
    /// Adds an event. Of equal events in a row, such as waits for a limit, only the last is kept.
    /// Returns true if there is one more than before.
    fn add(&mut self, status: JobStatus) -> bool {
        let JobStatus { at, event, queue, mut error, .. } =
            std::mem::replace(&mut self.status, status);
        if let Some(error) = &mut error {
            error.truncate(error.floor_char_boundary(ERROR_MAX));
        }
        let past = PastEvent { at, event, queue, error };
        if let Some(last) = self.earlier.last_mut()
            && (last.event, &last.queue, &last.error) == (past.event, &past.queue, &past.error)
        {
            *last = past;
            return false;
        }
        let is_full = self.earlier.len() == EVENTS_OF_JOB_MAX;
        if is_full {
            let without_error = self.earlier.iter().skip(1).position(|one| one.error.is_none());
            self.earlier.remove(without_error.unwrap_or(0) + 1);
        }
        self.earlier.push(past);
        !is_full
    }
}

impl Jobs {
    /// Forgets the earlier events of the oldest jobs until there are not too many.
    fn forget_events(&mut self) {
        while self.events > EVENTS_MAX {
            let Some(job) = self.order.get(self.without_events) else {
                self.without_events = 0;
                continue;
            };
            let earlier = self.records.get_mut(job).map(|record| &mut record.earlier);
            self.events -= earlier.map_or(0, |earlier| std::mem::take(earlier).len());
            self.without_events += 1;
        }
    }
}

impl JobTracker {
    /// Returns the last known status of a job, and its earlier events.
    pub fn find(&self, job: &str) -> Option<JobRecord> {
        let job = JobId::try_from(job.to_owned()).ok()?;
        self.lock().records.get(&job).cloned()
    }

    /// Records the status of a job.
    pub fn record(&self, job: &JobId, status: JobStatus) {
        let mut jobs = self.lock();
        let jobs = &mut *jobs;
        match jobs.records.get_mut(job) {
            Some(record) => jobs.events += usize::from(record.add(status)),
            None => {
                jobs.order.push_back(job.clone());
                jobs.records.insert(job.clone(), JobRecord { status, earlier: Vec::new() });
            }
        }
        while jobs.order.len() > JOBS_MAX
            && let Some(first) = jobs.order.pop_front()
        {
            let forgotten = jobs.records.remove(&first);
            jobs.events -= forgotten.map_or(0, |record| record.earlier.len());
            jobs.without_events = jobs.without_events.saturating_sub(1);
        }
        jobs.forget_events();
    }

    /// Adds the limits of a provider.
    pub(crate) fn add_provider(&self, limits: &Arc<ProviderLimits>) {
        let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        providers.push(Arc::downgrade(limits));
    }

    /// Asks the store for the state of the limits of all providers, by name.
    pub async fn provider_states(&self) -> BTreeMap<String, ProviderState> {
        let providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut states = BTreeMap::new();
        for limits in providers.iter().filter_map(Weak::upgrade) {
            if !states.contains_key(limits.provider()) {
                states.insert(limits.provider().to_owned(), limits.state().await);
            }
        }
        states
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_job_is_forgotten_first_and_the_last_status_counts() {
        let tracker = JobTracker::default();
        let message = Message::new("{}");
        let seen = |event| JobStatus::new(&message, event, "q", Timestamp::from_micros(1));
        let job = |n: usize| JobId::try_from(format!("job-{n}")).expect("a job id");
        for n in 0..=JOBS_MAX {
            tracker.record(&job(n), seen(JobEvent::Dispatched));
        }
        tracker.record(&job(7), seen(JobEvent::Done));
        assert_eq!(tracker.find("job-0"), None);
        let event = |job: &str| tracker.find(job).map(|record| record.status.event);
        assert_eq!(event("job-7"), Some(JobEvent::Done));
        assert_eq!(event("job-8"), Some(JobEvent::Dispatched));
        assert_eq!(tracker.find("\n"), None);
    }

    #[test]
    fn the_first_event_and_the_errors_of_a_job_are_kept() {
        let tracker = JobTracker::default();
        let message = Message::new("{}");
        let job = message.meta.job.clone();
        let record = |event, error: Option<&str>, at| {
            let status = JobStatus::new(&message, event, "q", Timestamp::from_micros(at));
            tracker.record(&job, JobStatus { error: error.map(str::to_owned), ..status });
        };
        record(JobEvent::Dispatched, None, 0);
        record(JobEvent::Retried, Some("\u{e9}".repeat(ERROR_MAX).as_str()), 1);
        for at in 1..=100 {
            // Equal events in a row are one.
            record(JobEvent::Deferred, None, 3 * at);
            record(JobEvent::Deferred, None, 3 * at + 1);
            record(JobEvent::InWork, None, 3 * at + 2);
        }
        record(JobEvent::Done, None, 1_000);
        let record = tracker.find(job.as_str()).expect("it was there");
        assert_eq!(record.status.event, JobEvent::Done);
        let times: Vec<_> = record.earlier.iter().map(|event| event.at.as_micros()).collect();
        let latest = (0..).flat_map(|n| [3 * n + 1, 3 * n + 2]).take_while(|at| *at <= 302);
        let latest: Vec<_> = latest.skip(202 - (EVENTS_OF_JOB_MAX - 2)).collect();
        assert_eq!(times, [vec![0, 1], latest].concat());
        let error = record.earlier[1].error.as_deref().expect("an error");
        assert_eq!(error, "\u{e9}".repeat(ERROR_MAX / 2));
        assert_eq!(tracker.lock().events, EVENTS_OF_JOB_MAX);
    }

    #[test]
    fn the_events_of_all_jobs_together_are_bounded() {
        const JOBS: usize = EVENTS_MAX / EVENTS_OF_JOB_MAX + 100;
        let tracker = JobTracker::default();
        let message = Message::new("{}");
        let job = |n: usize| JobId::try_from(format!("job-{n}")).expect("a job id");
        for n in 0..JOBS {
            for at in 0..=EVENTS_OF_JOB_MAX as u64 {
                let event = if at % 2 == 0 { JobEvent::Deferred } else { JobEvent::InWork };
                let at = Timestamp::from_micros(at);
                tracker.record(&job(n), JobStatus::new(&message, event, "q", at));
            }
        }
        let jobs = tracker.lock();
        let counted: usize = jobs.records.values().map(|record| record.earlier.len()).sum();
        assert!(jobs.events == counted && counted <= EVENTS_MAX, "{counted}");
        assert_eq!(jobs.records.len(), JOBS, "the last event of each job is kept");
        assert_eq!(jobs.records[&job(0)].earlier, []);
        assert_eq!(jobs.records[&job(JOBS - 1)].earlier.len(), EVENTS_OF_JOB_MAX);
    }
}
