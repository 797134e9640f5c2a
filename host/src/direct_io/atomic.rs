//! Ranges of files that are written as a whole or not at all, by Atomic-Write (Willow, section 4.3), with the rights that the process' open
//! files give.
//!
//! What always holds:
//! - what this returns from without an error is durable, all of it; after an error nothing is written, but for [`AtomicError::is_unknown`];
//! - the ranges lie in blocks that the files have: nothing grows by this;
//! - a file that the agent takes back meanwhile is asked for anew, and the write is made again: it had been refused as a whole.

use super::agent_client::DirectError;
use super::file::{File, Way};
use super::lane::Action;
use super::mapped::Mapped;
use super::reach;
use super::session::{Session, lock};
use crate::atomic_write::{AtomicWriteClient, AtomicWriteError, Part};
use crate::hre::Hre;
use crate::shm::{ShmHre, ShmOptions};
use atomic_write_host::Refusal;
use atomic_write_host::wire::{VectorWrite, WRITE_BYTES_MAX};
use direct_io_host::{Piece, Pieces};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// How often a write begins anew since the agent has taken a file back meanwhile.
const ATTEMPTS_MAX: u32 = 8;
/// Entries of the endpoint's rings, and bytes of its data area.
const ENTRIES: u32 = 256;
const DATA_BYTES: u64 = 4 << 20;

/// Why ranges of files were not written.
#[derive(Debug, thiserror::Error)]
pub enum AtomicError {
    /// A file is not direct, or has no blocks there.
    #[error("the file goes through the kernel, or has no blocks there")]
    NotDirect,
    /// Atomic-Write.
    #[error(transparent)]
    Write(#[from] AtomicWriteError),
    /// The way to the device.
    #[error(transparent)]
    Direct(#[from] DirectError),
}

impl AtomicError {
    /// True where nobody knows whether it was written.
    pub fn is_unknown(&self) -> bool {
        matches!(self, AtomicError::Write(error) if error.is_unknown())
    }

    /// True where the log has no room for so much at a time.
    pub fn is_too_large(&self) -> bool {
        let refusal = match self {
            AtomicError::Write(AtomicWriteError::Refused(refusal)) => *refusal,
            AtomicError::Write(AtomicWriteError::Request(_)) => return true,
            _ => return false,
        };
        matches!(refusal, Refusal::Full | Refusal::NoLog)
    }
}

/// What is to be written to a file: first byte and bytes of each range, which do not overlap.
pub struct FileWrites<'a, F: AsFd> {
    /// The file.
    pub file: &'a File<F>,
    /// The ranges.
    pub ranges: Vec<(u64, &'a [u8])>,
}

struct Port {
    client: AtomicWriteClient,
    runtime: tokio::runtime::Runtime,
}

/// Writes ranges of a session's files as a whole.
pub struct AtomicWriter {
    session: Arc<Session>,
    /// An endpoint of its own, opened when it is needed.
    way: Mutex<Option<Port>>,
}

/// What became of one attempt.
enum Attempt {
    Done,
    /// A right was taken back meanwhile: these files are asked for anew.
    Again(Vec<Arc<Mapped>>),
}

impl AtomicWriter {
    /// For files of this session.
    pub fn new(session: &Arc<Session>) -> Self {
        AtomicWriter { session: session.clone(), way: Mutex::new(None) }
    }

    /// Opens the endpoint, where there is none; an error says that there is no device, or no app Atomic-Write.
    pub fn open(&self) -> Result<(), AtomicError> {
        self.with_port(|_| Ok(()))
    }

    fn with_port<T>(&self, what: impl FnOnce(&Port) -> Result<T, AtomicError>) -> Result<T, AtomicError> {
        self.session.check()?;
        let mut way = lock(&self.way);
        if way.is_none() {
            *way = Some(self.connect()?);
        }
        let Some(port) = &*way else { return Err(AtomicError::NotDirect) };
        let done = what(port);
        if let Err(AtomicError::Write(AtomicWriteError::Hre(_))) = &done {
            // A device that comes back is found again.
            *way = None;
        }
        done
    }

    fn connect(&self) -> Result<Port, AtomicError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DirectError::Agent(format!("no runtime: {error}")))?;
        let hre: Arc<dyn Hre> = match self.session.device_socket()? {
            Some(device) => {
                let kind = willow_shm::message::Kind::User;
                let options = ShmOptions { kind, entries: ENTRIES, data_bytes: DATA_BYTES };
                Arc::new(ShmHre::open(&device, options).map_err(DirectError::from)?)
            }
            None => runtime.block_on(reach::endpoint(&self.session.agent()?))?,
        };
        let client = runtime.block_on(AtomicWriteClient::find(hre)).map_err(DirectError::from)?;
        Ok(Port { client, runtime })
    }

    /// Writes all of it, or nothing.
    pub fn write<F: AsFd>(&self, writes: &[FileWrites<'_, F>]) -> Result<(), AtomicError> {
        let writes: Vec<_> = writes.iter().filter(|it| it.ranges.iter().any(|(_, data)| !data.is_empty())).collect();
        if writes.is_empty() {
            return Ok(());
        }
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(&writes)? {
                Attempt::Done => return Ok(()),
                Attempt::Again(lost) => {
                    for (writes, mapped) in writes.iter().zip(&lost) {
                        writes.file.lost(mapped);
                        writes.file.take()?;
                    }
                }
            }
        }
        Err(DirectError::Permission.into())
    }

    fn attempt<F: AsFd>(&self, writes: &[&FileWrites<'_, F>]) -> Result<Attempt, AtomicError> {
        let (mut held, mut grants, mut parts) = (Vec::new(), Vec::<Arc<Mapped>>::new(), Vec::new());
        for FileWrites { file, ranges } in writes {
            let action = Action::Write { durable: true };
            let Some((offset, data)) = ranges.iter().find(|(_, data)| !data.is_empty()) else { continue };
            // While the lock is held the file is not given back by this process.
            let (state, way) = file.way(action, *offset, data.len());
            let Way::Direct(mapped, _) = way else { return Err(AtomicError::NotDirect) };
            for (offset, data) in ranges {
                if !data.is_empty()
                    && !(file.allows(action, *offset, data.len()) && mapped.can_write(*offset, data.len()))
                {
                    return Err(AtomicError::NotDirect);
                }
                let geometry = mapped.geometry();
                let mut pieces = Pieces::new(mapped.extents(), (*offset, data.len()), 0, WRITE_BYTES_MAX);
                while let Some(piece) = pieces.next(&geometry, mapped.extents()) {
                    let Piece::Rpc { spu, arguments, buffer_offset } = piece else {
                        return Err(AtomicError::NotDirect);
                    };
                    let (nv_address, bytes) = (arguments.nv_address, arguments.bytes);
                    let data = &data[buffer_offset..buffer_offset + bytes as usize];
                    parts.push(Part { spu, write: VectorWrite { nv_address, bytes }, data });
                }
            }
            file.note(&mapped, action);
            held.push(state);
            grants.push(mapped);
        }
        let used: Vec<_> = grants.iter().map(|mapped| mapped.used()).collect();
        if grants.iter().any(|mapped| mapped.has_ended()) {
            drop(used);
            return Ok(Attempt::Again(grants));
        }
        let done = self.with_port(|port| Ok(port.runtime.block_on(port.client.write_all(&parts))?));
        drop(used);
        drop(held);
        match done {
            Ok(()) => Ok(Attempt::Done),
            Err(AtomicError::Write(AtomicWriteError::Refused(Refusal::Permission))) => Ok(Attempt::Again(grants)),
            Err(error) => Err(error),
        }
    }
}
