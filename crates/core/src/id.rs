//! [`Id`]: the 128-bit id of a request, reservation, lease or booking.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a request, reservation, lease or booking: 128 bits.
///
/// [`Id::scoped`] makes an `Id` from an id that a caller supplies. So two callers can use the same
/// text without a collision, and an id has the same size whatever its text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id {
    // Two halves instead of a u128, whose alignment would enlarge every struct that contains an id.
    high: u64,
    low: u64,
}

impl Id {
    /// Creates an id of random or otherwise unique bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self { high: (bits >> 64) as u64, low: bits as u64 }
    }

    /// Creates the id of a caller's own `text`, separate from the ids of every other `caller`.
    pub fn scoped(caller: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("sluicegate 2026 caller id");
        hasher.update(&(caller.len() as u64).to_le_bytes());
        hasher.update(caller.as_bytes());
        hasher.update(text.as_bytes());
        let mut bits = [0; 16];
        hasher.finalize_xof().fill(&mut bits);
        Self::from_bits(u128::from_le_bytes(bits))
    }

    /// Returns the bits.
    pub const fn to_bits(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: every line of the decision log has an id, and `format!` takes ten times
        // as long.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.to_bits().to_be_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(str::from_utf8(&text).expect("digits are ASCII"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

/// Error of parsing a text that is not an [`Id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id: write 32 hexadecimal digits, as returned by an earlier response")]
pub struct IdError;

impl std::str::FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits {
            return Err(IdError);
        }
        u128::from_str_radix(text, 16).map(Self::from_bits).map_err(|_| IdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_with_the_same_text_get_different_ids() {
        assert_eq!(Id::scoped("a", "bc"), Id::scoped("a", "bc"));
        assert_ne!(Id::scoped("a", "bc"), Id::scoped("ab", "c"));
        assert_ne!(Id::scoped("", "abc"), Id::scoped("abc", ""));
    }

    #[test]
    fn an_id_prints_and_reads_back() {
        let id = Id::from_bits(0xabc);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "abc", "+0000000000000000000000000000abc", "é"] {
            assert_eq!(text.parse::<Id>(), Err(IdError), "{text:?}");
        }
    }
}
