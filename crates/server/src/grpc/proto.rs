//! What the build makes of `proto/`.

// Generated: the protos are the documentation.
#![allow(missing_docs, unreachable_pub, clippy::all)]

/// Ours.
pub mod sluicegate {
    pub mod v1 {
        tonic::include_proto!("sluicegate.v1");
    }
}

/// Envoy's, as far as we speak it. The modules lie as the generated code expects them.
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

/// All of them, for reflection.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");
