//! Files that are read and written directly, by the process' own endpoint, without the operating system between (Willow, 4.2): the
//! library of Direct-IO. The descriptor that the process has opened decides what it may do; the agent installs the permissions.
//!
//! What always holds:
//! - any offset and length is fine; reads end at the end of the file, and writes past it are refused: the file keeps its length
//!   while it is open directly (close it, extend it, open it again);
//! - holes read as zeroes, and are not written to;
//! - a write is durable after [`DirectFile::sync`]; calls may overlap, and what overlapping ones leave is undefined, as with `pwrite`.

use crate::agent::message::{Request, Response, VERSION};
use crate::hre::{Hre, HreError, RpcCall};
use base_io_host::Geometry;
use direct_io_host::wire::{self, Arguments, handler};
use direct_io_host::{FileExtent, Piece};
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, ReceiveError};

/// Longest wait for an answer of the agent: it may have to sync a large file.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Why a file cannot be accessed directly.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The agent refuses, and says why.
    #[error("the file cannot be accessed directly: {0}")]
    Refused(String),
    /// The connection with the agent failed.
    #[error("the agent does not answer: {0}")]
    Agent(String),
    /// The device refuses: no permission.
    #[error("the device refuses it: this process has no such permission there")]
    Permission,
    /// A write past the end of the file, or into a hole.
    #[error(
        "bytes {offset} to {end} are past the end of the file or in a hole: write them through the file system first"
    )]
    NoBlocks {
        /// First byte.
        offset: u64,
        /// One past the last.
        end: u64,
    },
    /// The device is full or its media failed.
    #[error("the device failed with status {0}")]
    Device(u32),
    /// The endpoint failed.
    #[error(transparent)]
    Hre(#[from] HreError),
}

/// A connection with the agent: one a process.
pub struct AgentClient {
    channel: Mutex<Channel>,
    notices: Mutex<Vec<(String, String)>>,
}

impl AgentClient {
    /// Connects. The process must have an endpoint at the device before it opens a file.
    pub fn connect(path: &Path) -> Result<Arc<AgentClient>, DirectError> {
        let channel =
            Channel::connect(path).map_err(|error| DirectError::Agent(format!("{}: {error}", path.display())))?;
        Ok(Arc::new(AgentClient { channel: Mutex::new(channel), notices: Mutex::default() }))
    }

    fn receive(&self, channel: &Channel) -> Result<Response, DirectError> {
        loop {
            let message = match channel.receive_within(ANSWER_MAX) {
                Ok(message) => message,
                Err(ReceiveError::Nothing) => return Err(DirectError::Agent("it takes too long".to_owned())),
                Err(error) => return Err(DirectError::Agent(error.to_string())),
            };
            match decode::<Response>(&message.bytes).map_err(DirectError::Agent)? {
                Response::AppEnded { name, reason } => {
                    let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
                    // The latest are kept.
                    if notices.len() >= 64 {
                        notices.remove(0);
                    }
                    notices.push((name, reason));
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Apps that have ended, with the reasons, as far as the agent told by now.
    pub fn ended_apps(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(Response, Vec<FileExtent>), DirectError> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptors: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        channel.send(&encode(request), &descriptors).map_err(|error| DirectError::Agent(error.to_string()))?;
        let answer = self.receive(&channel)?;
        let mut extents = Vec::new();
        if matches!(answer, Response::Opened { .. }) {
            loop {
                match self.receive(&channel)? {
                    Response::Extents { list, more } => {
                        let extent = |(file_offset, namespace_offset, bytes)| FileExtent {
                            file_offset,
                            namespace_offset,
                            bytes,
                        };
                        extents.extend(list.into_iter().map(extent));
                        if !more {
                            break;
                        }
                    }
                    other => return Err(DirectError::Agent(format!("it says {other:?} where extents should be"))),
                }
            }
        }
        match answer {
            Response::Refused { reason } => Err(DirectError::Refused(reason)),
            answer => Ok((answer, extents)),
        }
    }
}

/// A file that is open directly. It is the file system's own again when this is dropped, or the process ends.
pub struct DirectFile {
    agent: Arc<AgentClient>,
    hre: Arc<dyn Hre>,
    number: u32,
    bytes: u64,
    rights: u32,
    app: u16,
    geometry: Geometry,
    extents: Vec<FileExtent>,
    closed: bool,
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        if !self.closed {
            let _ = self.agent.ask(&Request::Close { file: self.number }, None);
        }
    }
}

impl DirectFile {
    /// Opens directly what the process has open as `file`: for reading, writing or both, as the descriptor is. `hre` is an endpoint
    /// of this process. Waits for the agent.
    pub fn open(agent: &Arc<AgentClient>, hre: Arc<dyn Hre>, file: impl AsFd) -> Result<DirectFile, DirectError> {
        match agent.ask(&Request::Open { version: VERSION }, Some(file.as_fd()))? {
            (Response::Opened { file, bytes, rights, app, spus, stripe_bytes, base }, extents) => {
                if spus == 0 || !stripe_bytes.is_power_of_two() {
                    return Err(DirectError::Agent(format!("{spus} SPUs with stripes of {stripe_bytes} bytes")));
                }
                let geometry = Geometry { spus, stripe_bytes, base };
                Ok(DirectFile {
                    agent: agent.clone(),
                    hre,
                    number: file,
                    bytes,
                    rights,
                    app,
                    geometry,
                    extents,
                    closed: false,
                })
            }
            (other, _) => Err(DirectError::Agent(format!("it says {other:?} to the opening of a file"))),
        }
    }

    /// Closes it: when this returns, the file is the file system's own again.
    pub fn close(mut self) -> Result<(), DirectError> {
        self.closed = true;
        self.agent.ask(&Request::Close { file: self.number }, None).map(|_| ())
    }

    /// Reads and writes through another app than Direct-IO from now on, one with the same handlers: an app of the user's own.
    pub fn use_app(&mut self, app: u16) {
        self.app = app;
    }

    /// Bit 0: the device lets it be read, bit 1: written. Nothing here looks at it: the device does.
    pub fn rights(&self) -> u32 {
        self.rights
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the file's bytes lie in the namespace.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// How its namespace lies in the banks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn pieces(&self, offset: u64, bytes: usize, flags: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        direct_io_host::pieces(&self.geometry, &self.extents, (offset, bytes), flags, |piece| pieces.push(piece));
        pieces
    }

    fn call(&self, handler: u8, spu: u16, arguments: &Arguments) -> RpcCall {
        let arguments = arguments.encode().to_vec();
        RpcCall { app: self.app, handler, spu: Some(spu), arguments, ..RpcCall::default() }
    }

    /// `pread`: how many bytes were read, fewer only at the end of the file.
    pub async fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, DirectError> {
        let bytes = into.len().min(usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX));
        let into = &mut into[..bytes];
        let pieces = self.pieces(offset, bytes, 0);
        let mut calls = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            match piece {
                Piece::Hole { buffer_offset, bytes } => into[*buffer_offset..buffer_offset + bytes].fill(0),
                Piece::Rpc { spu, arguments, .. } => {
                    let call =
                        RpcCall { reply_bytes_max: arguments.bytes, ..self.call(handler::READ, *spu, arguments) };
                    calls.push(self.hre.rpc(call));
                }
            }
        }
        let mut replies = all(calls).await.into_iter();
        for piece in &pieces {
            let Piece::Rpc { arguments, buffer_offset, .. } = piece else { continue };
            let Some(reply) = replies.next() else { break };
            let reply = reply?;
            check(reply.status)?;
            let wanted = arguments.bytes as usize;
            let data = reply.data.get(..wanted);
            let data = data.ok_or_else(|| HreError::Answer(format!("{} bytes of {wanted}", reply.data.len())))?;
            into[*buffer_offset..buffer_offset + wanted].copy_from_slice(data);
        }
        Ok(bytes)
    }

    /// `pwrite` within the file's length and blocks: all of it, or an error (then some of it may be written).
    pub async fn write_at(&self, from: &[u8], offset: u64) -> Result<usize, DirectError> {
        let end = offset.saturating_add(from.len() as u64);
        let pieces = self.pieces(offset, from.len(), 0);
        if end > self.bytes || pieces.iter().any(|piece| matches!(piece, Piece::Hole { .. })) {
            return Err(DirectError::NoBlocks { offset, end });
        }
        let mut calls = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let Piece::Rpc { spu, arguments, buffer_offset } = piece else { continue };
            let payload = from[*buffer_offset..buffer_offset + arguments.bytes as usize].to_vec();
            calls.push(self.hre.rpc(RpcCall { payload, ..self.call(handler::WRITE, *spu, arguments) }));
        }
        for reply in all(calls).await {
            check(reply?.status)?;
        }
        Ok(from.len())
    }

    /// `preadv`: fills the buffers one after the other.
    pub async fn read_vectored_at(&self, into: &mut [&mut [u8]], offset: u64) -> Result<usize, DirectError> {
        let mut done = 0;
        for buffer in into {
            let count = self.read_at(buffer, offset + done as u64).await?;
            done += count;
            if count < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// `pwritev`: writes the buffers one after the other.
    pub async fn write_vectored_at(&self, from: &[&[u8]], offset: u64) -> Result<usize, DirectError> {
        let mut done = 0;
        for buffer in from {
            done += self.write_at(buffer, offset + done as u64).await?;
        }
        Ok(done)
    }

    /// `fdatasync`: what was written is durable when this returns.
    pub async fn sync(&self) -> Result<(), DirectError> {
        let nothing = Arguments { nv_address: 0, bytes: 0, flags: 0 };
        let calls = (0..self.geometry.spus).map(|spu| self.hre.rpc(self.call(handler::FLUSH, spu, &nothing))).collect();
        for reply in all(calls).await {
            check(reply?.status)?;
        }
        Ok(())
    }
}

fn check(status: u32) -> Result<(), DirectError> {
    match status {
        0 => Ok(()),
        wire::STATUS_PERMISSION => Err(DirectError::Permission),
        other => Err(DirectError::Device(other)),
    }
}

/// Waits for all of some futures; their results in order.
fn all<'a, T>(futures: Vec<crate::hre::BoxFuture<'a, T>>) -> All<'a, T> {
    All(futures.into_iter().map(Slot::Waits).collect())
}

enum Slot<'a, T> {
    Waits(crate::hre::BoxFuture<'a, T>),
    Done(Option<T>),
}

struct All<'a, T>(Vec<Slot<'a, T>>);

// Only the boxes inside are pinned, and they are on the heap.
impl<T> Unpin for All<'_, T> {}

impl<T> Future for All<'_, T> {
    type Output = Vec<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        let mut ready = true;
        for slot in &mut self.0 {
            if let Slot::Waits(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *slot = Slot::Done(Some(value)),
                    Poll::Pending => ready = false,
                }
            }
        }
        if !ready {
            return Poll::Pending;
        }
        let take = |slot: &mut Slot<'_, T>| match slot {
            Slot::Done(value) => value.take(),
            Slot::Waits(_) => None,
        };
        Poll::Ready(self.0.iter_mut().filter_map(take).collect())
    }
}
