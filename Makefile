# Every goal sets up what it needs on a fresh Debian machine. As root the packages are installed; other users are told
# which ones are missing.

TARGET := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# Static, at a fixed address: nothing to relocate or to link at start, and no library in memory that the observed
# program also uses.
STATIC := -C target-feature=+crt-static -C relocation-model=static
BUILD := target/$(TARGET)
PREFIX ?= /usr/local

export PREPAGE := $(CURDIR)/build/prepage

.PHONY: all build demo test check install clean setup-build setup-demo setup-bench bench-start bench-record bench-file bench-vm stress-vm bench-report bench-disk-cost bench-tight bench-preload bench-modes bench-backends

all: build

## build: the two binaries, in build/
build: setup-build
	RUSTFLAGS="$(STATIC)" cargo build --locked --profile starter --target $(TARGET) -p prepage --no-default-features --bin prepage
	RUSTFLAGS="$(STATIC)" cargo build --locked --release --target $(TARGET) -p prepage --bin prepage-tools
	@mkdir -p build
	@cp $(BUILD)/starter/prepage $(BUILD)/release/prepage-tools build/
	$(CC) -O2 -Wall -Wextra -shared -fPIC -o build/libprepage-early-fault.so crates/sys/preload/early_fault.c

## demo: learn and measure python3 and gcc on this machine
demo: build setup-demo
	bench/demo

## test: all tests, and the VM's fault path under schedulers that try its interleavings
test: setup-build setup-test
	cargo test --locked --workspace
	cargo test --locked -p prepage-vm --lib --features shuttle model
	cargo test --locked -p prepage-vm --lib --features loom model

## check: formatting and lints
check: setup-build
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

## bench-start: cold, prefetched and warm starts of real programs, on the local disk and on slow volumes
bench-start: build setup-bench setup-start
	RUSTFLAGS= cargo build --locked --release -p prepage-bench --example slow_volume
	bench/start

## bench-tight: the same with 64 MB of memory left
bench-tight: build setup-bench
	bench/tight

## bench-preload: prepage beside the daemon preload(8)
bench-preload: build setup-bench setup-start
	bench/preload

## bench-modes: prefetching before the program, of whole files, with pages mapped ahead
bench-modes: build setup-bench
	bench/modes

## bench-backends: ways to bring the same pages into memory
bench-backends: build setup-bench
	cargo build --locked --release -p prepage-sys --example read_backends
	cargo build --locked --release -p prepage-prefetch --example print_plan
	bench/backends

## bench-record: recording against perf record
bench-record: build setup-bench
	bench/record

## bench-disk-cost: the cost of disk faults against delay accounting and the program's own clock (root)
bench-disk-cost: build setup-bench
	bench/disk-cost

## bench-file: a page-fault study's experiments on this machine, with tables and pictures for docs
bench-file: build setup-bench
	bench/file

## bench-vm: the user-space VM against the kernel and a plain handler; 1 GiB of disk, ROUNDS and FILE_MIB settable
bench-vm: setup-build
	cargo bench --locked -p prepage-vm --bench vm

## stress-vm: threads against the user-space VM under a watchdog, for SECONDS (600)
stress-vm: setup-build
	cargo bench --locked -p prepage-vm --bench stress

## bench-simulate: touches replayed a second
bench-simulate: setup-build
	cargo run --locked --release -p prepage-simulate --example throughput

## traces: first touches of real programs, recorded exactly, in target/traces (root)
traces: build setup-traces
	bench/traces

## bench-policies: clustering policies on these traces
bench-policies: build
	@[ -d target/traces ] || $(MAKE) traces
	bench/policies

## bench-report: a report of ten million faults: time, memory, and DuckDB beside it
bench-report: build setup-test
	RUSTFLAGS="$(STATIC)" cargo build --locked --release --target $(TARGET) -p prepage-report --example generate_trace
	GENERATE_TRACE=$(BUILD)/release/examples/generate_trace bench/report

## bench-first-start: cold first starts, plain, without page maps and with them (root)
bench-first-start: build setup-bench
	bench/first-start

## packages: installs the example packages that keep page maps up to date, in an overlay that is thrown away (root)
packages: build
	PREPAGE=$(CURDIR)/build/prepage examples/packaging/try

## fuzz: all readers of files, a minute each (nightly Rust and cargo-fuzz)
fuzz:
	for target in profile page_map bundle elf; do cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; done

.PHONY: packages fuzz bench-first-start

install: build
	install -D -t $(DESTDIR)$(PREFIX)/bin build/prepage build/prepage-tools
	install -D -t $(DESTDIR)$(PREFIX)/lib/prepage build/libprepage-early-fault.so

clean:
	cargo clean
	rm -rf build

setup-build:
	@command -v cargo >/dev/null || { echo "no cargo: install Rust 1.88 or newer (https://rustup.rs)"; exit 1; }
	@bench/packages gcc libc6-dev

.PHONY: setup-test
setup-test:
	@bench/packages procps util-linux python3 coreutils
	@bench/packages --optional chromium default-jdk-headless
	@bench/python

setup-demo:
	@bench/packages gcc python3

setup-bench:
	@bench/packages gcc clang emacs-nox gdb nodejs default-jdk-headless chromium linux-perf

.PHONY: bench-simulate traces bench-policies setup-traces
setup-traces:
	@bench/packages gcc clang emacs-nox gdb nodejs default-jdk-headless firefox-esr python3 python3-pandas python3-scipy python3-matplotlib

.PHONY: setup-start
setup-start:
	@bench/packages vmtouch util-linux e2fsprogs firefox-esr python3-pandas python3-scipy python3-matplotlib
