//! Submission entries and data of a host that sends anything, into the NVMe subsystem in front of a device in memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};

fuzz_target!(|bytes: &[u8]| {
    let Some((setup, commands)) = bytes.split_first() else { return };
    let config = DeviceConfig {
        spus: 2,
        namespace_bytes: 1 << 20,
        block_bytes: if setup & 1 == 0 { 512 } else { 4096 },
        kv_namespace_bytes: 1 << 20,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(2, 16 << 20).expect("a store in memory");
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    let device = Device::open(config, Box::new(store), None, apps).expect("a fresh device opens");
    willow_nvme::testing::check_commands(device, commands);
});
