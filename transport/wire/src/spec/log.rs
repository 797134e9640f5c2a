//! Log pages (NVMe Base 5.1.12).

/// Supported Log Pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Error Information.
pub const ERROR: u8 = 0x01;
/// SMART / Health Information.
pub const SMART: u8 = 0x02;
/// Firmware Slot Information.
pub const FIRMWARE_SLOT: u8 = 0x03;
/// Changed Attached Namespace List.
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Commands Supported and Effects.
pub const COMMAND_EFFECTS: u8 = 0x05;
/// Device Self-test.
pub const SELF_TEST: u8 = 0x06;
/// Asymmetric Namespace Access.
pub const ANA: u8 = 0x0c;
/// Feature Identifiers Supported and Effects.
pub const FEATURE_EFFECTS: u8 = 0x12;
/// NVMe-MI Commands Supported and Effects.
pub const MANAGEMENT_EFFECTS: u8 = 0x13;
/// Discovery.
pub const DISCOVERY: u8 = 0x70;
/// Reservation Notification.
pub const RESERVATION: u8 = 0x80;

/// Critical Warning of the SMART page (NVMe Base 5.16.1.3): available spare is below its threshold (bit 0).
pub const SMART_WARNING_SPARE: u8 = 1;
/// All media are read-only (bit 3).
pub const SMART_WARNING_READ_ONLY: u8 = 1 << 3;
/// The subsystem's reliability is degraded (bit 2).
pub const SMART_WARNING_RELIABILITY: u8 = 1 << 2;

/// Bytes of an error log entry.
pub const ERROR_ENTRY_BYTES: usize = 64;
/// Bytes of the SMART page.
pub const SMART_BYTES: usize = 512;
/// Bytes of the firmware slot page.
pub const FIRMWARE_SLOT_BYTES: usize = 512;
/// Bytes of the changed namespaces page: 1024 NSIDs.
pub const CHANGED_NAMESPACES_BYTES: usize = 4096;
/// Bytes of the effects page.
pub const COMMAND_EFFECTS_BYTES: usize = 4096;
/// Offset of the I/O commands' effects in that page; admin commands are at 0, 4 bytes an opcode.
pub const COMMAND_EFFECTS_IO: usize = 1024;

/// Effects: command supported (CSUPP).
pub const EFFECT_SUPPORTED: u32 = 1;
/// Effects: logical block content change (LBCC).
pub const EFFECT_CONTENT_CHANGE: u32 = 1 << 1;
/// Effects: namespace capability change (NCC).
pub const EFFECT_NAMESPACE_CAPABILITY: u32 = 1 << 2;
/// Effects: namespace inventory change (NIC).
pub const EFFECT_NAMESPACE_INVENTORY: u32 = 1 << 3;
/// Effects: controller capability change (CCC).
pub const EFFECT_CONTROLLER_CAPABILITY: u32 = 1 << 4;

/// Offsets in the SMART page; counters of 16 bytes from `DATA_UNITS_READ` on.
pub mod smart {
    /// Critical warning (1 byte).
    pub const CRITICAL_WARNING: usize = 0;
    /// Composite temperature in kelvin (2).
    pub const TEMPERATURE: usize = 1;
    /// Available spare in percent (1).
    pub const AVAILABLE_SPARE: usize = 3;
    /// Available spare threshold (1).
    pub const AVAILABLE_SPARE_THRESHOLD: usize = 4;
    /// Percentage used (1).
    pub const PERCENTAGE_USED: usize = 5;
    /// Thousands of 512-byte units read, rounded up (16).
    pub const DATA_UNITS_READ: usize = 32;
    /// The same, written (16).
    pub const DATA_UNITS_WRITTEN: usize = 48;
    /// Host read commands (16).
    pub const HOST_READS: usize = 64;
    /// Host write commands (16).
    pub const HOST_WRITES: usize = 80;
    /// Controller busy time in minutes (16).
    pub const BUSY_MINUTES: usize = 96;
    /// Power cycles (16).
    pub const POWER_CYCLES: usize = 112;
    /// Power on hours (16).
    pub const POWER_ON_HOURS: usize = 128;
    /// Unsafe shutdowns (16).
    pub const UNSAFE_SHUTDOWNS: usize = 144;
    /// Media and data integrity errors (16).
    pub const MEDIA_ERRORS: usize = 160;
    /// Error log entries over the life of the controller (16).
    pub const ERROR_LOG_ENTRIES: usize = 176;
}

/// The fields of a Get Log Page command (CDW10-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier.
    pub page: u8,
    /// Log specific parameter.
    pub specific: u8,
    /// Retain asynchronous event: reading does not rearm the event.
    pub retain_event: bool,
    /// Bytes asked for: a multiple of 4, at least 4.
    pub bytes: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// CSI (CDW14 bits 31:24).
    pub csi: u8,
}

impl GetLogPage {
    /// From a command.
    pub fn from_entry(entry: &super::SubmissionEntry) -> Self {
        let cdw10 = entry.cdw10();
        let dwords = (u64::from(cdw10 >> 16) | u64::from(entry.cdw11() & 0xffff) << 16) + 1;
        GetLogPage {
            page: cdw10 as u8,
            specific: (cdw10 >> 8) as u8 & 0x7f,
            retain_event: cdw10 & 1 << 15 != 0,
            bytes: dwords * 4,
            offset: u64::from(entry.cdw12()) | u64::from(entry.cdw13()) << 32,
            csi: (entry.cdw14() >> 24) as u8,
        }
    }
    /// As a command; `bytes` is rounded down to dwords, at least one.
    pub fn to_entry(self, nsid: u32) -> super::SubmissionEntry {
        let dwords = (self.bytes / 4).max(1) - 1;
        super::SubmissionEntry::new(super::opcode::admin::GET_LOG_PAGE)
            .with_nsid(nsid)
            .with_cdw(
                10,
                u32::from(self.page)
                    | u32::from(self.specific & 0x7f) << 8
                    | u32::from(self.retain_event) << 15
                    | ((dwords as u32) & 0xffff) << 16,
            )
            .with_cdw(11, (dwords >> 16) as u32 & 0xffff)
            .with_cdw(12, self.offset as u32)
            .with_cdw(13, (self.offset >> 32) as u32)
            .with_cdw(14, u32::from(self.csi) << 24)
    }
}
