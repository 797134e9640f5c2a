//! Atomic-IO's library for hosts: which block namespaces have writes that are whole through power cuts, and how long these are. Requests are Base-IO's:
//! `base-io-host` makes them.
//!
//! What always holds: no input or output, no knowledge of a transport.
//!
//! Who may call it: transports that tell hosts, and host programs that make such namespaces.

/// Name that Atomic-IO is installed under.
pub const APP_NAME: &str = "atomic-io";
/// Longest write that is whole.
pub const WRITE_BYTES_MAX: u32 = atomic_io_spu::format::DATA_BYTES;

/// The longest write, within a stripe of so many bytes, that is whole through a power cut on a namespace of that app; `None`: the app promises nothing beyond a
/// logical block.
pub fn write_bytes(app: &str, stripe_bytes: u32) -> Option<u32> {
    (app == APP_NAME).then_some(stripe_bytes.min(WRITE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_the_app_promise_more_than_a_block() {
        assert_eq!(write_bytes("base-io", 65536), None);
        assert_eq!((write_bytes(APP_NAME, 8192), write_bytes(APP_NAME, 1 << 20)), (Some(8192), Some(65536)));
    }
}
