# Every goal sets up what it needs on a fresh Debian machine. As root the packages are installed; other users are told
# which ones are missing.

TARGET := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# Static, at a fixed address: nothing to relocate or to link at start, and no library in memory that the observed
# program also uses.
STATIC := -C target-feature=+crt-static -C relocation-model=static
BUILD := target/$(TARGET)
ARM64 := aarch64-linux-gnu
# The starter is linked with musl, so that less of it is read from a cold disk (docs/adr/0002-two-binaries.md). Where Rust has no such target (a distribution's
# own cargo), with glibc.
STARTER := $(subst -gnu,-musl,$(TARGET))
PREFIX ?= /usr/local

# Where cargo puts what it compiles for tests.
TESTED := $${CARGO_TARGET_DIR:-target}/debug
# Lists the tests that skipped, and fails if this machine allows one of them.
SKIPS := $(TESTED)/skips
# cargo test, some programs of tests beside others; what fails among others is run once more, alone, and listed.
SUITE := $(TESTED)/suite

# The VM's own tests of its locks and atomics. To compile the VM with optimization takes longer than it saves; its schedulers are compiled
# so.
SCHEDULED := cargo test --locked -p prepage-vm --lib --config profile.dev.package.prepage-vm.opt-level=0

export PREPAGE := $(CURDIR)/build/prepage

.PHONY: all build demo test check lint install uninstall clean setup-build setup-demo setup-bench bench-start bench-record bench-file bench-vm stress-vm bench-report bench-disk-cost bench-tight bench-preload bench-modes bench-sweep

all: build

## build: the three binaries, manual pages and completions, in build/
build: setup-build
	@mkdir -p build
	target=$(STARTER); rustup target add $$target 2>/dev/null || target=$(TARGET); \
		RUSTFLAGS="$(STATIC)" cargo build --locked --profile starter --target $$target -p prepage --no-default-features --bin prepage \
		&& cp target/$$target/starter/prepage build/
	RUSTFLAGS="$(STATIC)" cargo build --locked --release --target $(TARGET) -p prepage --bin prepage-tools
	RUSTFLAGS="$(STATIC)" cargo build --locked --release --target $(TARGET) -p prepage-service --bin prepaged
	@cp $(BUILD)/release/prepage-tools $(BUILD)/release/prepaged build/
	crates/sys/agent/build "$(CURDIR)/build/libprepage-agent.so"
	$(CC) -O2 -Wall -Wextra -shared -fPIC -o build/libprepage-early-fault.so crates/bench/preload/*.c
	build/prepage man build/man
	@cp crates/service/prepaged.8 build/man/
	@mkdir -p build/completions
	for shell in bash zsh fish; do COMPLETE=$$shell build/prepage >build/completions/$$shell || exit 1; done

## demo: learn and measure python3 and gcc on this machine
demo: build setup-demo
	bench/demo

## test: all tests, and the VM's fault path under schedulers that try its interleavings; lists skipped tests at its end
test: setup-build setup-test
	@# Of the workspace, where `-p` or `cargo run` would choose other features of what they use: compiled once, not twice.
	cargo build --locked --workspace --bin skips --bin suite
	@$(SKIPS) --clear
	$(SUITE) --locked --workspace --beside '12 $(SCHEDULED) --features shuttle model' --beside '3 $(SCHEDULED) --features loom model' \
		--beside '2 $(SCHEDULED) --features counted counted' || { $(SKIPS); exit 1; }
	@$(SKIPS)

## check: lint, and licences and origins of dependencies
check: lint setup-check
	cargo deny --locked check --hide-inclusion-graph bans licenses sources

## lint: formatting, lints, documentation without broken links
lint: setup-build setup-lint
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features prepage-bench/slow-volume -- -D warnings
	@# The starter as `build` makes it.
	target=$(STARTER); rustup target add $$target 2>/dev/null || target=$(TARGET); \
		cargo clippy --locked --target $$target -p prepage --no-default-features --bin prepage -- -D warnings
	@# A user's compiler may warn of more.
	@mkdir -p target
	crates/sys/agent/build "$(CURDIR)/target/libprepage-agent-linted.so" -Werror
	@! command -v clang >/dev/null || CC=clang crates/sys/agent/build "$(CURDIR)/target/libprepage-agent-linted.so" -Werror
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace --features prepage-bench/slow-volume
	@# The fuzz targets are a workspace of their own, which no build above looks at.
	cargo tree --locked --manifest-path fuzz/Cargo.toml >/dev/null
	@# What skips must count: see crates/testing.
	@! grep -rn --include='*.rs' -i 'eprintln!("skip' crates --exclude-dir=testing

## lint-arm64: the lints for arm64, and its agent compiled (takes rustup, and a cross compiler, which is installed as root)
lint-arm64: setup-build setup-lint
	@bench/packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	rustup target add aarch64-unknown-linux-gnu
	CC_aarch64_unknown_linux_gnu=$(ARM64)-gcc cargo clippy --locked --target aarch64-unknown-linux-gnu --workspace -- -D warnings
	CC=$(ARM64)-gcc crates/sys/agent/build "$(CURDIR)/target/libprepage-agent-arm64.so" -Werror
.PHONY: lint-arm64

## bench-start: cold, prefetched and warm starts of real programs, on the local disk and on slow volumes
bench-start: build setup-bench setup-start setup-programs
	@bench/packages vmtouch
	RUSTFLAGS= cargo build --locked --release -p prepage-bench --features slow-volume --example slow_volume
	bench/start

## bench-agent: what the agent costs warm starts
bench-agent: setup-bench
	cargo build --locked --release -p prepage-sys --example agent
	@mkdir -p build
	crates/sys/agent/build "$(CURDIR)/build/libprepage-agent.so"
	bench/agent

.PHONY: bench-agent

## bench-learning: what `run` learns by itself, against the yardstick's profiles (root); PLACES, PROGRAMS, ROUNDS, STARTS settable
bench-learning: build setup-bench setup-start setup-programs
	RUSTFLAGS= cargo build --locked --release -p prepage-bench --features slow-volume --example slow_volume
	bench/learning $(PLACES)
.PHONY: bench-learning

## bench-known: what `run` knows after 1, 2, 5 and 10 cold starts, counted beside the yardstick's profiles (root); PLACES, PROGRAMS, ROUNDS, STARTS settable
bench-known: build setup-bench setup-start setup-programs
	bench/known $(PLACES)
.PHONY: bench-known

## bench-service: programs that nobody prefixes, with the service running, against plain, `run` and warm (root); PLACES (known itself beside predicted), PROGRAMS, ROUNDS, STARTS settable
bench-service: build setup-bench setup-start setup-programs
	RUSTFLAGS= cargo build --locked --release -p prepage-service --example expect
	bench/service $(PLACES)
.PHONY: bench-service

## bench-service-cost: a build with the service and without it, reads of others beside idle prefetch, the latency of execs, and what names cost (root); PARTS (foreground latency names, or hour: learning in an hour of builds), ROUNDS, PAIRS, SECONDS, HOUR_SECONDS settable
bench-service-cost: build setup-bench
	RUSTFLAGS= cargo build --locked --release -p prepage-service --example expect
	bench/service-cost $(PARTS)
.PHONY: bench-service-cost

## bench-boot: a Debian that boots in qemu from a slow disk, plain, with a list of whole files, and with what prepage-boot has learned (root); READS, BYTES, LATENCY_US, ROUNDS settable
bench-boot: build
	RUSTFLAGS= cargo build --locked --release -p prepage-bench --features slow-volume --example slow_volume
	@bench/packages mmdebstrap qemu-system-x86 e2fsprogs python3
	bench/boot
.PHONY: bench-boot

## bench-tight: cold and prefetched starts with 64 MB of memory left
bench-tight: build setup-bench
	bench/tight

## bench-preload: the service beside the daemon preload(8) and beside whole files, on every program (root): `make bench-service PLACES=beside`; PROGRAMS, ROUNDS, STARTS settable
bench-preload:
	$(MAKE) bench-service PLACES=beside

## bench-modes: the modes of a study of prefetching at exec: before the program, of whole files, with pages mapped ahead
bench-modes: build setup-bench
	bench/modes

## bench-sweep: starts with many numbers of readers, sizes of holes read over and read-aheads of the kernel, also without any in the program's files (POSIX_FADV_RANDOM) (root)
bench-sweep: build setup-bench
	bench/sweep

## bench-observe: what observing a start sees and costs, beside the slow exact way (root); ROUNDS settable
bench-observe: build setup-bench
	cargo build --locked --release -p prepage-bench --example observation
	bench/observe

## bench-record: recording against perf record
bench-record: build setup-bench
	bench/record

## bench-disk-cost: the cost of disk faults against delay accounting and the program's own clock (root)
bench-disk-cost: build setup-bench
	bench/disk-cost

## bench-file: a page-fault study's experiments on this machine, with tables and pictures for docs
bench-file: build setup-bench
	bench/file

## bench-memory: faults of ls, gdb and emacs by address, as pictures for docs
bench-memory: build
	@bench/packages chromium gdb emacs-nox
	bench/memory
.PHONY: bench-memory

## bench-linux: Linux's policies as simulated against this machine's kernel (root)
bench-linux: build setup-bench
	build/prepage bench linux

## bench-clusters: clustering policies in time on a real cold file
bench-clusters: build
	build/prepage bench clusters

## bench-pool: a file twice as large as memory by mmap under a limit and by the VM's pool (root); POOL='--size 1G …' are options
bench-pool: build
	bench/limited pool $(POOL)
.PHONY: bench-pool bench-workload bench-patterns

## bench-patterns: a large file, records and many small files written and read under a limit of memory, by read and write, mmap and the VM (root); PATTERNS='--size 1G …' are options
bench-patterns: build
	bench/limited patterns $(PATTERNS)

## bench-workload: work like that of compilers in memory of a fixed division, by FreeBSD's dont-need rule and by the VM's own; WORKLOAD='--memory 256M …' are options
bench-workload: build
	build/prepage bench workload $(WORKLOAD)

## bench-drive-cache: whether the drive gets faster for what it has read, and whether it reads ahead
bench-drive-cache: build
	build/prepage bench drive-cache

## bench-rates: starts of programs, new pages and a build, a second; RATES='--workers 1,2,8 …' are options
bench-rates: build
	build/prepage bench rates $(RATES)

.PHONY: bench-linux bench-clusters bench-drive-cache bench-rates

## bench-vm: the user-space VM against the kernel and a plain handler, with all it is held against in one table; 1 GiB of disk, ROUNDS and FILE_MIB settable, UMAP=DIR compares with UMap
bench-vm: setup-build
	cargo bench --locked -p prepage-vm --bench vm -- resident zeros cold waits clones records

## bench-snapshots: snapshots and clones of the user-space VM, beside fork(2) and a private mapping; 10 GiB of memory, ROUNDS settable
bench-snapshots: setup-build
	@bench/packages xfsprogs
	cargo bench --locked -p prepage-vm --bench vm -- snapshots

## bench-writes: first writes to mapped files, flushes and swap of the user-space VM, beside the kernel's; ROUNDS and DIRECTORY settable
bench-writes: setup-build
	cargo bench --locked -p prepage-vm --bench vm -- writes

## bench-give-back: what a process with an idle half gives back to one that needs memory, and what that costs it (root)
bench-give-back: setup-build
	cargo bench --locked -p prepage-vm --bench vm -- give-back

## bench-half: a pool of half as many frames as pages are used beside UMap with as large a buffer (UMAP=DIR); ROUNDS settable
bench-half: setup-build
	cargo bench --locked -p prepage-vm --bench vm -- half

.PHONY: bench-snapshots bench-writes bench-give-back bench-half

## stress-vm: threads against the user-space VM under a watchdog, for SECONDS (600)
stress-vm: setup-build
	cargo bench --locked -p prepage-vm --bench stress

## bench-simulate: touches replayed a second
bench-simulate: setup-build
	cargo run --locked --release -p prepage-simulate --example throughput

## traces: first touches of real programs, recorded exactly, in target/traces
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

## fuzz: all readers of files and options, a minute each (SECONDS); what is new lies in fuzz/found, crashes in fuzz/artifacts
fuzz: setup-fuzz
	for target in $(FUZZED); do \
	    mkdir -p fuzz/found/$$target; \
	    cargo +nightly fuzz run $$target fuzz/found/$$target fuzz/corpus/$$target -- \
	        -max_total_time=$(or $(SECONDS),60) -rss_limit_mb=4096 -timeout=30 || exit 1; \
	done

FUZZED := profile bundle elf trace perf_data touches argument manifest

.PHONY: packages fuzz bench-first-start bench-observe

## install: what `make build` has left in build/, under PREFIX: the binaries, manual pages, documents, and completions for bash, zsh and fish; `make uninstall` removes all of it

## deb: a Debian package of the same and the service, build/prepage_VERSION_ARCH.deb; `make try-deb` installs and purges it in a fresh Debian (root)
deb: build
	packaging/deb/build

try-deb: deb
	@bench/packages mmdebstrap
	packaging/deb/try

BUILT := $(addprefix build/,prepage prepage-tools prepaged man/prepage.1 man/prepaged.8 completions/fish libprepage-agent.so)

# Where zsh looks; distributions have a directory of their own for packages.
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions

.PHONY: deb try-deb
# $(1) as one word of the shell.
quoted = '$(subst ','\'',$(1))'
# A path below PREFIX as one word.
below = $(call quoted,$(DESTDIR)$(PREFIX)/$(1))
zsh_completion = $(call quoted,$(DESTDIR)$(ZSH_COMPLETIONS)/_prepage)

# Whoever installs is root, mostly, who may have no cargo, and leaves nothing of root's in build/.
install:
	@for file in $(BUILT); do \
		[ -e $$file ] || { echo "no $$file: run \`make build\` first" >&2; exit 1; }; \
	done
	install -D -t $(call below,bin) build/prepage build/prepage-tools build/prepaged
	install -D -m 644 -t $(call below,share/man/man1) build/man/*.1
	install -D -m 644 -t $(call below,share/man/man8) build/man/prepaged.8
	install -D -m 644 build/completions/bash $(call below,share/bash-completion/completions/prepage)
	install -D -m 644 build/completions/zsh $(zsh_completion)
	install -D -m 644 build/completions/fish $(call below,share/fish/vendor_completions.d/prepage.fish)
	install -D -t $(call below,lib/prepage) build/libprepage-agent.so
	install -D -m 644 -t $(call below,share/doc/prepage) docs/*.md
	install -D -m 644 -t $(call below,share/doc/prepage/adr) docs/adr/*.md
	install -D -m 644 -t $(call below,share/doc/prepage/images) docs/images/*.png

# Profiles and configuration stay, and links of `prepage enable` (lib/prepage/bin): docs/troubleshooting.md.
uninstall:
	@# Units that `prepage service install` of this copy wrote start what is removed now.
	@[ -n $(call quoted,$(DESTDIR)) ] || [ ! -x $(call below,bin/prepage) ] || $(call below,bin/prepage) service remove 2>/dev/null || true
	rm -f $(foreach program,prepage prepage-tools prepaged,$(call below,bin/$(program)))
	rm -f $(call below,share/man)/man1/prepage.1 $(call below,share/man)/man1/prepage-*.1 $(call below,share/man)/man8/prepaged.8
	rm -f $(call below,share/bash-completion/completions/prepage) $(zsh_completion)
	rm -f $(call below,share/fish/vendor_completions.d/prepage.fish)
	rm -f $(call below,lib/prepage/libprepage-agent.so)
	rm -rf $(call below,share/doc/prepage)
	@rmdir $(call below,lib/prepage) 2>/dev/null || true
	@echo "what was learned stays: docs/troubleshooting.md, \"Removing everything\""

clean:
	cargo clean
	rm -rf build

setup-build:
	@command -v cargo >/dev/null || { echo "no cargo: install Rust 1.88 or newer (https://rustup.rs)"; exit 1; }
	@bench/packages build-essential

.PHONY: setup-lint setup-check setup-fuzz
setup-lint:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy

setup-check:
	@# No Debian package has it. Without optimization and debug information it is built in a third of the time.
	@cargo deny --version >/dev/null 2>&1 || CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 cargo install --locked --debug --quiet cargo-deny

setup-fuzz:
	@cargo +nightly --version >/dev/null || rustup toolchain install --profile minimal nightly
	@command -v cargo-fuzz >/dev/null || cargo install --locked --quiet cargo-fuzz

.PHONY: setup-test
setup-test:
	@bench/packages procps util-linux python3 coreutils
	@bench/packages --optional vmtouch musl-tools btrfs-progs chromium default-jdk-headless
	@bench/python

setup-demo:
	@bench/packages gcc python3

setup-bench:
	@bench/packages gcc python3
	@bench/packages --optional clang emacs-nox gdb nodejs default-jdk-headless chromium linux-perf

.PHONY: bench-simulate traces bench-policies setup-traces
setup-traces:
	@bench/packages gcc python3 python3-pandas python3-scipy python3-matplotlib
	@bench/packages --optional clang emacs-nox gdb nodejs default-jdk-headless firefox-esr

.PHONY: setup-start setup-programs
setup-start:
	@bench/packages util-linux e2fsprogs
	@bench/packages --optional firefox-esr python3-pandas python3-scipy python3-matplotlib

# With those of setup-bench and setup-start, the programs of bench/programs.py. Those that are not there are left out, and named.
setup-programs:
	@bench/packages --optional php-cli r-base-core ghostscript ffmpeg cmake git perl golang-go
