//! Feature identifiers (NVMe Base 5.1.25) and asynchronous events (5.1.2).

/// Arbitration.
pub const ARBITRATION: u8 = 0x01;
/// Power Management.
pub const POWER_MANAGEMENT: u8 = 0x02;
/// Temperature Threshold.
pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
/// Error Recovery.
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile Write Cache.
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
/// Number of Queues.
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Interrupt Coalescing (PCIe only).
pub const INTERRUPT_COALESCING: u8 = 0x08;
/// Interrupt Vector Configuration (PCIe only).
pub const INTERRUPT_VECTOR: u8 = 0x09;
/// Write Atomicity Normal.
pub const WRITE_ATOMICITY: u8 = 0x0a;
/// Asynchronous Event Configuration.
pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
/// Timestamp.
pub const TIMESTAMP: u8 = 0x0e;
/// Keep Alive Timer.
pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
/// Host Behavior Support.
pub const HOST_BEHAVIOR: u8 = 0x16;
/// I/O Command Set Profile.
pub const COMMAND_SET_PROFILE: u8 = 0x19;
/// Software Progress Marker.
pub const SOFTWARE_PROGRESS: u8 = 0x80;
/// Host Identifier.
pub const HOST_IDENTIFIER: u8 = 0x81;
/// Reservation Notification Mask.
pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
/// Reservation Persistence.
pub const RESERVATION_PERSISTENCE: u8 = 0x83;
/// Namespace Write Protection Configuration.
pub const NAMESPACE_WRITE_PROTECTION: u8 = 0x84;

/// CDW10 bit of Set Features: save.
pub const SAVE: u32 = 1 << 31;
/// Select field of Get Features (CDW10 bits 10:8): current value.
pub const SELECT_CURRENT: u8 = 0;
/// Select: default.
pub const SELECT_DEFAULT: u8 = 1;
/// Select: saved.
pub const SELECT_SAVED: u8 = 2;
/// Select: supported capabilities.
pub const SELECT_SUPPORTED: u8 = 3;

/// Asynchronous events.
pub mod event {
    /// Type: error status.
    pub const TYPE_ERROR: u8 = 0;
    /// Type: SMART / health.
    pub const TYPE_HEALTH: u8 = 1;
    /// Type: notice.
    pub const TYPE_NOTICE: u8 = 2;
    /// Type: immediate.
    pub const TYPE_IMMEDIATE: u8 = 3;
    /// Error: persistent internal error.
    pub const ERROR_PERSISTENT_INTERNAL: u8 = 0x03;
    /// Type: of the I/O command set.
    pub const TYPE_COMMAND_SET: u8 = 6;
    /// Of the command set: a reservation notice is in the log.
    pub const RESERVATION_LOG: u8 = 0x00;
    /// Notice: namespace attribute changed.
    pub const NOTICE_NAMESPACE_CHANGED: u8 = 0x00;
    /// Notice: firmware activation starting.
    pub const NOTICE_FIRMWARE_ACTIVATION: u8 = 0x01;
    /// Notice: asymmetric namespace access change.
    pub const NOTICE_ANA_CHANGED: u8 = 0x03;
    /// Notice: discovery log page changed.
    pub const NOTICE_DISCOVERY_CHANGED: u8 = 0xf0;

    /// Bit of OAES and of feature 0Bh: namespace attribute notices.
    pub const CONFIGURE_NAMESPACE: u32 = 1 << 8;
    /// Bit: firmware activation notices.
    pub const CONFIGURE_FIRMWARE: u32 = 1 << 9;
    /// Bit: asymmetric namespace access notices.
    pub const CONFIGURE_ANA: u32 = 1 << 11;
    /// Bit: discovery log page change notices.
    pub const CONFIGURE_DISCOVERY: u32 = 1 << 31;

    /// DW0 of an event's completion.
    pub const fn result(event_type: u8, information: u8, log_page: u8) -> u32 {
        (event_type as u32 & 7) | (information as u32) << 8 | (log_page as u32) << 16
    }
    /// Type of an event from its DW0.
    pub const fn event_type(result: u32) -> u8 {
        result as u8 & 7
    }
    /// Information of an event from its DW0.
    pub const fn information(result: u32) -> u8 {
        (result >> 8) as u8
    }
    /// Log page that has more, from DW0.
    pub const fn log_page(result: u32) -> u8 {
        (result >> 16) as u8
    }
}
