//! [`JsonObject`]: writes the JSON of answers and of the decision log.
//!
//! It writes into one buffer without serde: this runs some hundred thousand times per second, money
//! is a decimal that must not pass through a float, and strings are escaped more strictly than by a
//! serializer.

mod escape;

use std::fmt;
use std::io::Write as _;

use sluicegate_core::limit::Unit;
use sluicegate_core::{Money, Timestamp};

pub(crate) use escape::{quote, quote_display, word};

/// Returns an object with the fields that `fill` writes.
pub(crate) fn object(fill: impl FnOnce(&mut JsonObject<'_>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024);
    let mut object = JsonObject::begin(&mut out);
    fill(&mut object);
    object.end();
    out
}

/// A JSON object that is being written.
pub(crate) struct JsonObject<'o> {
    pub(crate) out: &'o mut Vec<u8>,
    empty: bool,
}

impl<'o> JsonObject<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self::inside(out)
    }

    /// Continues after a brace that is already written.
    pub(crate) fn inside(out: &'o mut Vec<u8>) -> Self {
        Self { out, empty: true }
    }

    pub(crate) fn end(self) {
        self.out.push(b'}');
    }

    /// Writes the name of the next field: a constant, which needs no escapes.
    // Inlined into its callers, so that a name becomes a few stores instead of calls.
    #[inline(always)]
    pub(crate) fn name(&mut self, name: &str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    pub(crate) fn comma(&mut self) {
        if !self.empty {
            self.out.push(b',');
        }
        self.empty = false;
    }

    /// Writes a string.
    #[inline(always)]
    pub(crate) fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        quote(value, self.out);
    }

    /// Writes a displayed value as a string.
    pub(crate) fn text(&mut self, name: &str, value: &impl fmt::Display) {
        self.name(name);
        quote_display(value, self.out);
    }

    /// Writes a displayed value that needs no escapes, such as an id or a hash.
    pub(crate) fn quoted(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        self.out.push(b'"');
        write!(self.out, "{value}").expect("a buffer takes every write");
        self.out.push(b'"');
    }

    /// Writes a time.
    #[inline(always)]
    pub(crate) fn instant(&mut self, name: &str, at: Timestamp) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(at.rfc3339().as_bytes());
        self.out.push(b'"');
    }

    /// Writes a constant that needs no escapes.
    #[inline(always)]
    pub(crate) fn word(&mut self, name: &str, word: &str) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(word.as_bytes());
        self.out.push(b'"');
    }

    #[inline(always)]
    pub(crate) fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes an amount in its unit; money in dollars, as an exact decimal.
    #[inline(always)]
    pub(crate) fn amount(&mut self, name: &str, value: u64, unit: Unit) {
        match (unit, Money::from_nanos(value)) {
            (Unit::Usd, Some(money)) => self.raw(name, money),
            _ => self.number(name, value),
        }
    }

    #[inline(always)]
    pub(crate) fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes a number or a boolean.
    pub(crate) fn raw(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        write!(self.out, "{value}").expect("a buffer takes every write");
    }

    /// Writes a value that serde encodes.
    pub(crate) fn value(&mut self, name: &str, value: &impl serde::Serialize) {
        self.name(name);
        serde_json::to_writer(&mut *self.out, value).expect("a buffer takes every write");
    }

    /// Writes an object.
    pub(crate) fn object(&mut self, name: &str, fill: impl FnOnce(&mut JsonObject<'_>)) {
        self.name(name);
        let mut object = JsonObject::begin(self.out);
        fill(&mut object);
        object.end();
    }

    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
        each: impl Fn(T, &mut Vec<u8>),
    ) {
        self.name(name);
        self.out.push(b'[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            each(item, self.out);
        }
        self.out.push(b']');
    }

    /// Writes an object of strings under names that clients chose; omitted if empty.
    pub(crate) fn pairs<'n, V: fmt::Display>(
        &mut self,
        name: &str,
        pairs: impl Iterator<Item = (&'n str, V)>,
    ) {
        let mut pairs = pairs.peekable();
        if pairs.peek().is_none() {
            return;
        }
        self.object(name, |object| {
            for (name, value) in pairs {
                object.comma();
                quote(name, object.out);
                object.out.push(b':');
                quote_display(&value, object.out);
            }
        });
    }
}
