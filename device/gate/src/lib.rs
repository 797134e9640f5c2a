//! The gate: the one way from an import to what it has SPU-OS do, as far as that needs no runtime and no device. The device's SPU-OS and the
//! mock of the SDK both go it, so that an app is told the same, and charged the same, in a unit test as in a drive.
//!
//! What an app asks for is an [`Operation`], a value that says all of it, and each goes through the same stages:
//! - **decoded** ([`decode`]), where an import's arguments become the operation: what cannot be is refused there;
//! - **on behalf of whom**: the request, or the message, that it names has to be the calling app's own;
//! - **charged** ([`charge`]) to the run, with its place among what the app may move and wait for;
//! - **begun** by SPU-OS ([`SpuOs::begin`]), which asks its rule of protection for each range of a bank;
//! - **told**: at once, or by one completion.
//!
//! What always holds: an operation that is refused at a stage has left nothing behind; nothing but [`charge`] makes a [`Charged`], without
//! which nothing begins. [`table`] is the only list of imports: the check of a module, the sandbox's linking, the native shims, the bindings
//! of the SDKs and the reference in docs/abi.md all come from it, so that they cannot differ.

pub mod abi;
pub mod charge;
pub mod decode;
pub mod decompress;
mod ending;
pub mod hre;
pub mod keys;
pub mod literals;
mod memory;
pub mod meter;
pub mod native;
pub mod numbers;
mod operation;
pub mod table;

pub use charge::Charged;
pub use decode::Call;
pub use decompress::Decompress;
pub use ending::Ending;
pub use hre::HreId;
pub use memory::{LocalMemory, WildPointer};
pub use meter::{Fault, Meter, OverBudget};
pub use numbers::{MultiplyAdd, Transform};
pub use operation::{
    AppNumber, Append, Checksum, Compare, Dma, Draft, End, FlashOperation, FlashRead, KeySearch, LiteralSearch,
    Operation, Port, Receive, Receiver, RemoteDma,
};

/// On whose behalf an operation is.
#[derive(Clone, Copy, Debug)]
pub enum Behalf {
    /// The originating endpoint's of the request, or of the message, that it names.
    Of(HreId),
    /// It names none: the app's own, with no right to anything of others.
    Own,
}

/// A table of SPU-OS that an operation walks through: it is charged for each entry.
#[derive(Clone, Copy, Debug)]
pub enum Table {
    /// What may have to be cancelled for the app, and for the process whose request this is.
    Waits {
        /// The request.
        token: u32,
    },
    /// The app's subscribers.
    Subscriptions,
    /// Apps.
    Apps,
    /// Namespaces.
    Namespaces,
    /// Regions.
    Regions,
}

/// SPU-OS, as the gate sees it: what it knows, and how it begins what has been charged.
pub trait SpuOs: Sized {
    /// Who calls an import: made by the runtime, never by the app.
    type Caller: Copy;

    /// The calling app's number.
    fn app_of(caller: Self::Caller) -> AppNumber;
    /// The SPU that it runs on.
    fn spu_of(caller: Self::Caller) -> u16;
    /// How many SPUs there are.
    fn spus(&self) -> u32;
    /// The device's clock.
    fn now_ns(&self) -> u64;
    /// The checksum that was done at once last for the caller.
    fn checksum_value(&self, caller: Self::Caller) -> u32;

    /// The originating endpoint of a request of the caller's that is not answered.
    fn request_of(&mut self, caller: Self::Caller, token: u32) -> Option<HreId>;
    /// That of a message that the caller puts together.
    fn message_of(&mut self, caller: Self::Caller, handle: i32) -> Option<HreId>;

    /// What the caller's run is charged by.
    fn meter(&mut self, caller: Self::Caller) -> &mut Meter;
    /// Most bytes that the DMAs of one of its runs may move.
    fn dma_budget_bytes(&self, caller: Self::Caller) -> u64;
    /// Whether the app may wait for one more operation, where it has to for any.
    fn may_begin(&self, caller: Self::Caller) -> bool;
    /// Bytes of a request's body that are left from where these begin.
    fn body_left(&self, caller: Self::Caller, receive: &Receive) -> u64;
    /// How many entries of a table an operation walks through.
    fn entries(&self, caller: Self::Caller, table: Table) -> u64;

    /// Carries out, or begins, what has been charged; what its import returns.
    fn begin<M: LocalMemory>(
        &mut self,
        caller: Self::Caller,
        memory: &mut M,
        operation: (Operation, Behalf),
        charged: Charged,
    ) -> Result<i64, Fault>;
}

/// Carries out what a running app asks for, or begins it; what its import returns.
///
/// # Errors
/// Why the app ends.
#[inline(always)]
pub fn ask<Os: SpuOs, M: LocalMemory>(
    os: &mut Os,
    caller: Os::Caller,
    memory: &mut M,
    operation: Operation,
) -> Result<i64, Fault> {
    let Some(behalf) = behalf(os, caller, &operation) else { return Ok(abi::ERROR_ARGUMENT.into()) };
    let Some(charged) = charge::charge(os, caller, memory, &operation)? else { return Ok(abi::ERROR_REFUSED.into()) };
    os.begin(caller, memory, (operation, behalf), charged)
}

/// The same for what is asked for seldom: one piece of code for all of it.
///
/// # Errors
/// Why the app ends.
#[inline(never)]
pub fn ask_seldom<Os: SpuOs, M: LocalMemory>(
    os: &mut Os,
    caller: Os::Caller,
    memory: &mut M,
    operation: Operation,
) -> Result<i64, Fault> {
    ask(os, caller, memory, operation)
}

/// On whose behalf an operation is; `None` where it names what is not the calling app's.
#[inline(always)]
fn behalf<Os: SpuOs>(os: &mut Os, caller: Os::Caller, operation: &Operation) -> Option<Behalf> {
    let token = match operation {
        Operation::Respond { token, .. }
        | Operation::Receive(Receive { token, .. })
        | Operation::Dma(Dma { token, .. })
        | Operation::DmaNow(Dma { token, .. })
        | Operation::RemoteDma(RemoteDma { dma: Dma { token, .. }, .. })
        | Operation::Compare(Compare { token, .. })
        | Operation::Checksum(Checksum { token, .. })
        | Operation::FindLiterals(LiteralSearch { token, .. })
        | Operation::FindKey(KeySearch { token, .. })
        | Operation::MultiplyAdd(MultiplyAdd { token, .. })
        | Operation::Transform(Transform { token, .. })
        | Operation::Decompress(Decompress { token, .. })
        | Operation::Draft(Draft { token, .. })
        | Operation::Cancel { token, .. } => *token,
        Operation::Append(Append { handle, .. }) | Operation::Post { handle, .. } => {
            return os.message_of(caller, *handle).map(Behalf::Of);
        }
        Operation::Info { .. }
        | Operation::LoadLiterals { .. }
        | Operation::FreeLiterals { .. }
        | Operation::Subscribers { .. }
        | Operation::AppNumber { .. }
        | Operation::Region { .. }
        | Operation::RegionBytes { .. }
        | Operation::FreeRegion { .. }
        | Operation::Namespace { .. }
        | Operation::Flush { .. }
        | Operation::Sleep { .. }
        | Operation::Background { .. }
        | Operation::Print { .. }
        | Operation::Count { .. }
        | Operation::Flash(_) => return Some(Behalf::Own),
    };
    os.request_of(caller, token).map(Behalf::Of)
}
