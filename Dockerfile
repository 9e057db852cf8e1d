# The driver's image: one static binary and nothing else, so there is no package in it to patch.
#
# hack/image.sh builds it for amd64 and arm64 and passes every argument. By hand:
#   hack/musl.sh amd64
#   docker build -t registry.example/rootcellar:0.1.0 .        (or: podman build, buildah bud)
#
# For another architecture, pass the platform and that binary:
#   hack/musl.sh arm64
#   docker build --platform linux/arm64 --build-arg BINARY=target/aarch64-unknown-linux-musl/release/rootcellar ...
FROM scratch

ARG BINARY=target/x86_64-unknown-linux-musl/release/rootcellar
# Cargo.toml has the version and git the commit; only labels depend on them.
ARG VERSION=unknown
ARG REVISION=unknown

LABEL org.opencontainers.image.title="rootcellar" \
      org.opencontainers.image.description="CSI driver for volumes that are directories on a node's own disks" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"

COPY --chmod=0755 ${BINARY} /rootcellar

ENTRYPOINT ["/rootcellar"]
