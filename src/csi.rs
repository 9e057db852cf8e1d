//! The generated types, clients and servers of CSI v1.13.0 (`proto/csi.proto`).
#![allow(unreachable_pub, clippy::pedantic)]

tonic::include_proto!("csi.v1");
