//! Decoding takes more stack than other apps need.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_ARCH").is_some_and(|arch| arch == "wasm32") {
        println!("cargo::rustc-cdylib-link-arg=-zstack-size=65536");
    }
}
