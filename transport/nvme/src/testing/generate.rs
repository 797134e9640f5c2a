//! Makes commands of the bytes of an input, and tells what one may do to the watched namespace.
//!
//! What always holds: same bytes, same commands.

use super::{CAPSULE_BYTES_MAX, CC_DISABLED, CC_ENABLED, WATCHED_NSID};
use willow_wire::bytes::{u32_at, u64_at};
use willow_wire::spec::opcode::{self, admin, nvm};
use willow_wire::spec::{Sgl, SubmissionEntry, property, tunnel};

/// The bytes of an input, read as numbers; zeroes behind its end.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let count = N.min(self.0.len());
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        out
    }
    pub(super) fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
    /// A number that is small most of the time.
    pub(super) fn number(&mut self) -> u32 {
        match self.byte() {
            value @ 0..=207 => u32::from(value % 8),
            208..=239 => u32::from(self.u16()),
            _ => u32::from_le_bytes(self.take()),
        }
    }
    pub(super) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }
}

const IO_OPCODES: &[u8] = &[
    nvm::READ,
    nvm::WRITE,
    nvm::WRITE,
    nvm::COMPARE,
    nvm::WRITE_ZEROES,
    nvm::DATASET_MANAGEMENT,
    nvm::VERIFY,
    nvm::FLUSH,
    opcode::kv::LIST,
    opcode::kv::DELETE,
    opcode::kv::EXIST,
    tunnel::SEND,
    tunnel::CALL,
    tunnel::RECEIVE,
    opcode::FABRICS,
];
const ADMIN_OPCODES: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::NAMESPACE_MANAGEMENT,
    admin::NAMESPACE_ATTACHMENT,
    admin::DEVICE_SELF_TEST,
    admin::KEEP_ALIVE,
    admin::CREATE_IO_SUBMISSION_QUEUE,
    admin::FORMAT_NVM,
    opcode::FABRICS,
    opcode::FABRICS,
];
const LENGTHS: &[u32] = &[0, 4, 16, 512, 512, 1024, 4096, 4096, 8192, 16384];

/// FUSE: first and second command of a fused operation.
pub(super) const FUSE_FIRST: u8 = 1;
pub(super) const FUSE_SECOND: u8 = 2;

/// What comes behind a command that says that it is the first of a fused operation: its second, or another command.
pub(super) fn second_of(first: &Generated) -> Generated {
    let (cid, length) = (first.entry.cid() ^ 0x80, first.entry.sgl().length);
    let mut entry = SubmissionEntry::new(nvm::FLUSH).with_nsid(WATCHED_NSID).with_cid(cid);
    if first.filling & 4 == 0 {
        entry = first.entry.with_cid(cid).with_sgl(Sgl::transport(length));
        entry.0[0] = nvm::WRITE;
        entry.0[1] = entry.0[1] & !FUSE_FIRST | FUSE_SECOND;
    }
    Generated {
        entry,
        capsule: Vec::new(),
        filling: first.filling,
        damaged: false,
        on_admin_queue: false,
        hold: first.hold,
    }
}

/// A command of the input: its entry and the data in its capsule.
pub(super) struct Generated {
    pub(super) entry: SubmissionEntry,
    pub(super) capsule: Vec<u8>,
    /// What the host puts where the subsystem fetches data.
    pub(super) filling: u8,
    /// The fetch fails.
    pub(super) damaged: bool,
    pub(super) on_admin_queue: bool,
    /// More commands come before the device works.
    pub(super) hold: bool,
}

pub(super) fn generate(input: &mut Input<'_>, blocks: u64, block_bytes: u32) -> Generated {
    let (form, manner) = (input.byte(), input.byte());
    let on_admin_queue = form & 3 == 0;
    let mut entry = if form & 0x1c == 0 {
        SubmissionEntry(input.take())
    } else {
        structured(input, on_admin_queue, blocks, block_bytes)
    };
    entry.set_cid(if form & 0xe0 == 0xe0 { u16::from(input.byte() % 4) } else { u16::from(input.byte()) });
    if !on_admin_queue && entry.opcode() == nvm::COMPARE && manner & 3 == 1 {
        entry.0[1] |= FUSE_FIRST;
    }
    let mut capsule = Vec::new();
    if entry.sgl().identifier == Sgl::DATA_BLOCK_OFFSET {
        capsule.resize((entry.sgl().length as usize).min(CAPSULE_BYTES_MAX), manner);
        let given: [u8; 32] = input.take();
        let count = capsule.len().min(given.len());
        capsule[..count].copy_from_slice(&given[..count]);
    }
    Generated {
        entry,
        capsule,
        filling: manner,
        damaged: manner & 0x1f == 0x1f,
        on_admin_queue,
        hold: manner & 0xc0 == 0xc0,
    }
}

pub(super) fn structured(
    input: &mut Input<'_>,
    on_admin_queue: bool,
    blocks: u64,
    block_bytes: u32,
) -> SubmissionEntry {
    let opcode = input.one_of(if on_admin_queue { ADMIN_OPCODES } else { IO_OPCODES });
    let nsid = input.one_of(&[WATCHED_NSID, WATCHED_NSID, WATCHED_NSID, WATCHED_NSID, 2, 2, 3, 0, u32::MAX]);
    let mut entry = SubmissionEntry::new(opcode).with_nsid(nsid);
    let mut length = input.one_of(LENGTHS);
    let has_blocks = matches!(opcode, nvm::READ | nvm::WRITE | nvm::COMPARE | nvm::WRITE_ZEROES | nvm::VERIFY);
    if !on_admin_queue && has_blocks && nsid == WATCHED_NSID {
        // At, before and past the end as well.
        let count = u32::from(input.byte() % 16);
        entry =
            entry.with_lba(u64::from(input.u16()) % (blocks + 2)).with_cdw(12, count | u32::from(input.byte()) << 24);
        length = (count + 1) * block_bytes;
    } else {
        for dword in [2, 3, 10, 11, 12, 13, 14, 15] {
            entry.set_cdw(dword, input.number());
        }
        if nsid == 2 {
            entry.set_cdw(10, length);
        }
        if opcode == opcode::FABRICS {
            entry.0[4] = input.one_of(&[0, 0, 0, 0, 4, 1, 5, 8]);
            entry.set_cdw(10, input.one_of(&[0, 0, 0, 1]));
            entry.set_cdw(11, input.one_of(&[property::CC, property::CC, property::CAP, property::CSTS]));
            entry.set_cdw(12, input.one_of(&[0, 1 << 14, CC_DISABLED as u32, CC_ENABLED as u32]));
        }
    }
    let in_capsule = opcode & 3 == 1 && length as usize <= CAPSULE_BYTES_MAX && input.byte() & 1 == 0;
    entry.with_sgl(if in_capsule { Sgl::in_capsule(0, length) } else { Sgl::transport(length) })
}

/// What a command may do to the watched namespace.
pub(super) enum Effect {
    None,
    /// Bytes from `start` on; what they are afterwards where the command succeeds alone.
    Range(u64, Vec<u8>),
    /// Ranges of zeroes.
    Zeroes(Vec<(u64, u64)>),
    /// An RPC of the host's own making, or a change of namespaces.
    Any,
}

pub(super) fn effect_of(command: &Generated, data: &[u8], block_bytes: u32) -> Effect {
    let (entry, block) = (&command.entry, u64::from(block_bytes));
    if command.on_admin_queue {
        return match entry.opcode() {
            admin::NAMESPACE_MANAGEMENT | admin::NAMESPACE_ATTACHMENT | admin::FORMAT_NVM | admin::SANITIZE => {
                Effect::Any
            }
            _ => Effect::None,
        };
    }
    let at = entry.lba().saturating_mul(block);
    match entry.opcode() {
        tunnel::SEND | tunnel::CALL => Effect::Any,
        _ if entry.nsid() != WATCHED_NSID => Effect::None,
        nvm::COPY => Effect::Any,
        nvm::WRITE => Effect::Range(at, data.to_vec()),
        nvm::WRITE_ZEROES => Effect::Zeroes(vec![(at, u64::from(entry.blocks()) * block)]),
        nvm::DATASET_MANAGEMENT if entry.cdw11() & nvm::DSM_DEALLOCATE != 0 => {
            let ranges = data.chunks_exact(nvm::DSM_RANGE_BYTES).take((entry.cdw10() & nvm::DSM_RANGES) as usize + 1);
            let range = |range: &[u8]| (u64_at(range, 8).saturating_mul(block), u64::from(u32_at(range, 4)) * block);
            Effect::Zeroes(ranges.map(range).collect())
        }
        _ => Effect::None,
    }
}
