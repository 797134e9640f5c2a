//! The control service as its callers see it: handler numbers and the shapes of its JSON. They are the same as
//! `device/src/service/control.rs` says, which a host must not depend on; a test holds the two together.

use serde::{Deserialize, Serialize};

/// The control service's app number.
pub const CONTROL_APP: u16 = 0;
/// Payload: a module. Result: the app's number.
pub const INSTALL: u8 = 1;
/// Payload: the app's name.
pub const REMOVE: u8 = 2;
/// Reply: JSON array of [`AppInfo`].
pub const LIST_APPS: u8 = 3;
/// Arguments: u32 offset, then the app's name (at most 20 bytes). Reply: its virtual serial port's text.
pub const LOG: u8 = 4;
/// Payload: JSON [`NamespaceRequest`]. Result: the NSID.
pub const CREATE_NAMESPACE: u8 = 5;
/// Payload: u32 NSID.
pub const DELETE_NAMESPACE: u8 = 6;
/// Reply: JSON array of [`NamespaceInfo`].
pub const LIST_NAMESPACES: u8 = 7;
/// Reply: JSON object.
pub const STATISTICS: u8 = 8;
/// Payload: u64 upcall id, u32 status, u32 result.
pub const ANSWER_UPCALL: u8 = 9;
/// Reply: the sentence of the last failure of this endpoint's control requests.
pub const ERROR_TEXT: u8 = 10;
/// Payload: the app's name. Result: its number.
pub const FIND_APP: u8 = 11;
/// Payload: u32 process, u32 0, then for each extent u32 SPU, u32 rights (bit 0 read, bit 1 write), u64 first byte in the bank,
/// u64 bytes. Result: number of extents.
pub const GRANT: u8 = 12;
/// The same payload; without extents, all that the process has.
pub const REVOKE: u8 = 13;
/// Arguments: u32 offset, u32 process. Reply: JSON array of [`PermissionInfo`].
pub const LIST_PERMISSIONS: u8 = 14;
/// Payload: JSON [`ProcessRequest`]. Result: the process' number.
pub const OPEN_PROCESS: u8 = 15;
/// Payload: u32 process.
pub const CLOSE_PROCESS: u8 = 16;
/// This endpoint becomes an agent's. Payload: u32 each, the block namespaces that it answers for, or nothing: all that have none.
pub const REGISTER_AGENT: u8 = 17;
/// Payload: JSON [`IntercallChange`].
pub const CHANGE_INTERCALLS: u8 = 18;
/// Reply: JSON array of [`Intercall`].
pub const LIST_INTERCALLS: u8 = 19;
/// Reply: JSON array of [`ProcessInfo`].
pub const LIST_PROCESSES: u8 = 20;
/// Payload: u32 user, u32 weight (0: none), and u32 process or none: the part of the processors that the user's processes, or that one, have.
pub const SET_WEIGHT: u8 = 21;
/// Result: SPUs in bits 15:0, the binary logarithm of the stripe of block namespaces in bytes in bits 31:16.
pub const STRIPES: u8 = 22;
/// Reply: JSON array of (user, weight).
pub const LIST_WEIGHTS: u8 = 23;
/// Payload: u32 NSID, u32 bytes of a block: the block namespace is empty then. Durable before it is answered.
pub const FORMAT_NAMESPACE: u8 = 30;
/// Payload: u32 NSID, 16 bytes its NGUID, u64 first byte, u64 bytes: these blocks cannot be read until they are written. Durable before it is answered.
pub const MARK_UNCORRECTABLE: u8 = 32;
/// Payload: u32 NSID, u64 bytes: the block namespace's new size. Durable before it is answered.
pub const RESIZE_NAMESPACE: u8 = 29;
/// Payload: JSON [`AttachRequest`]. Durable before it is answered.
pub const ATTACH: u8 = 24;
/// Reply: JSON array of [`Attachment`]; a namespace that is not listed is open to every host.
pub const LIST_ATTACHMENTS: u8 = 25;
/// Payload: u32 app, u32 kind (1 to 255; 0: all). This endpoint gets the app's upcalls of that kind from now on, until it is closed.
pub const SUBSCRIBE: u8 = 26;
/// The same payload: it gets them no longer.
pub const UNSUBSCRIBE: u8 = 27;
/// Inline arguments: u32 offset, u32 SPU, u32 die. Reply: u32 each, what [`DieWear`] has.
pub const FLASH_MAP: u8 = 31;
/// Arguments: u32 0, u32 app, u64 place in its log. Reply: u64 place of the first byte that follows, then text from there on.
pub const READ_LOG: u8 = 64;
/// Payload: the app's name. It is started anew.
pub const RESET_APP: u8 = 65;
/// Arguments: u32 offset, u32 app, u32 trap (0: the last). Reply: u32 bytes of the JSON that follows, [`CoreInfo`]; then the instance's memory.
pub const READ_CORE: u8 = 66;
/// Payload: u32 app, u32 milliseconds. The app is profiled from now on, for so long at most.
pub const BEGIN_PROFILE: u8 = 67;
/// Arguments: u32 offset. Reply: JSON [`ProfileReport`], what came since it was read from offset 0 on before.
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

/// In [`DieWear::blocks`]: the block was bad from the factory.
pub const FACTORY_BAD: u32 = 1 << 31;

/// How worn the blocks of a die of flash are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DieWear {
    /// Dies of the SPU's flash.
    pub dies: u32,
    /// Planes of each; block `b` lies on plane `b % planes`.
    pub planes: u32,
    /// Erases that a block is rated for.
    pub rated_erases: u32,
    /// Erases of each block, or [`FACTORY_BAD`].
    pub blocks: Vec<u32>,
}

/// Upcall of SPU-OS (app 0) to the agent: a permission was missed. Body: u32 originating HRE, u32 app, u64 first byte and u64 one
/// past the last byte of the bank's range, u64 rights wanted.
pub const UPCALL_PERMISSION_MISS: u8 = 1;
/// Upcall of SPU-OS to the agent: u32 app number, then text: the app's name, a line feed, why it ended. Takes no answer.
pub const UPCALL_APP_ENDED: u8 = 2;

/// Longest app name that fits [`LOG`]'s arguments after the offset.
pub const LOG_NAME_BYTES_MAX: usize = 20;

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

impl ControlStatus {
    /// From the number in a response.
    pub fn from_u32(status: u32) -> Option<Self> {
        use ControlStatus::*;
        [Success, Malformed, ModuleRefused, NotFound, NoRoom, MediaFailed, Busy]
            .into_iter()
            .find(|known| *known as u32 == status)
    }
}

/// Command set of a namespace (NVMe CSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandSet {
    /// NVM, CSI 0.
    Nvm,
    /// Key value, CSI 1.
    Kv,
}

/// An installed app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// `running`, or why it ended.
    pub state: String,
}

/// A namespace to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRequest {
    /// Command set.
    pub csi: CommandSet,
    /// Size as the host shall see it.
    pub size_bytes: u64,
    /// 512 or 4096 for NVM, left out for KV.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// NQNs of the hosts that it is attached to, from the moment at which it is there; `None`: every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// It is never attached to more than one host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// Bytes of a stripe of a block namespace, a power of two; `None`: as the device has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripe_bytes: Option<u32>,
    /// The app that is to serve it; `None`: that of the command set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
}

impl NamespaceRequest {
    /// One that every host has, and that is as namespaces are where nothing else is said.
    pub fn new(csi: CommandSet, size_bytes: u64) -> Self {
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

/// Which hosts a namespace is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// NSID.
    pub nsid: u32,
    /// NQNs of the hosts.
    pub hosts: Vec<String>,
    /// It is never attached to more than one host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

/// Which hosts a namespace is attached to from now on: `hosts`; or, where `attach` or `detach` names any, what it was attached to with
/// these added and taken out, where `hosts` stands for every host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The namespace.
    pub nsid: u32,
    /// NQNs of the hosts; `None`: every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// NQNs of hosts to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attach: Vec<String>,
    /// NQNs of hosts to take out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detach: Vec<String>,
}

/// A namespace that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceInfo {
    /// NSID, from 1.
    pub nsid: u32,
    /// Command set.
    pub csi: CommandSet,
    /// Size of the namespace as the host sees it.
    pub size_bytes: u64,
    /// Logical block (512 or 4096); 1 for KV.
    pub block_bytes: u32,
    /// Start of its region in every bank.
    pub base: u64,
    /// Bytes of its region in every bank.
    pub bank_bytes: u64,
    /// Globally unique id.
    pub nguid: [u8; 16],
    /// The app that serves it.
    pub app: String,
    /// Bytes of a stripe over the SPUs, of a block namespace.
    pub stripe_bytes: u32,
}

/// A process to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRequest {
    /// Its user.
    pub user: u32,
    /// Its share of the processors beside others'.
    pub weight: u16,
}

/// A process that the device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Number.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Its share of the processors.
    pub weight: u16,
    /// Endpoints that it has open.
    pub hres: u32,
    /// What tells it from all other processes of its host; zeroes: not known.
    pub identity: (u64, u64),
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

/// A rule: `caller` may call `handler` of `callee` (0: any that is not for the kernel alone).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intercall {
    /// Name of the calling app.
    pub caller: String,
    /// Name of the called app.
    pub callee: String,
    /// Handler number, or 0.
    pub handler: u8,
}

/// A change of the intercall table: first `remove`, then `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntercallChange {
    /// Rules to add.
    pub add: Vec<Intercall>,
    /// Rules to take out.
    pub remove: Vec<Intercall>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Index of the function in the module.
    pub function: u32,
    /// Its name, where the module has one for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes from the function's beginning.
    pub function_offset: u32,
    /// Bytes from the module's beginning.
    pub module_offset: u32,
}

/// A global: its type as in WebAssembly's text, and its bits (of a reference: none).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalValue {
    /// `i32`, `i64`, `f32`, `f64`, `v128` or `ref`.
    pub kind: String,
    /// The module may change it.
    pub mutable: bool,
    /// Its bits, in hexadecimal.
    pub bits: String,
}

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

/// A run that has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// `breakpoint`, `step`, `pause`, or why it is about to end.
    pub reason: String,
    /// Bytes from the module's beginning to the instruction.
    pub pc: u32,
    /// Frames of the stack.
    pub depth: u32,
    /// How often this instance has stopped.
    pub count: u32,
}

/// A frame of a stopped run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedFrame {
    /// Index of the function among those that the module defines.
    pub defined_function: u32,
    /// Bytes from the module's beginning to the instruction.
    pub pc: u32,
}

/// The values of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameValues {
    /// Its locals, parameters first.
    pub locals: Vec<GlobalValue>,
    /// Its operands, the last pushed last.
    pub operands: Vec<GlobalValue>,
    /// The instance's globals.
    pub globals: Vec<GlobalValue>,
}

/// An SPU's instance of an app that is debugged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugState {
    /// The SPU.
    pub spu: u16,
    /// Where it has stopped; left out: it runs, or has nothing to do.
    pub stop: Option<Stop>,
}
