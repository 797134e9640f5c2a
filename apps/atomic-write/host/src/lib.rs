//! Atomic-Write's library for hosts: which RPCs make several writes one (Willow, section 4.3). It tracks which SPUs take part, and
//! chooses the one that coordinates.
//!
//! What always holds:
//! - a write lies within one stripe, and so on one SPU; it has at most [`wire::WRITE_BYTES_MAX`] bytes;
//! - the first write on an SPU begins the transaction there: it is answered before another is sent to that SPU;
//! - a commit says how many writes each SPU has, so that one of which a write is missing is refused;
//! - no input or output, no knowledge of a transport: the caller sends what it is handed.
//!
//! Who may call it: host programs; `willow-host` has clients over it.

use atomic_write_spu::wire::{
    CommitArguments, FLAG_FIRST, RecordArguments, VECTOR_WRITES_MAX, VectorWrite, WRITE_BYTES_MAX, WriteArguments,
    handler,
};
use base_io_host::Geometry;

pub use atomic_write_spu::wire;

/// Name that Atomic-Write is installed under.
pub const APP_NAME: &str = "atomic-write";
/// Most SPUs.
pub const SPUS_MAX: usize = 64;
/// Most writes of a transaction on one SPU.
pub const WRITES_MAX: u16 = u16::MAX;

/// One RPC to the app. The body is `arguments`, then what the caller adds: the data of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Receiver.
    pub spu: u16,
    /// Handler number.
    pub handler: u8,
    /// How the body begins.
    pub arguments: Vec<u8>,
}

/// A piece of a write: one contiguous range of one SPU's bank, and of the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Receiver.
    pub spu: u16,
    /// Where it goes.
    pub write: VectorWrite,
    /// Where its data lie in the caller's buffer.
    pub buffer_offset: usize,
}

/// The pieces of `bytes` bytes from byte `start` of a namespace on. The caller has checked that they lie within it.
pub fn pieces(geometry: &Geometry, start: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let (stripe, spus, base) = (u64::from(geometry.stripe_bytes), u64::from(geometry.spus), geometry.base);
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= bytes {
            return None;
        }
        let at = start + done as u64;
        let (number, within) = (at / stripe, at % stripe);
        let count = (stripe - within).min((bytes - done) as u64).min(WRITE_BYTES_MAX.into());
        let write = VectorWrite { nv_address: base + number / spus * stripe + within, bytes: count as u32 };
        let piece = Piece { spu: (number % spus) as u16, write, buffer_offset: done };
        done += count as usize;
        Some(piece)
    })
}

/// Why writes cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionError {
    /// No writes, or more than one request may have ([`VECTOR_WRITES_MAX`]).
    WritesOfARequest(usize),
    /// A write has no bytes, or more than [`WRITE_BYTES_MAX`].
    WriteBytes(u32),
    /// The transaction has as many writes on that SPU as it may.
    TooManyWrites(u16),
    /// There is no such SPU.
    NoSpu(u16),
}

impl std::fmt::Display for TransactionError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TransactionError::WritesOfARequest(count) => {
                write!(formatter, "a request has {count} writes, must have 1 to {VECTOR_WRITES_MAX}")
            }
            TransactionError::WriteBytes(bytes) => {
                write!(formatter, "a write has {bytes} bytes, must have 1 to {WRITE_BYTES_MAX}")
            }
            TransactionError::TooManyWrites(spu) => {
                write!(formatter, "the transaction has {WRITES_MAX} writes on SPU {spu}, which is the most")
            }
            TransactionError::NoSpu(spu) => write!(formatter, "there is no SPU {spu}"),
        }
    }
}

impl std::error::Error for TransactionError {}

/// A transaction as its host knows it.
#[derive(Clone, Debug)]
pub struct Transaction {
    number: u64,
    /// Writes, by SPU.
    writes: [u16; SPUS_MAX],
    participants: u64,
}

impl Transaction {
    /// With a number that the process uses for no other transaction.
    pub fn new(number: u64) -> Self {
        Transaction { number, writes: [0; SPUS_MAX], participants: 0 }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The SPUs that take part, one bit each.
    pub fn participants(&self) -> u64 {
        self.participants
    }

    /// Whether the next write to an SPU is the first there: it is to be answered before another goes out.
    pub fn is_first(&self, spu: u16) -> bool {
        self.participants >> spu & 1 == 0
    }

    /// Adds writes on one SPU. Their data follow the call's arguments, in the same order. Where the call fails the transaction is to be
    /// aborted. The result of the call is the number of its first write, for [`Transaction::edit`] and [`Transaction::read`].
    pub fn write(&mut self, spu: u16, writes: &[VectorWrite]) -> Result<Call, TransactionError> {
        if usize::from(spu) >= SPUS_MAX {
            return Err(TransactionError::NoSpu(spu));
        }
        if writes.is_empty() || writes.len() > VECTOR_WRITES_MAX {
            return Err(TransactionError::WritesOfARequest(writes.len()));
        }
        if let Some(wrong) = writes.iter().find(|write| !(1..=WRITE_BYTES_MAX).contains(&write.bytes)) {
            return Err(TransactionError::WriteBytes(wrong.bytes));
        }
        let count = self.writes[usize::from(spu)].checked_add(writes.len() as u16);
        let count = count.ok_or(TransactionError::TooManyWrites(spu))?;
        let flags = if self.is_first(spu) { FLAG_FIRST } else { 0 };
        self.writes[usize::from(spu)] = count;
        self.participants |= 1 << spu;
        let transaction = self.number;
        if let [VectorWrite { nv_address, bytes }] = *writes {
            let arguments = WriteArguments { transaction, nv_address, bytes, flags }.encode().to_vec();
            return Ok(Call { spu, handler: handler::LOG_WRITE, arguments });
        }
        let arguments = WriteArguments { transaction, nv_address: 0, bytes: writes.len() as u32, flags };
        let mut arguments = arguments.encode().to_vec();
        writes.iter().for_each(|write| arguments.extend(write.encode()));
        Ok(Call { spu, handler: handler::VECTOR_LOG_WRITE, arguments })
    }

    /// Changes bytes of a write that is in the log; the new ones follow the arguments.
    pub fn edit(&self, spu: u16, record: u32, offset: u32, bytes: u32) -> Call {
        let arguments = RecordArguments { transaction: self.number, record, offset, bytes }.encode().to_vec();
        Call { spu, handler: handler::LOG_EDIT, arguments }
    }

    /// Reads bytes of a write that is in the log; the result is how many there were.
    pub fn read(&self, spu: u16, record: u32, offset: u32, bytes: u32) -> Call {
        let arguments = RecordArguments { transaction: self.number, record, offset, bytes }.encode().to_vec();
        Call { spu, handler: handler::LOG_READ, arguments }
    }

    /// Commits it; `None` where it has no writes. The coordinator is one of the participants, another one for each transaction.
    pub fn commit(&self) -> Option<Call> {
        let count = self.participants.count_ones();
        if count == 0 {
            return None;
        }
        let spu = self.spus().nth((self.number % u64::from(count)) as usize)?;
        let arguments = CommitArguments { transaction: self.number, participants: self.participants };
        let mut arguments = arguments.encode().to_vec();
        self.spus().for_each(|spu| arguments.extend(self.writes[usize::from(spu)].to_le_bytes()));
        Some(Call { spu, handler: handler::COMMIT, arguments })
    }

    /// Forgets it on each SPU that may have a part of it. One that has none answers [`wire::STATUS_NOT_FOUND`].
    pub fn abort(&self) -> impl Iterator<Item = Call> {
        let arguments = self.number.to_le_bytes().to_vec();
        self.spus().map(move |spu| Call { spu, handler: handler::ABORT, arguments: arguments.clone() })
    }

    fn spus(&self) -> impl Iterator<Item = u16> + use<> {
        let participants = self.participants;
        (0..SPUS_MAX as u16).filter(move |spu| participants >> spu & 1 != 0)
    }
}

/// A transaction of one write, begun and committed by one call; the data follow the arguments.
pub fn write_and_commit(number: u64, spu: u16, write: VectorWrite) -> Call {
    let VectorWrite { nv_address, bytes } = write;
    let arguments = WriteArguments { transaction: number, nv_address, bytes, flags: FLAG_FIRST }.encode().to_vec();
    Call { spu, handler: handler::LOG_WRITE_COMMIT, arguments }
}

/// Why the app refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such transaction there: it never began, has ended, or was idle while others needed its room.
    NotFound,
    /// A transaction of that number is there already.
    Exists,
    /// The log is full, or the process has its share of it.
    Full,
    /// The process may not write there (any more).
    Permission,
    /// Arguments that make no sense.
    Malformed,
    /// The media failed.
    Media,
    /// Too much is under way, and nothing was done.
    Busy,
    /// A part could not be asked; the transaction is aborted.
    Aborted,
    /// A write is missing; the transaction is aborted.
    Incomplete,
    /// There is no room for the log in NV memory.
    NoLog,
    /// It is committed; a part of it could not be applied yet.
    Unfinished,
    /// A status that this version does not know.
    Unknown(u32),
}

impl Refusal {
    /// What a status says.
    pub fn from_status(status: u32) -> Result<(), Refusal> {
        Err(match status {
            0 => return Ok(()),
            wire::STATUS_NOT_FOUND => Refusal::NotFound,
            wire::STATUS_EXISTS => Refusal::Exists,
            wire::STATUS_FULL => Refusal::Full,
            wire::STATUS_PERMISSION => Refusal::Permission,
            wire::STATUS_MALFORMED => Refusal::Malformed,
            wire::STATUS_MEDIA_ERROR => Refusal::Media,
            wire::STATUS_BUSY => Refusal::Busy,
            wire::STATUS_ABORTED => Refusal::Aborted,
            wire::STATUS_INCOMPLETE => Refusal::Incomplete,
            wire::STATUS_NO_LOG => Refusal::NoLog,
            wire::STATUS_UNFINISHED => Refusal::Unfinished,
            other => Refusal::Unknown(other),
        })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Refusal::NotFound => "there is no such transaction (it may have made way for others while it was idle)",
            Refusal::Exists => "a transaction of that number is there already",
            Refusal::Full => "the log is full, or this process has its share of it",
            Refusal::Permission => "the process may not write there",
            Refusal::Malformed => "the request makes no sense",
            Refusal::Media => "the media failed",
            Refusal::Busy => "too much is under way: try again",
            Refusal::Aborted => "the transaction was aborted since a processor could not be asked: try again",
            Refusal::Incomplete => "the transaction was aborted since a write of it is missing",
            Refusal::NoLog => "the media have no room for the log",
            Refusal::Unfinished => {
                "the transaction is committed, and a part of it will be applied when the media let it"
            }
            Refusal::Unknown(status) => return write!(formatter, "status {status}"),
        })
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_where_base_io_has_them() {
        let geometry = Geometry { spus: 3, stripe_bytes: 8192, base: 1 << 20 };
        for (start, bytes) in [(0, 1), (8000, 400), (8192 * 3 - 5, 8192 * 4), (17, 0), (16384, 8192)] {
            let mut next = 0;
            for piece in pieces(&geometry, start, bytes) {
                assert_eq!(piece.buffer_offset, next);
                let mut expected = None;
                geometry.range(1, start + next as u64, piece.write.bytes.into(), 0, 0, |request| {
                    assert!(expected.replace((request.spu, request.arguments.nv_address)).is_none(), "one stripe");
                });
                assert_eq!(expected, Some((piece.spu, piece.write.nv_address)));
                next += piece.write.bytes as usize;
            }
            assert_eq!(next, bytes);
        }
        // Stripes that are longer than a write.
        let wide = Geometry { stripe_bytes: 65536, ..geometry };
        let all: Vec<u32> = pieces(&wide, 60000, 65536).map(|piece| piece.write.bytes).collect();
        assert_eq!(all, [5536, 16384, 16384, 16384, 10848]);
    }

    #[test]
    fn a_transaction_counts_its_writes_and_names_who_takes_part() {
        let mut transaction = Transaction::new(7);
        assert_eq!(transaction.commit(), None);
        let write = VectorWrite { nv_address: 4096, bytes: 512 };
        let first = transaction.write(5, &[write]).unwrap();
        let arguments = WriteArguments::decode(first.arguments[..].try_into().unwrap());
        assert_eq!((first.spu, first.handler, arguments.flags), (5, handler::LOG_WRITE, FLAG_FIRST));
        let second = transaction.write(5, &[write, write]).unwrap();
        assert_eq!((second.handler, second.arguments.len()), (handler::VECTOR_LOG_WRITE, 24 + 32));
        assert_eq!(WriteArguments::decode(second.arguments[..24].try_into().unwrap()).flags, 0);
        transaction.write(63, &[write]).unwrap();
        let commit = transaction.commit().unwrap();
        assert_eq!(commit.spu, 63, "the seventh transaction of two participants");
        let arguments = CommitArguments::decode(commit.arguments[..16].try_into().unwrap());
        assert_eq!(arguments, CommitArguments { transaction: 7, participants: 1 << 5 | 1 << 63 });
        assert_eq!(commit.arguments[16..], [3, 0, 1, 0]);
        assert_eq!(transaction.abort().map(|call| call.spu).collect::<Vec<_>>(), [5, 63]);
        assert_eq!(transaction.write(64, &[write]), Err(TransactionError::NoSpu(64)));
        assert_eq!(transaction.write(1, &[]), Err(TransactionError::WritesOfARequest(0)));
        assert_eq!(transaction.write(1, &[write; 13]), Err(TransactionError::WritesOfARequest(13)));
        assert_eq!(
            transaction.write(1, &[VectorWrite { bytes: 16385, ..write }]),
            Err(TransactionError::WriteBytes(16385))
        );
        assert!(transaction.is_first(1), "what was refused has begun nothing");
    }
}
