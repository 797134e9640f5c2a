//! The temperature that SMART tells: the hottest sensor of the machine that the device runs on, where the kernel shows one.
//!
//! Sensors can take milliseconds to read, so that a thread of their own does it; where there are none there is no thread.

use crate::failure::{Context, Outcome};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Where the kernel shows its thermal zones.
const ZONES: &str = "/sys/class/thermal";
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// 0 degrees Celsius in millikelvin.
const ICE_MILLIKELVIN: i64 = 273_150;
/// Most sensors that are read.
const SENSORS_MAX: usize = 64;

/// The temperature as it was seen last.
#[derive(Clone, Default)]
pub struct Temperature(Arc<AtomicU16>);

impl Temperature {
    /// Kelvin; 0: no sensor tells.
    pub fn kelvin(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks from now on.
    pub fn watch() -> Outcome<Self> {
        let temperature = Temperature::default();
        let sensors = sensors(Path::new(ZONES));
        if sensors.is_empty() {
            return Ok(temperature);
        }
        let seen = Arc::downgrade(&temperature.0);
        let look = move || {
            while let Some(seen) = seen.upgrade() {
                seen.store(hottest_kelvin(&sensors), Ordering::Relaxed);
                drop(seen);
                std::thread::sleep(INTERVAL);
            }
        };
        std::thread::Builder::new()
            .name("willow-sensors".to_owned())
            .spawn(look)
            .context(|| "cannot start the thread that reads sensors".to_owned())?;
        Ok(temperature)
    }
}

fn sensors(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let zones = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("thermal_zone"));
    zones.map(|zone| zone.path().join("temp")).take(SENSORS_MAX).collect()
}

fn hottest_kelvin(sensors: &[PathBuf]) -> u16 {
    let read = |sensor: &PathBuf| std::fs::read_to_string(sensor).ok()?.trim().parse::<i64>().ok();
    // Sensors that have nothing to tell give absurd values.
    let plausible =
        sensors.iter().filter_map(read).filter(|millidegrees| (-100_000..=1_000_000).contains(millidegrees));
    plausible.max().map_or(0, |millidegrees| ((millidegrees + ICE_MILLIKELVIN + 500) / 1000) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_sensor_that_tells_something_counts() {
        let folder = std::env::temp_dir().join(format!("willow-sensors-{}", std::process::id()));
        for (zone, text) in [("thermal_zone0", "41500\n"), ("thermal_zone1", "-274000\n"), ("thermal_zone2", "?")] {
            std::fs::create_dir_all(folder.join(zone)).unwrap();
            std::fs::write(folder.join(zone).join("temp"), text).unwrap();
        }
        std::fs::create_dir_all(folder.join("cooling_device0")).unwrap();
        let sensors = sensors(&folder);
        let kelvin = hottest_kelvin(&sensors);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((sensors.len(), kelvin), (3, 315));
        assert_eq!(hottest_kelvin(&[]), 0);
    }
}
