//! Compiles the protos, without protoc.

use std::path::PathBuf;

use prost::Message as _;

const PROTOS: [&str; 2] =
    ["sluicegate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(PROTOS, ["proto"])?;
    // Reflection sends the descriptors to clients that have no protos.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    // Ordered maps, so that the same answer always has the same bytes.
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
