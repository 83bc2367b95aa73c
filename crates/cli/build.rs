//! The starter reads its own file before anything else: `prepage_sys::own_pages`.

const LAYOUT: &str = "src/starter/layout.ld";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LAYOUT}");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        let layout = std::path::absolute(LAYOUT).expect("cargo says where this package is");
        println!(
            "cargo::rustc-link-arg-bin=prepage=-Wl,--entry=prepage_entry,-z,noseparate-code,-T,{}",
            layout.display()
        );
        // Data that cannot be written once it is relocated (RELRO) is a mapping and a system call more in each warm start. There is next to none
        // in the static program; one that ld.so relocates keeps it.
        if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
            println!("cargo::rustc-link-arg-bin=prepage=-Wl,-z,norelro");
        }
    }
}
