//! Code generated from `proto/`. It is part of the repository, because the generator takes longer to
//! compile than everything else in this crate; `tests/generated.rs` compares it with the protos.

// Generated: the protos are the documentation.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!("generated/google.pubsub.v1.rs");
