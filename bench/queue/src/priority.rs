//! Wait of urgent messages while a consumer works off a backlog of others, which a producer refills.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluicegate_queue::{Broker, DeliveryTime, Message, Options, Queue};

use crate::report::Table;

/// Number of messages of the lowest priority that wait at any time.
const BACKLOG: usize = 1_000;
/// Number of messages in one send call of the producer.
const BATCH: usize = 100;
/// Interval of urgent messages.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time that the consumer works on a message.
const WORK: Duration = Duration::from_millis(1);
/// The lowest and the highest priority.
const PRIORITIES: [u8; 2] = [0, Message::PRIORITY_MAX];

/// Measures the waits of this many urgent messages, and of the others that come meanwhile. Prints a
/// table.
pub(crate) async fn measure(
    name: &str,
    broker: Arc<dyn Broker>,
    urgent: usize,
) -> anyhow::Result<()> {
    let options = Options { priorities: true, ..Options::default() };
    let queue = Queue::new(broker, "flooded", options);
    queue.create().await?;
    let start = Instant::now();
    flood(&queue, start, BACKLOG).await?;
    let mut consumer = queue.consume(1).await?;
    let producer = tokio::spawn({
        let queue = queue.clone();
        async move {
            for _ in 0..urgent {
                tokio::time::sleep(INTERVAL).await;
                queue.send(stamped(start, PRIORITIES[1])).await?;
            }
            Ok::<_, sluicegate_queue::Error>(())
        }
    });
    let mut waits = [Vec::new(), Vec::new()];
    let mut received = 0;
    while waits[1].len() < urgent {
        let delivery = consumer.receive_one().await?;
        let message = delivery.message();
        let sent_at: f64 = std::str::from_utf8(&message.body)?.parse()?;
        let wait = start.elapsed().as_secs_f64() - sent_at;
        waits[usize::from(message.priority == PRIORITIES[1])].push(wait);
        tokio::time::sleep(WORK).await;
        delivery.ack().await?;
        received += 1;
        // The backlog stays as long as it is.
        if received % BATCH == 0 {
            flood(&queue, start, BATCH).await?;
        }
    }
    producer.await.context("the producer")??;
    println!("\n## {name}: {urgent} urgent messages beside a backlog of {BACKLOG}\n");
    let mut table = Table::new(&["priority", "messages", "wait, s: median", "99 %", "longest"]);
    for (priority, mut waits) in PRIORITIES.into_iter().zip(waits) {
        waits.sort_by(f64::total_cmp);
        let at = |part: usize| match waits
            .get((waits.len() * part / 100).min(waits.len().saturating_sub(1)))
        {
            Some(wait) => format!("{wait:.3}"),
            None => String::new(),
        };
        let count = waits.len().to_string();
        table.row([priority.to_string(), count, at(50), at(99), at(100)]);
    }
    print!("{table}");
    Ok(())
}

/// Sends messages of the lowest priority.
async fn flood(queue: &Queue, start: Instant, count: usize) -> anyhow::Result<()> {
    for _ in 0..count / BATCH {
        let batch = (0..BATCH).map(|_| (stamped(start, PRIORITIES[0]), DeliveryTime::Now));
        for sent in queue.send_batch(batch.collect()).await {
            sent?;
        }
    }
    Ok(())
}

/// Creates a message whose body is the time at which it is sent.
fn stamped(start: Instant, priority: u8) -> Message {
    Message::new(start.elapsed().as_secs_f64().to_string()).with_priority(priority)
}
