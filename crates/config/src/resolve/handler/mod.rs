//! What a worker does with a job: one kind of work, and what is sent when it is done.

mod chat;
mod command;
mod emit;
mod http;
mod template;
#[cfg(test)]
mod tests;

use super::item::{Fields, Item};
use crate::config::{Handler, Work};
use crate::report::Report;

const KINDS: [&str; 3] = ["http", "command", "preset"];

pub(super) fn handler(item: &Item<'_>, report: &mut Report) -> Option<Handler> {
    let known: Vec<_> = KINDS.into_iter().chain(chat::KNOWN).chain(["emit"]).collect();
    let fields = Fields::open(item.clone(), &known, report)?;
    let emit = fields.get("emit").map(|item| emit::emit(&item, report)).unwrap_or_default();
    let given: Vec<_> =
        KINDS.into_iter().filter_map(|kind| Some((kind, fields.get(kind)?))).collect();
    let [(kind, given)] = given.as_slice() else {
        item.fail(report, "is one of http, command or preset", "write one of them");
        return None;
    };
    if *kind != "preset" {
        for item in chat::KNOWN.iter().filter_map(|key| fields.get(key)) {
            let message = format!("belongs to preset, and this handler is {kind}");
            item.fail(report, message, "remove it, or move it below");
        }
    }
    let work = match *kind {
        "http" => Work::Http(Box::new(http::http(given.clone(), report)?)),
        "command" => Work::Command(command::command(given, report)?),
        _ => Work::Chat(Box::new(chat::chat(given, &fields, report)?)),
    };
    Some(Handler { work, emit })
}
