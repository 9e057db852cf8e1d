# All targets for people. Cargo and the scripts in hack/ and csi-sanity/ do the work.
.DEFAULT_GOAL := help
.PHONY: help setup build demo quick lint advisories check test soak mutants bench sanity musl image manifests e2e picture e2e-conformance e2e-startup \
    release publish bundle e2e-release e2e-upgrade e2e-databases e2e-migration e2e-monitoring e2e-machine e2e-fleet e2e-scale guest test-kernels test-power test-dockerfile evidence clean

CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR
# The filesystem below the pool of `make sanity`.
FS ?= dir

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## install the missing parts: Debian packages, the Rust toolchain, cargo-deny, Vale, actionlint
	@hack/build/setup.sh

build: ## build the release binary
	@hack/build/setup.sh build
	cargo build --release --locked

demo: ## watch the driver create, publish, fill, unpublish and delete volumes; no Kubernetes, no root
	@hack/build/setup.sh build
	cargo build --locked --bin rootcellar --example demo
	@"$(CARGO_TARGET_DIR)/debug/examples/demo" "$(CARGO_TARGET_DIR)/debug/rootcellar"

quick: setup ## check formats, clippy, imports, documents and English, within a minute
	@hack/test/test.sh quick

lint: setup ## check formats, lints, shell scripts, workflows, mutants, manifests, documents, English and dependencies
	@hack/test/test.sh lint

advisories: setup ## look for known vulnerabilities in the crates; needs github.com, and CI runs it weekly
	@"$(CARGO_TARGET_DIR)/tools/bin/cargo-deny" --locked check --deny warnings advisories

check: setup ## run lint, the unit tests and the fast integration tests: five minutes on an idle machine, and root only for some of them
	@hack/test/test.sh check

test: setup ## run everything that needs no cluster; ends with the counts
	@hack/test/test.sh

soak: setup ## run the tests under load and the fuzz for an hour, or SOAK=SECONDS
	@hack/test/soak.sh

mutants: setup ## swap steps whose order durability depends on, and expect a test to fail; takes hours, or PART=1/2 of them
	@hack/test/mutants.sh

sanity: setup build ## run csi-sanity on a pool on FS=dir (default), ext4, ext4-image, ext4-block, xfs, set, btrfs, btrfs-squota, ext4-prjquota or xfs-prjquota
	@csi-sanity/run.sh $(FS)

bench: ## compare the driver with the bare system calls, and write benches/results
	@benches/run.sh
	@benches/run.sh enforcement

musl: ## build the static binaries of the images, and check that they are static and small
	@hack/build/setup.sh musl
	@hack/build/musl.sh

image: ## build the static binaries and images, amd64 and arm64, as archives that nodes can load
	@hack/build/setup.sh image
	@hack/build/image.sh

release: ## build dist/: binaries, images, chart, manifests, bills of materials, provenance, checksums, signatures
	@hack/build/setup.sh release
	@hack/release/release.sh

publish: ## push the images and the chart of dist/ to REGISTRY, and sign and attest them there
	@hack/build/setup.sh release
	@hack/release/publish.sh

bundle: ## add an archive to dist/ that installs the driver with snapshots without a registry
	@hack/build/setup.sh release
	@hack/release/bundle.sh $(ARCHES)

manifests: ## render the chart with every preset into deploy/install, for kubectl; needs only Go
	@hack/build/setup.sh manifests
	@hack/build/manifests.sh write

e2e: ## run the manifests on a real Kubernetes of two nodes, which exists for this run only; K8S=1.34, 1.35, 1.36 or 1.37
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh scenarios

picture: ## record the picture of README.md on such a cluster
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@PICTURE="$(CURDIR)/docs/quick-start.svg" e2e/run.sh scenarios -test.run "TestKubernetes/the_README's_quick_start"

e2e-conformance: ## run Kubernetes' own suites for storage drivers, on such a cluster; K8S as for e2e
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh conformance

e2e-release: ## build a release twice, publish it in the registry of such a cluster, and install it from there
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@hack/build/setup.sh release
	@e2e/run.sh release

e2e-upgrade: ## upgrade from the previous version on such a cluster, roll back, and upgrade again
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh upgrade

e2e-startup: ## measure the time from claim to Running on such a cluster, and write benches/results
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh startup

e2e-scale: ## measure what a cluster of 200 and 1,000 nodes pays, with up to 100,000 volumes, and write benches/results
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh scale

e2e-databases: ## run PostgreSQL, its backups, etcd and a virtual machine on volumes of such a cluster; needs amd64 and Debian 12
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh databases

e2e-migration: ## move workloads of local-path-provisioner and others to the driver, and back, on such a cluster
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh migration

e2e-monitoring: ## fire and clear each alert on such a cluster, with Prometheus and its operator
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh monitoring

e2e-machine: ## join an emulated machine with systemd to such a cluster, pull its disk, cut its power and limit its I/O, or PART=disks or limits of it; REGISTRAR=PROGRAM takes the stock registrar
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@hack/build/setup.sh guest
	@e2e/run.sh machine

e2e-fleet: ## run rootcellar-fleet between the stock sidecars, and meet its races, on a control plane with three nodes without kubelets
	@e2e/cluster/check.sh
	@hack/build/setup.sh e2e
	@e2e/run.sh fleet

guest: ## build Debian guests with Linux 6.1, 6.12, 7.3, 6.12 for arm64 and 6.12 with SELinux for the next two, which reuse them
	@hack/build/setup.sh guest
	@hack/test/guest/build.sh 6.1 6.12 6.12-arm64 6.12-selinux 7.3

test-kernels: setup ## run the demo, csi-sanity, the tests of quota, replay, power-off, udev and SELinux on these kernels, and write docs/compatibility.md
	@hack/build/setup.sh guest
	@hack/test/guest/kernels.sh $(KERNEL)

test-power: setup ## cut the power of a guest under PostgreSQL and etcd 30 times, then lose writes of every operation in user-mode-linux
	@hack/build/setup.sh guest
	@hack/test/guest/power-cuts.sh $(CUTS)
	@hack/test/uml-replay.sh

test-dockerfile: ## build the images as README.md does without Rust, from the first stage of the Dockerfile, and compare their files
	@hack/build/setup.sh dockerfile
	@hack/test/dockerfile.sh $(ARCH)

evidence: ## run all that CI leaves out and that has not passed on this state, in parts of at most two hours, or PARTS="upgrade soak"; writes docs/compatibility.md
	@hack/test/evidence.sh $(PARTS)

clean: ## remove everything that was built, with the key that a release without COSIGN_KEY generated
	cargo clean
	rm -rf dist
