//! [`Polling`]: receives messages by long polling. A poll runs in a task of its own, so that the
//! messages of a poll whose caller stopped waiting are there for the next caller.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message as Native, MessageSystemAttributeName};
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use tokio::task::JoinHandle;
use tracing::warn;

use super::client::{Line, Link};
use super::receipt::{Held, seconds};
use super::{attributes, failure};
use crate::Error;
use crate::broker::{Received, Source, Terms};

/// Maximum number of messages per poll.
const BATCH_MAX: usize = 10;
/// Backoff after a failed poll; it doubles each time.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) struct Polling {
    link: Arc<Link>,
    line: Arc<Line>,
    terms: Terms,
    asked: Option<JoinHandle<Result<Vec<Received>, Error>>>,
    /// Messages of a poll beyond the number that the current caller wants.
    over: Vec<Received>,
}

impl Polling {
    pub(super) const fn new(link: Arc<Link>, line: Arc<Line>, terms: Terms) -> Self {
        Self { link, line, terms, asked: None, over: Vec::new() }
    }

    fn ask(&self, max: usize) -> JoinHandle<Result<Vec<Received>, Error>> {
        let (link, line) = (self.link.clone(), self.line.clone());
        let most = max.min(usize::from(self.terms.prefetch.max(1))).clamp(1, BATCH_MAX);
        let question = link
            .client
            .receive_message()
            .queue_url(&line.queue.url)
            .max_number_of_messages(most as i32)
            .wait_time_seconds(seconds(self.terms.wait.min(Terms::WAIT_MAX)))
            .visibility_timeout(seconds(self.terms.visibility))
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
        tokio::spawn(async move {
            let answer = question.send().await;
            let answer = answer.map_err(|error| failure::of_queue(&line.queue.place, &error))?;
            let receive = |native| receive(&link, &line, native);
            Ok(answer.messages.unwrap_or_default().into_iter().map(receive).collect())
        })
    }
}

fn receive(link: &Arc<Link>, line: &Arc<Line>, mut native: Native) -> Received {
    let incoming = attributes::read(&native);
    let (handle, attributes) = (native.receipt_handle.take(), native.message_attributes.take());
    let (link, line) = (link.clone(), line.clone());
    Received { incoming, receipt: Box::new(Held { link, line, handle, attributes }) }
}

impl Source for Polling {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Received>, Error>> {
        async move {
            let mut wait = WAIT_MIN;
            loop {
                if !self.over.is_empty() {
                    let most = max.min(self.over.len());
                    return Ok(self.over.drain(..most).collect());
                }
                if self.asked.is_none() {
                    self.asked = Some(self.ask(max));
                }
                let Some(asked) = &mut self.asked else { continue };
                let answer = asked.await;
                self.asked = None;
                match answer {
                    Ok(Ok(received)) => {
                        wait = WAIT_MIN;
                        self.over = received;
                        if self.over.is_empty() && self.terms.wait == Span::ZERO {
                            tokio::time::sleep(WAIT_MIN).await;
                        }
                    }
                    Ok(Err(error)) if !error.is_transient() => return Err(error),
                    Ok(Err(error)) => {
                        warn!(queue = %self.line.queue.place, %error, "poll failed, retrying");
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(WAIT_MAX);
                    }
                    Err(_) => {
                        let detail = "the process is stopping".to_owned();
                        return Err(Error::Unavailable { broker: super::NAME, detail });
                    }
                }
            }
        }
        .boxed()
    }
}
