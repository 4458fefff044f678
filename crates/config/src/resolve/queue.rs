//! Where jobs wait.

use sluicegate_core::Span;
use url::Url;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Queue, QueueBroker, Secret};
use crate::raw::Value;
use crate::report::Report;

const ALL: [&str; 5] = ["kind", "visibility", "job_id", "type", "dead_letter"];
const EMBEDDED: [&str; 1] = ["path"];
const RABBITMQ: [&str; 3] = ["url", "queue_type", "priorities"];
const SQS: [&str; 2] = ["endpoint", "region"];
/// SQS keeps no delivery from others for longer than half a day.
const VISIBILITY_MAX: Span = Span::from_secs(43_200);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    RabbitMq,
    Sqs,
}

const KINDS: [(&str, Kind, &[&str]); 3] = [
    ("embedded", Kind::Embedded, &EMBEDDED),
    ("rabbitmq", Kind::RabbitMq, &RABBITMQ),
    ("sqs", Kind::Sqs, &SQS),
];

pub(super) fn queue(item: Item<'_>, report: &mut Report) -> Queue {
    let known: Vec<_> = ALL.into_iter().chain(EMBEDDED).chain(RABBITMQ).chain(SQS).collect();
    let default = Queue::default();
    let Some(fields) = Fields::open(item, &known, report) else { return default };
    let type_field = match fields.get("type") {
        Some(item) => scalar::text(&item, report),
        None => default.type_field,
    };
    Queue {
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
        None => Kind::Embedded,
        Some(item) => self::kind(item, report)?,
    };
    // A variable may choose; then the options of all may be there.
    let fixed = kind.is_none_or(|item| match &item.node.value {
        Value::Scalar(scalar) => scalar.is_literal(),
        _ => false,
    });
    if fixed {
        refuse_others(fields, chosen, report);
    }
    Some(match chosen {
        Kind::Embedded => QueueBroker::Embedded {
            path: fields.read("path", QueueBroker::PATH.into(), report, scalar::path),
        },
        Kind::RabbitMq => QueueBroker::RabbitMq {
            url: fields.read("url", Secret::new(QueueBroker::URL), report, amqp),
            quorum: fields.read("queue_type", false, report, |item, report| {
                scalar::word(item, report, &[("classic", false), ("quorum", true)])
            }),
            priorities: fields.read("priorities", false, report, scalar::boolean),
        },
        Kind::Sqs => QueueBroker::Sqs {
            endpoint: fields.read_some("endpoint", report, endpoint),
            region: fields.read_some("region", report, scalar::text),
        },
    })
}

/// Always says which there are: whoever writes another word does not know them.
fn kind(item: &Item<'_>, report: &mut Report) -> Option<Kind> {
    let known = "write embedded, rabbitmq or sqs";
    let scalar = item.scalar(report, known)?;
    let found = KINDS.iter().find(|(word, ..)| *word == scalar.text());
    if found.is_none() {
        item.fail(report, format!("there is no queue of kind {}", scalar.named()), known);
    }
    found.map(|(_, kind, _)| *kind)
}

/// Options of another kind would do nothing.
fn refuse_others(fields: &Fields<'_>, chosen: Kind, report: &mut Report) {
    let this = KINDS.iter().find(|(_, kind, _)| *kind == chosen).map_or("", |(word, ..)| word);
    for (other, _, keys) in KINDS.iter().filter(|(_, kind, _)| *kind != chosen) {
        for item in keys.iter().filter_map(|key| fields.get(key)) {
            let message = format!("belongs to kind: {other}, and this queue is kind: {this}");
            item.fail(report, message, "remove it, or change the kind");
        }
    }
}

fn visibility(item: &Item<'_>, report: &mut Report) -> Option<Span> {
    let remedy = "nobody works in less: write at least 1s";
    let span = scalar::span_from(item, report, Span::from_secs(1), remedy)?;
    if span > VISIBILITY_MAX {
        item.fail(report, "is more than 12h", "write less: work that takes longer prolongs it");
        return None;
    }
    Some(span)
}

/// The address of RabbitMQ. No message repeats it: a password is in it.
fn amqp(item: &Item<'_>, report: &mut Report) -> Option<Secret> {
    let form = "write amqp://user:password@host:5672/vhost, or amqps:// for TLS";
    let text = item.scalar(report, form)?.text();
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    match url.as_ref().map(Url::scheme) {
        Some("amqp" | "amqps") => Some(Secret::new(text)),
        _ => {
            item.fail(report, "is not an address of RabbitMQ", form);
            None
        }
    }
}

fn endpoint(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let form = "write http:// or https:// and a host, such as http://127.0.0.1:9324";
    let text = item.scalar(report, form)?.text();
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    match url.as_ref().map(Url::scheme) {
        Some("http" | "https") => Some(text.to_owned()),
        _ => {
            item.fail(report, "is not an address of a server", form);
            None
        }
    }
}
