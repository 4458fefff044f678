//! [`OverrideStore`]: the port for the overrides that all nodes share.
//!
//! Overrides are set at run time, and have to outlive the node that set them. There are few of
//! them, they seldom change, and every node polls them each second. To the store an override is an
//! opaque text.

use std::pin::Pin;

use crate::id::Id;
use crate::store::Error;
use crate::time::{Span, Timestamp};

/// Maximum number of overrides in a store.
pub const OVERRIDES_MAX: usize = 10_000;

/// The future that an operation returns.
pub type OverrideFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Keeps overrides by name, each until it expires.
pub trait OverrideStore: Send + Sync {
    /// Returns all overrides, or `None` if they have not changed since the version `known`.
    fn read(&self, known: Option<OverridesVersion>) -> OverrideFuture<'_, Option<StoredOverrides>>;

    /// Stores an override and replaces one of the same name. It expires after `lasts`, or never.
    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> OverrideFuture<'a, ()>;

    /// Removes an override. Returns true if it existed.
    fn remove(&self, name: Id) -> OverrideFuture<'_, bool>;
}

/// Version of the stored overrides; it increases with every change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverridesVersion(pub u64);

/// All overrides in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Time of the read, by the clock of the store.
    pub at: Timestamp,
    /// Version when `texts` was read.
    pub version: OverridesVersion,
    /// The overrides, in no particular order.
    pub texts: Vec<String>,
}
