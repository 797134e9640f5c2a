//! The SSD App `page`: the FTL of the same name ([`page_ftl`]) as what serves the banks of a device with flash. SPU-OS asks it by the four
//! handlers; it works on the flash by the flash port.
//!
//! What always holds: nothing is served before the flash has been recovered, or, where it was never formatted, formatted; if that fails,
//! every operation fails, and the serial port says why.
//!
//! Who may call it: SPU-OS alone.
#![no_std]

extern crate alloc;

mod port;

use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

use page_ftl::{FtlConfig, PageFtl, REPORT, REPORT_WORDS};
use port::Port;
use willow_flash::wait::{Event, join_all};
use willow_flash::{Failure, Geometry, MountError, Peer};
use willow_sdk::flash::{self, LaneMap, NvArguments};
use willow_sdk::{DeviceEvent, Error, Local, Reply, Request, Response, println};

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// What there is on each SPU.
#[derive(Default)]
pub struct State {
    ftl: OnceCell<PageFtl<Port>>,
    /// It will not come up.
    failed: Cell<bool>,
    ready: Event,
    /// Writes since the health was looked at.
    writes: Cell<u32>,
    /// [`PageFtl::health_steps`] when SPU-OS was told last.
    told_steps: Cell<u64>,
}

/// Writes between two looks at the health.
const WRITES_BETWEEN_LOOKS: u32 = 32;

impl State {
    /// Has hosts know how the flash does, where that may have changed.
    fn tell_health(&self, ftl: &PageFtl<Port>) {
        let steps = ftl.health_steps();
        if self.told_steps.replace(steps) != steps {
            tell(ftl);
        }
    }

    /// Looks at the health after a write: at each that failed, and at some others.
    fn written(&self, ftl: &PageFtl<Port>, result: &Result<(), Failure>) {
        let writes = self.writes.get() + 1;
        self.writes.set(writes % WRITES_BETWEEN_LOOKS);
        if writes == WRITES_BETWEEN_LOOKS || result.is_err() {
            self.tell_health(ftl);
        }
    }

    /// The FTL, once it is there; `None` where it does not come up.
    async fn ftl(&self) -> Option<&PageFtl<Port>> {
        loop {
            if let Some(ftl) = self.ftl.get() {
                return Some(ftl);
            }
            if self.failed.get() {
                return None;
            }
            self.ready.wait().await;
        }
    }
}

willow_sdk::app! {
    name: "page",
    version: "0.1.0",
    state: State = State {
        ftl: OnceCell::new(),
        failed: Cell::new(false),
        ready: Event::new(),
        writes: Cell::new(0),
        told_steps: Cell::new(0),
    },
    threads: 64,
    handlers: {
        REPORT => report,
        flash::NV_READ => nv_read,
        flash::NV_WRITE => nv_write,
        flash::NV_ZERO => nv_zero,
        flash::NV_FLUSH => nv_flush,
    },
    kernel: "*",
    events: on_event,
}

fn tell(ftl: &PageFtl<Port>) {
    let health = ftl.health();
    if let Err(why) = flash::tell_health(health.spare_percent, health.media_errors, health.read_only) {
        println!("hosts are not told how the flash does: {:?}", why);
    }
}

/// Has SPU-OS read what can be read without the FTL, where it takes no modelled time.
fn publish(ftl: &PageFtl<Port>) {
    let mut lanes = Vec::with_capacity(ftl.lanes());
    ftl.each_map(|lane| lanes.push(LaneMap::new(lane.entries, lane.moved)));
    if let Err(why) = flash::publish(&lanes, u32::MAX) {
        println!("reads go by the FTL: {:?}", why);
    }
}

fn arguments(request: &Request) -> Result<NvArguments, Response> {
    let bytes = request.receive_array().map_err(|_| Response::failure(flash::NV_FAILED))?;
    Ok(NvArguments::decode(&bytes))
}

fn answer(result: Result<(), Failure>) -> Response {
    match result {
        Ok(()) => Response::success(0),
        Err(Failure::ReadOnly) => Response::failure(flash::NV_FULL),
        Err(Failure::Misuse(why)) => {
            println!("the flash refused an operation: {}", why);
            Response::failure(flash::NV_FAILED)
        }
        Err(Failure::Media | Failure::PeerEnded | Failure::Range) => Response::failure(flash::NV_FAILED),
    }
}

async fn nv_read(request: Request, state: &State) -> Response {
    let (asked, Some(ftl)) = (arguments(&request), state.ftl().await) else {
        return Response::failure(flash::NV_FAILED);
    };
    match asked {
        Ok(asked) => {
            let result = ftl.read(asked.address, asked.bytes as u32, Peer(asked.peer), 0).await;
            if result.is_err() {
                state.tell_health(ftl);
            }
            answer(result)
        }
        Err(response) => response,
    }
}

async fn nv_write(request: Request, state: &State) -> Response {
    let (asked, Some(ftl)) = (arguments(&request), state.ftl().await) else {
        return Response::failure(flash::NV_FAILED);
    };
    match asked {
        Ok(asked) => {
            let result = ftl.write(asked.address, asked.bytes as u32, Peer(asked.peer), 0, false).await;
            state.written(ftl, &result);
            answer(result)
        }
        Err(response) => response,
    }
}

async fn nv_zero(request: Request, state: &State) -> Response {
    let (asked, Some(ftl)) = (arguments(&request), state.ftl().await) else {
        return Response::failure(flash::NV_FAILED);
    };
    match asked {
        Ok(asked) => {
            let result = ftl.zero(asked.address, asked.bytes, false).await;
            state.written(ftl, &result);
            answer(result)
        }
        Err(response) => response,
    }
}

async fn nv_flush(_request: Request, state: &State) -> Response {
    match state.ftl().await {
        Some(ftl) => {
            let result = ftl.flush().await;
            state.tell_health(ftl);
            answer(result)
        }
        None => Response::failure(flash::NV_FAILED),
    }
}

async fn report(request: Request, state: &State) -> Response {
    let Some(ftl) = state.ftl().await else { return Response::failure(flash::NV_FAILED) };
    let mut words = [0; REPORT_WORDS];
    words[..REPORT_WORDS - 1].copy_from_slice(&ftl.counters().words());
    words[REPORT_WORDS - 1] = u64::from(ftl.nv_unit());
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    match request.dma(Local(&bytes[..]), Reply(0), bytes.len() as u32).await {
        Ok(()) => Response::success(bytes.len() as u32),
        Err(_) => Response::failure(flash::NV_FAILED),
    }
}

/// Recovers the flash, or formats it where nobody has.
async fn mount() -> Result<PageFtl<Port>, Error> {
    let shape = flash::shape()?;
    let port = Port::new(&shape);
    let config = config(&shape).map_err(|why| {
        println!("this flash is not for it: {}", why);
        Error::Argument
    })?;
    let mounted = match PageFtl::mount(port, config).await {
        Err(MountError::NotFormatted) => PageFtl::format(port, config).await,
        mounted => mounted,
    };
    mounted.map_err(|why| {
        println!("the flash does not come up: {:?}", why);
        Error::Media
    })
}

/// What the FTL is made for: the bank that it is to offer, in units of the device's.
fn config(shape: &flash::FlashShape) -> Result<FtlConfig, &'static str> {
    let geometry = Geometry::of_words(&shape.geometry);
    let dies_per_unit = shape.unit_bytes() / (geometry.planes_per_die * geometry.page_bytes).max(1);
    let mut config = FtlConfig::collecting(&geometry, dies_per_unit, 0, shape.collect_below_blocks)?;
    let lanes = u64::from(config.lanes(&geometry).max(1));
    config.lane.units = shape.bank_bytes.div_ceil(u64::from(shape.unit_bytes().max(1))).div_ceil(lanes) as u32;
    config.check(&geometry)?;
    Ok(config)
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    match event {
        DeviceEvent::Started => match mount().await {
            Ok(ftl) => {
                tell(&ftl);
                let _ = state.ftl.set(ftl);
                // It stays where it is from now on.
                if let Some(ftl) = state.ftl.get() {
                    publish(ftl);
                }
                state.ready.notify();
                request.respond(Response::success(0));
                // From here on this thread looks after the lanes, whatever is asked meanwhile.
                if let Some(ftl) = state.ftl.get() {
                    for ended in join_all((0..ftl.lanes()).map(|lane| ftl.maintain(lane))).await {
                        if let Err(why) = ended {
                            println!("a lane is not looked after any more: {:?}", why);
                        }
                    }
                }
                Response::success(0)
            }
            Err(_) => {
                state.failed.set(true);
                state.ready.notify();
                Response::failure(flash::NV_FAILED)
            }
        },
        DeviceEvent::Shutdown => match state.ftl.get() {
            Some(ftl) => answer(ftl.flush().await),
            None => Response::success(0),
        },
        _ => Response::success(0),
    }
}
