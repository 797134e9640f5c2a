//! The control service: app number 0 on SPU 0, part of SPU-OS. It installs and removes apps, creates and deletes namespaces,
//! grants and revokes permissions, and reports. For kernel endpoints; those of users may install, list, find, look into and
//! remove their own apps, and answer their upcalls, and get [`crate::RpcOutcome::NotPermitted`] for all else.
//! Reached like any RPC (NVMe opcodes 81h and 82h), so that any transport
//! carries it.
//!
//! Handlers with a reply take an optional u32 byte offset as inline argument, write the reply's bytes from there on as
//! far as the reply buffer goes, and return the whole reply's length as their result, so that a caller with a small
//! buffer reads on. A failure's status is one of [`ControlStatus`]; [`ERROR_TEXT`] then has the sentence.

pub use crate::request::{CONTROL_APP, UPCALL_APP_ENDED, UPCALL_PERMISSION_MISS};
use serde::{Deserialize, Serialize};

/// Payload: a module. Result: the app's number. Takes the place of an app of the same name once its requests have drained and the
/// new version has started; where that does not come about, the old version goes on.
pub const INSTALL: u8 = 1;
/// Payload: the app's name.
pub const REMOVE: u8 = 2;
/// Reply: JSON array of [`AppInfo`].
pub const LIST_APPS: u8 = 3;
/// Inline arguments: u32 offset, then the app's name (at most 20 bytes). Reply: its virtual serial port's text, a line
/// each `SPU: text`, the latest 64 KiB.
pub const LOG: u8 = 4;
/// Payload: JSON [`NamespaceRequest`]. Result: the NSID.
pub const CREATE_NAMESPACE: u8 = 5;
/// Payload: u32 NSID.
pub const DELETE_NAMESPACE: u8 = 6;
/// Payload: u32 NSID, u64 bytes: the block namespace has this size, rounded up to whole stripes of all banks. What it loses is gone, what it gains
/// reads as zeroes. Durable before it is answered; [`ControlStatus::NoRoom`]: what lies behind it in the banks is taken.
pub const RESIZE_NAMESPACE: u8 = 29;
/// Payload: u32 NSID, u32 bytes of a block: the block namespace is empty, in the form that it is to have. Durable before it is answered.
pub const FORMAT_NAMESPACE: u8 = 30;
/// Payload: u32 NSID, 16 bytes its NGUID, u64 first byte, u64 bytes: these blocks of the block namespace cannot be read until they are written. Durable
/// before it is answered; [`ControlStatus::NoRoom`]: there are as many such blocks as there may be.
pub const MARK_UNCORRECTABLE: u8 = 32;
/// Reply: JSON array of [`crate::Namespace`].
pub const LIST_NAMESPACES: u8 = 7;
/// Reply: JSON object, see docs/statistics.md.
pub const STATISTICS: u8 = 8;
/// Payload: u64 upcall id, u32 status, u32 result.
pub const ANSWER_UPCALL: u8 = 9;
/// Reply: the sentence of the last failure of this endpoint's control requests.
pub const ERROR_TEXT: u8 = 10;
/// Payload: the app's name. Result: its number.
pub const FIND_APP: u8 = 11;

/// Payload: u32 process, u32 its user and 1 (refused where the process with this number is another user's by now), or 0, then for each
/// extent u32 SPU, u32 rights (bit 0 read, bit 1 write), u64 first byte in the bank, u64 bytes. Result: number of extents.
pub const GRANT: u8 = 12;
/// The same payload, whosever the process is; without extents, all that the process has. Answered when nothing that was allowed is under way any more.
pub const REVOKE: u8 = 13;
/// Inline arguments: u32 offset, u32 process. Reply: JSON array of [`PermissionInfo`].
pub const LIST_PERMISSIONS: u8 = 14;
/// Payload: JSON [`ProcessRequest`]. Result: the process' number. It ends with the endpoint that asked.
pub const OPEN_PROCESS: u8 = 15;
/// Payload: u32 process. Its endpoints are closed and its permissions gone when it is answered.
pub const CLOSE_PROCESS: u8 = 16;
/// This endpoint becomes an agent's: it is sent [`UPCALL_PERMISSION_MISS`] and [`UPCALL_APP_ENDED`] until it is closed. Payload: u32 each,
/// the block namespaces that it answers for, or nothing: all that have no agent of their own. A namespace has one agent at most.
pub const REGISTER_AGENT: u8 = 17;
/// Payload: JSON [`IntercallChange`]. Durable before it is answered.
pub const CHANGE_INTERCALLS: u8 = 18;
/// Reply: JSON array of [`crate::Intercall`].
pub const LIST_INTERCALLS: u8 = 19;
/// Reply: JSON array of [`crate::ProcessInfo`].
pub const LIST_PROCESSES: u8 = 20;
/// Payload: u32 user, u32 weight: the user's processes have that part of the processors beside others', also when the device was started
/// again; 0: the default weight. Durable before it is answered. With a third word, u32 process: that process alone, while
/// it lasts.
pub const SET_WEIGHT: u8 = 21;
/// Result: SPUs in bits 15:0, the binary logarithm of the stripe in bytes of block namespaces that say no other in bits 31:16.
pub const STRIPES: u8 = 22;
/// Reply: JSON array of (user, weight).
pub const LIST_WEIGHTS: u8 = 23;
/// Payload: JSON [`AttachRequest`]. Durable before it is answered; a namespace's attachments go with it.
pub const ATTACH: u8 = 24;
/// Reply: JSON array of [`crate::service::metadata::Attachment`].
pub const LIST_ATTACHMENTS: u8 = 25;
/// Payload: JSON [`crate::service::reservation::ReserveRequest`]. Durable before it is answered; [`ControlStatus::Busy`]: a conflict.
pub const RESERVE: u8 = 28;

/// Payload: u32 app, u32 kind (1 to 255; 0: all). This endpoint gets the app's upcalls of that kind from now on, until it is closed. Result: 0.
pub const SUBSCRIBE: u8 = 26;
/// The same payload: it gets them no longer.
pub const UNSUBSCRIBE: u8 = 27;
/// Inline arguments: u32 offset, u32 SPU, u32 die. Reply: u32 each, dies of the SPU's flash, planes of a die, erases that a block is rated for, and the
/// erases of each block of the die, bit 31 alone for one that was bad from the factory. [`ControlStatus::NotFound`]: no flash, or no such die.
pub const FLASH_MAP: u8 = 31;

/// Inline arguments: u32 0, u32 app, u64 place in its log (0: the beginning). Reply: u64 place of the first byte that follows, which is past the
/// asked one where that is not kept any more, then text from there on, as much as fits. For the app's owner and the host's kernel.
pub const READ_LOG: u8 = 64;
/// Payload: the app's name. It is started anew: what it had begun is answered as ended, its regions stay. Answered when fresh instances are in
/// their places. For the app's owner and the host's kernel.
pub const RESET_APP: u8 = 65;
/// Inline arguments: u32 offset, u32 app, u32 trap (0: the last; else [`CoreInfo::trap`], so that all pieces are of one core). Reply: u32 bytes of the
/// JSON that follows, [`CoreInfo`]; then the instance's memory. For the app's owner and the host's kernel.
pub const READ_CORE: u8 = 66;

/// Payload: u32 app, u32 milliseconds. The app is profiled from now on, for so long at most, and until this endpoint is closed. One app at a time.
/// For the app's owner and the host's kernel.
pub const BEGIN_PROFILE: u8 = 67;
/// Inline arguments: u32 offset. Reply: JSON [`ProfileReport`], what came since it was read from offset 0 on before.
pub const READ_PROFILE: u8 = 68;
/// The profile of this endpoint ends.
pub const END_PROFILE: u8 = 69;

/// Payload: u32 app, u32 milliseconds that a stop lasts at most (0: without an end). The app is compiled for a debugger and started anew, and is this
/// endpoint's to debug. Answered when it is there. For the app's owner and the host's kernel.
pub const BEGIN_DEBUG: u8 = 70;
/// Payload: u32 app. It is debugged no longer, and what was stopped goes on.
pub const END_DEBUG: u8 = 71;
/// Inline arguments: u32 offset, u32 app. Reply: JSON array of [`DebugState`], one an SPU.
pub const DEBUG_STATE: u8 = 72;
/// Inline arguments: u32 offset, u32 app, u32 SPU, u32 kind, u32, u32. Reply of kind 1: JSON array of [`StoppedFrame`]; 2 (number of a frame): JSON
/// [`FrameValues`]; 3 (address, bytes): memory; 4, of a running one too: the module.
pub const DEBUG_QUERY: u8 = 73;
/// Payload: u32 app, u32 SPU (FFFFFFFFh: all), u32 what: 1 breakpoints (then u32 each, bytes from the module's beginning), 2 go on, 3 step (then u32 frames: to
/// the next instruction with so many at most), 4 stop at the next instruction of a run.
pub const DEBUG_TELL: u8 = 74;

/// Status of a control request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlStatus {
    /// Done.
    Success = 0,
    /// The request's bytes make no sense.
    Malformed = 1,
    /// The module is refused; the text says why.
    ModuleRefused = 2,
    /// No such app or namespace.
    NotFound = 3,
    /// No room for it.
    NoRoom = 4,
    /// The media failed.
    MediaFailed = 5,
    /// Not while it is in use, or not for this one.
    Busy = 6,
}

/// An installed app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppInfo {
    /// Number, stable while it is installed and over restarts.
    pub number: u16,
    /// Name.
    pub name: String,
    /// Version from its manifest.
    pub version: String,
    /// Bytes of its module.
    pub module_bytes: u64,
    /// Memory of an instance now.
    pub memory_bytes: u64,
    /// (number, name) of its handlers.
    pub handlers: Vec<(u8, String)>,
    /// `running`; `ended: ` and why; or, for an app of the media that did not come up with the device, `failed: ` and why.
    pub state: String,
}

pub use crate::spu::autopsy::{Frame, GlobalValue};
pub use crate::spu::debug::{FrameValues, Stop, StoppedFrame};

/// An instance that trapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// The app.
    pub app: String,
    /// Its version then.
    pub version: String,
    /// The SPU.
    pub spu: u16,
    /// Which of the app's traps.
    pub trap: u32,
    /// Why it ended.
    pub why: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Its stack, the innermost frame first.
    pub frames: Vec<Frame>,
    /// Its globals, in the module's order.
    pub globals: Vec<GlobalValue>,
}

/// A namespace to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceRequest {
    /// Command set.
    pub csi: crate::CommandSet,
    /// Size as the host shall see it; rounded up to whole stripes over all banks.
    pub size_bytes: u64,
    /// 512 or 4096 for NVM, left out for KV.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// NQNs of the hosts that it is attached to, from the moment at which it is there; left out: every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// It is never attached to more than one host; `hosts` names one or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// Bytes of a stripe of a block namespace: a power of two from [`crate::config::STRIPE_BYTES_MIN`] to
    /// [`crate::config::STRIPE_BYTES_MAX`]; left out: [`crate::STRIPE_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripe_bytes: Option<u32>,
    /// The app that is to serve it, one of the kernel's that takes the RPCs of the command set's own; left out: that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
}

impl NamespaceRequest {
    /// One that every host has, and that is as namespaces are where nothing else is said.
    pub fn new(csi: crate::CommandSet, size_bytes: u64) -> Self {
        NamespaceRequest {
            csi,
            size_bytes,
            block_bytes: None,
            hosts: None,
            private: false,
            stripe_bytes: None,
            app: None,
        }
    }
}

/// Hosts that a namespace is attached to from now on: `hosts` in place of those before. Where `attach` or `detach` names any, these are
/// added and taken out instead, and `hosts` is what the namespace counts as attached to where it was open to every host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The namespace.
    pub nsid: u32,
    /// NQNs of the hosts; left out: every host.
    #[serde(default)]
    pub hosts: Option<Vec<String>>,
    /// NQNs of hosts to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attach: Vec<String>,
    /// NQNs of hosts to take out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detach: Vec<String>,
}

/// A process to open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessRequest {
    /// Its user, as the host's kernel numbers them.
    pub user: u32,
    /// Its share of the processors beside others'; 0, or left out: its user's.
    #[serde(default)]
    pub weight: u16,
}

/// A permission that is in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionInfo {
    /// SPU.
    pub spu: u16,
    /// First byte in its bank.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bit 0: read, bit 1: write.
    pub rights: u32,
}

/// A change of the intercall table: first `remove`, then `add`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IntercallChange {
    /// Rules to add.
    #[serde(default)]
    pub add: Vec<crate::spu::protection::Intercall>,
    /// Rules to take out.
    #[serde(default)]
    pub remove: Vec<crate::spu::protection::Intercall>,
}

/// A profile, or what came to it since it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileReport {
    /// The app.
    pub app: String,
    /// Since it began.
    pub elapsed_ns: u64,
    /// The processor is sampled; else `stacks` has nothing.
    pub is_sampled: bool,
    /// Processor time that a sample stands for.
    pub sample_ns: u64,
    /// Time that a wait which was seen stands for.
    pub look_ns: u64,
    /// Samples and waits that found no room.
    pub lost: u64,
    /// The functions of `stacks`.
    pub functions: Vec<ProfiledFunction>,
    /// Samples of the processor, by stack.
    pub stacks: Vec<ProfiledStack>,
    /// Runs of handlers.
    pub runs: Vec<ProfiledRuns>,
    /// What was waited for when that was looked at.
    pub waits: Vec<ProfiledWaits>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledFunction {
    /// Its index in the module.
    pub index: u32,
    /// Its name, where the module has one for it.
    pub name: Option<String>,
}

/// Samples with the same stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledStack {
    /// The SPU.
    pub spu: u16,
    /// Indices of the functions, the outermost first; none: SPU-OS was at work for the app.
    pub functions: Vec<u32>,
    /// How many.
    pub count: u64,
}

/// Runs that began alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledRuns {
    /// The SPU.
    pub spu: u16,
    /// The handler that a request began; left out: the end of a wait, or a slice, went on with some.
    pub handler: Option<u8>,
    /// How many.
    pub count: u64,
    /// What they executed.
    pub instructions: u64,
}

/// Waits of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledWaits {
    /// The SPU.
    pub spu: u16,
    /// The handler; 0: an event's, or work in the background.
    pub handler: u8,
    /// For what.
    pub reason: String,
    /// How many were seen, over all looks.
    pub count: u64,
}

/// An SPU's instance of an app that is debugged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugState {
    /// The SPU.
    pub spu: u16,
    /// Where it has stopped; left out: it runs, or has nothing to do.
    pub stop: Option<Stop>,
}
