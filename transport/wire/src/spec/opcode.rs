//! Opcodes. Their low two bits say which way data goes (NVMe Base 3.1.4): 00b none, 01b host to controller, 10b
//! controller to host, 11b both. The fabrics opcode is the one exception: there the type byte's low bits say it.

/// Way of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// Host to controller.
    HostToController,
    /// Controller to host.
    ControllerToHost,
    /// Both ways: no transport of ours carries it.
    Bidirectional,
}

/// Direction that an opcode (or a fabrics command type) declares.
#[inline]
pub const fn direction(opcode: u8) -> Direction {
    match opcode & 3 {
        0 => Direction::None,
        1 => Direction::HostToController,
        2 => Direction::ControllerToHost,
        _ => Direction::Bidirectional,
    }
}

/// The opcode of all fabrics commands, on any queue (NVMe Base 6).
pub const FABRICS: u8 = 0x7f;

/// Admin commands (NVMe Base 5).
pub mod admin {
    /// Delete I/O Submission Queue (never over fabrics).
    pub const DELETE_IO_SUBMISSION_QUEUE: u8 = 0x00;
    /// Create I/O Submission Queue (never over fabrics).
    pub const CREATE_IO_SUBMISSION_QUEUE: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue (never over fabrics).
    pub const DELETE_IO_COMPLETION_QUEUE: u8 = 0x04;
    /// Create I/O Completion Queue (never over fabrics).
    pub const CREATE_IO_COMPLETION_QUEUE: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Firmware Commit.
    pub const FIRMWARE_COMMIT: u8 = 0x10;
    /// Firmware Image Download.
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    /// Device Self-test.
    pub const DEVICE_SELF_TEST: u8 = 0x14;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Directive Send.
    pub const DIRECTIVE_SEND: u8 = 0x19;
    /// Directive Receive.
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Security Send.
    pub const SECURITY_SEND: u8 = 0x81;
    /// Security Receive.
    pub const SECURITY_RECEIVE: u8 = 0x82;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
}

/// I/O commands of the NVM command set (NVM Command Set 3).
pub mod nvm {
    /// Flush; the same in every command set.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;

    /// CDW12 of Read, Write, Write Zeroes, Compare, Verify: force unit access.
    pub const CDW12_FUA: u32 = 1 << 30;
    /// CDW12: limited retry.
    pub const CDW12_LIMITED_RETRY: u32 = 1 << 31;
    /// CDW12 of Write Zeroes: deallocate.
    pub const CDW12_DEALLOCATE: u32 = 1 << 25;
    /// CDW12: protection information field (PRINFO).
    pub const CDW12_PRINFO: u32 = 0xf << 26;
    /// CDW12: number of logical blocks, zero based.
    pub const CDW12_BLOCKS: u32 = 0xffff;
    /// CDW11 of Dataset Management: deallocate (AD).
    pub const DSM_DEALLOCATE: u32 = 1 << 2;
    /// CDW10 of Dataset Management: number of ranges, zero based.
    pub const DSM_RANGES: u32 = 0xff;
    /// Bytes of a Dataset Management range: u32 context attributes, u32 blocks, u64 first block.
    pub const DSM_RANGE_BYTES: usize = 16;
    /// CDW12 of Copy: number of source ranges, zero based.
    pub const COPY_RANGES: u32 = 0xff;
    /// CDW12 of Copy: format of the source ranges.
    pub const COPY_FORMAT: u32 = 0xf << 8;
    /// Bytes of a source range of format 0: u64 first block at 8, u16 blocks, zero based, at 16; what follows is of protection information.
    pub const COPY_RANGE_BYTES: usize = 32;
}

/// I/O commands of the key-value command set (KV Command Set 3).
pub mod kv {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Store.
    pub const STORE: u8 = 0x01;
    /// Retrieve.
    pub const RETRIEVE: u8 = 0x02;
    /// List.
    pub const LIST: u8 = 0x06;
    /// Delete.
    pub const DELETE: u8 = 0x10;
    /// Exist.
    pub const EXIST: u8 = 0x14;
    /// Vendor: Store Item, [`crate::spec::kv::StoreHead`] and the value in the data; the result is the new version.
    pub const STORE_ITEM: u8 = 0x91;
    /// Vendor: Retrieve Item, the host's time in CDW12; [`crate::spec::kv::ItemHead`] and the value in the data, the result is the value's length.
    pub const RETRIEVE_ITEM: u8 = 0x92;
    /// Vendor: Delete Item, a version in CDW10 and CDW13, the host's time in CDW12.
    pub const DELETE_ITEM: u8 = 0x94;
    /// Vendor: Touch, the host's time in CDW12, the new expiry in CDW13; the result is the value's length.
    pub const TOUCH: u8 = 0x98;
    /// Vendor: Sweep, the first bucket in CDW10, the SPU in CDW13, the host's time in CDW12; the result is where to go on.
    pub const SWEEP: u8 = 0x9c;
    /// Vendor: Clear.
    pub const CLEAR: u8 = 0xa0;
}

/// Types of fabrics commands, in byte 4 of the submission entry (NVMe Base 6).
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect (of an I/O queue).
    pub const DISCONNECT: u8 = 0x08;
}
