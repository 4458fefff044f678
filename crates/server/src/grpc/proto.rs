//! Code generated from `proto/` by the build script.

// Generated: the protos are the documentation.
#![allow(missing_docs, unreachable_pub, clippy::all)]

/// Messages and service of Sluicegate.
pub mod sluicegate {
    pub mod v1 {
        tonic::include_proto!("sluicegate.v1");
    }
}

/// The part of Envoy's API that is used here. The generated code requires this module structure.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
}

/// Descriptors of all services, for reflection.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");
