//! Direct-IO's handlers: reads and writes of a process' own files without the operating system between (Willow, section 4.2). Who
//! may touch what is for SPU-OS to say, by the permissions that the host's agent installed for the process; a DMA that misses
//! one waits until the agent has installed it again.
//!
//! What always holds: payload moves between the requester's buffer and NV memory by DMA alone; a handler knows no file, only the
//! range that it is asked for. See [`wire`] for the arguments.
//!
//! Who may call it: any user's process, through the exports that `app!` makes.
#![no_std]

pub mod wire;

use willow_sdk::{Body, Error, Nv, Reply, Request, Response, flush as flush_bank};
use wire::Arguments;

willow_sdk::app! {
    name: "direct-io",
    version: "0.1.0",
    state: () = (),
    threads: 64,
    handlers: {
        wire::handler::READ => read,
        wire::handler::WRITE => write,
        wire::handler::FLUSH => flush,
    },
    public: "*",
}

/// A failure as Direct-IO's status.
struct Failure(u32);

impl From<Error> for Failure {
    #[inline(never)]
    fn from(error: Error) -> Failure {
        Failure(match error {
            Error::Full => wire::STATUS_FULL,
            Error::Range => wire::STATUS_RANGE,
            Error::Permission => wire::STATUS_PERMISSION,
            Error::Argument => wire::STATUS_MALFORMED,
            Error::Refused => wire::STATUS_BUSY,
            _ => wire::STATUS_MEDIA_ERROR,
        })
    }
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Response {
        Response::failure(failure.0)
    }
}

#[inline]
fn arguments(request: &Request) -> Result<Arguments, Failure> {
    let bytes = request.receive_array().map_err(|_| Failure(wire::STATUS_MALFORMED))?;
    Ok(Arguments::decode(&bytes))
}

async fn read(request: Request, _: &()) -> Result<(), Failure> {
    let range = arguments(&request)?;
    Ok(request.dma(Nv(range.nv_address).parked(), Reply(0), range.bytes).await?)
}

async fn write(request: Request, _: &()) -> Result<(), Failure> {
    let range = arguments(&request)?;
    request.dma(Body(Arguments::BYTES as u32), Nv(range.nv_address).parked(), range.bytes).await?;
    if range.flags & wire::FLAG_DURABLE != 0 {
        flush_bank().await?;
    }
    Ok(())
}

async fn flush(_: Request, _: &()) -> Result<(), Failure> {
    Ok(flush_bank().await?)
}
