//! The starter reads its own file before anything else: `prepage_sys::own_pages`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rustc-link-arg-bin=prepage=-Wl,--entry=prepage_entry");
    }
}
