//! Puts a device together: its media, its built-in apps, its identity.

use crate::config::ServeConfig;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::serve::sampler::ThreadSampler;
use crate::size::Size;
use std::io::Read;
use std::path::Path;
use willow_apps::BUNDLED_APPS;
use willow_device::clock::Timing;
use willow_device::media::file::{FileShape, FileStore};
use willow_device::media::ram::RamStore;
use willow_device::model::HardwareModel;
use willow_device::region::REGION_ALIGNMENT_BYTES;
use willow_device::{BuiltInApp, Device, DeviceConfig, Store};
use willow_sim::flash::{Contents, ftl};

/// Bytes of a bank of a data folder that only the disk bounds: below the longest file of ext4 (16 TiB).
const BANK_BYTES_UNBOUNDED: u64 = 8 << 40;
/// Room for the apps' own regions beside the namespaces, where memory is all that bounds a device.
const REGIONS_BYTES: u64 = 256 << 20;

/// Bytes of a bank for a capacity.
fn bank_bytes(spus: u16, capacity: Size) -> Outcome<u64> {
    let share = capacity.0 / u64::from(spus) / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES;
    if share == 0 {
        fail!("--capacity {capacity} is less than {REGION_ALIGNMENT_BYTES} bytes for each of {spus} SPUs: give more");
    }
    Ok(share)
}

/// A store in memory. Without a capacity, this machine's memory bounds it, or the namespaces where they are larger: memory
/// is taken only as it is written.
pub fn ram_store(config: &DeviceConfig, capacity: Option<Size>) -> Outcome<Box<dyn Store>> {
    let share = |bytes| config.bank_share_bytes(bytes).unwrap_or(u64::MAX);
    let spus = u64::from(config.spus);
    let namespaces =
        share(config.namespace_bytes).saturating_add(share(config.kv_namespace_bytes)).saturating_mul(spus);
    let capacity = capacity.unwrap_or_else(|| Size(namespaces.saturating_add(REGIONS_BYTES).max(memory_bytes())));
    let bank = bank_bytes(config.spus, capacity)?;
    let mut store =
        RamStore::new(usize::from(config.spus), bank).context(|| "cannot keep contents in memory".to_owned())?;
    if namespaces <= memory_bytes() / 2 {
        store.prefer_huge_pages();
        store.make_ready_ahead().context(|| "cannot start the thread that makes memory ready".to_owned())?;
    }
    Ok(Box::new(store))
}

/// Memory of this machine.
fn memory_bytes() -> u64 {
    let information = rustix::system::sysinfo();
    information.totalram.saturating_mul(u64::from(information.mem_unit))
}

fn file_store(folder: &Path, config: &mut DeviceConfig, wanted: &ServeConfig) -> Outcome<Box<dyn Store>> {
    let bank = match wanted.capacity {
        Some(capacity) => bank_bytes(config.spus, capacity)?,
        None => BANK_BYTES_UNBOUNDED,
    };
    let shape = FileShape { banks: usize::from(config.spus), bank_bytes: bank };
    let store = FileStore::open_or_create(folder, shape).map_err(Failure::new)?;
    let banks = store.banks();
    if wanted.spus_asked && banks != usize::from(config.spus) {
        fail!("{} was made for {banks} SPUs: leave --spus out, or choose another folder", folder.display());
    }
    config.spus = u16::try_from(banks).context(|| format!("{} has {banks} banks", folder.display()))?;
    Ok(Box::new(store))
}

/// The built-in app of that name as native code.
pub fn native_app(name: &str) -> Outcome<BuiltInApp> {
    match BUNDLED_APPS.iter().find(|app| app.name == name) {
        Some(app) => Ok(BuiltInApp::Native((app.native)())),
        None => {
            let names: Vec<&str> = BUNDLED_APPS.iter().map(|app| app.name).collect();
            fail!("there is no built-in app {name} to run natively: use one of {}", names.join(", "))
        }
    }
}

/// The built-in apps, those in `native` as native code.
pub fn built_in_apps(native: &[String]) -> Outcome<Vec<BuiltInApp>> {
    for name in native {
        native_app(name)?;
    }
    BUNDLED_APPS
        .iter()
        .map(|app| match native.iter().any(|name| name == app.name) {
            true => native_app(app.name),
            false => Ok(BuiltInApp::Wasm(app.wasm)),
        })
        .collect()
}

/// A number that no other device has, to make ids of.
pub fn unique_seed() -> Outcome<u64> {
    let mut bytes = [0; 8];
    let opened = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    opened.context(|| "cannot read /dev/urandom".to_owned())?;
    Ok(u64::from_le_bytes(bytes))
}

/// The device that a configuration asks for. Compiles its apps, which takes a while.
pub fn open(config: &ServeConfig) -> Outcome<Device> {
    let mut device = config.device.clone();
    device.seed = unique_seed()?;
    let store = match (&config.media, &config.flash) {
        (Some(folder), None) => file_store(folder, &mut device, config)?,
        (None, None) => ram_store(&device, config.capacity)?,
        (Some(folder), Some(flash)) => {
            let shape = FileShape { banks: usize::from(device.spus), bank_bytes: REGION_ALIGNMENT_BYTES };
            let metadata = FileStore::open_or_create(folder, shape).map_err(Failure::new)?;
            if metadata.bank_bytes() != shape.bank_bytes || metadata.banks() != shape.banks {
                fail!("{} was not made for preset {}: choose another folder", folder.display(), flash.name);
            }
            let uuid = metadata.uuid();
            flash.store(Box::new(metadata), Contents::Files(folder, uuid), device.seed).map_err(Failure::new)?
        }
        (None, Some(flash)) => {
            let metadata = RamStore::new(usize::from(device.spus), REGION_ALIGNMENT_BYTES)
                .context(|| "cannot keep metadata in memory".to_owned())?;
            flash.store(Box::new(metadata), Contents::Memory, device.seed).map_err(Failure::new)?
        }
    };
    let timing = match &config.hardware {
        Some(hardware) => {
            let model = HardwareModel::new(hardware, device.spus, store.bank_bytes()).map_err(Failure::new)?;
            Some(Box::new(model) as Box<dyn Timing>)
        }
        None => None,
    };
    let mut built_in = Vec::new();
    if let Some(flash) = &config.flash {
        let ftl = ftl(&flash.ftl).map_err(Failure::new)?;
        // First: whatever the others do with their banks waits for it.
        built_in.push(match config.native.contains(&flash.ftl) {
            true => BuiltInApp::Native((ftl.native)()),
            false => BuiltInApp::Wasm(ftl.wasm),
        });
    }
    let native: Vec<String> = config
        .native
        .iter()
        .filter(|name| config.flash.as_ref().is_none_or(|flash| flash.ftl != **name))
        .cloned()
        .collect();
    built_in.extend(built_in_apps(&native)?);
    let mut device = Device::open(device, store, timing, built_in).map_err(Failure::new)?;
    device.set_sampler(Box::new(ThreadSampler::default()));
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_shared_by_the_banks() {
        assert_eq!(bank_bytes(8, Size(8 << 20)).unwrap(), 1 << 20);
        assert_eq!(bank_bytes(3, Size(1 << 20)).unwrap(), 5 * 65536);
        assert!(bank_bytes(64, Size(1 << 20)).is_err());
        assert!(memory_bytes() > 0);
    }

    #[test]
    fn only_built_in_apps_run_natively() {
        assert!(native_app("base-io").is_ok());
        assert!(native_app("other").is_err_and(|failure| failure.to_string().contains("base-io")));
        assert_eq!(built_in_apps(&["key-value".to_owned()]).unwrap().len(), BUNDLED_APPS.len());
        assert!(built_in_apps(&["nothing".to_owned()]).is_err());
    }
}
