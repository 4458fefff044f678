//! Converts messages to and from rows.

use std::collections::BTreeMap;

use rusqlite::Row;

use crate::broker::RawMessage;
use crate::{Message, envelope};

/// Start of a query whose rows [`read`] parses.
pub(super) const SELECT: &str = "SELECT id, priority, returns + leased, envelope, content_type, \
                                 headers, body FROM $t JOIN $t_content USING (id)";

/// Parses a row. Returns its id and the message.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(i64, RawMessage)> {
    let headers: Option<String> = row.get(5)?;
    let headers = headers.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let incoming = RawMessage {
        body: row.get::<_, Vec<u8>>(6)?.into(),
        content_type: row.get(4)?,
        kind: None,
        priority: row.get(1)?,
        headers,
        envelope: Some(row.get(3)?),
        foreign_id: None,
        redeliveries: row.get(2)?,
        is_ordered: false,
    };
    Ok((row.get(0)?, incoming))
}

/// The texts that are stored next to the body.
pub(super) struct RowTexts {
    pub(super) envelope: String,
    pub(super) headers: Option<String>,
}

impl RowTexts {
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
