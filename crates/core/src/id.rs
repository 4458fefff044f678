//! [`Id`]: the 128-bit id of a request, reservation, lease or booking.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The bit of an id that a caller chose.
const CHOSEN: u64 = 1 << 63;
/// The bits that are the same in all ids of one caller: [`CHOSEN`] and a hash of its name.
const OWNER: u64 = 0xffff_ffff << 32;

/// The id of a request, reservation, lease or booking: 128 bits.
///
/// | id | first bit | who may use it |
/// |---|---|---|
/// | made by a node: [`Id::unguessable`] | 0 | everyone who knows it |
/// | of a text that a caller chose: [`Id::scoped`] | 1, then a hash of the caller | its caller: others could compute it |
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

    /// Creates an id of random bits that nobody can guess.
    pub const fn unguessable(random: u128) -> Self {
        let Self { high, low } = Self::from_bits(random);
        Self { high: high & !CHOSEN, low }
    }

    /// Returns true if a caller may use the id to settle, release, renew or cancel.
    pub fn is_usable_by(self, caller: &str) -> bool {
        self.high & CHOSEN == 0 || self.high & OWNER == owner(caller)
    }

    /// Creates the id of a caller's own `text`, separate from the ids of every other `caller`, and of the
    /// same size whatever the text.
    pub fn scoped(caller: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("sluicegate 2026 caller id");
        hasher.update(&(caller.len() as u64).to_le_bytes());
        hasher.update(caller.as_bytes());
        hasher.update(text.as_bytes());
        let mut bits = [0; 16];
        hasher.finalize_xof().fill(&mut bits);
        let Self { high, low } = Self::from_bits(u128::from_le_bytes(bits));
        Self { high: high & !OWNER | owner(caller), low }
    }

    /// Returns the bits.
    pub const fn to_bits(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }
}

/// Returns the first bits of the ids that a caller chooses.
fn owner(caller: &str) -> u64 {
    let hash = blake3::derive_key("sluicegate 2026 owner of an id", caller.as_bytes());
    let hash = u64::from_le_bytes(hash[..8].try_into().expect("it has 32 bytes"));
    CHOSEN | hash & OWNER
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
    fn an_id_that_a_caller_chose_is_its_own() {
        let id = Id::scoped("alice", "job-7");
        assert!(id.is_usable_by("alice") && !id.is_usable_by("bob") && !id.is_usable_by(""));
        let made_by_us = Id::unguessable(u128::MAX);
        assert!(made_by_us.is_usable_by("alice") && made_by_us.is_usable_by("bob"));
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
