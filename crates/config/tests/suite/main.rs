//! What the crate promises: files in, configurations or messages out.

mod anything;
mod files;
mod golden;
mod secrets;
mod values;
