//! One part of a file: its plan prepared at an SPU and run there, as often as its replies take; by this host where the SPU cannot.

use super::place::{Counting, Place};
use super::{ColumnsError, Work};
use crate::hre::{Hre, RpcCall};
use base_io_host::Geometry;
use columns_host::engine::{Decompression, Port, Stop, VALUE_BYTES_MAX, run};
use columns_host::outcome;
use columns_host::wire::{
    self, Fault, PLAN_BYTES_MAX, Plan, RUN_QUOTED, RUN_SKIP_FIRST, Reason, ReplyHead, Run, handler,
};
use columns_host::{Query, Table, Unit};
use direct_io_host::bank_ranges;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a plan is prepared anew for one part, since the SPU had to make room for others'.
const PREPARES_MAX: u32 = 16;
/// How often a run is tried that SPU-OS has no place for, and the wait between.
const TRIES_MAX: u32 = 1000;
const TRY_WAIT: Duration = Duration::from_millis(5);
/// How often missing permissions are asked for.
const ASKS_MAX: u32 = 4;
/// Rows of a batch where an SPU has too little memory for more.
const FEW_ROWS: u32 = 64;
/// Room for a reply of this host's own, and where a row is longer.
const OWN_REPLY_BYTES: [usize; 2] = [4 << 20, 128 << 20];

/// Where replies go; closed where nobody wants more.
pub(super) type Replies = mpsc::Sender<Result<Vec<u8>, ColumnsError>>;

/// A way to a drive.
#[derive(Clone)]
pub(super) struct Way {
    pub hre: Arc<dyn Hre>,
    pub app: u16,
    pub geometry: Geometry,
}

/// What all parts share.
pub(super) struct Shared {
    pub place: Arc<Place>,
    pub table: Arc<Table>,
    pub query: Arc<Query>,
    /// `None` where this host does all.
    pub way: Option<Way>,
    pub reply_bytes: AtomicU64,
    pub host_bytes: AtomicU64,
    pub drive_parts: AtomicU64,
    pub host_parts: AtomicU64,
}

/// This host as what runs a plan.
struct Own<'a> {
    file: Counting<'a>,
    reply: Mutex<Vec<u8>>,
    error: Mutex<Option<ColumnsError>>,
}

impl Port for Own<'_> {
    async fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Stop> {
        self.file.read(to, offset).await.map_err(|error| {
            if let Ok(mut place) = self.error.lock() {
                *place = Some(error);
            }
            Stop::Port(wire::STATUS_MEDIA_ERROR)
        })
    }

    async fn reply(&self, offset: u32, from: &[u8]) -> Result<(), Stop> {
        let Ok(mut reply) = self.reply.lock() else { return Err(Stop::NoMemory) };
        let end = offset as usize + from.len();
        if reply.len() < end {
            reply.resize(end, 0);
        }
        reply[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    async fn decompress(&self, from: &[u8], to: &mut [u8], state: &mut Decompression) -> Result<(), Stop> {
        state.step(from, to);
        Ok(())
    }

    async fn worked(&self, _: usize) -> Result<(), Stop> {
        Ok(())
    }

    fn input_bytes(&self) -> usize {
        256 << 10
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn compared_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }
}

/// Where a part has come to.
struct Progress {
    run: Run,
    is_done: bool,
}

impl Progress {
    fn goes_on(&mut self, head: &ReplyHead) -> Result<(), ColumnsError> {
        self.is_done = head.is_done;
        if !head.is_done && (head.next < self.run.begin || head.next > self.run.end || head.rows == 0) {
            return Err(outcome::ReplyError.into());
        }
        self.run.begin = head.next;
        self.run.flags &= !(RUN_QUOTED | RUN_SKIP_FIRST);
        Ok(())
    }
}

impl Shared {
    pub fn work(&self) -> Work {
        Work {
            drive_parts: self.drive_parts.load(Ordering::Relaxed),
            host_parts: self.host_parts.load(Ordering::Relaxed),
            reply_bytes: self.reply_bytes.load(Ordering::Relaxed),
            host_bytes: self.host_bytes.load(Ordering::Relaxed),
        }
    }

    /// Runs a part; its replies are sent in order.
    pub async fn part(&self, unit: &Unit, run: Run, spu: u16, replies: &Replies) -> Result<(), ColumnsError> {
        let mut progress = Progress { run, is_done: false };
        if let Some(way) = self.way.as_ref().filter(|_| unit.is_for_spus())
            && let Some(plan) = self.query.plan(&self.table, unit, way.geometry, self.extents())
        {
            self.in_drive(way, plan, spu, &mut progress, replies).await?;
            if progress.is_done {
                self.drive_parts.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        self.host_parts.fetch_add(1, Ordering::Relaxed);
        self.by_host(unit, &mut progress, replies).await
    }

    fn extents(&self) -> &[direct_io_host::FileExtent] {
        match &*self.place {
            Place::Direct(file) => file.extents(),
            Place::Host(..) => &[],
        }
    }

    /// As far as the SPU can.
    async fn in_drive(
        &self,
        way: &Way,
        mut plan: Plan,
        spu: u16,
        progress: &mut Progress,
        replies: &Replies,
    ) -> Result<(), ColumnsError> {
        let (mut prepares, mut tries, mut asks) = (0, 0, 0);
        let mut number = None;
        while !progress.is_done {
            let known = match number {
                Some(known) => known,
                None => {
                    let payload = plan.encode();
                    if payload.len() > PLAN_BYTES_MAX {
                        return Ok(());
                    }
                    let spu = Some(spu);
                    let call = RpcCall { app: way.app, handler: handler::PREPARE, spu, payload, ..RpcCall::default() };
                    let reply = way.hre.rpc(call).await?;
                    match reply.status {
                        0 => *number.insert(reply.result),
                        wire::STATUS_NO_MEMORY => return Ok(()),
                        wire::STATUS_BUSY if tries < TRIES_MAX => {
                            tries += 1;
                            tokio::time::sleep(TRY_WAIT).await;
                            continue;
                        }
                        status => return Err(ColumnsError::Device(status)),
                    }
                }
            };
            let call = RpcCall {
                app: way.app,
                handler: handler::RUN,
                spu: Some(spu),
                arguments: Run { plan: known, ..progress.run }.encode().to_vec(),
                payload: Vec::new(),
                reply_bytes_max: wire::REPLY_BYTES_MAX as u32,
            };
            let reply = way.hre.rpc(call).await?;
            match reply.status {
                0 => {}
                wire::STATUS_NO_PLAN if prepares < PREPARES_MAX => {
                    prepares += 1;
                    number = None;
                    continue;
                }
                wire::STATUS_NO_PLAN => return Err(ColumnsError::Forgotten),
                wire::STATUS_BUSY if tries < TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(TRY_WAIT).await;
                    continue;
                }
                wire::STATUS_PERMISSION if asks < ASKS_MAX => {
                    asks += 1;
                    self.ask(way, &plan).await?;
                    continue;
                }
                wire::STATUS_PERMISSION => return Err(ColumnsError::TakenBack),
                wire::STATUS_NO_MEMORY if plan.batch_rows > FEW_ROWS => {
                    plan.batch_rows = FEW_ROWS;
                    self.release(way, spu, known).await?;
                    number = None;
                    continue;
                }
                wire::STATUS_NO_MEMORY => break,
                wire::STATUS_FAULT => return Err(self.fault(reply.result, &progress.run)),
                status => return Err(ColumnsError::Device(status)),
            }
            let mut data = reply.data;
            let (head, body) = outcome::open(&data)?;
            let used = ReplyHead::BYTES + body.len();
            data.truncate(used);
            self.reply_bytes.fetch_add(used as u64, Ordering::Relaxed);
            progress.goes_on(&head)?;
            if replies.send(Ok(data)).await.is_err() {
                break;
            }
        }
        if let Some(known) = number {
            self.release(way, spu, known).await?;
        }
        Ok(())
    }

    async fn release(&self, way: &Way, spu: u16, number: u32) -> Result<(), ColumnsError> {
        let payload = number.to_le_bytes().to_vec();
        let call = RpcCall { app: way.app, handler: handler::RELEASE, spu: Some(spu), payload, ..RpcCall::default() };
        way.hre.rpc(call).await?;
        Ok(())
    }

    /// Has the agent asked for the permissions of all that a plan reads, at each SPU.
    async fn ask(&self, way: &Way, plan: &Plan) -> Result<(), ColumnsError> {
        let mut places = Vec::new();
        for extent in &plan.extents {
            bank_ranges(&way.geometry, extent.namespace_offset, extent.bytes, |spu, address, bytes| {
                places.push((spu, address));
                places.push((spu, address + bytes - 1));
            });
        }
        for (spu, address) in places {
            let payload = address.to_le_bytes().to_vec();
            let call = RpcCall { app: way.app, handler: handler::TOUCH, spu: Some(spu), payload, ..RpcCall::default() };
            match way.hre.rpc(call).await?.status {
                0 => {}
                wire::STATUS_PERMISSION => return Err(ColumnsError::TakenBack),
                wire::STATUS_BUSY => tokio::time::sleep(TRY_WAIT).await,
                status => return Err(ColumnsError::Device(status)),
            }
        }
        Ok(())
    }

    /// What is left of a part, by this host.
    async fn by_host(&self, unit: &Unit, progress: &mut Progress, replies: &Replies) -> Result<(), ColumnsError> {
        let geometry = Geometry { spus: 1, stripe_bytes: 8192, base: 0 };
        let plan = self.query.plan(&self.table, unit, geometry, &[]).ok_or(ColumnsError::NoMemory)?;
        let mut room = OWN_REPLY_BYTES.iter();
        let mut reply_bytes = OWN_REPLY_BYTES[0];
        while !progress.is_done {
            let own = Own {
                file: Counting { place: &self.place, bytes: &self.host_bytes },
                reply: Mutex::new(Vec::new()),
                error: Mutex::new(None),
            };
            let head = match run(&own, &plan, &progress.run, reply_bytes).await {
                Ok(head) => head,
                Err(Stop::NoMemory) => {
                    // A row may be longer than what is enough for most.
                    room.next();
                    reply_bytes = *room.as_slice().first().ok_or(ColumnsError::NoMemory)?;
                    continue;
                }
                Err(Stop::Fault(fault)) => return Err(self.fault(fault.encode(), &progress.run)),
                Err(Stop::Port(status)) => {
                    let error = own.error.into_inner().ok().flatten();
                    return Err(error.unwrap_or(ColumnsError::Device(status)));
                }
            };
            progress.goes_on(&head)?;
            let reply = own.reply.into_inner().map_err(|_| ColumnsError::NoMemory)?;
            if replies.send(Ok(reply)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// What is wrong with the file.
    fn fault(&self, result: u32, run: &Run) -> ColumnsError {
        let Some(fault) = Fault::decode(result) else { return outcome::ReplyError.into() };
        let is_known = usize::from(fault.column) < self.query.columns();
        let (name, of) = match is_known.then(|| self.query.field(&self.table, fault.column)) {
            Some(field) => (format!("column {:?}: ", field.name), field.of.clone().ok()),
            None => (String::new(), None),
        };
        let of = of.map_or(String::new(), |of| of.to_string());
        let encoding = match fault.detail {
            0 => "PLAIN",
            2 => "PLAIN_DICTIONARY",
            3 => "RLE",
            4 => "BIT_PACKED",
            5 => "DELTA_BINARY_PACKED",
            6 => "DELTA_LENGTH_BYTE_ARRAY",
            7 => "DELTA_BYTE_ARRAY",
            8 => "RLE_DICTIONARY",
            9 => "BYTE_STREAM_SPLIT",
            _ => "of an unknown number",
        };
        let Run { begin, end, .. } = run;
        ColumnsError::Fault(match fault.reason {
            Reason::Malformed => format!("{name}a page is malformed, or the file is cut off"),
            Reason::Encoding => format!(
                "{name}its encoding {encoding} is not supported: PLAIN and the dictionary encodings are (and RLE for bool)"
            ),
            Reason::Page => format!("{name}it has a page of a kind that is not supported"),
            Reason::Compressed => format!("{name}a page's compressed bytes are malformed"),
            Reason::Value => {
                format!(
                    "{name}a value of a record between bytes {begin} and {end} is no {of}: name its type by --schema"
                )
            }
            Reason::Fields => format!("{name}a record between bytes {begin} and {end} has too few fields"),
            Reason::Quote => format!(
                "a record that begins between bytes {begin} and {end} has a quote where RFC 4180 lets none be, or none that closes it"
            ),
            Reason::Truncated => "the file ends within a record".to_owned(),
        })
    }
}
