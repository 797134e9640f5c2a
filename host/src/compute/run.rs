//! Requests for the app `compute`, some at once.
//!
//! What always holds: when this returns no request of it is under way that the device has not been told to end with the files' permissions; what the
//! device has no place for is sent again, for a bounded time; a permission that went from an SPU's table is asked for anew a bounded number of times.

use super::{Apps, ComputeError, Drive, of_status};
use crate::hre::{HreError, RpcCall};
use compute_host::plan::Request;
use compute_host::wire;
use direct_io_host::wire::{Arguments, handler};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Requests at once, for each SPU: one is worked on while the other is on its way.
const REQUESTS_PER_SPU: usize = 2;
/// How often a request is sent that an SPU has no place for, and the wait between.
const TRIES_MAX: u32 = 6000;
const TRY_WAIT: Duration = Duration::from_millis(5);
/// How often permissions are asked for anew for one request.
const ASKS_MAX: u32 = 8;

struct Shared {
    drive: Drive,
    apps: Apps,
    handler: u8,
}

impl Shared {
    /// Has the agent asked for permissions that are missing: Direct-IO reads a byte of each place, and waits for its answer.
    async fn ask(&self, request: &Request) -> Result<(), ComputeError> {
        let places: BTreeSet<(u32, u64)> = request.places.iter().map(|place| (place.spu, place.address)).collect();
        for (spu, nv_address) in places {
            let arguments = Arguments { nv_address, bytes: 1, flags: 0 }.encode().to_vec();
            let (app, spu) = (self.apps.direct, Some(spu as u16));
            let call =
                RpcCall { app, handler: handler::READ, spu, arguments, reply_bytes_max: 1, ..RpcCall::default() };
            crate::direct_io::DirectError::of_status(self.drive.hre.rpc(call).await?.status)?;
        }
        Ok(())
    }

    async fn send(&self, request: Request) -> Result<(), ComputeError> {
        let (mut tries, mut asks) = (0, 0);
        loop {
            let (app, spu, payload) = (self.apps.compute, Some(request.spu), request.body.clone());
            let call = RpcCall { app, handler: self.handler, spu, payload, ..RpcCall::default() };
            let status = match self.drive.hre.rpc(call).await {
                Ok(reply) => reply.status,
                Err(HreError::Refused) => wire::STATUS_BUSY,
                Err(error) => return Err(error.into()),
            };
            match status {
                0 => return Ok(()),
                wire::STATUS_BUSY | wire::STATUS_NO_MEMORY if tries < TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(TRY_WAIT).await;
                }
                wire::STATUS_PERMISSION if asks < ASKS_MAX => {
                    asks += 1;
                    self.ask(&request).await?;
                }
                status => return Err(of_status(status)),
            }
        }
    }
}

/// Sends what `next` makes, until it makes no more.
pub(super) async fn run(
    drive: &Drive,
    (apps, handler, spus): (Apps, u8, u16),
    mut next: impl FnMut() -> Result<Option<Vec<Request>>, ComputeError>,
) -> Result<(), ComputeError> {
    let shared = Arc::new(Shared { drive: drive.clone(), apps, handler });
    let ahead = usize::from(spus.max(1)) * REQUESTS_PER_SPU;
    // What nobody waits for any more ends with it.
    let mut tasks: JoinSet<Result<(), ComputeError>> = JoinSet::new();
    let ended = |task: Option<Result<Result<(), ComputeError>, tokio::task::JoinError>>| match task {
        Some(Ok(done)) => done,
        Some(Err(error)) => Err(HreError::Answer(format!("a request was given up: {error}")).into()),
        None => Ok(()),
    };
    while let Some(requests) = next()? {
        for request in requests {
            while tasks.len() >= ahead {
                ended(tasks.join_next().await)?;
            }
            let shared = shared.clone();
            tasks.spawn(async move { shared.send(request).await });
        }
    }
    while let Some(task) = tasks.join_next().await {
        ended(Some(task))?;
    }
    Ok(())
}
