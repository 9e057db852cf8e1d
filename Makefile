# Every target that people type. The work is done by cargo and by the scripts in hack/ and csi-sanity/.
.DEFAULT_GOAL := help
.PHONY: help setup build demo lint test sanity musl clean

CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR
# The filesystem below the pool of `make sanity`.
FS ?= dir

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what is missing: Debian packages, the Rust toolchain
	@hack/setup.sh

build: ## build the release binary
	@hack/setup.sh build
	cargo build --release --locked

demo: build ## watch the driver create, publish, fill, unpublish and delete volumes; no Kubernetes, no root
	@"$(CARGO_TARGET_DIR)/release/rootcellar" demo

lint: ## check formatting, lints, shell scripts, manifests and what the docs name
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	shellcheck .ci/run hack/*.sh csi-sanity/*.sh
	hack/check-manifests.sh
	hack/check-docs.sh

test: setup ## run everything that needs no cluster; ends with the numbers
	@hack/test.sh

sanity: setup build ## run the stock csi-sanity; FS=dir (default), ext4, xfs or btrfs is what the pool is on
	@csi-sanity/run.sh $(FS)

musl: ## build the static binary that is shipped, and check that it is static and small
	@hack/musl.sh

clean: ## remove everything that was built
	cargo clean
