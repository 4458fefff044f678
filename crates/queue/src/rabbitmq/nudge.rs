//! Keeps rungs moving.
//!
//! A quorum queue may forget to look at the clock: what lies in it is overdue, and neither time nor
//! another message brings it out (seen of RabbitMQ 3.10 with 956 messages, for a quarter of an
//! hour; its issue 10718 tells of the same). It looks when a message is taken. So whoever uses a
//! rung takes its first message once in a while, and brings it to its target if it is overdue.

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

/// How often, at most.
const LEAST: Duration = Duration::from_secs(2);

/// Looks after a rung for as long as there is somebody to connect for.
pub(super) fn look_after(link: &Arc<Link>, target: &Place, wait: Wait) {
    let (link, target, rung) = (Arc::downgrade(link), target.clone(), wait.queue(target.name()));
    // A healthy head is on its way by then.
    let every = (Duration::from(wait.span()) * 2).max(LEAST);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(link) = link.upgrade() else { return };
            match nudge(&link, &target, &rung).await {
                Ok(0) => {}
                Ok(count) => warn!(rung, count, "RabbitMQ forgot delayed messages: brought on"),
                Err(error) => debug!(rung, %error, "delayed messages could not be looked at"),
            }
        }
    });
}

/// Brings on what is overdue at the head of a rung; says how many.
///
/// Boxed: publishing looks after rungs, which publishes.
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
            // Nothing is acknowledged before its target has it.
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
