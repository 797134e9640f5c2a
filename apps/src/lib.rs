//! The SSD Apps of this repository, as modules to install and as native code.
//!
//! What always holds: both forms are made of the same source, and a module's name is what its section `willow.app` says.
//!
//! Who may call it: whoever makes a device (the command, tests).

use willow_sdk::native::NativeApp;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// An app that comes with the device.
#[derive(Clone, Copy)]
pub struct BundledApp {
    /// Name that it is installed under.
    pub name: &'static str,
    /// The module.
    pub wasm: &'static [u8],
    /// The same as native code, without a sandbox.
    pub native: fn() -> &'static dyn NativeApp,
}

/// All that come with the device, Base-IO first: it serves the block namespaces.
pub static BUNDLED_APPS: [BundledApp; 10] = [
    BundledApp { name: "base-io", wasm: BASE_IO_WASM, native: base_io_spu::native },
    BundledApp { name: "key-value", wasm: KEY_VALUE_WASM, native: key_value_spu::native },
    BundledApp { name: "direct-io", wasm: DIRECT_IO_WASM, native: direct_io_spu::native },
    BundledApp { name: "atomic-write", wasm: ATOMIC_WRITE_WASM, native: atomic_write_spu::native },
    BundledApp { name: "search", wasm: SEARCH_WASM, native: search_spu::native },
    BundledApp { name: "atomic-io", wasm: ATOMIC_IO_WASM, native: atomic_io_spu::native },
    BundledApp { name: "append", wasm: APPEND_WASM, native: append_spu::native },
    BundledApp { name: "caching", wasm: CACHING_WASM, native: caching_spu::native },
    BundledApp { name: "columns", wasm: COLUMNS_WASM, native: columns_spu::native },
    BundledApp { name: "compute", wasm: COMPUTE_WASM, native: compute_spu::native },
];

/// FTLs that come with the device: a device with flash has one of them besides.
pub static FTLS: [BundledApp; 1] = [BundledApp { name: "page", wasm: PAGE_WASM, native: page_spu::native }];

/// Apps that commands install where they are used: in the name of who uses them, so that what they keep is that user's own.
pub static INSTALLED_BY_COMMANDS: [BundledApp; 1] =
    [BundledApp { name: "btree", wasm: BTREE_WASM, native: btree_spu::native }];

/// The thesis' examples, which experiments run.
pub static EXAMPLES: [BundledApp; 1] = [BundledApp { name: "fgrep", wasm: FGREP_WASM, native: fgrep_spu::native }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_carry_the_manifest_of_their_native_form() {
        for app in BUNDLED_APPS.iter().chain(&FTLS).chain(&INSTALLED_BY_COMMANDS).chain(&EXAMPLES) {
            assert_eq!(&app.wasm[..4], b"\0asm", "{} is a module", app.name);
            let manifest = (app.native)().manifest();
            assert!(manifest.starts_with(format!("abi=2\nname={}\nversion=", app.name).as_bytes()));
            assert!(app.wasm.windows(manifest.len()).any(|window| window == manifest), "{}", app.name);
        }
    }
}
