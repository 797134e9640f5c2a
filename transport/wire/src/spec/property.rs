//! Controller properties (NVMe Base 3.1.4) and their bits.

/// Offset of Controller Capabilities (8 bytes).
pub const CAP: u32 = 0x00;
/// Offset of Version (4 bytes).
pub const VS: u32 = 0x08;
/// Offset of Controller Configuration (4 bytes).
pub const CC: u32 = 0x14;
/// Offset of Controller Status (4 bytes).
pub const CSTS: u32 = 0x1c;
/// Offset of NVM Subsystem Reset (4 bytes).
pub const NSSR: u32 = 0x20;
/// Offset of Controller Ready Timeouts (4 bytes).
pub const CRTO: u32 = 0x68;

/// Written to NSSR to reset the subsystem.
pub const NSSR_MAGIC: u32 = 0x4e56_4d65;
/// Attribute byte of Property Get and Set (CDW10 bits 2:0): 4 bytes.
pub const SIZE_4: u32 = 0;
/// Attribute byte: 8 bytes.
pub const SIZE_8: u32 = 1;

/// Version number as VS and the Identify controller's VER have it.
pub const fn version(major: u16, minor: u8, tertiary: u8) -> u32 {
    (major as u32) << 16 | (minor as u32) << 8 | tertiary as u32
}

/// Controller Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CSS bit: NVM command set.
    pub const CSS_NVM: u64 = 1 << 37;
    /// CSS bit: one or more I/O command sets, chosen by namespace (IOCSS).
    pub const CSS_ALL: u64 = 1 << 43;
    /// CSS bit: no I/O command set (discovery controllers).
    pub const CSS_ADMIN_ONLY: u64 = 1 << 44;
    /// Contiguous queues required (CQR): always set over fabrics.
    pub const CQR: u64 = 1 << 16;
    /// CRMS bit: controller ready with media.
    pub const CRMS_WITH_MEDIA: u64 = 1 << 59;
    /// CRMS bit: controller ready independent of media.
    pub const CRMS_INDEPENDENT: u64 = 1 << 60;

    /// From the largest queue (entries, not zero based), the time to become ready in units of 500 ms, and bits.
    pub const fn new(queue_entries_max: u16, timeout_500ms: u8, bits: u64) -> Self {
        Capabilities((queue_entries_max as u64).wrapping_sub(1) & 0xffff | (timeout_500ms as u64) << 24 | bits)
    }
    /// Largest queue in entries (MQES + 1).
    pub const fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }
    /// Time within which CSTS.RDY follows CC.EN, in units of 500 ms.
    pub const fn timeout_500ms(self) -> u8 {
        (self.0 >> 24) as u8
    }
    /// Smallest memory page: 2 to the power of (12 + this) bytes; the unit of MDTS.
    pub const fn page_size_min_shift(self) -> u32 {
        12 + ((self.0 >> 48) & 0xf) as u32
    }
    /// Largest memory page.
    pub const fn page_size_max_shift(self) -> u32 {
        12 + ((self.0 >> 52) & 0xf) as u32
    }
    /// True where CC.CSS 110b (all supported command sets) can be chosen.
    pub const fn all_command_sets(self) -> bool {
        self.0 & Self::CSS_ALL != 0
    }
}

/// Controller Configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Enable.
    pub const EN: u32 = 1;
    /// Command set field, NVM.
    pub const CSS_NVM: u8 = 0b000;
    /// Command set field: all supported ones.
    pub const CSS_ALL: u8 = 0b110;
    /// Command set field: admin only.
    pub const CSS_ADMIN_ONLY: u8 = 0b111;

    /// A configuration with the usual entry sizes (64 and 16 bytes) and 4 KiB pages.
    pub const fn new(enable: bool, css: u8) -> Self {
        Configuration(4 << 20 | 6 << 16 | ((css as u32) & 7) << 4 | enable as u32)
    }
    /// The same with a shutdown notification: 01b normal, 10b abrupt.
    #[must_use]
    pub const fn with_shutdown(self, notification: u8) -> Self {
        Configuration(self.0 & !(3 << 14) | ((notification as u32) & 3) << 14)
    }
    /// Enabled.
    pub const fn enabled(self) -> bool {
        self.0 & Self::EN != 0
    }
    /// Command set field.
    pub const fn css(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }
    /// Memory page size: 2 to the power of (12 + MPS).
    pub const fn page_size_shift(self) -> u32 {
        12 + ((self.0 >> 7) & 0xf)
    }
    /// Arbitration mechanism.
    pub const fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }
    /// Shutdown notification: 00b none, 01b normal, 10b abrupt.
    pub const fn shutdown(self) -> u8 {
        (self.0 >> 14) as u8 & 3
    }
    /// Submission entry size as a power of two.
    pub const fn iosqes(self) -> u8 {
        (self.0 >> 16) as u8 & 0xf
    }
    /// Completion entry size as a power of two.
    pub const fn iocqes(self) -> u8 {
        (self.0 >> 20) as u8 & 0xf
    }
}

/// Bits of Controller Status.
pub mod csts {
    /// Ready.
    pub const RDY: u32 = 1;
    /// Controller fatal status.
    pub const CFS: u32 = 1 << 1;
    /// Shutdown status: none.
    pub const SHST_NORMAL: u32 = 0;
    /// Shutdown status: in progress.
    pub const SHST_IN_PROGRESS: u32 = 1 << 2;
    /// Shutdown status: complete.
    pub const SHST_COMPLETE: u32 = 2 << 2;
    /// Mask of the shutdown status.
    pub const SHST_MASK: u32 = 3 << 2;
    /// NVM subsystem reset occurred.
    pub const NSSRO: u32 = 1 << 4;
}
