//! Compares the generated code in `src/grpc/generated` with the protos. To generate it anew:
//!
//! ```text
//! UPDATE_GENERATED=1 cargo test -p sluicegate-server --test generated
//! ```

use std::path::Path;
use std::{env, fs};

use prost::Message as _;

const PROTOS: [&str; 2] =
    ["sluicegate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];

#[test]
fn the_generated_code_is_that_of_the_protos() {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = this.join("src/grpc/generated");
    let folder = tempfile::tempdir().expect("a folder");
    let files = protox::compile(PROTOS, [this.join("proto")]).expect("the protos");
    // Reflection sends the descriptors to clients that have no protos.
    fs::write(folder.path().join("descriptors.bin"), files.encode_to_vec()).expect("a file");
    // Ordered maps, so that the same answer always has the same bytes.
    let code = tonic_prost_build::configure().btree_map(".").out_dir(folder.path());
    code.compile_fds(files).expect("code");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path()).expect("the folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name").replace("r#", "");
        let generated = fs::read(entry.path()).expect(&name);
        if env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(kept.join(&name), &generated).expect(&name);
        }
        let is_same = fs::read(kept.join(&name)).is_ok_and(|kept| kept == generated);
        assert!(is_same, "{name} differs: see the top of this file");
        names.push(name);
    }
    assert_eq!(fs::read_dir(&kept).expect("the folder").count(), names.len(), "{names:?}");
}
