//! What passes between a host's queue and the device: requests in, completions and upcalls out. A request is one
//! host buffer and one or more RPCs that work on it (a block read that spans stripes is one RPC an SPU); it
//! completes once, when all its RPCs have answered, with the first failure among them where there was one.

use crate::hre::HreId;
/// Number of an app in this device: 0 is SPU-OS's own control service (see [`crate::control`]).
pub use willow_gate::AppNumber;

/// Most bytes of arguments that travel inside an RPC's message; more goes in the payload.
pub const INLINE_ARGUMENT_BYTES_MAX: usize = 64;

/// The control service's app number.
pub const CONTROL_APP: AppNumber = 0;

/// Upcall of SPU-OS (app 0) to the agent: u32 originating HRE, u32 app, u64 first byte and u64 one past the last byte of the
/// bank range that was missed, u64 rights wanted. To be answered: status 0, try again; else, fail what waits.
pub const UPCALL_PERMISSION_MISS: u8 = 1;
/// Upcall of SPU-OS to the agent: u32 app number, then text: the app's name, a line feed, why it ended. Takes no answer.
pub const UPCALL_APP_ENDED: u8 = 2;

/// Inline arguments of an RPC.
#[derive(Clone, Copy)]
pub struct Arguments {
    bytes: [u8; INLINE_ARGUMENT_BYTES_MAX],
    len: u8,
}

impl Arguments {
    /// None.
    pub const EMPTY: Arguments = Arguments { bytes: [0; INLINE_ARGUMENT_BYTES_MAX], len: 0 };

    /// Copies `from`; `None` where it is longer than [`INLINE_ARGUMENT_BYTES_MAX`].
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        if from.len() > INLINE_ARGUMENT_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; INLINE_ARGUMENT_BYTES_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Some(Arguments { bytes, len: from.len() as u8 })
    }

    /// The bytes, and zeroes behind them.
    #[inline]
    pub(crate) fn padded(&self) -> &[u8; INLINE_ARGUMENT_BYTES_MAX] {
        &self.bytes
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

/// One RPC of a host request.
#[derive(Clone, Copy, Debug)]
pub struct Rpc {
    /// Receiving app.
    pub app: AppNumber,
    /// Handler in it, 1..=255.
    pub handler: u8,
    /// Receiving SPU.
    pub spu: u16,
    /// Start of its body; the request's payload follows.
    pub arguments: Arguments,
}

/// The RPCs of one request: one in place, more on the heap.
#[derive(Clone, Debug)]
pub enum RpcList {
    /// The common case.
    One(Rpc),
    /// A request spread over several SPUs (never empty).
    Many(Vec<Rpc>),
}

/// What a host asks of the device.
#[derive(Debug)]
pub struct HostRequest {
    /// Chosen by the transport, handed back in the completion.
    pub tag: u64,
    /// What to do.
    pub rpcs: RpcList,
    /// Host memory that the RPCs' network port reaches: the first `payload_bytes` are the payload of every RPC (as a
    /// DMA source), the first `reply_bytes` may be written (as a destination). Where there are both, an app that writes its
    /// reply writes over the payload.
    pub buffer: Vec<u8>,
    /// Bytes of `buffer` that handlers can read.
    pub payload_bytes: u32,
    /// Bytes of `buffer` that handlers may write.
    pub reply_bytes: u32,
}

/// Why a request got no answer from its handler, or that it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// The handler answered; `status` 0 is success, else the app's own code.
    Answered {
        /// The app's status.
        status: u32,
    },
    /// No app of that number.
    NoApp,
    /// The app has no such handler.
    NoHandler,
    /// No such SPU.
    NoSpu,
    /// The receiver's queue is full: try again.
    Refused,
    /// The app trapped, went past its budget or was removed before it answered.
    AppEnded,
    /// The RPC is for kernel endpoints only.
    NotPermitted,
    /// The host took the request back before it was answered.
    Aborted,
}

/// The end of a host request.
#[derive(Debug)]
pub struct HostCompletion {
    /// Endpoint that sent it.
    pub hre: HreId,
    /// Its tag.
    pub tag: u64,
    /// Outcome: success of all, or the first failure.
    pub outcome: RpcOutcome,
    /// 32-bit result of the RPC (with several RPCs: the bitwise or of theirs).
    pub result: u32,
    /// The request's buffer.
    pub buffer: Vec<u8>,
    /// One past the last byte of `buffer` that handlers wrote.
    pub reply_bytes: u32,
    /// When it is at the host, nanoseconds of the device's clock: under a model of time when the model says, else when the
    /// device ran.
    pub at_ns: u64,
}

/// An RPC from an SPU to a host endpoint (Willow, section 2.3: SPUs can issue RPCs to HREs).
#[derive(Debug)]
pub struct Upcall {
    /// To answer it with [`crate::Device::answer_upcall`].
    pub id: u64,
    /// Sender.
    pub app: AppNumber,
    /// Handler number at the host, the sender's choice.
    pub handler: u8,
    /// Sending SPU.
    pub spu: u16,
    /// Body.
    pub body: Vec<u8>,
}
