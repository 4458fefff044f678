//! Code generated from `proto/`. It is part of the repository, because the generator takes longer to
//! compile than everything else in this crate; `tests/generated.rs` compares it with the protos.

// Generated: the protos are the documentation.
#![allow(missing_docs, unreachable_pub, clippy::all)]

/// Messages and service of Sluicegate.
pub mod sluicegate {
    pub mod v1 {
        include!("generated/sluicegate.v1.rs");
    }
}

/// The part of Envoy's API that is used here. The generated code requires this module structure.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("generated/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!("generated/envoy.type.v3.rs");
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
}

/// Descriptors of all services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
