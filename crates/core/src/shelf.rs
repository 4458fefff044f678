//! Texts that all nodes share: few, seldom written, looked at every second.
//!
//! What is decided at run time and has to outlive whoever decided it, such as an override. A shelf
//! knows nothing of what the texts say.

use std::pin::Pin;

use crate::id::Id;
use crate::store::Error;
use crate::time::{Span, Timestamp};

/// The most texts that a shelf holds.
pub const TEXTS_MAX: usize = 10_000;

/// An answer that is waited for.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Keeps texts by name, each for as long as it was put there.
pub trait Shelf: Send + Sync {
    /// Everything on it; `None` if that is still what it was at the version that is `known`.
    fn read(&self, known: Option<Version>) -> Pending<'_, Option<Contents>>;

    /// Puts a text there, in the place of one of the same name. Without `lasts` it stays.
    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> Pending<'a, ()>;

    /// Takes a text away; whether it was there.
    fn remove(&self, name: Id) -> Pending<'_, bool>;
}

/// Tells whether anything has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

/// What is on a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// When, by the clock of the shelf.
    pub at: Timestamp,
    /// Which version of it.
    pub version: Version,
    /// The texts, in no order.
    pub texts: Vec<String>,
}
