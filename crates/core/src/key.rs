//! The name of one counter: a rule and the values that it counts apart.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The text under which usage is kept.
///
/// Keys are injective: parts are joined by `:` and every byte of a value outside
/// `[A-Za-z0-9._-]` is percent-escaped, so `("a:b", "c")` and `("a", "b:c")` never meet, and a
/// `{` in a user's id can't choose a Redis Cluster slot.
#[derive(Clone)]
pub struct Key {
    /// Most texts fit in here and cost no allocation.
    short: [u8; Self::SHORT],
    length: u8,
    /// All of a text that does not.
    #[expect(clippy::box_collection, reason = "a Vec would be 16 bytes longer in every short key")]
    long: Option<Box<Vec<u8>>>,
}

impl Key {
    /// With this a key takes 64 bytes.
    const SHORT: usize = 55;

    /// A text to which parts are added.
    pub(crate) fn start(prefix: &str) -> Self {
        let mut key = Self { short: [0; Self::SHORT], length: 0, long: None };
        key.push_bytes(prefix.as_bytes());
        key
    }

    /// A key that is exactly this text, as a store reads it back.
    pub fn literal(text: &str) -> Self {
        Self::start(text)
    }

    /// Adds text that is known to be safe.
    pub(crate) fn push_literal(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Adds a value, escaped.
    pub(crate) fn push_value(&mut self, value: &str) {
        self.push_part(Part { text: value, whole: value, plain: is_plain(value) });
    }

    /// Adds a value, escaped.
    #[inline]
    pub(crate) fn push_part(&mut self, part: Part<'_>) {
        if part.plain {
            self.push_bytes(part.text.as_bytes());
        } else {
            self.push_escaped(part.text);
        }
    }

    #[cold]
    fn push_escaped(&mut self, value: &str) {
        for byte in value.bytes() {
            if PLAIN[usize::from(byte)] {
                self.push_bytes(&[byte]);
            } else {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                self.push_bytes(&[b'%', digits[0], digits[1]]);
            }
        }
    }

    #[inline]
    fn push_bytes(&mut self, bytes: &[u8]) {
        let end = usize::from(self.length) + bytes.len();
        match self.short.get_mut(usize::from(self.length)..end) {
            Some(room) if self.long.is_none() => {
                room.copy_from_slice(bytes);
                self.length = end as u8;
            }
            _ => self.push_long(bytes),
        }
    }

    #[cold]
    fn push_long(&mut self, bytes: &[u8]) {
        let short = &self.short[..usize::from(self.length)];
        self.long.get_or_insert_with(|| Box::new(short.to_vec())).extend_from_slice(bytes);
    }

    /// The bytes of the text.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.long {
            None => &self.short[..usize::from(self.length)],
            Some(long) => long,
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes())
            .expect("made of ASCII and of the UTF-8 text of a template")
    }
}

/// A value that becomes part of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) text: &'a str,
    /// The value as it was given, where the text is only an extract of a long one.
    pub(crate) whole: &'a str,
    /// Nothing in it has to be escaped: nearly all values are like this.
    pub(crate) plain: bool,
}

/// Whether nothing in a value has to be escaped.
pub(crate) fn is_plain(value: &str) -> bool {
    value.bytes().fold(true, |plain, byte| plain & PLAIN[usize::from(byte)])
}

/// Which bytes need no escape.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < plain.len() {
        let ascii = byte as u8;
        plain[byte] = ascii.is_ascii_alphanumeric() || matches!(ascii, b'.' | b'_' | b'-');
        byte += 1;
    }
    plain
};

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(parts: &[&str]) -> Key {
        let mut key = Key::start("R");
        for part in parts {
            key.push_literal(":");
            key.push_value(part);
        }
        key
    }

    #[test]
    fn values_are_escaped() {
        assert_eq!(
            join(&["a:b", "{c}", "é", "50%", "\0"]).as_str(),
            "R:a%3Ab:%7Bc%7D:%C3%A9:50%25:%00"
        );
        assert_eq!(join(&["gpt-4.1_x"]).as_str(), "R:gpt-4.1_x");
    }

    #[test]
    fn a_long_text_is_kept_like_a_short_one() {
        assert_eq!(size_of::<Key>(), 64);
        for length in [0, 1, Key::SHORT - 1, Key::SHORT, Key::SHORT + 1, 300] {
            let text = "x".repeat(length);
            for cut in [0, length / 2, length] {
                let mut key = Key::start(&text[..cut]);
                key.push_value(&text[cut..]);
                assert_eq!(key.as_str(), text);
                assert_eq!(key, Key::literal(&text));
                key.push_literal("/");
                assert_eq!(key.as_str(), format!("{text}/"));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn different_values_make_different_keys(
            a in proptest::collection::vec(".{0,6}", 2),
            b in proptest::collection::vec(".{0,6}", 2),
        ) {
            let keys: Vec<Key> = [&a, &b]
                .map(|values| join(&values.iter().map(String::as_str).collect::<Vec<_>>()))
                .into();
            proptest::prop_assert_eq!(a == b, keys[0] == keys[1]);
        }
    }
}
