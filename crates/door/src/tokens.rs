//! Who asks: tokens, known by their hashes, each with the name of its holder.
//!
//! A token that is presented is hashed and compared with every hash that we know, each comparison
//! in constant time. How long the answer takes tells neither how much of a token is right nor
//! whose it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The SHA-256 of a token.
pub type Hash = [u8; 32];

/// The tokens that are let in.
pub struct Tokens {
    entries: Box<[Entry]>,
}

struct Entry {
    hash: Hash,
    caller: Caller,
}

/// Who asks: the name of the token, which requests carry in their extensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller(Arc<str>);

/// Two callers can't be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} and {second} have the same token: give each its own")]
pub struct SharedToken {
    /// The name that came first.
    pub first: String,
    /// The other.
    pub second: String,
}

impl Tokens {
    /// The tokens with these names and hashes. A name may come with several hashes, so that an
    /// old token and its successor are both good for a while.
    pub fn new<N: Into<Arc<str>>>(
        tokens: impl IntoIterator<Item = (N, Hash)>,
    ) -> Result<Self, SharedToken> {
        let mut callers: BTreeMap<Hash, Caller> = BTreeMap::new();
        for (name, hash) in tokens {
            let caller = Caller(name.into());
            if let Some(first) = callers.get(&hash).filter(|first| **first != caller) {
                let (first, second) = (first.to_string(), caller.to_string());
                return Err(SharedToken { first, second });
            }
            callers.insert(hash, caller);
        }
        let entries = callers.into_iter().map(|(hash, caller)| Entry { hash, caller }).collect();
        Ok(Self { entries })
    }

    /// Whose token this is.
    pub fn holder(&self, token: &[u8]) -> Option<&Caller> {
        let presented = hash(token);
        let mut known = Choice::from(0);
        let mut index = 0_u64;
        // All of them, also after the right one.
        for (at, entry) in (0_u64..).zip(&self.entries) {
            let is_same = entry.hash.ct_eq(&presented);
            index.conditional_assign(&at, is_same);
            known |= is_same;
        }
        let index = usize::try_from(index).expect("it counts what is in memory");
        bool::from(known).then(|| &self.entries[index].caller)
    }
}

/// Shows the names only.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.iter().map(|entry| entry.caller.name())).finish()
    }
}

impl Caller {
    /// Whoever asks a server that asks for no tokens.
    pub fn anonymous() -> Self {
        Self("anonymous".into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hash by which `token` is known.
pub fn hash(token: &[u8]) -> Hash {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(tokens: &[(&str, &str)]) -> Tokens {
        let hashed = tokens.iter().map(|(name, token)| (*name, hash(token.as_bytes())));
        Tokens::new(hashed).unwrap()
    }

    #[test]
    fn every_token_is_known_by_its_holder() {
        let tokens = tokens(&[("alice", "old"), ("bob", "b0b"), ("alice", "new")]);
        for (token, holder) in [
            ("old", Some("alice")),
            ("new", Some("alice")),
            ("b0b", Some("bob")),
            ("ol", None),
            ("OLD", None),
            ("", None),
        ] {
            assert_eq!(tokens.holder(token.as_bytes()).map(Caller::name), holder, "{token}");
        }
    }

    #[test]
    fn callers_do_not_share_a_token() {
        let error = Tokens::new([("alice", hash(b"a")), ("bob", hash(b"a"))]).unwrap_err();
        assert_eq!(error.to_string(), "alice and bob have the same token: give each its own");
        assert!(Tokens::new([("alice", hash(b"a")), ("alice", hash(b"a"))]).is_ok());
    }

    #[test]
    fn tokens_do_not_show_their_hashes() {
        assert_eq!(format!("{:?}", tokens(&[("alice", "a")])), r#"{"alice"}"#);
    }
}
