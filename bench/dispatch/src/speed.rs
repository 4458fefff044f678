//! Compares the dispatcher without limits with a bare loop that receives, publishes, awaits the
//! confirmation and acknowledges, with the same number of messages in flight.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use sluicegate_core::Span;
use sluicegate_dispatch::DelayMode;
use sluicegate_testkit::rabbitmq::RabbitServer;

use crate::report::{Table, grouped};
use crate::rounds::Figure;
use crate::setting::Setting;

const PREFETCH: u16 = 500;
const GOAL: f64 = 0.8;

pub(crate) async fn measure(broker: &RabbitServer, quick: bool, rounds: u8) -> anyhow::Result<()> {
    let jobs = if quick { 2_000 } else { 20_000 };
    let mut setting = Setting::new(&broker.url(), "speed", "1000000/s").await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    // The first round is a warm-up.
    for round in 0..=rounds {
        let rates = (dispatch(&mut setting, jobs).await?, republish(broker, &setting, jobs).await?);
        if round > 0 {
            ours.push(rates.0);
            bare.push(rates.1);
        }
    }
    println!(
        "\n## {} messages from one queue to another, {rounds} alternating rounds\n",
        grouped(jobs as f64)
    );
    let ratio = Figure::of(ours.iter().zip(&bare).map(|(ours, bare)| ours / bare));
    let mut table = Table::new(&["", "messages/s", "min–max", "of the bare loop"]);
    for (name, figure, of) in [
        (
            "dispatcher, no limits",
            Figure::of(ours),
            format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max),
        ),
        ("bare loop on lapin", Figure::of(bare), "1".to_owned()),
    ] {
        let spread = format!("{}–{}", grouped(figure.min), grouped(figure.max));
        table.row([name.to_owned(), grouped(figure.median), spread, of]);
    }
    print!("{table}");
    let met = if ratio.median >= GOAL { "met" } else { "missed" };
    println!("\ngoal: at least {GOAL} of the bare loop: {met}");
    Ok(())
}

async fn dispatch(setting: &mut Setting, jobs: usize) -> anyhow::Result<f64> {
    setting.produce("raw", jobs).await?;
    let (before, _) = setting.metrics.dispatched("p");
    let began = Instant::now();
    setting.dispatch(DelayMode::Fixed(Span::from_secs(30)), false).await?;
    while setting.metrics.dispatched("p").0 < before + jobs as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    setting.finish().await;
    setting.queue("p").await?.purge().await?;
    Ok(jobs as f64 / took.as_secs_f64())
}

async fn republish(broker: &RabbitServer, setting: &Setting, jobs: usize) -> anyhow::Result<f64> {
    setting.produce("raw", jobs).await?;
    let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await?;
    let publishing = connection.create_channel().await?;
    publishing.confirm_select(ConfirmSelectOptions::default()).await?;
    let consuming = connection.create_channel().await?;
    consuming.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let began = Instant::now();
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer =
        consuming.basic_consume("speed-raw".into(), "".into(), options, none).await?;
    let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
    let mut under_way = FuturesUnordered::new();
    let (mut taken, mut done) = (0, 0);
    while done < jobs {
        tokio::select! {
            Some(delivery) = consumer.next(), if taken < jobs => {
                let delivery = delivery?;
                taken += 1;
                let persistent = BasicProperties::default().with_delivery_mode(2);
                let confirm = publishing
                    .basic_publish("".into(), "speed-p".into(), mandatory, &delivery.data, persistent)
                    .await?;
                under_way.push(async move {
                    anyhow::ensure!(confirm.await? == Confirmation::Ack(None), "not confirmed");
                    delivery.acker.ack(BasicAckOptions::default()).await?;
                    anyhow::Ok(())
                });
            }
            Some(sent) = under_way.next() => {
                sent?;
                done += 1;
            }
        }
    }
    let took = began.elapsed();
    connection.close(200, "done".into()).await?;
    setting.queue("p").await?.purge().await?;
    Ok(jobs as f64 / took.as_secs_f64())
}
