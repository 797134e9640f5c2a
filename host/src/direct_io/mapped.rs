//! What the agent granted of a file: where its bytes lie, and that it stays so until this is closed.
//!
//! What always holds: the grant is given back once, when this is closed or dropped, or by the agent when the process ends; a
//! process that was forked gives nothing back that is its parent's.

use super::agent_client::{AgentClient, DirectError};
use super::session::forks;
use base_io_host::Geometry;
use direct_io_host::FileExtent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A grant.
pub struct Mapped {
    agent: Arc<AgentClient>,
    number: u32,
    bytes: u64,
    rights: u32,
    app: u16,
    geometry: Geometry,
    extents: Vec<FileExtent>,
    forks: u32,
    is_closed: AtomicBool,
    /// Something was written by it.
    written: AtomicBool,
    /// The file is not asked for by its rights again.
    forgets: AtomicBool,
    /// Nothing more may begin: it is about to be given back.
    ended: AtomicBool,
    /// Operations of blocking calls that are under way by it.
    users: AtomicU32,
}

/// One of those.
pub(crate) struct Use<'a>(&'a Mapped);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}

impl Mapped {
    pub(crate) fn new(
        agent: Arc<AgentClient>,
        number: u32,
        (bytes, rights, app): (u64, u32, u16),
        geometry: Geometry,
        extents: Vec<FileExtent>,
    ) -> Self {
        let (written, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Mapped {
            agent,
            number,
            bytes,
            rights,
            app,
            geometry,
            extents,
            forks: forks(),
            is_closed: AtomicBool::new(false),
            written,
            forgets: AtomicBool::new(false),
            ended,
            users: AtomicU32::new(0),
        }
    }

    /// Gives it back, once; others may still hold it, and nothing can be done by it any more.
    pub(crate) fn give_back(&self) -> Result<(), DirectError> {
        self.end();
        if self.forks != forks() || self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.agent.close(self.number, !self.written.load(Ordering::Acquire), self.forgets.load(Ordering::Relaxed))
    }

    /// The file is not asked for by its rights once more when this has been given back.
    pub(crate) fn forget(&self) {
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Gives it back: when this returns, the file is the file system's own again.
    pub fn close(self) -> Result<(), DirectError> {
        self.give_back()
    }

    /// Goes through another app than Direct-IO from now on.
    pub fn use_app(&mut self, app: u16) {
        self.app = app;
    }

    /// Number of the app with the handlers.
    pub fn app(&self) -> u16 {
        self.app
    }

    /// Bit 0: the device lets it be read, bit 1: written.
    pub fn rights(&self) -> u32 {
        self.rights
    }

    /// Length of the file, which does not change meanwhile.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the file's bytes lie in the namespace, in order; what is between are holes.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// How its namespace lies in the banks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// True where a write of this range needs no block that the file lacks.
    pub fn can_write(&self, offset: u64, bytes: usize) -> bool {
        let end = offset.checked_add(bytes as u64);
        end.is_some_and(|end| end <= self.bytes) && direct_io_host::covers(&self.extents, offset, bytes)
    }

    /// Something is written by it: the file's modification time is to be set.
    pub(crate) fn note_write(&self) {
        if !self.written.load(Ordering::Relaxed) {
            self.written.store(true, Ordering::Release);
        }
    }

    /// Something is about to be done by it: an operation that begins after [`Mapped::end`] fails, and one that began before is seen.
    pub(crate) fn used(&self) -> Use<'_> {
        self.users.fetch_add(1, Ordering::SeqCst);
        Use(self)
    }

    /// True while blocking calls are under way by it.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    /// No operation begins any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// True where none may begin.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
