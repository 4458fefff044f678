//! The fourth step, forward: sends a request to the upstream and streams the response back.

pub(crate) mod buffered_body;
pub(crate) mod connect;
pub(crate) mod error;
pub(crate) mod headers;
pub(crate) mod streamed_body;
pub(crate) mod target;
pub(crate) mod tunnel;
pub(crate) mod upload;

pub(crate) use buffered_body::{BodyBudget, BufferedBody};
pub(crate) use connect::{HeldConnection, Places};
pub(crate) use error::ForwardError;
pub(crate) use upload::{Upload, UploadTimeouts};
