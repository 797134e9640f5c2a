//! An endpoint in shared memory by which one thread at a time appends records: it polls the ring itself, with no other thread between, and
//! has no descriptor but the endpoint's own, so that it suits programs that know nothing of it.
//!
//! What always holds: one record is under way at a time. Where an answer does not come, or makes no sense, the port is to be dropped: what
//! was under way may be appended or not, and its memory is nobody else's until then.

use super::agent_client::DirectError;
use super::session::Registered;
use crate::append::AppendError;
use crate::atomic_write::{BUSY_MAX, BUSY_WAIT};
use crate::hre::HreError;
use append_host::wire::RECORD_BYTES_MAX;
use append_host::{Call as Request, Calls, Refusal, offset};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_shm::layout::{Call, Command, Operation, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::Kind;
use willow_shm::ring::{Endpoint, EndpointError};

/// Entries of the rings, and bytes of the data area: a record and its arguments.
const ENTRIES: u32 = 64;
const DATA_BYTES: u64 = 128 << 10;
/// How long the thread looks for the answer before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 64;
/// Longest wait for an answer, and sleep between two looks.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const SLEEP_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(DATA_BYTES >= RECORD_BYTES_MAX as u64 + 4096);

fn gone(why: impl ToString) -> AppendError {
    AppendError::Hre(HreError::Gone(why.to_string()))
}

/// The port.
pub(super) struct AppendPort {
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    data: usize,
    app: u16,
    calls: Calls,
    next_tag: u32,
    _registered: Registered,
}

impl AppendPort {
    /// Opens an endpoint of this process at a device's socket; the app by its number, on a device with so many SPUs.
    pub fn open(device: &Path, (app, spus): (u16, u16)) -> Result<AppendPort, DirectError> {
        let opened = Endpoint::open(device, Kind::User, ENTRIES, DATA_BYTES);
        let endpoint = opened.map_err(|error| DirectError::Hre(HreError::Argument(error.to_string())))?;
        if endpoint.opened.data_bytes < DATA_BYTES {
            let why = "the device gives too little shared memory".to_owned();
            return Err(DirectError::Hre(HreError::Argument(why)));
        }
        Ok(AppendPort {
            memory: endpoint.memory().clone(),
            data: endpoint.layout().data(),
            _registered: Registered::new(endpoint.channel().as_fd().as_raw_fd()),
            endpoint,
            app,
            calls: Calls { spus },
            next_tag: 0,
        })
    }

    /// As [`crate::AppendClient::append`].
    pub fn append(&mut self, file: u64, least: u64, record: &[u8]) -> Result<u64, AppendError> {
        let request = self.calls.append(file, record.len()).ok_or(Refusal::Malformed)?;
        let begun = Instant::now();
        loop {
            match self.send(&request, record)? {
                Ok(low) => return Ok(offset(low, least)),
                Err(Refusal::Busy) if begun.elapsed() < BUSY_MAX => std::thread::sleep(BUSY_WAIT),
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// The app's result, or why it refuses.
    fn send(&mut self, request: &Request, record: &[u8]) -> Result<Result<u32, Refusal>, AppendError> {
        let arguments = request.arguments.len();
        let inside =
            self.memory.write(self.data, &request.arguments) && self.memory.write(self.data + arguments, record);
        let call = Call::new(self.app, request.handler, request.spu, &[]).filter(|_| inside);
        let Some(call) = call else { return Err(Refusal::Malformed.into()) };
        self.next_tag = self.next_tag.wrapping_add(1);
        let command = Command {
            tag: self.next_tag,
            operation: Operation::Rpc,
            more: 0,
            payload_offset: 0,
            payload_bytes: (arguments + record.len()) as u32,
            reply_offset: 0,
            reply_bytes: 0,
            call,
        };
        if !self.endpoint.submit(&command, &[]) {
            return Err(gone("the device takes nothing from its ring"));
        }
        self.endpoint.ring();
        self.answer().map_err(gone)?
    }

    /// Waits for the answer.
    #[allow(clippy::type_complexity)]
    fn answer(&mut self) -> Result<Result<Result<u32, Refusal>, AppendError>, EndpointError> {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(completion) = self.endpoint.completion()? {
                    self.endpoint.show_head();
                    if completion.tag != self.next_tag {
                        return Ok(Err(gone("the device answers what nobody asked")));
                    }
                    return Ok(match completion.outcome {
                        Outcome::Answered => Ok(Refusal::from_status(completion.status).map(|()| completion.result)),
                        Outcome::Refused => Ok(Err(Refusal::Busy)),
                        // Nothing was begun, or its end was told to nobody.
                        failed => Err(gone(format!("{failed:?}"))),
                    });
                }
                std::hint::spin_loop();
            }
            let waited = begun.elapsed();
            if waited > ANSWER_MAX {
                return Ok(Err(gone("the device does not answer")));
            }
            if waited > SPIN {
                self.endpoint.sleep(SLEEP_MAX)?;
            }
        }
    }
}
