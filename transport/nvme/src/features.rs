//! Features (NVMe Base 5.27): their values in one controller. None can be saved; each starts at its default with the
//! controller.

use crate::config::*;
use crate::identify::OAES;
use crate::status::Failure;
use willow_wire::spec::{Status, feature as fid};

/// Which value Get Features asks for (SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// In force.
    Current,
    /// After a reset.
    Default,
    /// What can be done with it.
    Capabilities,
}

/// Where the timestamp stands: set at a time of the device's clock (NVMe Base 5.27.1.11).
#[derive(Clone, Copy, Debug, Default)]
struct Timestamp {
    milliseconds: u64,
    set_at_ns: u64,
    by_host: bool,
}

/// The values.
#[derive(Clone, Debug)]
pub struct Features {
    arbitration: u32,
    temperature_over: u16,
    temperature_under: u16,
    error_recovery: u32,
    write_atomicity: u32,
    /// Which events the host wants (FID 0Bh).
    pub async_events: u32,
    /// Which there are (OAES).
    pub events_offered: u32,
    /// Keep alive timeout in ms, 0: none.
    pub keep_alive_ms: u32,
    timestamp: Timestamp,
    volatile_write_cache: bool,
}

/// Queues as FID 07h tells them: both counts, 0's based.
pub fn queues_value(granted: u16) -> u32 {
    let count = u32::from(granted.max(1) - 1);
    count << 16 | count
}

/// A value, and data where the feature has some.
pub type Answer = (u32, Option<Vec<u8>>);

impl Features {
    /// Defaults.
    pub fn new(volatile_write_cache: bool, keep_alive_ms: u32) -> Self {
        Features {
            arbitration: 0,
            temperature_over: 0xffff,
            temperature_under: 0,
            error_recovery: 0,
            write_atomicity: 0,
            async_events: 0,
            events_offered: OAES,
            keep_alive_ms,
            timestamp: Timestamp::default(),
            volatile_write_cache,
        }
    }

    /// True where the feature exists in such a controller.
    pub fn is_supported(&self, feature: u8, discovery: bool) -> bool {
        match feature {
            fid::ASYNC_EVENT_CONFIGURATION | fid::KEEP_ALIVE_TIMER | fid::HOST_IDENTIFIER => true,
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::TEMPERATURE_THRESHOLD
            | fid::ERROR_RECOVERY
            | fid::NUMBER_OF_QUEUES
            | fid::WRITE_ATOMICITY
            | fid::TIMESTAMP
            | fid::RESERVATION_NOTIFICATION_MASK
            | fid::RESERVATION_PERSISTENCE
            | fid::COMMAND_SET_PROFILE => !discovery,
            fid::VOLATILE_WRITE_CACHE => !discovery && self.volatile_write_cache,
            _ => false,
        }
    }

    /// Bytes of data that Set Features of this feature brings, and Get Features returns.
    pub fn data_bytes(feature: u8) -> u32 {
        match feature {
            fid::TIMESTAMP => 8,
            fid::HOST_IDENTIFIER => 16,
            _ => 0,
        }
    }

    /// Get Features but FID 07h and 81h, which the controller answers.
    pub fn get(&self, feature: u8, cdw11: u32, select: Select, now_ns: u64) -> Result<Answer, Failure> {
        if select == Select::Capabilities {
            // Bit 2: changeable; bit 1: namespace specific; bit 0: saveable.
            let changeable =
                !matches!(feature, fid::HOST_IDENTIFIER | fid::POWER_MANAGEMENT | fid::VOLATILE_WRITE_CACHE);
            let per_namespace = matches!(
                feature,
                fid::ERROR_RECOVERY | fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE
            );
            return Ok((u32::from(changeable) << 2 | u32::from(per_namespace) << 1, None));
        }
        let defaults = Features::new(self.volatile_write_cache, 0);
        let from = if select == Select::Default { &defaults } else { self };
        Ok(match feature {
            fid::ARBITRATION => (from.arbitration, None),
            fid::POWER_MANAGEMENT | fid::COMMAND_SET_PROFILE => (0, None),
            fid::TEMPERATURE_THRESHOLD => {
                // TMPSEL 0: composite; there are no further sensors. THSEL 0 over, 1 under.
                match (cdw11 >> 16 & 15, cdw11 >> 20 & 3) {
                    (0, 0) => (u32::from(from.temperature_over), None),
                    (0, 1) => (u32::from(from.temperature_under), None),
                    _ => return Err(Failure::field(44)),
                }
            }
            fid::ERROR_RECOVERY => (from.error_recovery, None),
            fid::VOLATILE_WRITE_CACHE => (1, None),
            fid::WRITE_ATOMICITY => (from.write_atomicity, None),
            fid::ASYNC_EVENT_CONFIGURATION => (from.async_events, None),
            fid::KEEP_ALIVE_TIMER => (from.keep_alive_ms, None),
            fid::TIMESTAMP => {
                let stamp = from.timestamp;
                let passed_ms = now_ns.saturating_sub(stamp.set_at_ns) / 1_000_000;
                let value = (stamp.milliseconds + passed_ms) & 0xffff_ffff_ffff;
                // Byte 6, bits 3:1: origin; 001b by Set Features.
                let attributes = u64::from(stamp.by_host) << 1;
                (0, Some((value | attributes << 48).to_le_bytes().to_vec()))
            }
            _ => return Err(Failure::field(40)),
        })
    }

    /// Set Features but FID 07h, which the controller answers. Returns DW0 of the completion.
    pub fn set(&mut self, feature: u8, cdw11: u32, data: &[u8], now_ns: u64) -> Result<u32, Failure> {
        match feature {
            fid::ARBITRATION => self.arbitration = cdw11,
            // One power state, 0.
            fid::POWER_MANAGEMENT => {
                if cdw11 & 0x1f != 0 {
                    return Err(Failure::field(44));
                }
            }
            fid::TEMPERATURE_THRESHOLD => match (cdw11 >> 16 & 15, cdw11 >> 20 & 3) {
                (0 | 15, 0) => self.temperature_over = cdw11 as u16,
                (0 | 15, 1) => self.temperature_under = cdw11 as u16,
                _ => return Err(Failure::field(44)),
            },
            fid::ERROR_RECOVERY => {
                // DULBE: reading deallocated blocks never fails here (NSFEAT bit 2 is 0).
                if cdw11 & 1 << 16 != 0 {
                    return Err(Failure::field(44));
                }
                self.error_recovery = cdw11 & 0xffff;
            }
            // The cache is the disk's and the operating system's: it cannot be turned off.
            fid::VOLATILE_WRITE_CACHE => {
                if cdw11 & 1 == 0 {
                    return Err(Failure::at(Status::FEATURE_NOT_CHANGEABLE, 44));
                }
            }
            fid::WRITE_ATOMICITY => self.write_atomicity = cdw11 & 1,
            fid::ASYNC_EVENT_CONFIGURATION => {
                // Bits 7:0 ask for critical warnings, none of which ever comes; above, only what OAES offers.
                if cdw11 & !(self.events_offered | 0xff) != 0 {
                    return Err(Failure::field(44));
                }
                self.async_events = cdw11;
            }
            fid::TIMESTAMP => {
                let mut bytes = [0; 8];
                bytes[..6].copy_from_slice(&data[..6]);
                self.timestamp =
                    Timestamp { milliseconds: u64::from_le_bytes(bytes), set_at_ns: now_ns, by_host: true };
            }
            fid::KEEP_ALIVE_TIMER => self.keep_alive_ms = rounded_keep_alive_ms(cdw11),
            fid::COMMAND_SET_PROFILE => {
                if cdw11 & 0x1ff != 0 {
                    return Err(Failure::at(Status::COMMAND_SET_COMBINATION_REJECTED, 44));
                }
            }
            // It is what Connect said (NVMe Base 5.27.1.25: over fabrics it is not set).
            fid::HOST_IDENTIFIER => return Err(Failure::at(Status::COMMAND_SEQUENCE_ERROR, 40)),
            _ => return Err(Failure::field(40)),
        }
        Ok(0)
    }
}

/// A keep alive timeout rounded up to the granularity that KAS tells.
pub fn rounded_keep_alive_ms(milliseconds: u32) -> u32 {
    let unit = u32::from(KEEP_ALIVE_GRANULARITY_100MS) * 100;
    milliseconds.checked_next_multiple_of(unit).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_and_nonsense_is_refused() {
        let mut features = Features::new(true, 0);
        let get = |features: &Features, feature, cdw11| features.get(feature, cdw11, Select::Current, 0);
        features.set(fid::TEMPERATURE_THRESHOLD, 1 << 20 | 290, &[], 0).unwrap();
        assert_eq!(get(&features, fid::TEMPERATURE_THRESHOLD, 1 << 20), Ok((290, None)));
        assert_eq!(get(&features, fid::TEMPERATURE_THRESHOLD, 0), Ok((0xffff, None)));
        assert!(features.set(fid::TEMPERATURE_THRESHOLD, 2 << 20, &[], 0).is_err());
        assert_eq!(
            features.set(fid::VOLATILE_WRITE_CACHE, 0, &[], 0).unwrap_err().status,
            Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry()
        );
        assert!(features.set(fid::ASYNC_EVENT_CONFIGURATION, 1 << 9, &[], 0).is_err());
        features.set(fid::ASYNC_EVENT_CONFIGURATION, OAES, &[], 0).unwrap();
        assert_eq!(get(&features, fid::ASYNC_EVENT_CONFIGURATION, 0), Ok((OAES, None)));
        assert_eq!(features.get(fid::ASYNC_EVENT_CONFIGURATION, 0, Select::Default, 0), Ok((0, None)));
        assert_eq!(features.get(fid::ERROR_RECOVERY, 0, Select::Capabilities, 0), Ok((6, None)));
        features.set(fid::KEEP_ALIVE_TIMER, 4999, &[], 0).unwrap();
        assert_eq!(features.keep_alive_ms, 5000);
        assert!(features.set(0x7f, 0, &[], 0).is_err());
        assert!(!Features::new(false, 0).is_supported(fid::VOLATILE_WRITE_CACHE, false));
        assert!(!features.is_supported(fid::NUMBER_OF_QUEUES, true));
    }

    #[test]
    fn the_timestamp_goes_on() {
        let mut features = Features::new(true, 0);
        features.set(fid::TIMESTAMP, 0, &[0x10, 0x27, 0, 0, 0, 0, 0xff, 0xff], 5_000_000).unwrap();
        let (_, data) = features.get(fid::TIMESTAMP, 0, Select::Current, 12_000_000).unwrap();
        assert_eq!(data.unwrap(), [0x17, 0x27, 0, 0, 0, 0, 2, 0]);
    }
}
