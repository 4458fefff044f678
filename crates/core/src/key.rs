//! [`Key`]: the name of one counter, made of a rule and the values by which the rule counts.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Name of a counter in the store.
///
/// Different values give different keys: parts are joined by `:`, and every byte of a value outside
/// `[A-Za-z0-9._-]` is percent-escaped. So `("a:b", "c")` and `("a", "b:c")` have different keys,
/// and a `{` in a user's id can't choose a Redis Cluster slot.
#[derive(Clone)]
pub struct Key {
    /// Text of a short key. Most keys fit and need no allocation.
    short: [u8; Self::SHORT],
    length: u8,
    /// The whole text of a longer key.
    #[expect(clippy::box_collection, reason = "a Vec would be 16 bytes longer in every short key")]
    long: Option<Box<Vec<u8>>>,
}

impl Key {
    /// Size of the inline buffer; with it, a key has 64 bytes.
    const SHORT: usize = 55;

    /// Starts a key with `prefix`, to which parts are added.
    pub(crate) fn start(prefix: &str) -> Self {
        let mut key = Self { short: [0; Self::SHORT], length: 0, long: None };
        key.push_bytes(prefix.as_bytes());
        key
    }

    /// Creates a key of exactly this text, such as a store reads back.
    pub fn literal(text: &str) -> Self {
        Self::start(text)
    }

    /// Appends text without escaping.
    pub(crate) fn push_literal(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Appends an escaped value.
    pub(crate) fn push_value(&mut self, value: &str) {
        self.push_part(KeyPart { text: value, whole: value, plain: is_plain(value) });
    }

    /// Appends an escaped value.
    #[inline]
    pub(crate) fn push_part(&mut self, part: KeyPart<'_>) {
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

    /// Returns the text as bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.long {
            None => &self.short[..usize::from(self.length)],
            Some(long) => long,
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes())
            .expect("made of ASCII and of the UTF-8 text of a template")
    }
}

/// A dimension's value that becomes part of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPart<'a> {
    pub(crate) text: &'a str,
    /// The value as given, if `text` is only the beginning and hash of a long one.
    pub(crate) whole: &'a str,
    /// True if nothing has to be escaped, as in nearly all values.
    pub(crate) plain: bool,
}

/// Returns true if nothing in a value has to be escaped.
pub(crate) fn is_plain(value: &str) -> bool {
    value.bytes().fold(true, |plain, byte| plain & PLAIN[usize::from(byte)])
}

/// Bytes that need no escape.
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
