//! The generated types, client and server of the driver's own service (`proto/rootcellar.proto`).
#![allow(unreachable_pub, clippy::pedantic)]

tonic::include_proto!("rootcellar.v1");
