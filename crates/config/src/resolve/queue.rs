//! Reads `queue`: the broker of the job queues.

use sluicegate_core::Span;
use sluicegate_core::rule::Pattern;
use url::Url;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{
    PubSubOptions, QueueApiOptions, QueueBroker, QueueOptions, Secret, ServiceBusLogin,
};
use crate::raw::Value;
use crate::report::Report;

const ALL: [&str; 11] = [
    "kind",
    "visibility",
    "job_id",
    "type",
    "dead_letter",
    "priorities",
    "size_max",
    "age_max",
    "redeliveries_max",
    "deduplication",
    "api",
];
const API: [&str; 3] = ["queues", "leases_max", "body_limit"];
const EMBEDDED: [&str; 1] = ["path"];
const RABBITMQ: [&str; 2] = ["url", "queue_type"];
const SERVICEBUS: [&str; 4] = ["connection_string", "namespace", "transport", "admin_url"];
const SQS: [&str; 2] = ["endpoint", "region"];
const PUBSUB: [&str; 6] =
    ["project", "endpoint", "credentials", "subscription_suffix", "ordering", "exactly_once"];
/// Dead-letter subqueue of each queue of Service Bus.
const SUBQUEUE: &str = "/$DeadLetterQueue";
/// Maximum lease: SQS allows no more than 12 hours, and Pub/Sub 10 minutes.
const VISIBILITY_MAX: Span = Span::from_secs(43_200);
const PUBSUB_VISIBILITY_MAX: Span = Span::from_secs(600);
/// Times for which Service Bus can detect duplicates.
const DETECTION_MIN: Span = Span::from_secs(20);
const DETECTION_MAX: Span = Span::from_secs(7 * 86_400);

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Embedded,
    RabbitMq,
    ServiceBus,
    Sqs,
    PubSub,
}

const KINDS: [(&str, QueueKind, &[&str]); 5] = [
    ("embedded", QueueKind::Embedded, &EMBEDDED),
    ("rabbitmq", QueueKind::RabbitMq, &RABBITMQ),
    ("sqs", QueueKind::Sqs, &SQS),
    ("pubsub", QueueKind::PubSub, &PUBSUB),
    ("servicebus", QueueKind::ServiceBus, &SERVICEBUS),
];

/// Looks up a variable of the environment.
type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Reads the section `queue`.
pub(super) fn queue(item: Item<'_>, env: Env<'_>, report: &mut Report) -> QueueOptions {
    let of_kinds = KINDS.iter().flat_map(|(_, _, keys)| keys.iter().copied());
    let known: Vec<_> = ALL.into_iter().chain(of_kinds).collect();
    let default = QueueOptions::default();
    let Some(fields) = Fields::open(item, &known, report) else { return default };
    let type_field = match fields.get("type") {
        Some(item) => scalar::text(&item, report),
        None => default.type_field,
    };
    let broker = broker(&fields, env, report);
    if let Some(item) = fields.get("dead_letter")
        && let Some(other) = &broker
        && !matches!(other, QueueBroker::ServiceBus { .. })
        && matches!(&item.node.value, Value::Scalar(scalar) if scalar.text().starts_with('/'))
    {
        let remedy = "write the name of a queue";
        item.fail(report, "only queues of kind: servicebus have a dead-letter subqueue", remedy);
    }
    let broker = broker.unwrap_or_default();
    let max = match broker {
        QueueBroker::PubSub(_) => PUBSUB_VISIBILITY_MAX,
        _ => VISIBILITY_MAX,
    };
    QueueOptions {
        priorities: fields.read("priorities", default.priorities, report, scalar::boolean),
        size_max: fields.read_some("size_max", report, scalar::size),
        age_max: fields.read_some("age_max", report, age_max),
        redeliveries_max: redeliveries_max(&fields, default.redeliveries_max, report),
        deduplication: deduplication(&fields, &broker, report),
        broker,
        visibility: fields.read("visibility", default.visibility, report, |item, report| {
            visibility(item, report, max)
        }),
        job_id: fields.read_some("job_id", report, scalar::text),
        type_field,
        dead_letter: fields.read_some("dead_letter", report, dead_letter),
        api: fields.get("api").map(|item| api(item, report)).unwrap_or_default(),
    }
}

/// Reads `queue.api`.
fn api(item: Item<'_>, report: &mut Report) -> QueueApiOptions {
    let default = QueueApiOptions::default();
    let Some(fields) = Fields::open(item, &API, report) else { return default };
    QueueApiOptions {
        queues: fields.read_some("queues", report, |item, report| {
            let names = item.list(report, "write a list of queues, such as [jobs, crawl-*]")?;
            let names = names.iter().map(|item| scalar::text(item, report));
            Some(names.collect::<Option<Vec<_>>>()?.into_iter().map(Pattern::from_text).collect())
        }),
        leases_max: fields.read("leases_max", default.leases_max, report, |item, report| {
            scalar::count(item, report, 1..=1_000_000)
        }),
        body_limit: fields.read("body_limit", default.body_limit, report, scalar::size),
    }
}

/// Reads the name of the dead-letter queue, or of the subqueue that each queue of Service Bus has.
fn dead_letter(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let name = scalar::text(item, report)?;
    if name.starts_with('/') && !name.eq_ignore_ascii_case(SUBQUEUE) {
        let remedy = format!("write the name of a queue, or {SUBQUEUE} with kind: servicebus");
        item.fail(report, "not the name of a queue", &remedy);
        return None;
    }
    Some(name)
}

fn broker(fields: &Fields<'_>, env: Env<'_>, report: &mut Report) -> Option<QueueBroker> {
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
        },
        QueueKind::ServiceBus => QueueBroker::ServiceBus {
            websockets: fields.read("transport", false, report, |item, report| {
                scalar::word(item, report, &[("amqp", false), ("websockets", true)])
            }),
            admin_url: fields.read_some("admin_url", report, endpoint),
            // Last, so that all mistakes in the other options are reported at once.
            login: login(fields, report)?,
        },
        QueueKind::Sqs => QueueBroker::Sqs {
            endpoint: fields.read_some("endpoint", report, endpoint),
            region: fields.read_some("region", report, scalar::text),
        },
        QueueKind::PubSub => QueueBroker::PubSub(pubsub(fields, env, report)),
    })
}

/// Reads the options of Pub/Sub. The project has to be known: in this file, in a variable, or in a key
/// file, whose content is not read here.
fn pubsub(fields: &Fields<'_>, env: Env<'_>, report: &mut Report) -> PubSubOptions {
    let options = PubSubOptions {
        project: fields.read_some("project", report, scalar::text),
        endpoint: fields.read_some("endpoint", report, endpoint),
        credentials: fields.read_some("credentials", report, scalar::path),
        subscription_suffix: fields
            .read_some("subscription_suffix", report, scalar::text)
            .unwrap_or_default(),
        ordering: fields.read("ordering", false, report, scalar::boolean),
        exactly_once: fields.read("exactly_once", false, report, scalar::boolean),
    };
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    let is_emulator = match &options.endpoint {
        Some(endpoint) => endpoint.starts_with("http://"),
        None => is_set("PUBSUB_EMULATOR_HOST"),
    };
    // An emulator is used without a key file.
    let in_key_file =
        fields.get("credentials").is_some() || is_set("GOOGLE_APPLICATION_CREDENTIALS");
    let is_known = fields.get("project").is_some()
        || is_set("GOOGLE_CLOUD_PROJECT")
        || (in_key_file && !is_emulator);
    if !is_known {
        let remedy = "write queue.project, such as my-project-1, or set GOOGLE_CLOUD_PROJECT";
        report.error(&fields.missing("project", "kind"), "Pub/Sub needs a project", remedy);
    }
    options
}

/// Reads the kind. The message always lists all kinds, instead of suggesting the nearest one.
fn kind(item: &Item<'_>, report: &mut Report) -> Option<QueueKind> {
    let known = "write embedded, rabbitmq, sqs, pubsub or servicebus";
    let scalar = item.scalar(report, known)?;
    let found = KINDS.iter().find(|(word, ..)| *word == scalar.text());
    if found.is_none() {
        item.fail(report, format!("unknown queue kind {}", scalar.describe()), known);
    }
    found.map(|(_, kind, _)| *kind)
}

/// Reports options of other kinds, which would have no effect.
fn refuse_others(fields: &Fields<'_>, chosen: QueueKind, report: &mut Report) {
    let Some((this, _, own)) = KINDS.iter().find(|(_, kind, _)| *kind == chosen) else { return };
    let mut others: Vec<_> = KINDS.iter().flat_map(|(_, _, keys)| keys.iter()).collect();
    others.sort_unstable();
    others.dedup();
    for key in others.into_iter().filter(|key| !own.contains(key)) {
        let Some(item) = fields.get(key) else { continue };
        let owners = KINDS.iter().filter(|(_, _, keys)| keys.contains(key));
        let owners: Vec<_> = owners.map(|(word, ..)| *word).collect();
        let message = format!(
            "only queues of kind: {} have this option, and this queue is kind: {this}",
            owners.join(" or ")
        );
        item.fail(report, message, "remove it, or change kind");
    }
}

fn redeliveries_max(fields: &Fields<'_>, default: u32, report: &mut Report) -> u32 {
    let read = |item: &Item<'_>, report: &mut Report| {
        scalar::whole(item, report, 1..=1_000).and_then(|number| u32::try_from(number).ok())
    };
    fields.read("redeliveries_max", default, report, read)
}

fn age_max(item: &Item<'_>, report: &mut Report) -> Option<Span> {
    scalar::span_from(item, report, Span::from_secs(1), "write at least 1s")
}

/// Reads the deduplication window. Only a broker that remembers jobs has one, and that of Service Bus is
/// bounded.
fn deduplication(fields: &Fields<'_>, broker: &QueueBroker, report: &mut Report) -> Span {
    let Some(item) = fields.get("deduplication") else { return Span::ZERO };
    let Some(window) = scalar::span(&item, report) else { return Span::ZERO };
    let (problem, remedy) = match broker {
        _ if window == Span::ZERO => return window,
        QueueBroker::Embedded { .. } => return window,
        QueueBroker::ServiceBus { .. } if (DETECTION_MIN..=DETECTION_MAX).contains(&window) => {
            return window;
        }
        QueueBroker::ServiceBus { .. } => {
            ("Service Bus detects duplicates for 20s to 7d", "write a time span between these")
        }
        _ => (
            "only the embedded queue and Service Bus remember the jobs that were sent",
            "remove it: handlers get the job id as an idempotency key",
        ),
    };
    item.fail(report, problem, remedy);
    Span::ZERO
}

fn visibility(item: &Item<'_>, report: &mut Report, max: Span) -> Option<Span> {
    let remedy = "write at least 1s";
    let span = scalar::span_from(item, report, Span::from_secs(1), remedy)?;
    if span > max {
        let remedy = format!("write at most {max}; a worker extends the lease while it works");
        item.fail(report, format!("more than {max}"), &remedy);
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

/// Reads the namespace and the identity, one of the two.
fn login(fields: &Fields<'_>, report: &mut Report) -> Option<ServiceBusLogin> {
    let namespace = fields.read_some("namespace", report, namespace);
    let connection_string = fields.read_some("connection_string", report, connection_string);
    let (named, given) = (fields.get("namespace"), fields.get("connection_string"));
    match (named, given) {
        (Some(_), Some(given)) => {
            let remedy = "remove one of them: namespace logs in with an Entra identity";
            given.fail(report, "queue.namespace is set, too", remedy);
            None
        }
        (Some(_), None) => namespace.map(ServiceBusLogin::Namespace),
        (None, Some(_)) => connection_string.map(ServiceBusLogin::ConnectionString),
        (None, None) => {
            let remedy = "write connection_string, or namespace for an Entra identity";
            let location = fields.missing("connection_string", "kind");
            report.error(&location, "Service Bus needs a namespace", remedy);
            None
        }
    }
}

/// Reads the name of a namespace, with or without its domain.
fn namespace(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let form = "write the host name, such as orders.servicebus.windows.net";
    let text = item.scalar(report, form)?.text();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if !text.is_empty() && text.chars().all(allowed) {
        return Some(text.to_owned());
    }
    item.fail(report, "not a namespace of Service Bus", form);
    None
}

/// Reads a connection string. No message repeats it, because it contains a key.
fn connection_string(item: &Item<'_>, report: &mut Report) -> Option<Secret> {
    let form = "write Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;\
                SharedAccessKey=KEY";
    let text = item.scalar(report, form)?.text();
    let Some(problem) = connection_string_problem(text) else { return Some(Secret::new(text)) };
    item.fail(report, problem, form);
    None
}

/// Returns the reason that a text is not a connection string of a namespace. The adapter reads the same
/// parts when it connects.
fn connection_string_problem(text: &str) -> Option<&'static str> {
    let parts: Vec<_> = text.split(';').filter_map(|part| part.split_once('=')).collect();
    let read = |wanted: &str| {
        let named = |(name, _): &&(&str, &str)| name.trim().eq_ignore_ascii_case(wanted);
        parts.iter().find(named).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let Some(endpoint) = read("Endpoint") else {
        return Some("the connection string has no Endpoint");
    };
    let Some(("sb", address)) = endpoint.split_once("://") else {
        return Some("the Endpoint of the connection string does not begin with sb://");
    };
    let address = address.split('/').next().unwrap_or_default();
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().is_ok_and(|port| port > 0)),
        None => (address, true),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() || !host.chars().all(allowed) {
        return Some("the Endpoint of the connection string has no valid host");
    }
    if !port {
        return Some("the Endpoint of the connection string has an invalid port");
    }
    if read("EntityPath").is_some() {
        return Some(
            "the connection string is for one queue (EntityPath): use one of the namespace",
        );
    }
    match (read("SharedAccessSignature"), read("SharedAccessKeyName"), read("SharedAccessKey")) {
        (Some(_), ..) | (None, Some(_), Some(_)) => None,
        (None, None, _) => Some("the connection string has no SharedAccessKeyName"),
        (None, Some(_), None) => Some("the connection string has no SharedAccessKey"),
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
