//! I/O commands: parsed once, here, from the 64 bytes of a submission queue entry into a typed command. Behind this module no
//! byte of an entry is looked at again, and every field that is not supported has been refused.

use key_value_host::{ItemCondition, Key, PutCondition};
use willow_device::CommandSet;
use willow_wire::spec::opcode::{kv, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, tunnel};

use crate::config::*;
use crate::reservation::{self, ReserveCommand};
use crate::statistics::Direction;
use crate::status::Failure;

/// NSID that means all namespaces.
pub const NSID_ALL: u32 = u32::MAX;

/// A range of logical blocks, within its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// First block.
    pub lba: u64,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Receiver of an RPC of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// App number, 0: the control service.
    pub app: u16,
    /// Handler.
    pub handler: u8,
    /// SPU; `None`: any.
    pub spu: Option<u16>,
}

/// What an I/O command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// NVM 3.2.4. FUA needs nothing: reads come from the media.
    Read(Blocks),
    /// NVM 3.2.6.
    Write(Blocks, Durable),
    /// NVM 3.2.1.
    Compare(Blocks),
    /// NVM 3.2.8.
    WriteZeroes {
        /// Where.
        blocks: Blocks,
        /// DEAC: the space may be given back.
        deallocate: bool,
        /// FUA.
        durable: Durable,
    },
    /// NVM 3.2.5.
    Verify(Blocks),
    /// NVM 3.2.7.
    WriteUncorrectable(Blocks),
    /// NVM 3.2.3: this many ranges, of which the deallocate attribute is set; without it the command is a hint that is ignored.
    DatasetManagement {
        /// Number of ranges in the data.
        ranges: u16,
        /// AD.
        deallocate: bool,
    },
    /// NVM 3.2.2: this many source ranges in the data, one behind the other to a first block.
    Copy {
        /// Number of ranges in the data.
        ranges: u16,
        /// First block of the destination.
        to_lba: u64,
        /// FUA.
        durable: Durable,
    },
    /// Compare, the first half of a fused operation.
    FusedCompare(Blocks),
    /// Write, the second half.
    FusedWrite(Blocks, Durable),
    /// A Copy whose ranges are known (they are in its slot): its data are read into a buffer, and then written.
    CopyRanges,
    /// Flush (NVMe Base 7.1), of the command's namespace or of all.
    Flush,
    /// KV 3.2.5.
    Store {
        /// Key.
        key: Key,
        /// Length of the value.
        bytes: u32,
        /// Store options.
        condition: PutCondition,
    },
    /// KV 3.2.4.
    Retrieve(Key),
    /// KV 3.2.3; from the first key where there is none.
    List(Option<Key>),
    /// KV 3.2.1.
    Delete(Key),
    /// KV 3.2.2.
    Exist(Key),
    /// 91h: the head and the value are in the data, `bytes` of both.
    StoreItem {
        /// Key.
        key: Key,
        /// Length of head and value.
        bytes: u32,
        /// Store options; the version is in the head.
        condition: ItemCondition,
        /// Durable before it completes.
        durable: Durable,
    },
    /// 92h.
    RetrieveItem {
        /// Key.
        key: Key,
        /// The host's time.
        now_s: u32,
    },
    /// 94h.
    DeleteItem {
        /// Key.
        key: Key,
        /// Only where the pair has this one.
        version: Option<u64>,
        /// The host's time.
        now_s: u32,
        /// Durable before it completes.
        durable: Durable,
    },
    /// 98h.
    Touch {
        /// Key.
        key: Key,
        /// The new expiry.
        expiry: u32,
        /// The host's time.
        now_s: u32,
        /// Durable before it completes.
        durable: Durable,
    },
    /// 9Ch.
    Sweep {
        /// SPU.
        spu: u16,
        /// First bucket.
        from: u32,
        /// The host's time.
        now_s: u32,
    },
    /// A0h.
    Clear,
    /// Reservation Register, Acquire or Release.
    Reserve(ReserveCommand),
    /// Reservation Report.
    ReservationReport,
    /// 81h.
    Send(Target),
    /// 82h with its arguments.
    Call(Target, [u8; tunnel::CALL_ARGUMENT_BYTES]),
    /// An admin command whose data were fetched; its entry lies in front of them.
    Admin,
    /// 86h with its longest wait.
    Receive {
        /// Milliseconds.
        wait_ms: u32,
    },
}

/// Whether a write is durable before it completes (FUA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable(pub bool);

/// Where a command's data comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// There is none.
    None,
    /// In the capsule: its first byte there, and how many.
    Capsule(u32, u32),
    /// The transport fetches so many bytes from the host.
    Fetch(u32),
    /// So many bytes, at most, go to the host.
    ToHost(u32),
}

/// A parsed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Namespace, or [`NSID_ALL`].
    pub nsid: u32,
    /// Which of the namespaces that had this number, one after the other; 0: it needs none.
    pub generation: u32,
    /// What to do.
    pub operation: Operation,
    /// Its data.
    pub data: Data,
}

/// What parsing has to know of the namespace that a command names.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceView {
    /// Command set.
    pub set: CommandSet,
    /// Power of two of a logical block.
    pub block_shift: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// No other namespace that this subsystem has seen has it; never 0.
    pub generation: u32,
}

impl Operation {
    /// How it is counted.
    pub fn direction(&self) -> Direction {
        match self {
            Operation::Read(_) | Operation::Retrieve(_) | Operation::RetrieveItem { .. } | Operation::List(_) => {
                Direction::Read
            }
            Operation::Write(..)
            | Operation::FusedWrite(..)
            | Operation::Store { .. }
            | Operation::StoreItem { .. } => Direction::Write,
            _ => Direction::Other,
        }
    }

    /// First logical block, for the error log.
    pub fn lba(&self) -> u64 {
        match self {
            Operation::Read(blocks)
            | Operation::Write(blocks, _)
            | Operation::Compare(blocks)
            | Operation::FusedCompare(blocks)
            | Operation::FusedWrite(blocks, _)
            | Operation::Verify(blocks)
            | Operation::WriteUncorrectable(blocks)
            | Operation::WriteZeroes { blocks, .. } => blocks.lba,
            Operation::Copy { to_lba, .. } => *to_lba,
            _ => 0,
        }
    }
}

fn blocks(entry: &SubmissionEntry, view: &NamespaceView, bytes_max: u64) -> Result<Blocks, Failure> {
    let (lba, count) = (entry.lba(), u64::from(entry.blocks()));
    // Directives and metadata are not supported (DTYPE, bits 23:20).
    if entry.cdw12() & 0x00f0_0000 != 0 && entry.opcode() == nvm::WRITE {
        return Err(Failure::field(50));
    }
    let bytes = count << view.block_shift;
    if bytes > bytes_max {
        return Err(Failure::field(48));
    }
    if lba.checked_add(count).is_none_or(|end| end > view.blocks) {
        return Err(Failure::at(Status::LBA_OUT_OF_RANGE, 40));
    }
    Ok(Blocks { lba, start: lba << view.block_shift, bytes })
}

/// Checks the descriptor of data that comes from the host; `None` bytes: whatever length it has.
pub fn data_from_host(entry: &SubmissionEntry, bytes: Option<u64>, capsule_bytes: usize) -> Result<Data, Failure> {
    let sgl = entry.sgl();
    let wanted = bytes.unwrap_or(u64::from(sgl.length));
    match sgl.identifier {
        Sgl::DATA_BLOCK_OFFSET => {
            if sgl.address.checked_add(u64::from(sgl.length)).is_none_or(|end| end > capsule_bytes as u64) {
                return Err(Failure::at(Status::SGL_OFFSET_INVALID, 24));
            }
            if u64::from(sgl.length) != wanted {
                return Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32));
            }
            Ok(Data::Capsule(sgl.address as u32, sgl.length))
        }
        Sgl::TRANSPORT_DATA_BLOCK => {
            if u64::from(sgl.length) != wanted {
                return Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32));
            }
            if capsule_bytes != 0 {
                return Err(Failure::at(Status::SGL_TYPE_INVALID, 39));
            }
            if sgl.length > TRANSFER_BYTES_MAX {
                return Err(Failure::field(32));
            }
            Ok(if sgl.length == 0 { Data::None } else { Data::Fetch(sgl.length) })
        }
        _ => Err(Failure::at(Status::SGL_TYPE_INVALID, 39)),
    }
}

/// Checks the descriptor of data that goes to the host.
pub fn data_to_host(entry: &SubmissionEntry, bytes: Option<u64>) -> Result<Data, Failure> {
    let sgl = entry.sgl();
    if sgl.identifier != Sgl::TRANSPORT_DATA_BLOCK {
        return Err(Failure::at(Status::SGL_TYPE_INVALID, 39));
    }
    if u64::from(sgl.length) != bytes.unwrap_or(u64::from(sgl.length)) {
        return Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32));
    }
    if sgl.length > TRANSFER_BYTES_MAX {
        return Err(Failure::field(32));
    }
    Ok(if sgl.length == 0 { Data::None } else { Data::ToHost(sgl.length) })
}

/// What holds for every command over fabrics: SGLs (PSDT 01b); and not fused, since both halves of those are parsed together, without their
/// mark.
#[inline]
pub fn check_flags(entry: &SubmissionEntry) -> Result<(), Failure> {
    if entry.flags() & 0xc3 != 0x40 { Err(Failure::field(1)) } else { Ok(()) }
}

fn target(entry: &SubmissionEntry) -> Result<Target, Failure> {
    let (app, handler) = tunnel::split_target(entry.cdw10()).ok_or(Failure::field(41))?;
    if handler == 0 {
        return Err(Failure::field(40));
    }
    let spu = match entry.cdw11() {
        tunnel::SPU_ANY => None,
        number => Some(u16::try_from(number).map_err(|_| Failure::field(44))?),
    };
    Ok(Target { app, handler, spu })
}

/// Parses an I/O command. `view` is the namespace that it names, where that is active for its controller.
#[inline]
pub fn parse(entry: &SubmissionEntry, view: Option<NamespaceView>, capsule_bytes: usize) -> Result<Command, Failure> {
    check_flags(entry)?;
    let nsid = entry.nsid();
    let Some(view) = view else { return parse_without_namespace(entry, capsule_bytes) };
    let transfer_max = u64::from(TRANSFER_BYTES_MAX);
    let (operation, data) = match (view.set, entry.opcode()) {
        (CommandSet::Nvm, nvm::READ) => {
            let blocks = blocks(entry, &view, transfer_max)?;
            (Operation::Read(blocks), data_to_host(entry, Some(blocks.bytes))?)
        }
        (CommandSet::Nvm, nvm::WRITE) => {
            let blocks = blocks(entry, &view, transfer_max)?;
            let durable = Durable(entry.cdw12() & nvm::CDW12_FUA != 0);
            (Operation::Write(blocks, durable), data_from_host(entry, Some(blocks.bytes), capsule_bytes)?)
        }
        (_, nvm::FLUSH) => (Operation::Flush, Data::None),
        (CommandSet::Nvm, nvm::COMPARE) => {
            let blocks = blocks(entry, &view, transfer_max)?;
            (Operation::Compare(blocks), data_from_host(entry, Some(blocks.bytes), capsule_bytes)?)
        }
        (CommandSet::Nvm, nvm::WRITE_ZEROES) => {
            let blocks = blocks(entry, &view, 4096 << WZSL)?;
            let deallocate = entry.cdw12() & nvm::CDW12_DEALLOCATE != 0;
            let durable = Durable(entry.cdw12() & nvm::CDW12_FUA != 0);
            (Operation::WriteZeroes { blocks, deallocate, durable }, Data::None)
        }
        (CommandSet::Nvm, nvm::VERIFY) => (Operation::Verify(blocks(entry, &view, 4096 << VSL)?), Data::None),
        (CommandSet::Nvm, nvm::WRITE_UNCORRECTABLE) => {
            (Operation::WriteUncorrectable(blocks(entry, &view, 4096 << WUSL)?), Data::None)
        }
        (CommandSet::Nvm, nvm::DATASET_MANAGEMENT) => {
            let ranges = (entry.cdw10() & nvm::DSM_RANGES) as u16 + 1;
            let deallocate = entry.cdw11() & nvm::DSM_DEALLOCATE != 0;
            // A host may send the list in a buffer of a page whatever its length (NVM 3.2.3: 4096 bytes at most).
            let data = data_from_host(entry, None, capsule_bytes)?;
            let (Data::Capsule(_, bytes) | Data::Fetch(bytes)) = data else { return Err(Failure::field(32)) };
            if (bytes as usize) < usize::from(ranges) * nvm::DSM_RANGE_BYTES || bytes > 4096 {
                return Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32));
            }
            (Operation::DatasetManagement { ranges, deallocate }, data)
        }
        (CommandSet::Nvm, nvm::COPY) => {
            let (cdw12, ranges) = (entry.cdw12(), (entry.cdw12() & nvm::COPY_RANGES) as u16 + 1);
            if ranges > COPY_RANGES_MAX {
                return Err(Failure::at(Status::COMMAND_SIZE_LIMIT_EXCEEDED, 48));
            }
            // Format 0 alone; no directives.
            if cdw12 & nvm::COPY_FORMAT != 0 {
                return Err(Failure::field(49));
            }
            if cdw12 & 0x00f0_0000 != 0 {
                return Err(Failure::field(50));
            }
            let data = data_from_host(entry, Some(u64::from(ranges) * nvm::COPY_RANGE_BYTES as u64), capsule_bytes)?;
            let durable = Durable(cdw12 & nvm::CDW12_FUA != 0);
            (Operation::Copy { ranges, to_lba: entry.lba(), durable }, data)
        }
        (CommandSet::Kv, kv::STORE) => {
            let bytes = entry.cdw10();
            if bytes > TRANSFER_BYTES_MAX {
                return Err(Failure::at(Status::KV_INVALID_VALUE_SIZE, 40));
            }
            let condition = put_condition(entry)?;
            let key = key(entry)?;
            let data =
                if bytes == 0 { Data::None } else { data_from_host(entry, Some(u64::from(bytes)), capsule_bytes)? };
            (Operation::Store { key, bytes, condition }, data)
        }
        (CommandSet::Kv, kv::RETRIEVE) => {
            let bytes = entry.cdw10();
            let key = key(entry)?;
            let data = if bytes == 0 { Data::None } else { data_to_host(entry, Some(u64::from(bytes)))? };
            (Operation::Retrieve(key), data)
        }
        (CommandSet::Kv, kv::LIST) => {
            let from = if entry.cdw11() & 0xff == 0 { None } else { Some(key(entry)?) };
            let bytes = entry.cdw10();
            if bytes < 4 {
                return Err(Failure::field(40));
            }
            (Operation::List(from), data_to_host(entry, Some(u64::from(bytes)))?)
        }
        (CommandSet::Kv, kv::DELETE) => (Operation::Delete(key(entry)?), Data::None),
        (CommandSet::Kv, kv::EXIST) => (Operation::Exist(key(entry)?), Data::None),
        (CommandSet::Kv, opcode) if opcode & 0x80 != 0 => match parse_item(entry, capsule_bytes)? {
            Some(parsed) => parsed,
            None => return parse_tunnel(entry, capsule_bytes),
        },
        _ => match reservation::parse(entry, capsule_bytes) {
            Some(parsed) => parsed?,
            None => return parse_tunnel(entry, capsule_bytes),
        },
    };
    Ok(Command { nsid, generation: view.generation, operation, data })
}

/// Store options (CDW11 bits 8 and 9).
fn put_condition(entry: &SubmissionEntry) -> Result<PutCondition, Failure> {
    match entry.cdw11() >> 8 & 3 {
        0 => Ok(PutCondition::Always),
        1 => Ok(PutCondition::IfExists),
        2 => Ok(PutCondition::IfAbsent),
        _ => Err(Failure::field(45)),
    }
}

/// Vendor commands of key-value namespaces; `None`: it is none of them.
fn parse_item(entry: &SubmissionEntry, capsule_bytes: usize) -> Result<Option<(Operation, Data)>, Failure> {
    use willow_wire::spec::kv::{DURABLE, IF_VERSION, ItemHead, StoreHead};
    let durable = Durable(entry.cdw11() & DURABLE != 0);
    let if_version = entry.cdw11() & IF_VERSION != 0;
    let (bytes, now_s) = (entry.cdw10(), entry.cdw12());
    Ok(Some(match entry.opcode() {
        kv::STORE_ITEM => {
            if bytes > TRANSFER_BYTES_MAX || (bytes as usize) < StoreHead::BYTES {
                return Err(Failure::at(Status::KV_INVALID_VALUE_SIZE, 40));
            }
            let condition = match (put_condition(entry)?, if_version) {
                (condition, false) => condition.into(),
                // The version is known when the data have come.
                (PutCondition::Always, true) => ItemCondition::IfVersion(0),
                _ => return Err(Failure::field(45)),
            };
            let key = key(entry)?;
            let data = data_from_host(entry, Some(u64::from(bytes)), capsule_bytes)?;
            (Operation::StoreItem { key, bytes, condition, durable }, data)
        }
        kv::RETRIEVE_ITEM => {
            if (bytes as usize) < ItemHead::BYTES {
                return Err(Failure::field(40));
            }
            (Operation::RetrieveItem { key: key(entry)?, now_s }, data_to_host(entry, Some(u64::from(bytes)))?)
        }
        kv::DELETE_ITEM => {
            let version = if_version.then_some(u64::from(bytes) | u64::from(entry.cdw13()) << 32);
            (Operation::DeleteItem { key: key(entry)?, version, now_s, durable }, Data::None)
        }
        kv::TOUCH => (Operation::Touch { key: key(entry)?, expiry: entry.cdw13(), now_s, durable }, Data::None),
        kv::SWEEP => {
            let spu = u16::try_from(entry.cdw13()).map_err(|_| Failure::field(52))?;
            (Operation::Sweep { spu, from: bytes, now_s }, Data::None)
        }
        kv::CLEAR => (Operation::Clear, Data::None),
        _ => return Ok(None),
    }))
}

fn key(entry: &SubmissionEntry) -> Result<Key, Failure> {
    let wire = willow_wire::spec::kv::Key::from_entry(entry).ok_or(Failure::at(Status::KV_INVALID_KEY_SIZE, 44))?;
    Key::new(wire.as_slice()).map_err(|_| Failure::at(Status::KV_INVALID_KEY_SIZE, 44))
}

/// Commands that need no namespace: Flush of all, and the tunnel through any namespace or none.
fn parse_without_namespace(entry: &SubmissionEntry, capsule_bytes: usize) -> Result<Command, Failure> {
    let nsid = entry.nsid();
    if nsid == NSID_ALL {
        if entry.opcode() == nvm::FLUSH {
            return Ok(Command { nsid, generation: 0, operation: Operation::Flush, data: Data::None });
        }
        return parse_tunnel(entry, capsule_bytes);
    }
    // NVMe Base 3.2.1: an invalid NSID against one that is valid but not active.
    Err(if nsid == 0 || nsid > NSID_MAX { Failure::at(Status::INVALID_NAMESPACE, 4) } else { Failure::field(4) })
}

fn parse_tunnel(entry: &SubmissionEntry, capsule_bytes: usize) -> Result<Command, Failure> {
    let (operation, data) = match entry.opcode() {
        tunnel::SEND => (Operation::Send(target(entry)?), data_from_host(entry, None, capsule_bytes)?),
        tunnel::CALL => (Operation::Call(target(entry)?, tunnel::call_arguments(entry)), data_to_host(entry, None)?),
        tunnel::RECEIVE => {
            let data = data_to_host(entry, None)?;
            let wait_ms = entry.cdw12();
            if wait_ms > RECEIVE_PARKED_MS_MAX {
                return Err(Failure::field(48));
            }
            if entry.sgl().length < tunnel::UPCALL_HEAD_BYTES as u32 {
                return Err(Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32));
            }
            (Operation::Receive { wait_ms }, data)
        }
        _ if entry.nsid() == NSID_ALL && is_io_opcode(entry.opcode()) => {
            return Err(Failure::at(Status::INVALID_NAMESPACE, 4));
        }
        _ => return Err(Failure::at(Status::INVALID_OPCODE, 0)),
    };
    Ok(Command { nsid: entry.nsid(), generation: 0, operation, data })
}

fn is_io_opcode(opcode: u8) -> bool {
    matches!(
        opcode,
        nvm::READ
            | nvm::WRITE
            | nvm::COMPARE
            | nvm::WRITE_ZEROES
            | nvm::VERIFY
            | nvm::WRITE_UNCORRECTABLE
            | nvm::DATASET_MANAGEMENT
            | nvm::COPY
            | kv::LIST
            | kv::DELETE
            | kv::EXIST
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: NamespaceView = NamespaceView { set: CommandSet::Nvm, block_shift: 12, blocks: 1000, generation: 1 };

    fn read(lba: u64, count: u32, bytes: u32) -> Result<Command, Failure> {
        let entry = SubmissionEntry::new(nvm::READ)
            .with_nsid(1)
            .with_lba(lba)
            .with_cdw(12, count - 1)
            .with_sgl(Sgl::transport(bytes));
        parse(&entry, Some(VIEW), 0)
    }

    #[test]
    fn reads_are_checked_to_the_last_block() {
        let command = read(999, 1, 4096).unwrap();
        assert_eq!(command.operation, Operation::Read(Blocks { lba: 999, start: 999 << 12, bytes: 4096 }));
        assert_eq!(command.data, Data::ToHost(4096));
        let status = |result: Result<Command, Failure>| result.unwrap_err().status;
        assert!(status(read(999, 2, 8192)).is(Status::LBA_OUT_OF_RANGE));
        assert!(status(read(u64::MAX, 1, 4096)).is(Status::LBA_OUT_OF_RANGE));
        assert!(status(read(0, 1, 512)).is(Status::DATA_SGL_LENGTH_INVALID));
        assert!(status(read(0, 1025, 1025 << 12)).is(Status::INVALID_FIELD));
    }

    #[test]
    fn descriptors_are_checked() {
        let entry = SubmissionEntry::new(nvm::WRITE).with_nsid(1).with_sgl(Sgl::in_capsule(0, 4096));
        assert_eq!(parse(&entry, Some(VIEW), 4096).unwrap().data, Data::Capsule(0, 4096));
        let failure = |entry: &SubmissionEntry, bytes| parse(entry, Some(VIEW), bytes).unwrap_err();
        assert!(failure(&entry, 4095).status.is(Status::SGL_OFFSET_INVALID));
        let wild = entry.with_sgl(Sgl { address: u64::MAX, length: 4096, identifier: 1 });
        assert!(failure(&wild, 4096).status.is(Status::SGL_OFFSET_INVALID));
        let keyed = entry.with_sgl(Sgl { address: 0, length: 4096, identifier: Sgl::KEYED_DATA_BLOCK });
        assert!(failure(&keyed, 4096).status.is(Status::SGL_TYPE_INVALID));
        let mut prp = entry;
        prp.0[1] = 0;
        assert_eq!(failure(&prp, 4096), Failure::field(1));
        assert!(failure(&SubmissionEntry::new(0x55).with_nsid(1), 0).status.is(Status::INVALID_OPCODE));
    }

    #[test]
    fn namespaces_that_are_not_there() {
        let entry = SubmissionEntry::new(nvm::READ).with_sgl(Sgl::transport(4096));
        let failure = |nsid| parse(&entry.with_nsid(nsid), None, 0).unwrap_err();
        assert_eq!(failure(7), Failure::field(4));
        for nsid in [0, NSID_MAX + 1, NSID_ALL] {
            assert!(failure(nsid).status.is(Status::INVALID_NAMESPACE), "{nsid}");
        }
        assert!(parse(&SubmissionEntry::new(nvm::FLUSH).with_nsid(NSID_ALL), None, 0).is_ok());
    }
}
