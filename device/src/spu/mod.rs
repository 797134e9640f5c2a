//! An SPU from inside: SPU-OS (requests, DMA, RPCs, regions) and the runtime of the apps on it.

pub(crate) mod accelerator;
pub(crate) mod activity;
pub(crate) mod app;
pub(crate) mod clock;
pub(crate) mod continuation;
pub mod counters;
pub(crate) mod dead;
pub(crate) mod debugger;
pub(crate) mod dma;
pub(crate) mod ended;
pub(crate) mod flash;
pub mod flash_cut;
pub(crate) mod flash_job;
pub(crate) mod flash_map;
pub(crate) mod flash_program;
pub(crate) mod flash_time;
pub(crate) mod ftl;
pub(crate) mod gate;
pub(crate) mod group;
pub(crate) mod handlers;
#[cfg(feature = "testing")]
pub mod hole;
pub(crate) mod hosts;
mod jam;
pub(crate) mod miss;
pub(crate) mod news;
mod nv_memory;
pub(crate) mod os;
pub(crate) mod pace;
pub mod permission;
pub mod profile;
pub mod protection;
pub(crate) mod published;
pub(crate) mod reach;
pub(crate) mod remote;
pub(crate) mod request;
pub(crate) mod rest;
pub(crate) mod rpc;
pub mod runtime;
pub(crate) mod send;
pub(crate) mod share;
pub(crate) mod sleep;
pub(crate) mod slice;
pub(crate) mod subscription;
pub(crate) mod turns;
pub(crate) mod unit;
pub(crate) mod version;

pub(crate) use runtime::{autopsy, debug, limits, long, module, native, paced, wasm};
pub use willow_gate::{abi, meter};

/// What an app did with a request that it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It is at work, or has answered already.
    Taken,
    /// No thread of it is free.
    NoThread,
    /// It is answered, as the app left in its request record.
    Answered { status: u32, result: u32 },
    /// The run makes way for others: [`Instance::resume`] goes on with it.
    Suspended,
}

/// What came of a call that brought the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The handlers wait again, or have ended.
    Done,
    /// The run makes way for others: [`Instance::resume`] goes on with it.
    Suspended,
}

/// What came of the run that an instance went on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// It began with a request.
    Started(Offered),
    /// It began with the end of a wait.
    Completed(Told),
}

/// An instance of an app on one SPU. Every call runs to completion, but of apps that ask for long runs: these make way now and then, and
/// nothing but [`Instance::resume`] may be called until the run has ended. An `Err` says why the app ends. What the app imports reaches the
/// SPU-OS that its call is handed.
pub(crate) trait Instance: Send {
    /// Offers a request.
    fn start(&mut self, machine: &mut os::Machine, token: u32, handler: u8) -> Result<Offered, String>;
    /// What a handler waited for has happened.
    fn complete(&mut self, machine: &mut os::Machine, wait: u32, result: i64) -> Result<Told, String>;
    /// Goes on with a run that made way.
    fn resume(&mut self, _: &mut os::Machine) -> Result<Resumed, String> {
        unreachable!("only instances that ask for long runs make way")
    }
    /// Puts bytes into the app's memory, where a handler gave a range for a DMA that was pending.
    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String>;
    /// Instructions that the last call ran.
    fn instructions(&self) -> u64;
    /// False where instructions are not counted (native code).
    fn is_metered(&self) -> bool {
        true
    }
    /// Bytes of linear memory.
    fn memory_bytes(&self) -> u64;
    /// What is left of an instance whose code has trapped; `None` where it did not, or that was asked before.
    fn autopsy(&mut self) -> Option<autopsy::Autopsy> {
        None
    }
    /// Its linear memory as it is between two runs; `None` where that is not to be looked at: of native code, whose addresses are this program's, while a run
    /// makes way, and where it is watched.
    fn memory(&self) -> Option<&[u8]> {
        None
    }
    /// Some of its memory from an address on, as far as there is any. Not while a run makes way.
    fn peek(&mut self, _from: u64, _bytes: usize) -> Vec<u8> {
        Vec::new()
    }
    /// What it has for its debugger, where it was made for one.
    fn debugging(&self) -> Option<&debug::SharedDebugging> {
        None
    }
    /// Asks its run, which has stopped.
    fn examine(&mut self, _: debug::Query) -> Option<debug::Answer> {
        None
    }
    /// Itself where it is of an app that is profiled.
    fn watched(&mut self) -> Option<&mut profile::Watched> {
        None
    }
    /// What is inside of such a one; any other as it is.
    fn unwatched(self: Box<Self>) -> Box<dyn Instance>;
    /// From now on it is in this place: imports are in its name.
    fn enter(&mut self, caller: os::Caller);
}
