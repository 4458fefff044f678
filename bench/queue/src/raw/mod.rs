//! The client of each broker, doing the same as the port, as well as it can, and nothing else.
//! Frozen: a change needs a decision page.

mod lapin;
mod sdk;
mod sqlite;

pub(crate) use lapin::Lapin;
pub(crate) use sdk::{Sdk, sdk_config};
pub(crate) use sqlite::Sqlite;
