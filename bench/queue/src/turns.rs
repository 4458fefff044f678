//! Measures ours and a raw client alternately, and prints the results as a table.

use std::time::Instant;

use crate::report::{Table, grouped};
use crate::rounds::Figure;

/// One comparison: a broker with the size and number of its messages.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) rounds: u8,
    /// Number of jobs in a round, a multiple of `batch`.
    pub(crate) jobs: usize,
    pub(crate) body: String,
    pub(crate) batch: usize,
    /// Goal for sent, received and acknowledged jobs per second.
    pub(crate) rate_goal: Option<f64>,
}

/// A benchmarked client. All use batches of the same size.
pub(crate) trait Subject {
    /// Sends jobs. All of them are durable when it returns.
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()>;
    /// Receives jobs and acknowledges each.
    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()>;
    /// Sends jobs with a delay that is longer than the benchmark.
    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()>;
    /// Deletes the delayed jobs.
    async fn clear(&mut self) -> anyhow::Result<()>;
}

/// Measured operations of a client.
const PARTS: [&str; 4] = ["send", "receive + ack", "send, receive + ack", "send delayed"];
const WHOLE_WAY: usize = 2;
/// Jobs per second of each operation.
type Rates = [f64; PARTS.len()];

/// Goal for the rate of ours, divided by that of the raw client.
const RATIO: f64 = 0.85;

pub(crate) async fn measure(
    case: &Case,
    client: &str,
    mut ours: impl Subject,
    mut raw: impl Subject,
) -> anyhow::Result<()> {
    // The first round is a warm-up: it opens connections and grows files.
    turn(&mut ours, case.jobs).await?;
    turn(&mut raw, case.jobs).await?;
    let (mut of_ours, mut of_raw) = (Vec::new(), Vec::new());
    for _ in 0..case.rounds {
        of_ours.push(turn(&mut ours, case.jobs).await?);
        of_raw.push(turn(&mut raw, case.jobs).await?);
    }
    println!(
        "\n## {}: {} jobs of {} bytes a round, in batches of {}\n",
        case.name,
        grouped(case.jobs as f64),
        grouped(case.body.len() as f64),
        case.batch
    );
    let theirs = format!("{client}, jobs/s");
    let head = ["", "ours, jobs/s", "min–max", &theirs, "min–max", "ours / raw", "min–max", "goal"];
    let mut table = Table::new(&head);
    for (part, name) in PARTS.iter().enumerate() {
        let figure = |rates: &[Rates]| Figure::of(rates.iter().map(|rates| rates[part]));
        let (ours, raw) = (figure(&of_ours), figure(&of_raw));
        // A ratio per round: a slow round is slow for both.
        let ratio = Figure::of(of_ours.iter().zip(&of_raw).map(|(o, r)| o[part] / r[part]));
        let spread = |figure: Figure| format!("{}–{}", grouped(figure.min), grouped(figure.max));
        let goal = match (part, case.rate_goal) {
            (WHOLE_WAY, Some(rate)) => verdict(ours.median, rate, format!("{}/s", grouped(rate))),
            (WHOLE_WAY, None) => String::new(),
            _ => verdict(ratio.median, RATIO, RATIO.to_string()),
        };
        table.row([
            (*name).to_owned(),
            grouped(ours.median),
            spread(ours),
            grouped(raw.median),
            spread(raw),
            format!("{:.2}", ratio.median),
            format!("{:.2}–{:.2}", ratio.min, ratio.max),
            goal,
        ]);
    }
    print!("{table}");
    Ok(())
}

fn verdict(measured: f64, goal: f64, shown: String) -> String {
    format!("≥ {shown} {}", if measured >= goal { "met" } else { "missed" })
}

async fn turn(subject: &mut impl Subject, jobs: usize) -> anyhow::Result<Rates> {
    let start = Instant::now();
    subject.send(jobs).await?;
    let sent = start.elapsed();
    let start = Instant::now();
    subject.receive(jobs).await?;
    let received = start.elapsed();
    let start = Instant::now();
    subject.delay(jobs).await?;
    let delayed = start.elapsed();
    subject.clear().await?;
    Ok([sent, received, sent + received, delayed].map(|took| jobs as f64 / took.as_secs_f64()))
}
