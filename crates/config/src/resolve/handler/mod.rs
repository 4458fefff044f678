//! Reads `handler`: the work that a worker does for a job, and the messages that it sends
//! afterwards.

mod chat;
mod command;
mod emit;
mod http;
mod template;
#[cfg(test)]
mod tests;

use super::item::{Fields, Item};
use crate::config::{HandlerAction, HandlerOptions};
use crate::report::Report;

const KINDS: [&str; 3] = ["http", "command", "preset"];

/// Reads the handler of a worker.
pub(super) fn handler(item: &Item<'_>, report: &mut Report) -> Option<HandlerOptions> {
    let known: Vec<_> = KINDS.into_iter().chain(chat::KNOWN).chain(["emit"]).collect();
    let fields = Fields::open(item.clone(), &known, report)?;
    let emit = fields.get("emit").map(|item| emit::emit(&item, report)).unwrap_or_default();
    let given: Vec<_> =
        KINDS.into_iter().filter_map(|kind| Some((kind, fields.get(kind)?))).collect();
    if let [(kind @ ("http" | "command"), _)] = given.as_slice() {
        for item in chat::KNOWN.iter().filter_map(|key| fields.get(key)) {
            let message =
                format!("only preset handlers have this option here, and this handler is {kind}");
            item.fail(report, message, "remove it, or move it into the map of the handler");
        }
    }
    if given.len() != 1 {
        item.fail(
            report,
            "a handler needs exactly one of http, command or preset",
            "write one of them",
        );
    }
    let action = |(kind, item): &(&str, Item<'_>)| {
        Some(match *kind {
            "http" => HandlerAction::Http(Box::new(http::http(item.clone(), report)?)),
            "command" => HandlerAction::Command(command::command(item, report)?),
            _ => HandlerAction::Http(Box::new(chat::chat(item, &fields, report)?)),
        })
    };
    let mut actions: Vec<_> = given.iter().map(action).collect();
    Some(HandlerOptions { action: actions.pop().flatten()?, emit })
}
