//! [`AnyStore`]: the one store type that the services are built on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Attempt, Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::{Decision, Id, Plan, Span, Store, Timestamp};

use crate::Memory;
#[cfg(feature = "redis")]
use crate::Redis;

/// The store of a service.
///
/// Services use this type instead of a type parameter, so that their code is compiled once and not
/// again for each store. Calls to the memory store and to Redis are static; a call to a custom
/// store allocates its future.
pub enum AnyStore {
    /// Usage in this process.
    Memory(Memory),
    /// Usage in Redis, shared with other nodes.
    #[cfg(feature = "redis")]
    Redis(Arc<Redis>),
    /// A store of another type, for tests: one with a manual clock, or one that fails on demand.
    Custom(Arc<dyn DynStore>),
}

impl AnyStore {
    /// Wraps a store of any other type.
    pub fn custom(store: impl Store + 'static) -> Self {
        Self::Custom(Arc::new(store))
    }

    /// Returns the memory store, if it is one.
    pub const fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
            _ => None,
        }
    }

    /// Returns the Redis store, if it is one.
    #[cfg(feature = "redis")]
    pub const fn redis(&self) -> Option<&Arc<Redis>> {
        match self {
            Self::Redis(redis) => Some(redis),
            _ => None,
        }
    }
}

impl From<Memory> for AnyStore {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

#[cfg(feature = "redis")]
impl From<Arc<Redis>> for AnyStore {
    fn from(redis: Arc<Redis>) -> Self {
        Self::Redis(redis)
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "Redis",
            Self::Custom(_) => "Custom",
        })
    }
}

/// The answer of a custom store, in a box.
pub type BoxedAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Calls an operation of the store inside.
macro_rules! call {
    ($any:expr, $name:ident($($argument:expr),*) $($wait:tt)*) => {
        match $any {
            AnyStore::Memory(memory) => Store::$name(memory, $($argument),*) $($wait)*,
            #[cfg(feature = "redis")]
            AnyStore::Redis(redis) => Store::$name(&**redis, $($argument),*) $($wait)*,
            AnyStore::Custom(custom) => DynStore::$name(&**custom, $($argument),*) $($wait)*,
        }
    };
}

/// Declares [`DynStore`], implements it for every store, and implements [`Store`] for [`AnyStore`].
/// Each operation of the port is one line in its invocation.
macro_rules! operations {
    ($(
        $name:ident($(&$about:ident: $about_type:ty),+ $(; $with:ident: $with_type:ty)?) -> $answer:ty;
    )+) => {
        /// The object-safe form of [`Store`], with the same operations. Every store has it.
        pub trait DynStore: Send + Sync {
            $(
                #[doc = concat!("See [`Store::", stringify!($name), "`].")]
                fn $name<'a>(
                    &'a self,
                    $($about: &'a $about_type,)+
                    $($with: $with_type)?
                ) -> BoxedAnswer<'a, $answer>;
            )+

            /// See [`Store::give_up`].
            fn give_up(&self, plan: &Plan<'_>, attempt: Attempt);

            /// See [`Store::nodes`].
            fn nodes(&self) -> u32;
        }

        impl<S: Store> DynStore for S {
            $(
                fn $name<'a>(
                    &'a self,
                    $($about: &'a $about_type,)+
                    $($with: $with_type)?
                ) -> BoxedAnswer<'a, $answer> {
                    Box::pin(Store::$name(self, $($about,)+ $($with)?))
                }
            )+

            fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
                Store::give_up(self, plan, attempt);
            }

            fn nodes(&self) -> u32 {
                Store::nodes(self)
            }
        }

        impl Store for AnyStore {
            $(
                async fn $name(
                    &self,
                    $($about: &$about_type,)+
                    $($with: $with_type)?
                ) -> Result<$answer, Error> {
                    call!(self, $name($($about),+ $(, $with)?).await)
                }
            )+

            fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
                call!(self, give_up(plan, attempt));
            }

            fn nodes(&self) -> u32 {
                call!(self, nodes())
            }
        }
    };
}

operations! {
    acquire(&plan: Plan<'_>) -> Decision;
    peek(&plan: Plan<'_>) -> Decision;
    book(&plan: Plan<'_>) -> Decision;
    claim(&plan: Plan<'_>; claimant: Id) -> Claim;
    cancel(&handle: Handle) -> EndResult;
    settle(&handle: Handle, &actual: Cost) -> EndResult;
    release(&handle: Handle) -> EndResult;
    renew(&handle: Handle) -> Renewal;
    refund(&plan: Plan<'_>) -> Usage;
    close(&plan: Plan<'_>; wait: Span) -> GateClosure;
    reset(&plan: Plan<'_>) -> Timestamp;
    usage(&plan: Plan<'_>) -> Usage;
    exchange_backlogs(&plan: Plan<'_>, &report: BacklogReport) -> Vec<Backlog>;
}
