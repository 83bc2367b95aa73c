TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS := -C target-feature=+crt-static -C relocation-model=static
BIN := target/$(TARGET)/release

release:
	cargo build --release --target $(TARGET) -p prepage
