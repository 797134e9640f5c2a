//! Records that are appended in the drive, to files whose length it has: the typed client of Append (Willow, section 4.6), over any endpoint.
//!
//! What always holds: a record that was answered is durable, as a whole, behind all that were answered before it was sent; what the device has
//! no place for is tried again for [`BUSY_MAX`].
//!
//! Who may call it: a process appends ([`crate::direct_io::Appender`] does it with files); all else is for the host's kernel, that is for an agent.

use crate::atomic_write::{BUSY_MAX, BUSY_WAIT};
use crate::control::ControlClient;
use crate::hre::{Hre, HreError, RpcCall, RpcReply};
use append_host::wire::{Delegation, Entry, Extent, handler};
use append_host::{Call, Calls, Refusal, offset};
use std::sync::Arc;
use std::time::Instant;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The app refused it.
    #[error("{0}")]
    Refused(Refusal),
    /// The way to the device. What was under way may have been done or not.
    #[error(transparent)]
    Hre(#[from] HreError),
}

impl From<Refusal> for AppendError {
    fn from(refusal: Refusal) -> Self {
        AppendError::Refused(refusal)
    }
}

/// The upper 20 bits of the ids of a process' endpoints: its number in the device, and that it is no kernel.
pub fn endpoints_of(process: u32) -> u32 {
    process | 1 << 19
}

/// Append on a device.
#[derive(Clone)]
pub struct AppendClient {
    hre: Arc<dyn Hre>,
    app: u16,
    calls: Calls,
}

impl AppendClient {
    /// Finds the app; by an endpoint of the host's kernel.
    pub async fn find(hre: Arc<dyn Hre>) -> Result<Self, HreError> {
        let control = ControlClient::new(hre.clone());
        let (app, (spus, _)) = (control.find_app(append_host::APP_NAME).await?, control.stripes().await?);
        Ok(Self::new(hre, app, spus))
    }

    /// The app by its number, on a device with so many SPUs.
    pub fn new(hre: Arc<dyn Hre>, app: u16, spus: u16) -> Self {
        AppendClient { hre, app, calls: Calls { spus } }
    }

    /// Its number, and how many SPUs there are: what [`AppendClient::new`] wants.
    pub fn numbers(&self) -> (u16, u16) {
        (self.app, self.calls.spus)
    }

    /// Appends a record; returns the offset at which it lies. `least`: an offset at or past which the file is known to have ended, 4 GiB less at most.
    pub async fn append(&self, file: u64, least: u64, record: &[u8]) -> Result<u64, AppendError> {
        let call = self.calls.append(file, record.len()).ok_or(Refusal::Malformed)?;
        Ok(offset(self.send(call, record, 0).await?.result, least))
    }

    /// Has the app take over a file's length.
    pub async fn delegate(&self, delegation: Delegation, extents: &[Extent]) -> Result<(), AppendError> {
        self.send(self.calls.delegate(delegation, extents), &[], 0).await.map(drop)
    }

    /// Adds extents to a delegated file.
    pub async fn extend(&self, file: u64, extents: &[Extent]) -> Result<(), AppendError> {
        self.send(self.calls.extend(file, extents), &[], 0).await.map(drop)
    }

    /// Lets a process append to a file, or not any more. `process`: the upper 20 bits of its endpoints' ids, [`endpoints_of`] a number of the device's.
    pub async fn admit(&self, file: u64, process: u32, admits: bool) -> Result<(), AppendError> {
        self.send(self.calls.admit(file, process, admits), &[], 0).await.map(drop)
    }

    /// What the device knows of a file: its length is durable.
    pub async fn length(&self, file: u64) -> Result<Entry, AppendError> {
        self.entry(self.calls.about(handler::LENGTH, file)).await
    }

    /// Ends appending to a file; its last length.
    pub async fn suspend(&self, file: u64) -> Result<Entry, AppendError> {
        self.entry(self.calls.about(handler::SUSPEND, file)).await
    }

    /// Has the app forget a suspended file, whose length the file system has.
    pub async fn end(&self, file: u64) -> Result<(), AppendError> {
        self.send(self.calls.about(handler::END, file), &[], 0).await.map(drop)
    }

    /// All files that are delegated.
    pub async fn list(&self) -> Result<Vec<Entry>, AppendError> {
        let mut all = Vec::new();
        for spu in 0..self.calls.spus {
            let mut from = 0;
            loop {
                match self.entry(self.calls.list(spu, from)).await {
                    // One that does not go on would never end.
                    Ok(entry) if u64::from(entry.slot) < from => {
                        return Err(HreError::Answer("a list that goes back".to_owned()).into());
                    }
                    Ok(entry) => {
                        from = u64::from(entry.slot) + 1;
                        all.push(entry);
                    }
                    Err(AppendError::Refused(Refusal::NotFound)) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }

    async fn entry(&self, call: Call) -> Result<Entry, AppendError> {
        let data = self.send(call, &[], Entry::BYTES as u32).await?.data;
        match data.len() {
            0..Entry::BYTES => Err(HreError::Answer("a short answer about a file".to_owned()).into()),
            _ => Ok(Entry::decode(&data)),
        }
    }

    /// Sends a call, with a record or for a reply.
    async fn send(&self, call: Call, record: &[u8], reply_bytes_max: u32) -> Result<RpcReply, AppendError> {
        let mut since = None;
        loop {
            let (arguments, payload) = match reply_bytes_max {
                0 => (Vec::new(), [&call.arguments, record].concat()),
                _ => (call.arguments.clone(), Vec::new()),
            };
            let (app, spu) = (self.app, Some(call.spu));
            let rpc = RpcCall { app, handler: call.handler, spu, arguments, payload, reply_bytes_max };
            let reply = self.hre.rpc(rpc).await?;
            match Refusal::from_status(reply.status) {
                Ok(()) => return Ok(reply),
                Err(Refusal::Busy) if since.get_or_insert_with(Instant::now).elapsed() < BUSY_MAX => {
                    tokio::time::sleep(BUSY_WAIT).await;
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }
}
