//! Reads `queue`: the broker of the job queues.

use sluicegate_core::Span;
use url::Url;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{QueueBroker, QueueOptions, Secret};
use crate::raw::Value;
use crate::report::Report;

const ALL: [&str; 5] = ["kind", "visibility", "job_id", "type", "dead_letter"];
const EMBEDDED: [&str; 1] = ["path"];
const RABBITMQ: [&str; 3] = ["url", "queue_type", "priorities"];
const SQS: [&str; 2] = ["endpoint", "region"];
/// Maximum lease: SQS allows no more than 12 hours.
const VISIBILITY_MAX: Span = Span::from_secs(43_200);

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Embedded,
    RabbitMq,
    Sqs,
}

const KINDS: [(&str, QueueKind, &[&str]); 3] = [
    ("embedded", QueueKind::Embedded, &EMBEDDED),
    ("rabbitmq", QueueKind::RabbitMq, &RABBITMQ),
    ("sqs", QueueKind::Sqs, &SQS),
];

/// Reads the section `queue`.
pub(super) fn queue(item: Item<'_>, report: &mut Report) -> QueueOptions {
    let known: Vec<_> = ALL.into_iter().chain(EMBEDDED).chain(RABBITMQ).chain(SQS).collect();
    let default = QueueOptions::default();
    let Some(fields) = Fields::open(item, &known, report) else { return default };
    let type_field = match fields.get("type") {
        Some(item) => scalar::text(&item, report),
        None => default.type_field,
    };
    QueueOptions {
        broker: broker(&fields, report).unwrap_or_default(),
        visibility: fields.read("visibility", default.visibility, report, visibility),
        job_id: fields.read_some("job_id", report, scalar::text),
        type_field,
        dead_letter: fields.read_some("dead_letter", report, scalar::text),
    }
}

fn broker(fields: &Fields<'_>, report: &mut Report) -> Option<QueueBroker> {
    let kind = fields.get("kind");
    let chosen = match &kind {
        None => QueueKind::Embedded,
        Some(item) => self::kind(item, report)?,
    };
    // If a variable chooses the kind, the file may contain the options of all kinds.
    let fixed = kind.is_none_or(|item| match &item.node.value {
        Value::Scalar(scalar) => scalar.is_literal(),
        _ => false,
    });
    if fixed {
        refuse_others(fields, chosen, report);
    }
    Some(match chosen {
        QueueKind::Embedded => QueueBroker::Embedded {
            path: fields.read("path", QueueBroker::PATH.into(), report, scalar::path),
        },
        QueueKind::RabbitMq => QueueBroker::RabbitMq {
            url: fields.read("url", Secret::new(QueueBroker::URL), report, amqp),
            quorum: fields.read("queue_type", false, report, |item, report| {
                scalar::word(item, report, &[("classic", false), ("quorum", true)])
            }),
            priorities: fields.read("priorities", false, report, scalar::boolean),
        },
        QueueKind::Sqs => QueueBroker::Sqs {
            endpoint: fields.read_some("endpoint", report, endpoint),
            region: fields.read_some("region", report, scalar::text),
        },
    })
}

/// Reads the kind. The message always lists all kinds, instead of suggesting the nearest one.
fn kind(item: &Item<'_>, report: &mut Report) -> Option<QueueKind> {
    let known = "write embedded, rabbitmq or sqs";
    let scalar = item.scalar(report, known)?;
    let found = KINDS.iter().find(|(word, ..)| *word == scalar.text());
    if found.is_none() {
        item.fail(report, format!("unknown queue kind {}", scalar.describe()), known);
    }
    found.map(|(_, kind, _)| *kind)
}

/// Reports options of other kinds, which would have no effect.
fn refuse_others(fields: &Fields<'_>, chosen: QueueKind, report: &mut Report) {
    let this = KINDS.iter().find(|(_, kind, _)| *kind == chosen).map_or("", |(word, ..)| word);
    for (other, _, keys) in KINDS.iter().filter(|(_, kind, _)| *kind != chosen) {
        for item in keys.iter().filter_map(|key| fields.get(key)) {
            let message = format!(
                "only queues of kind: {other} have this option, and this queue is kind: {this}"
            );
            item.fail(report, message, "remove it, or change kind");
        }
    }
}

fn visibility(item: &Item<'_>, report: &mut Report) -> Option<Span> {
    let remedy = "write at least 1s";
    let span = scalar::span_from(item, report, Span::from_secs(1), remedy)?;
    if span > VISIBILITY_MAX {
        item.fail(
            report,
            "more than 12h",
            "write at most 12h; a worker extends the lease while it works",
        );
        return None;
    }
    Some(span)
}

/// Reads the address of RabbitMQ. No message repeats it, because it contains a password.
fn amqp(item: &Item<'_>, report: &mut Report) -> Option<Secret> {
    let form = "write amqp://user:password@host:5672/vhost, or amqps:// for TLS";
    let text = item.scalar(report, form)?.text();
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    match url.as_ref().map(Url::scheme) {
        Some("amqp" | "amqps") => Some(Secret::new(text)),
        _ => {
            item.fail(report, "not a RabbitMQ address", form);
            None
        }
    }
}

fn endpoint(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let form = "write a URL, such as http://127.0.0.1:9324";
    let text = item.scalar(report, form)?.text();
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    match url.as_ref().map(Url::scheme) {
        Some("http" | "https") => Some(text.to_owned()),
        _ => {
            item.fail(report, "not an HTTP address", form);
            None
        }
    }
}
