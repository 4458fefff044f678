//! The raw client of each broker, which does the same as our queue interface as fast as it can.
//! Frozen: a change needs a decision page.

mod fe2o3;
mod lapin;
mod sdk;
mod sqlite;
mod tonic;

pub(crate) use fe2o3::Fe2o3;
pub(crate) use lapin::Lapin;
pub(crate) use sdk::{Sdk, sdk_config};
pub(crate) use sqlite::Sqlite;
pub(crate) use tonic::Tonic;
