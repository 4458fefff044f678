//! Messages that nobody could work on: made, looked at, sent again, thrown away.
//!
//! A dead letter is the body of its producer with a member `error` in it, if it is a JSON object,
//! and otherwise the body as it is. Where the member was put is written down beside it, so that a
//! letter that is sent again is what its producer sent, byte by byte.

use serde_json::json;
use sluicegate_core::Timestamp;

use crate::broker::{Outgoing, Place};
use crate::message::Died;
use crate::peek::{self, Seen, Taking};
use crate::{Error, Message, Queue, Reason, When};

/// What is kept of a message and of a stack: a letter must not outgrow its broker.
const MESSAGE_MAX: usize = 1_024;
const STACK_MAX: usize = 8_192;

/// The dead letters of a queue.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    queue: Queue,
}

/// A letter, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message as it lies there.
    pub message: Message,
}

impl DeadLetter {
    /// How it ended. None if the broker put it there on its own.
    pub const fn died(&self) -> Option<&Died> {
        self.message.meta.died.as_ref()
    }

    /// What its producer sent.
    pub fn original(&self) -> Vec<u8> {
        restore(&self.message)
    }
}

/// Which letters are meant. Default: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of this job.
    pub job: Option<String>,
    /// Those of this kind of work.
    pub kind: Option<String>,
    /// Those in whose error this text is.
    pub error: Option<String>,
    /// Those that died at this instant or before.
    pub until: Option<Timestamp>,
}

impl Filter {
    fn matches(&self, letter: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let died = letter.died();
        is(&self.job, Some(letter.message.meta.job.as_str()))
            && is(&self.kind, letter.message.kind.as_deref())
            && self
                .error
                .as_deref()
                .is_none_or(|text| died.is_some_and(|died| died.message.contains(text)))
            && self.until.is_none_or(|until| died.is_some_and(|died| died.at <= until))
    }
}

/// What becomes of a letter that was meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Replayed,
    Deleted,
}

impl DeadLetters {
    pub(crate) const fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// Shows letters one after the other, at most `max` of those that are meant. Returns how many.
    pub async fn list(
        &self,
        filter: &Filter,
        max: u64,
        mut show: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        let mut shown = 0;
        if max == 0 {
            return Ok(shown);
        }
        peek::show(&self.queue, &self.queue.inner.dead, |message| {
            let letter = DeadLetter { message };
            if filter.matches(&letter) {
                show(&letter);
                shown += 1;
            }
            if shown < max { Seen::More } else { Seen::Enough }
        })
        .await?;
        Ok(shown)
    }

    /// Sends letters again, as their producers sent them, to the queues in which they died: new
    /// attempts, the same jobs. Returns how many.
    pub async fn replay(
        &self,
        filter: &Filter,
        max: u64,
        done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        self.go_through(filter, max, Fate::Replayed, done).await
    }

    /// Throws letters away. Returns how many.
    pub async fn delete(
        &self,
        filter: &Filter,
        max: u64,
        done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        self.go_through(filter, max, Fate::Deleted, done).await
    }

    /// Takes every letter once, and does with those that are meant what is wanted.
    async fn go_through(
        &self,
        filter: &Filter,
        max: u64,
        fate: Fate,
        mut done: impl FnMut(&DeadLetter),
    ) -> Result<u64, Error> {
        let mut taking = Taking::open(&self.queue, &self.queue.inner.dead).await?;
        let mut meant = 0;
        let outcome = loop {
            if meant == max {
                break Ok(meant);
            }
            let taken = match taking.next().await {
                Ok(Some(taken)) => taken,
                Ok(None) => break Ok(meant),
                Err(error) => break Err(error),
            };
            let letter = DeadLetter { message: taken.message.clone() };
            if !filter.matches(&letter) {
                taking.hold(taken);
                continue;
            }
            let settled = match fate {
                Fate::Deleted => taken.receipt.ack().await,
                Fate::Replayed => {
                    let (place, next) = self.again(&letter);
                    taken.receipt.relay(place, next).await
                }
            };
            if let Err(error) = settled {
                break Err(error);
            }
            meant += 1;
            done(&letter);
        };
        taking.give_back().await;
        outcome
    }

    /// A letter as a message once more, and where it goes.
    fn again(&self, letter: &DeadLetter) -> (Place, Outgoing) {
        let mut message = letter.message.clone();
        message.body = letter.original().into();
        let home = message.meta.died.take().map(|died| Place::Live(died.queue));
        message.meta.hop += 1;
        message.meta.attempt = 0;
        message.meta.deferrals = 0;
        message.meta.booking = None;
        let next = self.queue.inner.outgoing(message, When::Now);
        (home.unwrap_or_else(|| self.queue.inner.live.clone()), next)
    }
}

/// The letter that a message becomes.
pub(crate) fn bury(mut message: Message, queue: &str, reason: Reason, now: Timestamp) -> Message {
    let told = cut(&reason.message, MESSAGE_MAX);
    let mut stack = reason.stack.map(|stack| cut(&stack, STACK_MAX));
    let mut error = json!({ "message": told, "stack": stack, "timestamp": now.to_string() });
    for (name, value) in reason.details {
        // Those of its own come first: none is replaced.
        error.as_object_mut().expect("it is one").entry(name).or_insert(value);
    }
    let spliced = splice(&message.body, &error.to_string());
    let splice = spliced.map(|(body, at, length)| {
        message.body = body.into();
        // It is in the body; beside it, it would take its room twice.
        stack = None;
        (at, length)
    });
    let queue = queue.to_owned();
    message.meta.hop += 1;
    message.meta.died = Some(Died { queue, message: told, stack, at: now, splice });
    message
}

/// The body with the member at its end, where that was put and how long it is.
fn splice(body: &[u8], error: &str) -> Option<(Vec<u8>, usize, usize)> {
    serde_json::from_slice::<serde_json::Map<_, _>>(body).ok()?;
    let at = body.iter().rposition(|byte| *byte == b'}')?;
    let is_empty = body[..at].trim_ascii_end().last() == Some(&b'{');
    let member = format!("{}\"error\":{error}", if is_empty { "" } else { "," });
    let spliced = [&body[..at], member.as_bytes(), &body[at..]].concat();
    Some((spliced, at, member.len()))
}

/// What the producer sent.
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

/// The beginning of a text, at most so many bytes.
fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(body: &'static str) -> Message {
        let reason = Reason { stack: Some("at x".to_owned()), ..Reason::new("no \"luck\"") };
        bury(Message::new(body), "jobs", reason, Timestamp::from_secs(1_800_000_000))
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
    fn every_body_comes_back_byte_by_byte() {
        for body in
            ["{}", "{ }\n", r#" {"a":"}"} "#, r#"{"error": 1}"#, "[1]", "}", "", "{", "\u{0}\u{1}"]
        {
            let letter = letter(body);
            assert_eq!(restore(&letter), body.as_bytes(), "{body:?}");
        }
    }

    #[test]
    fn what_can_not_be_parsed_keeps_its_bytes_and_has_the_error_beside_it() {
        let letter = letter("{broken");
        assert_eq!(letter.body, "{broken");
        let died = letter.meta.died.expect("it died");
        assert_eq!((died.message.as_str(), died.stack.as_deref()), ("no \"luck\"", Some("at x")));
        assert_eq!(died.splice, None);
    }

    #[test]
    fn metadata_of_somebody_else_can_not_cut_outside_of_a_body() {
        for splice in [(0, 9), (9, 1), (usize::MAX, 1), (1, usize::MAX)] {
            let mut letter = letter("[1]");
            letter.meta.died.as_mut().expect("it died").splice = Some(splice);
            assert_eq!(restore(&letter), b"[1]", "{splice:?}");
        }
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let reason = Reason::new("é".repeat(2_000));
        let letter = bury(Message::new("x"), "q", reason, Timestamp::ZERO);
        assert_eq!(letter.meta.died.expect("it died").message.len(), MESSAGE_MAX);
    }
}
