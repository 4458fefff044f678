//! The name of one counter: a rule and the values that it counts apart.

use std::fmt;

use smallvec::SmallVec;

/// The text under which usage is kept.
///
/// Keys are injective: parts are joined by `:` and every byte of a value outside
/// `[A-Za-z0-9._-]` is percent-escaped, so `("a:b", "c")` and `("a", "b:c")` never meet, and a
/// `{` in a user's id can't choose a Redis Cluster slot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(SmallVec<[u8; 64]>);

impl Key {
    /// An empty text to which parts are added.
    pub(crate) fn start(prefix: &str) -> Self {
        Self(SmallVec::from_slice(prefix.as_bytes()))
    }

    /// A key that is exactly this text, as a store reads it back.
    pub fn literal(text: &str) -> Self {
        Self::start(text)
    }

    /// Adds text that is known to be safe.
    pub(crate) fn push_literal(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds a value, escaped.
    pub(crate) fn push_value(&mut self, value: &str) {
        // Nearly all values are plain; looking first makes them one copy.
        if value.bytes().all(is_plain) {
            self.0.extend_from_slice(value.as_bytes());
            return;
        }
        for byte in value.bytes() {
            if is_plain(byte) {
                self.0.push(byte);
            } else {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                self.0.extend_from_slice(&[b'%', digits[0], digits[1]]);
            }
        }
    }

    /// The bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("made of ASCII and of the UTF-8 text of a template")
    }
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
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
