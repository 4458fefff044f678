//! Reads `emit`: the messages that a handler sends when a job is done.

use sluicegate_template::Root;

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::template;
use crate::config::EmitRule;
use crate::report::Report;

const KNOWN: [&str; 6] = ["each", "when", "queue", "type", "body", "id"];

/// Reads the option `emit`.
pub(super) fn emit(item: &Item<'_>, report: &mut Report) -> Vec<EmitRule> {
    let form = "write a list of messages, each with queue";
    let items = item.list(report, form).unwrap_or_default();
    items.into_iter().filter_map(|item| one(item, report)).collect()
}

fn one(item: Item<'_>, report: &mut Report) -> Option<EmitRule> {
    let fields = Fields::open(item, &KNOWN, report)?;
    let known = if fields.get("each").is_some() { Root::EACH } else { Root::AFTER };
    let queue =
        fields.require("queue", "write the queue to send to, such as queue: crawl-repos", report);
    let queue = queue.and_then(|item| scalar::text(&item, report));
    Some(EmitRule {
        each: fields.read_some("each", report, template::member),
        when: fields.read_some("when", report, template::member),
        kind: fields.read_some("type", report, scalar::text),
        body: fields.read_some("body", report, |item, report| template::tree(item, known, report)),
        id: fields.read_some("id", report, |item, report| template::text(item, known, report)),
        queue: queue?,
    })
}
