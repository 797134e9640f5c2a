//! Atomic-Write's requests on the wire: inline arguments, little-endian. Shared by the handlers and the host library.

/// Handler numbers. Those up to [`STAT`] are for hosts, the others for the app's own instances.
pub mod handler {
    /// Adds a write to a transaction's log on this SPU; the first one begins it here. The data follow the arguments.
    pub const LOG_WRITE: u8 = 1;
    /// The same with several writes: [`super::VectorWrite`]s, then the data of all of them.
    pub const VECTOR_LOG_WRITE: u8 = 2;
    /// Changes the data of a write that is in the log.
    pub const LOG_EDIT: u8 = 3;
    /// Reads the data of a write that is in the log.
    pub const LOG_READ: u8 = 4;
    /// Commits a transaction; this SPU coordinates.
    pub const COMMIT: u8 = 5;
    /// Begins and commits a transaction of one write.
    pub const LOG_WRITE_COMMIT: u8 = 6;
    /// Forgets a transaction's log on this SPU.
    pub const ABORT: u8 = 7;
    /// Tells how full the log is.
    pub const STAT: u8 = 8;

    /// Coordinator to participant: make your part durable, and say whether it can be applied.
    pub const PREPARE: u8 = 32;
    /// Coordinator to participant: all are prepared, apply.
    pub const APPLY: u8 = 33;
    /// Coordinator to participant: somebody is not prepared, forget it.
    pub const CANCEL: u8 = 34;
    /// Coordinator to participant: all have applied these, forget them.
    pub const FORGET: u8 = 35;
    /// Participant to coordinator, at the start: do you know this transaction?
    pub const RESOLVE: u8 = 36;
    /// Coordinator to participant, at the start: how far is your part?
    pub const PROGRESS: u8 = 37;
    /// The caretaker, in the background.
    pub const CARETAKER: u8 = 38;
}

/// Handlers that any user's process may call.
pub const PUBLIC: &str = "1,2,3,4,5,6,7,8";

/// Status: there is no such transaction on this SPU (any more).
pub const STATUS_NOT_FOUND: u32 = 1;
/// Status: a transaction of that number is there already.
pub const STATUS_EXISTS: u32 = 2;
/// Status: the log is full, or the process has its share of it.
pub const STATUS_FULL: u32 = 3;
/// Status: the process may not write there.
pub const STATUS_PERMISSION: u32 = 4;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 5;
/// Status: the media failed.
pub const STATUS_MEDIA_ERROR: u32 = 6;
/// Status: too much is under way, nothing was done, and it works when some of that has ended.
pub const STATUS_BUSY: u32 = 7;
/// Status: a part could not be asked, and the transaction is aborted.
pub const STATUS_ABORTED: u32 = 8;
/// Status: the log does not have as many writes as the commit says; the transaction is aborted.
pub const STATUS_INCOMPLETE: u32 = 9;
/// Status: there is no room for the log in NV memory.
pub const STATUS_NO_LOG: u32 = 10;
/// Status: the transaction is committed, but a part of it could not be applied yet: it will be when the device starts next.
pub const STATUS_UNFINISHED: u32 = 11;
/// Status between instances: the part could not be prepared, and its head may be on the media all the same.
pub const STATUS_UNCERTAIN: u32 = 13;
/// Status of [`handler::PROGRESS`] and [`handler::RESOLVE`]: the instance has not read its log yet.
pub const STATUS_NOT_YET: u32 = 12;

/// Most bytes of one write: they lie in one chunk of the log.
pub const WRITE_BYTES_MAX: u32 = 16384;
/// Most writes of one [`handler::VECTOR_LOG_WRITE`].
pub const VECTOR_WRITES_MAX: usize = 12;

/// Flag of a write: the transaction is new on this SPU. Without it, it must be there.
pub const FLAG_FIRST: u32 = 1;

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}

/// Arguments of [`handler::LOG_WRITE`], [`handler::VECTOR_LOG_WRITE`] and [`handler::LOG_WRITE_COMMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArguments {
    /// The transaction's number, of the host's choosing among those of its process.
    pub transaction: u64,
    /// Byte address in the bank; of a vector: 0.
    pub nv_address: u64,
    /// Bytes; of a vector: the number of writes.
    pub bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
}

impl WriteArguments {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.transaction.to_le_bytes());
        out[8..16].copy_from_slice(&self.nv_address.to_le_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        WriteArguments {
            transaction: long(from, 0),
            nv_address: long(from, 8),
            bytes: word(from, 16),
            flags: word(from, 20),
        }
    }
}

/// One of several writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorWrite {
    /// Byte address in the bank.
    pub nv_address: u64,
    /// Bytes; its data follow those of the write before.
    pub bytes: u32,
}

impl VectorWrite {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.nv_address.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// From the first [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8]) -> Self {
        VectorWrite { nv_address: long(from, 0), bytes: word(from, 8) }
    }
}

/// Arguments of [`handler::LOG_EDIT`] and [`handler::LOG_READ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordArguments {
    /// The transaction's number.
    pub transaction: u64,
    /// Which of its writes on this SPU, in the order in which they were logged, from 0.
    pub record: u32,
    /// First byte in the write's data.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
}

impl RecordArguments {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.transaction.to_le_bytes());
        out[8..12].copy_from_slice(&self.record.to_le_bytes());
        out[12..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        RecordArguments {
            transaction: long(from, 0),
            record: word(from, 8),
            offset: word(from, 12),
            bytes: word(from, 16),
        }
    }
}

/// Arguments of [`handler::COMMIT`]; behind them follows, for each participant in rising order, how many writes it has (u16).
/// [`handler::ABORT`] takes the first 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitArguments {
    /// The transaction's number.
    pub transaction: u64,
    /// The SPUs that have writes of it, one bit each; the one that is asked is among them.
    pub participants: u64,
}

impl CommitArguments {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.transaction.to_le_bytes());
        out[8..16].copy_from_slice(&self.participants.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        CommitArguments { transaction: long(from, 0), participants: long(from, 8) }
    }
}

/// What instances tell each other of a commit; only [`handler::PREPARE`] uses more than the coordinator and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitMessage {
    /// Who coordinates.
    pub coordinator: u32,
    /// How many writes the receiver has.
    pub writes: u32,
    /// The coordinator's number of this commit: none is given twice.
    pub number: u64,
    /// The transaction's number.
    pub transaction: u64,
    /// The SPUs that have writes of it.
    pub participants: u64,
    /// Whose it is.
    pub owner: u32,
}

impl CommitMessage {
    /// Encoded length.
    pub const BYTES: usize = 40;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.coordinator.to_le_bytes());
        out[4..8].copy_from_slice(&self.writes.to_le_bytes());
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.transaction.to_le_bytes());
        out[24..32].copy_from_slice(&self.participants.to_le_bytes());
        out[32..36].copy_from_slice(&self.owner.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        CommitMessage {
            coordinator: word(from, 0),
            writes: word(from, 4),
            number: long(from, 8),
            transaction: long(from, 16),
            participants: long(from, 24),
            owner: word(from, 32),
        }
    }
}

/// Most commits of one [`handler::FORGET`]: u32 coordinator, u32 how many, then their numbers (u64).
pub const FORGET_MAX: usize = 30;

/// What [`handler::STAT`] tells of one SPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions that are not committed or aborted yet.
    pub open: u32,
    /// Those that are committed, and not forgotten by all yet.
    pub committed: u32,
    /// Chunks of the log, and how many of them are free.
    pub chunks: u32,
    /// See above.
    pub free_chunks: u32,
}

impl Statistics {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (at, value) in [self.open, self.committed, self.chunks, self.free_chunks].into_iter().enumerate() {
            out[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Statistics { open: word(from, 0), committed: word(from, 4), chunks: word(from, 8), free_chunks: word(from, 12) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let write = WriteArguments { transaction: u64::MAX - 1, nv_address: 1 << 40 | 7, bytes: 9, flags: FLAG_FIRST };
        assert_eq!(WriteArguments::decode(&write.encode()), write);
        let part = VectorWrite { nv_address: 1 << 50 | 3, bytes: 77 };
        assert_eq!(VectorWrite::decode(&part.encode()), part);
        let record = RecordArguments { transaction: 1 << 63, record: 2, offset: 3, bytes: 4 };
        assert_eq!(RecordArguments::decode(&record.encode()), record);
        let commit = CommitArguments { transaction: 5, participants: 1 << 63 | 1 };
        assert_eq!(CommitArguments::decode(&commit.encode()), commit);
        let message = CommitMessage {
            transaction: 1,
            owner: 2,
            participants: 1 << 40,
            coordinator: 63,
            number: 1 << 33,
            writes: 9,
        };
        assert_eq!(CommitMessage::decode(&message.encode()), message);
        let statistics = Statistics { open: 1, committed: 2, chunks: 3, free_chunks: 4 };
        assert_eq!(Statistics::decode(&statistics.encode()), statistics);
    }
}
