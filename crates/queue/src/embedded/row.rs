//! A message as a row.

use std::collections::BTreeMap;

use rusqlite::Row;

use crate::broker::Incoming;
use crate::{Message, envelope};

/// The columns that [`read`] reads, in this order.
pub(super) const COLUMNS: &str =
    "id, fence, priority, returns + leased, envelope, content_type, headers, body";

/// A row that was read: its number, its fence, and the message.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(i64, i64, Incoming)> {
    let headers: Option<String> = row.get(6)?;
    let headers = headers.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let incoming = Incoming {
        body: row.get::<_, Vec<u8>>(7)?.into(),
        content_type: row.get(5)?,
        kind: None,
        priority: row.get(2)?,
        headers,
        envelope: Some(row.get(4)?),
        foreign_id: None,
        returns: row.get(3)?,
    };
    Ok((row.get(0)?, row.get(1)?, incoming))
}

/// What is written beside the body.
pub(super) struct Written {
    pub(super) envelope: String,
    pub(super) headers: Option<String>,
}

impl Written {
    pub(super) fn of(message: &Message) -> Self {
        let headers = |headers: &BTreeMap<String, String>| {
            serde_json::to_string(headers).expect("texts are JSON")
        };
        let headers = (!message.headers.is_empty()).then(|| headers(&message.headers));
        Self { envelope: envelope::write(message), headers }
    }

    pub(super) fn size(&self, message: &Message) -> usize {
        message.body.len() + self.envelope.len() + self.headers.as_ref().map_or(0, String::len)
    }
}
