//! Generates the CSI types and services from the vendored proto, without a `protoc` binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let descriptors = protox::compile(["proto/csi.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
