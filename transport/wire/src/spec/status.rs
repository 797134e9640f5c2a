//! Status of a completion (NVMe Base 4.2.3).

use std::fmt;

/// Status field without the phase tag: bits 7:0 status code, 10:8 status code type, 12:11 CRD, 13 More, 14 Do Not Retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status code types (NVMe Base 4.2.3.1).
pub mod code_type {
    /// Generic command status.
    pub const GENERIC: u8 = 0;
    /// Command specific.
    pub const COMMAND_SPECIFIC: u8 = 1;
    /// Media and data integrity errors.
    pub const MEDIA: u8 = 2;
    /// Path related.
    pub const PATH: u8 = 3;
    /// Vendor specific.
    pub const VENDOR: u8 = 7;
}

impl Status {
    const MORE: u16 = 1 << 13;
    const DO_NOT_RETRY: u16 = 1 << 14;

    /// From type (3 bits) and code.
    pub const fn new(code_type: u8, code: u8) -> Self {
        Status(((code_type as u16 & 7) << 8) | code as u16)
    }
    /// From the completion's last two bytes: the phase tag in bit 0 is dropped.
    pub const fn from_field(field: u16) -> Self {
        Status(field >> 1)
    }
    /// As the completion's last two bytes, with a phase tag of 0 (fabrics have none).
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }
    /// Status code (SC).
    pub const fn code(self) -> u8 {
        self.0 as u8
    }
    /// Status code type (SCT).
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }
    /// Command retry delay index (CRD): which of the controller's CRDT fields a retry shall wait.
    pub const fn retry_delay(self) -> u8 {
        (self.0 >> 11) as u8 & 3
    }
    /// True where the same command would fail again (DNR).
    pub const fn do_not_retry(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }
    /// True where the error log has more about it (M).
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }
    /// The same with Do Not Retry set.
    #[must_use]
    pub const fn with_do_not_retry(self) -> Self {
        Status(self.0 | Self::DO_NOT_RETRY)
    }
    /// The same with More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Status(self.0 | Self::MORE)
    }
    /// True for success.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }
    /// True where type and code are the same, whatever More, CRD and Do Not Retry say.
    pub const fn is(self, other: Status) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }
    /// What the specification calls it, where this table knows it.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(status, _)| status.is(self)).map(|(_, name)| *name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (type {:x}h, code {:02x}h", self.code_type(), self.code())?,
            None => write!(f, "unknown status (type {:x}h, code {:02x}h", self.code_type(), self.code())?,
        }
        write!(f, "{})", if self.do_not_retry() { ", do not retry" } else { "" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

macro_rules! statuses {
    ($($constant:ident = $code_type:literal, $code:literal, $name:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($name, ".")]
                pub const $constant: Status = Status::new($code_type, $code);
            )*
        }
        /// First name wins where the fabrics and other command sets share a code.
        const NAMES: &[(Status, &str)] = &[$((Status::$constant, $name)),*];
    };
}

statuses! {
    // Generic command status (NVMe Base 4.2.3.2).
    SUCCESS = 0, 0x00, "Successful Completion";
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    ABORTED_POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_QUEUE_DELETED = 0, 0x08, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0, 0x0d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0, 0x0e, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0, 0x0f, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0, 0x10, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0, 0x11, "SGL Descriptor Type Invalid";
    INVALID_USE_OF_CMB = 0, 0x12, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0, 0x13, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    SGL_OFFSET_INVALID = 0, 0x16, "SGL Offset Invalid";
    HOST_IDENTIFIER_INCONSISTENT = 0, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0, 0x1a, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0, 0x1b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0, 0x1c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0, 0x1d, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0, 0x1e, "SGL Data Block Granularity Invalid";
    NOT_SUPPORTED_IN_CMB = 0, 0x1f, "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    ADMIN_MEDIA_NOT_READY = 0, 0x24, "Admin Command Media Not Ready";
    COMMAND_SET_NOT_SUPPORTED = 0, 0x29, "I/O Command Set Not Supported";
    COMMAND_SET_NOT_ENABLED = 0, 0x2a, "I/O Command Set Not Enabled";
    COMMAND_SET_COMBINATION_REJECTED = 0, 0x2b, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 0, 0x2c, "Invalid I/O Command Set";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";
    // Command specific (NVMe Base 4.2.3.3).
    COMPLETION_QUEUE_INVALID = 1, 0x00, "Completion Queue Invalid";
    INVALID_QUEUE_IDENTIFIER = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 1, 0x06, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 1, 0x07, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0a, "Invalid Format";
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "Feature Not Namespace Specific";
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15, "Namespace Insufficient Capacity";
    NAMESPACE_IDENTIFIER_UNAVAILABLE = 1, 0x16, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18, "Namespace Already Attached";
    NAMESPACE_PRIVATE = 1, 0x19, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, "Namespace Not Attached";
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1b, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 1, 0x1c, "Controller List Invalid";
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 1, 0x27, "Namespace Attachment Limit Exceeded";
    // Key value command set (KV Command Set 2.3).
    KV_INVALID_VALUE_SIZE = 1, 0x85, "Invalid Value Size";
    KV_INVALID_KEY_SIZE = 1, 0x86, "Invalid Key Size";
    KV_KEY_NOT_FOUND = 1, 0x87, "KV Key Does Not Exist";
    KV_UNRECOVERED_ERROR = 1, 0x88, "Unrecovered Error";
    KV_KEY_EXISTS = 1, 0x89, "Key Exists";
    // Fabrics commands (NVMe Base 4.2.3.3, table of fabrics values). They share codes with the NVM command set's.
    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "Connect Incompatible Format or Conflicting Attributes";
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "Connect Controller Busy or Invalid Protection Information";
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "Connect Invalid Parameters or Write to Read Only Range";
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 1, 0x84, "Connect Invalid Host";
    DISCONNECT_INVALID_QUEUE_TYPE = 1, 0x85, "Invalid Queue Type";
    DISCOVER_RESTART = 1, 0x90, "Discover Restart";
    AUTHENTICATION_REQUIRED = 1, 0x91, "Authentication Required";
    // NVM command set (NVM Command Set 3.1.2.1).
    CONFLICTING_ATTRIBUTES = 1, 0x80, "Conflicting Attributes";
    INVALID_PROTECTION_INFORMATION = 1, 0x81, "Invalid Protection Information";
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82, "Attempted Write to Read Only Range";
    COMMAND_SIZE_LIMIT_EXCEEDED = 1, 0x83, "Command Size Limit Exceeded";
    // Media and data integrity (NVMe Base 4.2.3.4).
    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 2, 0x82, "End-to-end Guard Check Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    DEALLOCATED_BLOCK = 2, 0x87, "Deallocated or Unwritten Logical Block";
    // Path related (NVMe Base 4.2.3.5).
    PATH_INTERNAL_ERROR = 3, 0x00, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    HOST_PATH_ERROR = 3, 0x70, "Host Pathing Error";
    HOST_ABORTED = 3, 0x71, "Command Aborted By Host";
}
