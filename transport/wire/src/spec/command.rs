//! Submission and completion queue entries (NVMe Base 4.1, 4.2) and SGL descriptors (4.3.2).

use crate::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::spec::Status;
use std::fmt;

/// Bytes of a submission queue entry.
pub const SUBMISSION_ENTRY_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub const COMPLETION_ENTRY_BYTES: usize = 16;

/// Values of CDW0 bits 15:14 (PSDT): over fabrics, SGLs always.
pub const PSDT_SGL: u8 = 1 << 6;
/// CDW0 bits 9:8: fused operation.
pub const FUSE_MASK: u8 = 3;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct SubmissionEntry(pub [u8; SUBMISSION_ENTRY_BYTES]);

impl SubmissionEntry {
    /// An entry with this opcode, SGLs, no data, all else zero.
    #[inline]
    pub fn new(opcode: u8) -> Self {
        let mut bytes = [0; SUBMISSION_ENTRY_BYTES];
        bytes[0] = opcode;
        bytes[1] = PSDT_SGL;
        let mut entry = SubmissionEntry(bytes);
        entry.set_sgl(Sgl::transport(0));
        entry
    }
    /// A fabrics command of this type.
    #[inline]
    pub fn fabrics(command_type: u8) -> Self {
        let mut entry = Self::new(super::opcode::FABRICS);
        entry.0[4] = command_type;
        entry
    }
    /// Opcode.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }
    /// CDW0 bits 15:8: FUSE and PSDT.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.0[1]
    }
    /// True where the command is half of a fused operation.
    #[inline]
    pub fn is_fused(&self) -> bool {
        self.0[1] & FUSE_MASK != 0
    }
    /// True where PSDT says PRPs, which fabrics do not have.
    #[inline]
    pub fn uses_prp(&self) -> bool {
        self.0[1] >> 6 == 0
    }
    /// Command identifier.
    #[inline]
    pub fn cid(&self) -> u16 {
        u16_at(&self.0, 2)
    }
    /// Namespace.
    #[inline]
    pub fn nsid(&self) -> u32 {
        u32_at(&self.0, 4)
    }
    /// Type of a fabrics command (byte 4).
    #[inline]
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }
    /// Command dword `index` (0 to 15).
    #[inline]
    pub fn cdw(&self, index: usize) -> u32 {
        u32_at(&self.0, index * 4)
    }
    /// CDW2.
    #[inline]
    pub fn cdw2(&self) -> u32 {
        self.cdw(2)
    }
    /// CDW3.
    #[inline]
    pub fn cdw3(&self) -> u32 {
        self.cdw(3)
    }
    /// CDW10.
    #[inline]
    pub fn cdw10(&self) -> u32 {
        self.cdw(10)
    }
    /// CDW11.
    #[inline]
    pub fn cdw11(&self) -> u32 {
        self.cdw(11)
    }
    /// CDW12.
    #[inline]
    pub fn cdw12(&self) -> u32 {
        self.cdw(12)
    }
    /// CDW13.
    #[inline]
    pub fn cdw13(&self) -> u32 {
        self.cdw(13)
    }
    /// CDW14.
    #[inline]
    pub fn cdw14(&self) -> u32 {
        self.cdw(14)
    }
    /// CDW15.
    #[inline]
    pub fn cdw15(&self) -> u32 {
        self.cdw(15)
    }
    /// CDW10-11 as one number: the first logical block of NVM commands.
    #[inline]
    pub fn lba(&self) -> u64 {
        u64_at(&self.0, 40)
    }
    /// Number of logical blocks of NVM commands, one based.
    #[inline]
    pub fn blocks(&self) -> u32 {
        (self.cdw12() & 0xffff) + 1
    }
    /// The one SGL descriptor in the entry (bytes 39:24).
    #[inline]
    pub fn sgl(&self) -> Sgl {
        Sgl { address: u64_at(&self.0, 24), length: u32_at(&self.0, 32), identifier: self.0[39] }
    }
    /// Sets the command identifier.
    #[inline]
    pub fn set_cid(&mut self, cid: u16) {
        put_u16(&mut self.0, 2, cid);
    }
    /// Sets a command dword.
    #[inline]
    pub fn set_cdw(&mut self, index: usize, value: u32) {
        put_u32(&mut self.0, index * 4, value);
    }
    /// Sets the SGL descriptor.
    #[inline]
    pub fn set_sgl(&mut self, sgl: Sgl) {
        put_u64(&mut self.0, 24, sgl.address);
        put_u32(&mut self.0, 32, sgl.length);
        self.0[36..39].fill(0);
        self.0[39] = sgl.identifier;
    }
    /// The same with another command identifier.
    #[inline]
    #[must_use]
    pub fn with_cid(mut self, cid: u16) -> Self {
        self.set_cid(cid);
        self
    }
    /// The same for another namespace.
    #[inline]
    #[must_use]
    pub fn with_nsid(mut self, nsid: u32) -> Self {
        put_u32(&mut self.0, 4, nsid);
        self
    }
    /// The same with a command dword.
    #[inline]
    #[must_use]
    pub fn with_cdw(mut self, index: usize, value: u32) -> Self {
        self.set_cdw(index, value);
        self
    }
    /// The same with CDW10-11 as one number.
    #[inline]
    #[must_use]
    pub fn with_lba(mut self, lba: u64) -> Self {
        put_u64(&mut self.0, 40, lba);
        self
    }
    /// The same with another SGL.
    #[inline]
    #[must_use]
    pub fn with_sgl(mut self, sgl: Sgl) -> Self {
        self.set_sgl(sgl);
        self
    }
}

impl fmt::Debug for SubmissionEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {:02x}h cid {:04x}h nsid {:x}h", self.opcode(), self.cid(), self.nsid())?;
        for index in [2, 3, 10, 11, 12, 13, 14, 15] {
            if self.cdw(index) != 0 {
                write!(f, " cdw{index} {:x}h", self.cdw(index))?;
            }
        }
        write!(f, " {:?}", self.sgl())
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEntry {
    /// DW0-1: the command's result.
    pub result: u64,
    /// Submission queue head pointer.
    pub sqhd: u16,
    /// Submission queue identifier (reserved over fabrics: 0).
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status.
    pub status: Status,
}

impl CompletionEntry {
    /// From its bytes.
    #[inline]
    pub fn from_bytes(bytes: &[u8; COMPLETION_ENTRY_BYTES]) -> Self {
        CompletionEntry {
            result: u64_at(bytes, 0),
            sqhd: u16_at(bytes, 8),
            sqid: u16_at(bytes, 10),
            cid: u16_at(bytes, 12),
            status: Status::from_field(u16_at(bytes, 14)),
        }
    }
    /// As bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; COMPLETION_ENTRY_BYTES] {
        let mut bytes = [0; COMPLETION_ENTRY_BYTES];
        put_u64(&mut bytes, 0, self.result);
        put_u16(&mut bytes, 8, self.sqhd);
        put_u16(&mut bytes, 10, self.sqid);
        put_u16(&mut bytes, 12, self.cid);
        put_u16(&mut bytes, 14, self.status.to_field());
        bytes
    }
}

/// An SGL descriptor (NVMe Base 4.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgl {
    /// Address, or offset in the capsule.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Type (bits 7:4) and subtype (bits 3:0).
    pub identifier: u8,
}

impl Sgl {
    /// SGL Data Block with an address.
    pub const DATA_BLOCK_ADDRESS: u8 = 0x00;
    /// SGL Data Block with an offset into the capsule: in-capsule data.
    pub const DATA_BLOCK_OFFSET: u8 = 0x01;
    /// Bit bucket.
    pub const BIT_BUCKET: u8 = 0x10;
    /// Keyed data block (RDMA).
    pub const KEYED_DATA_BLOCK: u8 = 0x40;
    /// Transport SGL Data Block, transport specific subtype Ah: the transport moves the data in its own PDUs.
    pub const TRANSPORT_DATA_BLOCK: u8 = 0x5a;

    /// Data that the transport moves.
    #[inline]
    pub const fn transport(length: u32) -> Self {
        Sgl { address: 0, length, identifier: Self::TRANSPORT_DATA_BLOCK }
    }
    /// Data in the capsule, `offset` bytes past the end of the entry (ICDOFF is 0).
    #[inline]
    pub const fn in_capsule(offset: u64, length: u32) -> Self {
        Sgl { address: offset, length, identifier: Self::DATA_BLOCK_OFFSET }
    }
    /// Descriptor type (bits 7:4).
    #[inline]
    pub const fn descriptor_type(self) -> u8 {
        self.identifier >> 4
    }
    /// True for in-capsule data.
    #[inline]
    pub const fn is_in_capsule(self) -> bool {
        self.identifier == Self::DATA_BLOCK_OFFSET
    }
    /// True for data that the transport moves.
    #[inline]
    pub const fn is_transport(self) -> bool {
        self.identifier == Self::TRANSPORT_DATA_BLOCK
    }
}
