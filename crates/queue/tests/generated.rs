//! Compares the generated code in `src/pubsub/generated` with the protos. To generate it anew:
//!
//! ```text
//! UPDATE_GENERATED=1 cargo test -p sluicegate-queue --test generated
//! ```

use std::path::Path;
use std::{env, fs};

#[test]
fn the_generated_code_is_that_of_the_protos() {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = "google.pubsub.v1.rs";
    let kept = this.join("src/pubsub/generated").join(name);
    let folder = tempfile::tempdir().expect("a folder");
    let protos = ["google/pubsub/v1/pubsub.proto"];
    let files = protox::compile(protos, [this.join("proto")]).expect("the protos");
    // Bodies are shared and not copied; ordered maps, so that the same message has the same bytes.
    let code = tonic_prost_build::configure().build_server(false).bytes(".").btree_map(".");
    code.out_dir(folder.path()).compile_fds(files).expect("code");
    let generated = fs::read(folder.path().join(name)).expect("the code");
    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&kept, &generated).expect(name);
    }
    let is_same = fs::read(&kept).is_ok_and(|kept| kept == generated);
    assert!(is_same, "{name} differs: see the top of this file");
}
