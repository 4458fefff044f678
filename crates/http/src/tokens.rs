//! [`Tokens`]: bearer tokens, stored as hashes, each with the name of its holder.
//!
//! A presented token is hashed and compared with every stored hash, each in constant time. The
//! response time therefore reveals neither how much of a token is right nor whose it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
pub use sluicegate_config::AuthScope;
use sluicegate_config::{Auth, TokenHash};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The accepted tokens.
pub struct Tokens {
    entries: Box<[StoredToken]>,
}

struct StoredToken {
    /// SHA-256 of the token.
    hash: [u8; 32],
    caller: Caller,
}

/// The holder of a token: its name and scopes. Requests carry it in their extensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    name: Arc<str>,
    scopes: AuthScopes,
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthScopes(u8);

impl AuthScopes {
    /// All scopes; used if the configuration gives no token scopes.
    pub const ALL: Self = Self(0b1111);

    /// Returns true if the set contains the scope.
    pub const fn contains(self, scope: AuthScope) -> bool {
        self.0 & bit(scope) != 0
    }
}

impl FromIterator<AuthScope> for AuthScopes {
    fn from_iter<I: IntoIterator<Item = AuthScope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | bit(scope)))
    }
}

const fn bit(scope: AuthScope) -> u8 {
    1 << scope as u8
}

/// The error that two callers have the same token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} and {second} have the same token: give each its own")]
pub struct SharedToken {
    /// The first caller.
    pub first: String,
    /// The second caller.
    pub second: String,
}

impl Tokens {
    /// Creates the set from the configuration; `None` if it has no tokens. If it has no scopes, every
    /// token has all; otherwise a caller without scopes may only ask for decisions.
    pub fn of(auth: &Auth) -> Result<Option<Arc<Self>>, SharedToken> {
        let hashes = |(name, hashes): (&'_ String, &'_ Vec<TokenHash>)| {
            let name: Arc<str> = name.as_str().into();
            hashes.iter().map(move |hash| (name.clone(), hash.to_bytes())).collect::<Vec<_>>()
        };
        let tokens = Self::new(auth.tokens.iter().flat_map(hashes))?.with_scopes(|name| match auth
            .scopes
            .get(name)
        {
            _ if auth.scopes.is_empty() => AuthScopes::ALL,
            None => AuthScopes::from_iter([AuthScope::Decide]),
            Some(scopes) => scopes.iter().copied().collect(),
        });
        Ok(Some(Arc::new(tokens)).filter(|_| !auth.tokens.is_empty()))
    }

    /// Creates the set from names and hashes. A name may have several hashes, so that an old token
    /// and its successor are both valid for a while.
    pub fn new<N: Into<Arc<str>>>(
        tokens: impl IntoIterator<Item = (N, [u8; 32])>,
    ) -> Result<Self, SharedToken> {
        let mut callers: BTreeMap<[u8; 32], Caller> = BTreeMap::new();
        for (name, hash) in tokens {
            let caller = Caller { name: name.into(), scopes: AuthScopes::ALL };
            if let Some(first) = callers.get(&hash).filter(|first| **first != caller) {
                let (first, second) = (first.to_string(), caller.to_string());
                return Err(SharedToken { first, second });
            }
            callers.insert(hash, caller);
        }
        let entries =
            callers.into_iter().map(|(hash, caller)| StoredToken { hash, caller }).collect();
        Ok(Self { entries })
    }

    /// Sets the scopes of each holder.
    #[must_use]
    pub fn with_scopes(mut self, scopes: impl Fn(&str) -> AuthScopes) -> Self {
        for StoredToken { caller, .. } in &mut self.entries {
            caller.scopes = scopes(&caller.name);
        }
        self
    }

    /// Returns the holder of a token.
    pub fn holder(&self, token: &[u8]) -> Option<&Caller> {
        self.holder_of_hash(&hash(token))
    }

    /// Returns the holder of the token with this hash.
    pub fn holder_of_hash(&self, presented: &[u8; 32]) -> Option<&Caller> {
        let mut known = Choice::from(0);
        let mut index = 0_u64;
        // Compares all of them, also after a match.
        for (at, entry) in (0_u64..).zip(&self.entries) {
            let is_same = entry.hash.ct_eq(presented);
            index.conditional_assign(&at, is_same);
            known |= is_same;
        }
        let index = usize::try_from(index).expect("index is below the number of entries");
        bool::from(known).then(|| &self.entries[index].caller)
    }
}

/// Prints the names only.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.iter().map(|entry| entry.caller.name())).finish()
    }
}

impl Caller {
    /// Returns the caller of a server that requires no tokens.
    pub fn anonymous() -> Self {
        Self { name: "anonymous".into(), scopes: AuthScopes::ALL }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the scopes.
    pub const fn scopes(&self) -> AuthScopes {
        self.scopes
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Returns the hash that `token` is stored as.
pub fn hash(token: &[u8]) -> [u8; 32] {
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
