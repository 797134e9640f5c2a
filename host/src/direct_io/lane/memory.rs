//! A lane's port in shared memory (docs/shared-memory.md): the data area is cut into slots of one size.

use super::super::session::Registered;
use super::{Came, SLOT_BYTES, Segments, broken};
use crate::direct_io::DirectError;
use crate::hre::HreError;
use direct_io_host::wire::handler;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use willow_shm::layout::{Call, Command, Operation, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::Kind;
use willow_shm::ring::Endpoint;

/// The port.
pub struct Memory {
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    data: usize,
    _registered: Registered,
}

impl Memory {
    /// With so many slots, or as many as the device gives.
    pub fn open(device: &Path, slots: u32) -> Result<(Memory, u32), DirectError> {
        let entries = (slots * 2).next_power_of_two().clamp(64, 8192);
        let data_bytes = u64::from(slots) * u64::from(SLOT_BYTES);
        let opened = Endpoint::open(device, Kind::User, entries, data_bytes);
        let endpoint = opened.map_err(|error| DirectError::Hre(HreError::Argument(error.to_string())))?;
        let slots = slots.min(endpoint.opened.depth).min((endpoint.opened.data_bytes / u64::from(SLOT_BYTES)) as u32);
        let memory = Memory {
            memory: endpoint.memory().clone(),
            data: endpoint.layout().data(),
            _registered: Registered::new(endpoint.channel().as_fd().as_raw_fd()),
            endpoint,
        };
        Ok((memory, slots))
    }

    /// As [`Opened::start`](willow_shm::message::Opened::start).
    pub fn start(&self) -> u64 {
        self.endpoint.opened.start
    }

    fn place(&self, slot: u16) -> usize {
        self.data + usize::from(slot) * SLOT_BYTES as usize
    }

    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.endpoint.has_room(1)
    }

    #[inline]
    pub fn put(&mut self, slot: u16, from: &mut Segments, at: usize, bytes: usize) {
        let place = self.place(slot);
        from.copy(at, bytes, |done, part| {
            let inside = self.memory.write(place + done, part);
            debug_assert!(inside, "slots are inside of the data area");
        });
    }

    #[inline]
    pub fn take(&mut self, slot: u16, into: &mut Segments, at: usize, bytes: usize) {
        let place = self.place(slot);
        into.fill(at, bytes, |done, part| {
            let inside = self.memory.read(place + done, part);
            debug_assert!(inside, "slots are inside of the data area");
        });
    }

    #[inline]
    pub fn submit(&mut self, slot: u16, call: &Call, bytes: u32) -> bool {
        let offset = u32::from(slot) * SLOT_BYTES;
        let (payload_bytes, reply_bytes) = match call.handler {
            handler::WRITE => (bytes, 0),
            handler::READ => (0, bytes),
            _ => (0, 0),
        };
        let command = Command {
            tag: u32::from(slot),
            operation: Operation::Rpc,
            more: 0,
            payload_offset: offset,
            payload_bytes,
            reply_offset: offset,
            reply_bytes,
            call: *call,
        };
        self.endpoint.submit(&command, &[])
    }

    #[inline]
    pub fn send(&mut self) {
        self.endpoint.ring();
    }

    #[inline]
    pub fn completion(&mut self, call: impl Fn(usize) -> Option<Call>) -> Result<Option<(usize, Came)>, DirectError> {
        let Some(completion) = self.endpoint.completion().map_err(broken)? else { return Ok(None) };
        let slot = completion.tag as usize;
        let came = match completion.outcome {
            Outcome::Answered => Came::Answered { status: completion.status, reply_bytes: completion.reply_bytes },
            Outcome::Refused => Came::Refused,
            failed => Came::Failed(error(failed, call(slot))),
        };
        Ok(Some((slot, came)))
    }

    #[inline]
    pub fn is_ready(&self) -> bool {
        self.endpoint.is_ready()
    }

    pub fn sleep(&mut self, most: Duration) -> Result<(), DirectError> {
        self.endpoint.sleep(most).map(|_| ()).map_err(broken)
    }
}

#[cold]
fn error(outcome: Outcome, call: Option<Call>) -> HreError {
    let (app, handler, spu) = call.map_or((0, 0, 0), |call| (call.app, call.handler, call.spu));
    match outcome {
        Outcome::NoApp => HreError::NoApp(app),
        Outcome::NoHandler => HreError::NoHandler { app, handler },
        Outcome::NoSpu => HreError::NoSpu(Some(spu)),
        Outcome::AppEnded => HreError::AppEnded,
        Outcome::NotPermitted => HreError::NotPermitted,
        Outcome::Aborted => HreError::Aborted,
        _ => HreError::Answer("the device finds the command senseless".to_owned()),
    }
}
