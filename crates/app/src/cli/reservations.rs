//! `sluicegate reservations`: lists reservations that nobody settled, and settles or cancels them.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sluicegate_core::Timestamp;

use super::check::table;
use super::remote::{AdminRemote, display, items};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate reservations list                              reservations whose hold is over
  sluicegate reservations settle 0123456789abcdef0123456789abcdef --usd 0.12 --reason 'from the invoice'
  sluicegate reservations settle 0123456789abcdef0123456789abcdef --reason 'the work was done'
                                                            keeps the estimate as the cost
  sluicegate reservations cancel 0123456789abcdef0123456789abcdef --reason 'the worker crashed'
                                                            gives the whole estimate back

The commands ask the admin listener of any node; nodes on one Redis share the list.";

#[derive(Args)]
pub(super) struct Reservations {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List reservations whose hold is over and that nobody settled, the oldest first
    List(List),
    /// Replace the estimate of a reservation with its actual cost
    Settle(Settle),
    /// Cancel a reservation and refund its charges
    Cancel(Cancel),
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    remote: AdminRemote,
}

#[derive(Args)]
struct Settle {
    /// Id of the reservation, as printed by `reservations list`
    id: String,
    /// Actual cost in dollars, such as 0.12 [default: computed from the tokens, or as estimated]
    #[arg(long, value_name = "AMOUNT")]
    usd: Option<String>,
    /// Input tokens that were used [default: as estimated]
    #[arg(long, value_name = "N")]
    input_tokens: Option<u64>,
    /// Output tokens that were used [default: as estimated]
    #[arg(long, value_name = "N")]
    output_tokens: Option<u64>,
    /// Reason, written to the audit log of the service
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    remote: AdminRemote,
}

#[derive(Args)]
struct Cancel {
    /// Id of the reservation, as printed by `reservations list`
    id: String,
    /// Reason, written to the audit log of the service
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    remote: AdminRemote,
}

impl Reservations {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            Command::List(List { remote }) => {
                let remote = remote.remote();
                let answer = remote.get("/v1/reservations")?;
                remote.show(&answer, overview);
            }
            Command::Settle(settle) => settle.run()?,
            Command::Cancel(Cancel { id, reason, remote }) => {
                let remote = remote.remote();
                let path = format!("/v1/reservations/{id}/cancel");
                let answer = remote.post(&path, &json!({ "reason": reason }))?;
                remote.show(&answer, |answer| {
                    format!("cancelled: {}", display(&answer["cancelled"]))
                });
            }
        }
        Ok(true)
    }
}

impl Settle {
    fn run(self) -> anyhow::Result<()> {
        let mut cost = Map::new();
        if let Some(usd) = self.usd {
            cost.insert("usd".to_owned(), usd.into());
        }
        for (name, count) in
            [("inputTokens", self.input_tokens), ("outputTokens", self.output_tokens)]
        {
            if let Some(count) = count {
                cost.insert(name.to_owned(), count.into());
            }
        }
        let remote = self.remote.remote();
        let path = format!("/v1/reservations/{}/settle", self.id);
        let answer = remote.post(&path, &json!({ "cost": cost, "reason": self.reason }))?;
        remote.show(&answer, |answer| match &answer["usd"] {
            Value::Null => format!("settled: {}", display(&answer["settled"])),
            usd => format!("settled: {} with {} USD", display(&answer["settled"]), display(usd)),
        });
        Ok(())
    }
}

fn overview(answer: &Value) -> String {
    let reservations = items(&answer["reservations"]);
    if reservations.is_empty() {
        return "no reservation is overdue".to_owned();
    }
    let now = display(&answer["now"]).parse::<Timestamp>().ok();
    let row = |one: &Value| {
        let pair = |pair: &Value| format!("{}={}", display(&pair[0]), display(&pair[1]));
        let caller: Vec<_> = items(&one["caller"]).iter().map(pair).collect();
        let charge = |charge: &Value| {
            let words = ["amount", "unit", "rule"].map(|name| display(&charge[name]));
            format!("{} {} {}", words[0], words[1], words[2])
        };
        let charges: Vec<_> = items(&one["charges"]).iter().map(charge).collect();
        let at = display(&one["at"]).parse::<Timestamp>().ok();
        let age = now.zip(at).map(|(now, at)| now.since(at).in_words().to_string());
        [
            display(&one["id"]),
            age.unwrap_or_default(),
            caller.join(" "),
            charges.join(", "),
            display(&one["node"]),
            display(&one["ends"]),
        ]
    };
    let rows: Vec<_> = reservations.iter().map(row).collect();
    let mut text = table(&["id", "age", "caller", "charged", "node", "charged until"], &rows);
    let count = answer["count"].as_u64().unwrap_or_default();
    if count > rows.len() as u64 {
        text.push_str(&format!("\n{} shown of {count}", rows.len()));
    }
    text
}
