//! [`Auth`]: the bearer tokens of callers, kept as hashes, and their scopes.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

/// Tokens and scopes by the name of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// Token hashes of each caller; a caller has several while it rotates its token. Default: none,
    /// so that every client that can reach a listener is admitted.
    pub tokens: BTreeMap<String, Vec<TokenHash>>,
    /// Scopes of each caller. Default: none, so that every token may do everything. As soon as one
    /// caller has scopes, callers without any may only ask for decisions.
    pub scopes: BTreeMap<String, Vec<AuthScope>>,
}

/// A permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthScope {
    /// Request decisions, and settle, renew, release or cancel admissions.
    Decide,
    /// Read usage, rules, overrides and metrics.
    Read,
    /// Change overrides, reset counters and reload the configuration.
    Admin,
    /// Read jobs and their queues.
    Queue,
}

impl AuthScope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Decide, Self::Read, Self::Admin, Self::Queue];

    /// Returns the name used in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for AuthScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The SHA-256 of a token. The token itself is not kept, so it can't leak from a memory dump or a
/// log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub(crate) [u8; 32]);

impl TokenHash {
    /// Returns the hash of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Returns the bytes of the hash.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    /// Parses a hash of 64 hexadecimal digits.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let digits: &[u8; 64] = digits.as_bytes().try_into().ok()?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |index: usize| char::from(pair[index]).to_digit(16);
            *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hashes_are_read_and_made_alike() {
        assert_eq!(TokenHash::from_hex(ABC), Some(TokenHash::of("abc")));
        assert_eq!(TokenHash::from_hex(&ABC.to_uppercase()), Some(TokenHash::of("abc")));
        for wrong in ["", "ba", &ABC[1..], &ABC.replace('b', "g"), &format!("{ABC}0")] {
            assert_eq!(TokenHash::from_hex(wrong), None);
        }
    }

    #[test]
    fn a_hash_does_not_print() {
        let tokens = [("ci".to_owned(), vec![TokenHash::of("abc")])].into();
        let auth = Auth { tokens, ..Auth::default() };
        assert_eq!(format!("{auth:?}"), "Auth { tokens: {\"ci\": [TokenHash(…)]}, scopes: {} }");
    }
}
