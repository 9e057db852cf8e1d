//! Generates the types and services of CSI and of the driver itself from their protos, without a `protoc` binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = ["proto/csi.proto", "proto/rootcellar.proto"];
    for proto in protos {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
