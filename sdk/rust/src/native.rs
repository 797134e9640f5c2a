//! The same app as native code: for unit tests, a debugger, and to measure what the sandbox costs.
//!
//! An instance is one SPU's: its state and threads live in it, not in statics. Its imports go to the [`Host`] that is handed to
//! each call. A panic of a handler is what a trap is in a module: it ends the instance.

use core::cell::Cell;
use core::ptr::NonNull;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};

use crate::executor::Slots;

pub use crate::imports::Host;

/// A handler panicked: the instance has ended, and only answers so from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap(pub String);

impl core::fmt::Display for Trap {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl core::error::Error for Trap {}

/// An app as native code; [`crate::app!`] makes it.
pub trait NativeApp: Sync {
    /// A new instance, for one SPU.
    fn instantiate(&self) -> BoxedInstance;
    /// What the section `willow.app` of the module would hold.
    fn manifest(&self) -> &'static [u8];
}

/// One SPU's instance. Before it is dropped its host must have drained the DMAs that use its local memory.
pub trait NativeInstance: Send {
    /// The export `start`.
    fn start(&mut self, host: &mut dyn Host, token: u32, handler: u32) -> Result<i32, Trap>;
    /// The export `complete`.
    fn complete(&mut self, host: &mut dyn Host, wait: u32, result: i64) -> Result<(), Trap>;
}

/// Any app's instance.
pub type BoxedInstance = Box<dyn NativeInstance>;

std::thread_local! {
    static HOST: Cell<Option<NonNull<dyn Host>>> = const { Cell::new(None) };
}

/// Calls the host of the handler that runs.
#[inline]
pub(crate) fn with_host<R>(call: impl FnOnce(&mut dyn Host) -> R) -> R {
    // Taken away meanwhile, so that there is never a second reference to it.
    let Some(mut host) = HOST.take() else { panic!("an operation of willow-sdk was used outside of a handler") };
    let result = call(
        // SAFETY: put there by `Hosted`, which borrows it mutably for as long as handlers run.
        unsafe { host.as_mut() },
    );
    HOST.set(Some(host));
    result
}

/// True where a handler runs, whose imports have a host.
pub(crate) fn is_hosted() -> bool {
    HOST.get().is_some()
}

/// Has imports go to a host, until dropped.
struct Hosted(Option<NonNull<dyn Host>>);

impl Hosted {
    #[inline]
    fn new(host: &mut dyn Host) -> Hosted {
        let host: NonNull<dyn Host + '_> = NonNull::from(host);
        // SAFETY: only the lifetime changes; taken away again when the caller's borrow ends.
        let host: NonNull<dyn Host + 'static> = unsafe { core::mem::transmute(host) };
        Hosted(HOST.replace(Some(host)))
    }
}

impl Drop for Hosted {
    #[inline]
    fn drop(&mut self) {
        HOST.set(self.0);
    }
}

type Start<S, const BYTES: usize, const THREADS: usize> =
    fn(&'static Slots<BYTES, THREADS>, &'static S, u32, u32) -> i32;

struct Instance<S: 'static, const BYTES: usize, const THREADS: usize> {
    slots: NonNull<Slots<BYTES, THREADS>>,
    state: NonNull<S>,
    start: Start<S, BYTES, THREADS>,
    trapped: Option<Trap>,
}

// SAFETY: it owns its state, which is `Send`, and its threads, which `app!` requires to hold nothing that is bound to a thread
// of the operating system; all move together, between two calls.
unsafe impl<S: Send + 'static, const BYTES: usize, const THREADS: usize> Send for Instance<S, BYTES, THREADS> {}

/// Makes an instance; for [`crate::app!`].
pub fn instantiate<S: Send + 'static, const BYTES: usize, const THREADS: usize>(
    state: S,
    start: Start<S, BYTES, THREADS>,
) -> BoxedInstance {
    Box::new(Instance {
        slots: NonNull::from(Box::leak(Box::new(Slots::new()))),
        state: NonNull::from(Box::leak(Box::new(state))),
        start,
        trapped: None,
    })
}

fn contained<R>(trapped: &mut Option<Trap>, call: impl FnOnce() -> R) -> Result<R, Trap> {
    if let Some(trap) = trapped {
        return Err(trap.clone());
    }
    // What a panic leaves behind is never used again: the instance has ended.
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload.downcast_ref::<&str>().map_or("a handler panicked", |text| text).to_string(),
        };
        trapped.insert(Trap(text)).clone()
    })
}

impl<S: Send + 'static, const BYTES: usize, const THREADS: usize> NativeInstance for Instance<S, BYTES, THREADS> {
    #[inline]
    fn start(&mut self, host: &mut dyn Host, token: u32, handler: u32) -> Result<i32, Trap> {
        // SAFETY: both live until `drop`, and what gets the references works for any lifetime of them.
        let (slots, state) = unsafe { (self.slots.as_ref(), self.state.as_ref()) };
        contained(&mut self.trapped, || {
            let _hosted = Hosted::new(host);
            (self.start)(slots, state, token, handler)
        })
    }

    #[inline]
    fn complete(&mut self, host: &mut dyn Host, wait: u32, result: i64) -> Result<(), Trap> {
        // SAFETY: as above.
        let slots = unsafe { self.slots.as_ref() };
        contained(&mut self.trapped, || {
            let _hosted = Hosted::new(host);
            slots.complete(wait, result);
        })
    }
}

impl<S: 'static, const BYTES: usize, const THREADS: usize> Drop for Instance<S, BYTES, THREADS> {
    fn drop(&mut self) {
        // SAFETY: nobody else has them; the futures, which refer to the state, go first; the host has drained their DMAs.
        unsafe {
            self.slots.as_ref().drop_threads();
            drop(Box::from_raw(self.slots.as_ptr()));
            drop(Box::from_raw(self.state.as_ptr()));
        }
    }
}
