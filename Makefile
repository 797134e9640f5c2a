# Willow's one entry point. `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# rustup's folder is not on the path of a shell that was there before it.
export PATH := $(PATH):$(HOME)/.cargo/bin
export CARGO_TARGET_DIR ?= $(CURDIR)/target

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2> /dev/null || \
		sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

.PHONY: bootstrap
bootstrap: ## install what building needs and this machine lacks (apt, rustup); quick when all is there
	@scripts/bootstrap

.PHONY: build
build: bootstrap ## the release build: the command bin/willow, and libwillow beside it
	cargo build --release --package willow-cli --package libwillow --package willow-preload --package willow-sqlite
	@mkdir -p bin
	@cp "$(CARGO_TARGET_DIR)/release/willow" bin/.willow-new && mv bin/.willow-new bin/willow
	@cp "$(CARGO_TARGET_DIR)"/release/libwillow{.so,.a,_preload.so,_sqlite.so} host/c/libwillow.h bin/
	@echo "bin/willow is built"

PREFIX ?= /usr/local
.PHONY: install
install: build ## the command, its manual and completions, libwillow, and a systemd unit, below PREFIX (/usr/local)
	scripts/install "$(DESTDIR)" "$(PREFIX)"

.PHONY: deb
deb: build ## a Debian package of all of that in bin/, with a systemd unit (man willow, systemctl start willow)
	@scripts/deb

.PHONY: container
container: build ## a container image of that package, by podman or docker
	@scripts/container

.PHONY: demo
demo: build ## a drive from end to end: attach, run blocks and pairs, kill it, prove that the data is there
	bin/willow demo

.PHONY: test
test: ## all tests: formatting, lints, unit and integration tests, a Linux kernel as host
	@scripts/test

.PHONY: check
check: bootstrap ## formatting and lints alone
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: fmt
fmt: bootstrap ## format all code
	cargo fmt

.PHONY: interface
interface: bootstrap ## write anew what comes from the table of imports: bindings of the SDKs, reference in docs/abi.md
	@mkdir -p "$(CARGO_TARGET_DIR)"
	rustc --edition 2024 --test device/tests/interface.rs -o "$(CARGO_TARGET_DIR)/interface"
	WILLOW_REGENERATE=1 CARGO_MANIFEST_DIR=$(CURDIR)/device "$(CARGO_TARGET_DIR)/interface" --quiet --test-threads 1

.PHONY: guest
guest: bootstrap ## the tests with a Linux kernel as host alone
	cargo build --package willow-cli
	cargo test --package willow-tests --test guest -- --nocapture

.PHONY: bench
bench: build ## measure: block and key-value workloads over NVMe/TCP and in-process
	bin/willow bench io
	bin/willow bench kv

.PHONY: lint
lint: check ## the same as check

.PHONY: fuzz
fuzz: bootstrap ## run every fuzz target for FUZZ_SECONDS (60) each; needs a nightly toolchain and cargo-fuzz
	@scripts/fuzz

.PHONY: clean
clean: ## remove what was built here
	cargo clean
	rm -rf bin
