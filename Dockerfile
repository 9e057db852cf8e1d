# The driver's image: one static binary and nothing else, so there is no package in it to patch.
#
#   make musl
#   docker build -t rootcellar:0.1.0 .        (or: podman build, buildah bud)
#
# For another architecture, pass the platform and that binary:
#   --platform linux/arm64 --build-arg BINARY=target/aarch64-unknown-linux-musl/release/rootcellar
FROM scratch

ARG BINARY=target/x86_64-unknown-linux-musl/release/rootcellar
ARG VERSION=0.1.0

LABEL org.opencontainers.image.title="rootcellar" \
      org.opencontainers.image.description="CSI driver for volumes that are directories on a node's own disks" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"

COPY ${BINARY} /rootcellar

ENTRYPOINT ["/rootcellar"]
