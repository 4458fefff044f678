//! Generates the messages of the product's protos, for the floor and for the requests.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = "../../crates/server/proto";
    println!("cargo:rerun-if-changed={folder}");
    let protos = ["sluicegate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];
    let files = protox::compile(protos, [folder])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
