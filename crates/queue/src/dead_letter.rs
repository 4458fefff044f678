//! [`DeadLetters`]: lists, replays and deletes messages that could not be processed.
//!
//! A dead letter is the body of its producer with a member `error` added, if the body is a JSON
//! object, and otherwise the unchanged body. The position of the member is stored in the metadata,
//! so that a replayed letter has exactly the bytes that its producer sent.

use std::collections::HashSet;

use serde::de::IgnoredAny;
use serde_json::json;
use sluicegate_core::Timestamp;

use crate::body_fields::without_byte_order_mark;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::message::FailureRecord;
use crate::peek::{self, QueueScan, Visit};
use crate::{DeadLetterReason, DeliveryTime, Error, Message, Queue};

/// Maximum lengths of the error message and the stack, so that a letter does not exceed the
/// broker's size limit.
const MESSAGE_MAX: usize = 1_024;
const STACK_MAX: usize = 8_192;
/// Maximum length of the error message in the shortest form of a letter.
const SHORT_MAX: usize = 128;

/// A dead letter.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    queue: Queue,
}

/// A letter, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message in the dead-letter queue.
    pub message: Message,
}

impl DeadLetter {
    /// Returns the record of its failure. `None` if the broker itself moved it to the dead-letter
    /// queue.
    pub const fn failure(&self) -> Option<&FailureRecord> {
        self.message.meta.died.as_ref()
    }

    /// Returns the body as its producer sent it.
    pub fn original(&self) -> Vec<u8> {
        restore(&self.message)
    }
}

/// A filter for dead letters. Default: matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Queue in which the message failed. Several queues may share a dead-letter queue.
    pub queue: Option<String>,
    /// Job id.
    pub job: Option<String>,
    /// Type of the message.
    pub kind: Option<String>,
    /// Text that the error message contains.
    pub error: Option<String>,
    /// Time of death: this instant or earlier.
    pub until: Option<Timestamp>,
}

impl DeadLetterFilter {
    fn matches(&self, letter: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let died = letter.failure();
        is(&self.queue, died.map(|died| died.queue.as_str()))
            && is(&self.job, Some(letter.message.meta.job.as_str()))
            && is(&self.kind, letter.message.kind.as_deref())
            && self
                .error
                .as_deref()
                .is_none_or(|text| died.is_some_and(|died| died.message.contains(text)))
            && self.until.is_none_or(|until| died.is_some_and(|died| died.at <= until))
    }
}

/// An action on dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LetterAction {
    Replay,
    Delete,
}

impl DeadLetters {
    pub(crate) const fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// Passes at most `max` matching letters to `show`. Returns their number.
    pub async fn list(
        &self,
        filter: &DeadLetterFilter,
        max: u64,
        mut show: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        let mut shown = 0;
        if max == 0 {
            return Ok(shown);
        }
        peek::show(&self.queue, &self.queue.inner.dead, usize::MAX, |message| {
            let letter = DeadLetter { message };
            if filter.matches(&letter) {
                show(&letter);
                shown += 1;
            }
            if shown < max { Visit::Continue } else { Visit::Stop }
        })
        .await?;
        Ok(shown)
    }

    /// Returns true if the queue that a letter failed in is known. It is not if the broker itself moved
    /// the letter to a dead-letter queue that several queues may share.
    pub fn knows_origin(&self, letter: &DeadLetter) -> bool {
        letter.failure().is_some() || self.queue.shared_dead_letters().is_none()
    }

    /// Republishes letters with their original bodies to the queues that they came from; those of
    /// unknown origin stay. The job ids stay the same, attempts start at zero. Returns the number of
    /// letters.
    pub async fn replay(
        &self,
        filter: &DeadLetterFilter,
        max: u64,
        done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        self.process(filter, max, LetterAction::Replay, done).await
    }

    /// Deletes letters. Returns their number.
    pub async fn delete(
        &self,
        filter: &DeadLetterFilter,
        max: u64,
        done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        self.process(filter, max, LetterAction::Delete, done).await
    }

    /// Receives every letter once, and applies the action to those that match. A job that was
    /// replayed and has failed again meanwhile is not replayed once more.
    async fn process(
        &self,
        filter: &DeadLetterFilter,
        max: u64,
        action: LetterAction,
        mut done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        let mut scan = QueueScan::open(&self.queue, &self.queue.inner.dead, usize::MAX).await?;
        let mut matched = 0;
        let mut replayed = HashSet::new();
        let outcome = loop {
            if matched == max {
                break Ok(matched);
            }
            let scanned = match scan.next().await {
                Ok(Some(scanned)) => scanned,
                Ok(None) => break Ok(matched),
                Err(error) => break Err(error),
            };
            let letter = DeadLetter { message: scanned.message.clone() };
            let is_kept = action == LetterAction::Replay
                && (!self.knows_origin(&letter) || replayed.contains(&letter.message.meta.job));
            if is_kept || !filter.matches(&letter) {
                scan.hold(scanned);
                continue;
            }
            let settled = match action {
                LetterAction::Delete => scanned.receipt.ack().await,
                LetterAction::Replay => {
                    replayed.insert(letter.message.meta.job.clone());
                    self.replay_letter(&letter, scanned.receipt).await
                }
            };
            if let Err(error) = settled {
                break Err(error);
            }
            matched += 1;
            done(&letter);
        };
        scan.requeue().await;
        outcome
    }

    /// Republishes a letter, without metadata if its body leaves no room for them.
    async fn replay_letter(
        &self,
        letter: &DeadLetter,
        receipt: Box<dyn Receipt>,
    ) -> Result<(), Error> {
        let (queue_name, mut next) = self.replay_message(letter);
        let replayed = receipt.relay(queue_name.clone(), next.clone()).await;
        let Err(RelayError { error: Error::TooLarge { .. }, receipt: Some(receipt) }) = replayed
        else {
            return replayed.map_err(Error::from);
        };
        next.message.omit_metadata();
        receipt.relay(queue_name, next).await.map_err(Error::from)
    }

    /// Returns the message to republish, and its queue.
    fn replay_message(&self, letter: &DeadLetter) -> (QueueName, OutgoingMessage) {
        let mut message = letter.message.clone();
        message.body = letter.original().into();
        let home = message.meta.died.take().map(|died| QueueName::Live(died.queue));
        let home = home.filter(|home| *home != self.queue.inner.live);
        message.meta.count_hop();
        message.meta.attempt = 0;
        message.meta.redeliveries = 0;
        message.meta.deferrals = 0;
        message.meta.booking = None;
        let next = self.queue.inner.outgoing(message, DeliveryTime::Now);
        (home.unwrap_or_else(|| self.queue.inner.live_for(&next.message).clone()), next)
    }
}

/// The form of a dead letter. A message that is almost as large as its broker allows has no room
/// for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterForm {
    /// The body with the error in it.
    Full,
    /// The unchanged body, and the error in the metadata.
    Beside,
    /// The unchanged body without headers, and the beginning of the error in the metadata.
    Short,
    /// The unchanged body alone.
    Bare,
}

impl LetterForm {
    /// All forms, the largest first.
    pub(crate) const ALL: [Self; 4] = [Self::Full, Self::Beside, Self::Short, Self::Bare];
}

/// Turns a message into a dead letter.
pub(crate) fn to_dead_letter(
    mut message: Message,
    queue: &str,
    reason: &DeadLetterReason,
    now: Timestamp,
    form: LetterForm,
) -> Message {
    if form == LetterForm::Bare {
        message.meta.count_hop();
        message.omit_metadata();
        return message;
    }
    if form == LetterForm::Short {
        message.headers.clear();
        let error = truncate(&reason.message, SHORT_MAX);
        let queue = queue.to_owned();
        message.meta.count_hop();
        message.meta.died =
            Some(FailureRecord { queue, message: error, stack: None, at: now, splice: None });
        return message;
    }
    let error_message = truncate(&reason.message, MESSAGE_MAX);
    let stack = reason.stack.as_deref().map(|stack| truncate(stack, STACK_MAX));
    let shown = stack.as_ref().unwrap_or(&error_message);
    let mut error =
        json!({ "message": error_message, "stack": shown, "timestamp": now.to_string() });
    for (name, value) in &reason.details {
        // Our own members take precedence: details do not replace them.
        error.as_object_mut().expect("it is one").entry(*name).or_insert_with(|| value.clone());
    }
    let is_full = form == LetterForm::Full;
    let spliced = is_full.then(|| splice(&message.body, &error.to_string())).flatten();
    let splice = spliced.map(|(body, at, length)| {
        message.body = body.into();
        (at, length)
    });
    // A body with the error has the stack, too; in the metadata it would be stored twice.
    let stack = stack.filter(|_| splice.is_none());
    let queue = queue.to_owned();
    message.meta.count_hop();
    message.meta.died =
        Some(FailureRecord { queue, message: error_message, stack, at: now, splice });
    message
}

/// Adds the member `error` at the end of a JSON object. Returns the new body, and the position and
/// length of the member.
fn splice(body: &[u8], error: &str) -> Option<(Vec<u8>, usize, usize)> {
    // An object of any depth; a byte order mark before it is no part of it.
    let json = without_byte_order_mark(body);
    let is_object = json.trim_ascii_start().first() == Some(&b'{');
    serde_json::from_slice::<IgnoredAny>(json).ok().filter(|_| is_object)?;
    let at = body.iter().rposition(|byte| *byte == b'}')?;
    let is_empty = body[..at].trim_ascii_end().last() == Some(&b'{');
    let member = format!("{}\"error\":{error}", if is_empty { "" } else { "," });
    let spliced = [&body[..at], member.as_bytes(), &body[at..]].concat();
    Some((spliced, at, member.len()))
}

/// Returns the body as its producer sent it.
fn restore(letter: &Message) -> Vec<u8> {
    let body = &letter.body;
    let splice = letter.meta.died.as_ref().and_then(|died| died.splice);
    let end =
        |(at, length): (usize, usize)| at.checked_add(length).filter(|end| *end <= body.len());
    match splice.and_then(|splice| Some((splice.0, end(splice)?))) {
        Some((at, end)) => [&body[..at], &body[end..]].concat(),
        None => body.to_vec(),
    }
}

/// Returns the start of a text, at most `max` bytes.
fn truncate(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(body: &'static str) -> Message {
        let reason = DeadLetterReason {
            stack: Some("at x".to_owned()),
            ..DeadLetterReason::new("no \"luck\"")
        };
        let now = Timestamp::from_secs(1_800_000_000);
        to_dead_letter(Message::new(body), "jobs", &reason, now, LetterForm::Full)
    }

    #[test]
    fn a_letter_is_the_original_with_the_error() {
        let letter = letter(r#"{"AnalysisId": "a", "n": 1}"#);
        let expected = r#"{"AnalysisId": "a", "n": 1,"error":{"message":"no \"luck\"","stack":"at x","timestamp":"2027-01-15T08:00:00Z"}}"#;
        assert_eq!(letter.body, expected);
        let empty = self::letter("{ }");
        assert!(serde_json::from_slice::<serde_json::Value>(&empty.body).is_ok());
    }

    #[test]
    fn without_a_stack_a_letter_has_its_message_in_that_place() {
        let of = |body: &'static str| {
            let reason = DeadLetterReason::new("too old");
            let message = Message::new(body);
            to_dead_letter(message, "q", &reason, Timestamp::ZERO, LetterForm::Full)
        };
        let body: serde_json::Value = serde_json::from_slice(&of("{}").body).expect("JSON");
        assert_eq!(body["error"]["stack"], "too old");
        let died = of("[1]").meta.died.expect("it died");
        assert_eq!((died.stack.as_deref(), died.message.as_str()), (None, "too old"));
    }

    #[test]
    fn every_body_comes_back_byte_by_byte() {
        for body in
            ["{}", "{ }\n", r#" {"a":"}"} "#, r#"{"error": 1}"#, "[1]", "}", "", "{", "\u{0}\u{1}"]
        {
            let letter = letter(body);
            assert_eq!(restore(&letter), body.as_bytes(), "{body:?}");
        }
    }

    #[test]
    fn a_deep_body_and_one_with_a_byte_order_mark_are_json() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
        for body in [deep, "\u{feff}{\"a\":1}".to_owned()] {
            let reason = DeadLetterReason::new("no");
            let message = Message::new(body.clone());
            let letter = to_dead_letter(message, "q", &reason, Timestamp::ZERO, LetterForm::Full);
            assert!(letter.body.ends_with(b"}}") && restore(&letter) == body.as_bytes());
        }
    }

    #[test]
    fn a_body_that_is_no_json_object_is_unchanged_and_the_error_is_in_the_metadata() {
        let letter = letter("{broken");
        assert_eq!(letter.body, "{broken");
        let died = letter.meta.died.expect("it died");
        assert_eq!((died.message.as_str(), died.stack.as_deref()), ("no \"luck\"", Some("at x")));
        assert_eq!(died.splice, None);
    }

    #[test]
    fn forged_metadata_can_not_cut_outside_of_a_body() {
        for splice in [(0, 9), (9, 1), (usize::MAX, 1), (1, usize::MAX)] {
            let mut letter = letter("[1]");
            letter.meta.died.as_mut().expect("it died").splice = Some(splice);
            assert_eq!(restore(&letter), b"[1]", "{splice:?}");
        }
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let reason = DeadLetterReason::new("é".repeat(2_000));
        let full = LetterForm::Full;
        let letter = to_dead_letter(Message::new("x"), "q", &reason, Timestamp::ZERO, full);
        assert_eq!(letter.meta.died.expect("it died").message.len(), MESSAGE_MAX);
    }
}
