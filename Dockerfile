# The images: the driver with rootcellar-copy, mke2fs, mkfs.xfs and the libraries that they load; and the controller alone.
# They have no shell.
#
# From a clone, on any machine with Docker, Podman or Buildah, for its own architecture or another --platform:
#   docker build --tag registry.example/rootcellar:0.1.0-rc.1 .
#   docker build --tag registry.example/rootcellar-fleet:0.1.0-rc.1 --target controller .
# hack/build/image.sh replaces the stage with these files by its own, and checks the images.
FROM --platform=$BUILDPLATFORM docker.io/library/rust:1.95.0-bookworm AS files
WORKDIR /src
COPY . .
ARG TARGETARCH
ARG DEBIAN_MIRROR=http://deb.debian.org
RUN hack/build/setup.sh musl && hack/build/files.sh "$TARGETARCH" && mv "target/image/files/$TARGETARCH" /files

# The labels url, source, documentation and authors are missing until the project has an address. It has no vendor, and an
# image from scratch has no base to name. hack/build/image.sh adds the label created, with the time of the commit.
FROM scratch AS controller
# Cargo.toml has the version and git the commit; only labels depend on them.
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rootcellar-fleet" \
      org.opencontainers.image.description="Controller that sends restores of rootcellar to their node and labels snapshots" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND ISC AND MIT"
COPY --from=files /files/controller /
# A number, so that kubelet sees that it is not root. Without the group, a runtime would choose root's.
USER 65532:65532
ENTRYPOINT ["/rootcellar-fleet"]

FROM scratch AS driver
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rootcellar" \
      org.opencontainers.image.description="CSI driver for volumes on a node's own disks, as directories or images" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.0-only AND LGPL-2.1-or-later AND MIT"
COPY --from=files /files/driver /
ENTRYPOINT ["/rootcellar"]
