# The driver's image: the static driver, and mke2fs and mkfs.xfs with the libraries that they load. There is no shell.
#
# hack/image.sh builds it for amd64 and arm64 and passes every argument. By hand:
#   hack/mkfs.sh amd64
#   hack/musl.sh amd64
#   docker build -t registry.example/rootcellar:0.1.0 .        (or: podman build, buildah bud)
#
# For another architecture, pass the platform and its files:
#   hack/mkfs.sh arm64
#   hack/musl.sh arm64
#   docker build --platform linux/arm64 --build-arg MKFS=target/mkfs/arm64 \
#       --build-arg BINARY=target/aarch64-unknown-linux-musl/release/rootcellar ...
FROM scratch

ARG BINARY=target/x86_64-unknown-linux-musl/release/rootcellar
ARG MKFS=target/mkfs/amd64
# Cargo.toml has the version and git the commit; only labels depend on them.
ARG VERSION=unknown
ARG REVISION=unknown

LABEL org.opencontainers.image.title="rootcellar" \
      org.opencontainers.image.description="CSI driver for volumes that are directories on a node's own disks" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.0-only AND LGPL-2.1-or-later AND MIT"

COPY --chmod=0755 ${BINARY} /rootcellar
COPY ${MKFS} /

ENTRYPOINT ["/rootcellar"]
