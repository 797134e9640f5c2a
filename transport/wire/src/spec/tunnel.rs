//! The RPC tunnel: vendor-specific I/O commands that carry RPCs through an unmodified host kernel or any initiator. They name a
//! namespace that the host has, any (Linux lets commands through by one), or NSID FFFFFFFFh. Opcode bits 1:0 keep to the data directions of NVMe Base 3.1.4.

use super::SubmissionEntry;

/// Send RPC, data host to device: CDW10 = app << 16 | handler, CDW11 = SPU, arguments are the data.
pub const SEND: u8 = 0x81;
/// Call RPC, data device to host: CDW10-11 as above, up to 24 argument bytes in CDW2-3 and CDW12-15.
pub const CALL: u8 = 0x82;
/// Receive, data device to host: parked until an upcall for this endpoint comes or the time in CDW12 (ms) is over.
pub const RECEIVE: u8 = 0x86;
/// CDW11: the app decides which SPU.
pub const SPU_ANY: u32 = 0xffff_ffff;
/// Most argument bytes of [`CALL`].
pub const CALL_ARGUMENT_BYTES: usize = 24;
/// Longest wait of [`RECEIVE`]: well below the 30 s after which Linux resets a controller.
pub const RECEIVE_WAIT_MS_MAX: u32 = 20_000;
/// Head of what [`RECEIVE`] returns: u64 upcall id, u16 app, u8 handler, u8 zero, u16 SPU, u16 zero, u32 body bytes,
/// u32 zero; the body follows. The completion's result is the number of bytes of head and body, 0 where the time
/// was over.
pub const UPCALL_HEAD_BYTES: usize = 24;

/// Result of a tunnel command, DW0-1: the handler's status in DW1, its 32-bit result in DW0. The NVMe status is
/// success where the handler answered, whatever it answered.
#[inline]
pub const fn result(status: u32, result: u32) -> u64 {
    (status as u64) << 32 | result as u64
}
/// (status, result) of a tunnel command's DW0-1.
#[inline]
pub const fn split_result(result: u64) -> (u32, u32) {
    ((result >> 32) as u32, result as u32)
}

/// CDW10 of a send or call.
#[inline]
pub const fn target(app: u16, handler: u8) -> u32 {
    (app as u32) << 16 | handler as u32
}

/// (app, handler) of CDW10; `None` where bits 15:8 are not zero.
#[inline]
pub const fn split_target(cdw10: u32) -> Option<(u16, u8)> {
    if cdw10 & 0xff00 != 0 { None } else { Some(((cdw10 >> 16) as u16, cdw10 as u8)) }
}

/// The 24 argument bytes of a call: CDW2-3, then CDW12-15.
#[inline]
pub fn call_arguments(entry: &SubmissionEntry) -> [u8; CALL_ARGUMENT_BYTES] {
    let mut arguments = [0; CALL_ARGUMENT_BYTES];
    arguments[..8].copy_from_slice(&entry.0[8..16]);
    arguments[8..].copy_from_slice(&entry.0[48..64]);
    arguments
}

/// Puts argument bytes into a call, zeroes after them; `None` where there are more than [`CALL_ARGUMENT_BYTES`].
#[inline]
pub fn put_call_arguments(entry: &mut SubmissionEntry, from: &[u8]) -> Option<()> {
    let mut arguments = [0; CALL_ARGUMENT_BYTES];
    arguments.get_mut(..from.len())?.copy_from_slice(from);
    entry.0[8..16].copy_from_slice(&arguments[..8]);
    entry.0[48..64].copy_from_slice(&arguments[8..]);
    Some(())
}

/// What [`RECEIVE`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpcallHead {
    /// To answer it.
    pub id: u64,
    /// Sending app.
    pub app: u16,
    /// Handler at the host.
    pub handler: u8,
    /// Sending SPU.
    pub spu: u16,
    /// Bytes of body after the head.
    pub body_bytes: u32,
}

impl UpcallHead {
    /// From its bytes; `None` where there are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..UPCALL_HEAD_BYTES)?;
        Some(UpcallHead {
            id: crate::bytes::u64_at(bytes, 0),
            app: crate::bytes::u16_at(bytes, 8),
            handler: bytes[10],
            spu: crate::bytes::u16_at(bytes, 12),
            body_bytes: crate::bytes::u32_at(bytes, 16),
        })
    }
    /// As bytes.
    pub fn to_bytes(self) -> [u8; UPCALL_HEAD_BYTES] {
        let mut bytes = [0; UPCALL_HEAD_BYTES];
        crate::bytes::put_u64(&mut bytes, 0, self.id);
        crate::bytes::put_u16(&mut bytes, 8, self.app);
        bytes[10] = self.handler;
        crate::bytes::put_u16(&mut bytes, 12, self.spu);
        crate::bytes::put_u32(&mut bytes, 16, self.body_bytes);
        bytes
    }
}

/// Vendor-specific status codes of tunnel commands that no handler answered (status code type 7h).
pub mod status {
    use crate::spec::Status;
    use crate::spec::status::code_type::VENDOR;

    /// No app of that number.
    pub const NO_APP: Status = Status::new(VENDOR, 0x01);
    /// The app has no such handler.
    pub const NO_HANDLER: Status = Status::new(VENDOR, 0x02);
    /// No such SPU.
    pub const NO_SPU: Status = Status::new(VENDOR, 0x03);
    /// The receiver had no room; may be sent again.
    pub const REFUSED: Status = Status::new(VENDOR, 0x04);
    /// The app trapped, went past its budget or was removed.
    pub const APP_ENDED: Status = Status::new(VENDOR, 0x05);
    /// The RPC is for kernel endpoints only.
    pub const NOT_PERMITTED: Status = Status::new(VENDOR, 0x06);
    /// Receive: the upcall is longer than the buffer; DW0 says how long it is with its head.
    pub const BUFFER_SHORT: Status = Status::new(VENDOR, 0x07);
}
