//! Watchdog for delay queues: moves messages that RabbitMQ has forgotten.
//!
//! A quorum queue may stop checking the time-to-live of its messages: they are overdue, and neither
//! time nor another message moves them (observed in RabbitMQ 3.10 with 956 messages, for a quarter
//! of an hour; its issue 10718 describes the same). The queue checks again when a message is taken.
//! So each process that uses a delay queue takes its first message from time to time, and moves it
//! to its target if it is overdue.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use sluicegate_core::time::Clock as _;
use tracing::{debug, warn};

use super::delay::Wait;
use super::link::{Link, in_time};
use super::publish::publish;
use super::{failure, properties};
use crate::broker::{Delay, Outgoing, Place};
use crate::fields::Fields;
use crate::{Error, WallClock, envelope};

/// Minimum interval.
const LEAST: Duration = Duration::from_secs(2);

/// Starts a watchdog for a delay queue. It ends when the connection is dropped.
pub(super) fn look_after(link: &Arc<Link>, target: &Place, wait: Wait) {
    let (link, target, rung) = (Arc::downgrade(link), target.clone(), wait.queue(target.name()));
    // By then, the first message of a healthy queue has left.
    let every = (Duration::from(wait.span()) * 2).max(LEAST);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(link) = link.upgrade() else { return };
            match nudge(&link, &target, &rung).await {
                Ok(0) => {}
                Ok(count) => warn!(rung, count, "overdue messages moved out of a delay queue"),
                Err(error) => debug!(rung, %error, "delay queue not checked"),
            }
        }
    });
}

/// Moves overdue messages from the head of a delay queue to its target. Returns their number.
///
/// Boxed, because publishing starts watchdogs, which publish.
fn nudge<'a>(
    link: &'a Arc<Link>,
    target: &'a Place,
    rung: &'a str,
) -> BoxFuture<'a, Result<u64, Error>> {
    async move {
        let channel = link.throwaway().await?;
        let mut count = 0;
        loop {
            let first = channel.basic_get(failure::name(rung)?, BasicGetOptions::default());
            let first = in_time(first).await.map_err(|error| failure::of_queue(rung, error))?;
            let Some(BasicGetMessage { mut delivery, .. }) = first else { break };
            let (acker, came) = (delivery.acker.clone(), delivery.properties.clone());
            let message = envelope::read(properties::read(&mut delivery), &Fields::default());
            if message.meta.not_before.is_some_and(|at| at > WallClock.now()) {
                in_time(acker.nack(BasicNackOptions { multiple: false, requeue: true })).await?;
                break;
            }
            // A message is acknowledged only after its target has it.
            let next = Outgoing { message, delay: Delay::None };
            let sent = publish(link, target, vec![(next, Some(came))]).await;
            sent.into_iter().collect::<Result<(), Error>>()?;
            in_time(acker.ack(BasicAckOptions::default())).await?;
            count += 1;
        }
        in_time(channel.close(200, "seen".into())).await?;
        Ok(count)
    }
    .boxed()
}
