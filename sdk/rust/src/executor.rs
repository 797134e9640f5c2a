//! The executor: a fixed pool of threads, each a slot for the future of one handler, in static memory without an allocator.
//! Threads are the papers' word (Willow, section 2.4): handlers of one app on one SPU take turns, each running until it waits.
//!
//! What always holds:
//! - one thread runs at a time; all of them are left waiting or free when `start` or `complete` returns;
//! - the number of a wait is `thread << 16 | record`: `complete` polls exactly the thread that waits, nothing is searched;
//! - a handler's future is never moved and never dropped before it has finished: there is no cancelling. What an import may
//!   write to later (local buffers of pending DMAs) therefore stays in place until the import is through with it.
//! - waking is by thread: a woken thread polls its whole future. Combinators that poll only some of their children, by wakers
//!   of their own, do not work here; [`crate::join`] does.
//!
//! Who may call it: the code that [`crate::app!`] makes, and the SDK's futures.

mod current;
mod wait;

use wait::record_of;
pub(crate) use wait::{
    Issued, Operation, Wait, abandon, begin_wait, cancel_waits, free_wait, gather, next_wait, waits_taken,
};

use core::cell::{Cell, UnsafeCell};
use core::future::Future;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

#[cfg(target_arch = "wasm32")]
use crate::record;
use crate::{Error, Request, Response, sys};

/// Most waits of one handler that can be pending at the same time.
pub const WAITS_MAX: usize = 16;
/// Most threads of an app on one SPU.
pub const THREADS_MAX: usize = 64;
/// Alignment of handler futures.
const SLOT_ALIGNMENT: usize = 16;

/// What can be done with the future in a slot.
struct Lifecycle {
    /// See [`poll_slot`].
    poll: unsafe fn(*mut u8, &mut Context<'_>) -> Poll<Response>,
    /// Drops it.
    #[cfg(not(target_arch = "wasm32"))]
    drop: unsafe fn(*mut u8),
}

struct LifecycleOf<F>(PhantomData<F>);

impl<F: Future<Output: Into<Response>>> LifecycleOf<F> {
    const LIFECYCLE: Lifecycle = Lifecycle {
        poll: poll_slot::<F>,
        #[cfg(not(target_arch = "wasm32"))]
        // SAFETY: the caller of `drop` has a slot with a live `F`.
        drop: |slot| unsafe { slot.cast::<F>().drop_in_place() },
    };
}

/// What the executor knows of one thread.
pub(crate) struct Thread {
    /// Its number.
    number: Cell<u32>,
    /// The request that it serves.
    token: Cell<u32>,
    /// Whether the handler has responded before its end.
    answered: Cell<bool>,
    /// Records that belong to an import that has not completed, or whose result was not yet fetched.
    taken: Cell<u32>,
    /// Records whose result is there.
    done: Cell<u32>,
    /// Records whose future is gone: nobody will fetch the result.
    abandoned: Cell<u32>,
    /// Records that are of no use before all of them are done: only then is the thread polled ([`gather`]).
    gathering: Cell<u32>,
    /// Its future's functions; `None` while the thread is free or on its first poll.
    lifecycle: Cell<Option<&'static Lifecycle>>,
    results: [Cell<i64>; WAITS_MAX],
}

impl Thread {
    const fn new() -> Thread {
        Thread {
            number: Cell::new(0),
            token: Cell::new(0),
            answered: Cell::new(false),
            taken: Cell::new(0),
            done: Cell::new(0),
            abandoned: Cell::new(0),
            gathering: Cell::new(0),
            lifecycle: Cell::new(None),
            results: [const { Cell::new(0) }; WAITS_MAX],
        }
    }
}

/// The threads of one instance.
pub(crate) struct Table<T: ?Sized = [Thread]> {
    /// Threads that were woken by another thread, one bit each.
    ready: Cell<u64>,
    /// Threads that are taken, one bit each.
    taken: Cell<u64>,
    threads: T,
}

/// Calls `with` with the table of the instance that runs, where one does.
#[inline]
fn try_table<R>(with: impl FnOnce(&Table) -> R) -> Option<R> {
    // SAFETY: set by `Entered`, which outlives all that runs under it and takes it away again.
    current::get().map(|table| with(unsafe { table.as_ref() }))
}

/// The thread that runs.
#[inline]
fn with_running<R>(with: impl FnOnce(&Thread) -> R) -> R {
    match current::thread() {
        // SAFETY: set by `Entered::run`, whose table outlives all that runs under it.
        Some(thread) => with(unsafe { thread.as_ref() }),
        None => outside(),
    }
}

#[cold]
#[inline(never)]
fn outside() -> ! {
    panic!("an operation of willow-sdk was used outside of a handler")
}

/// Makes a table the current one; natively until dropped, since other instances run on the same thread of the system.
struct Entered {
    #[cfg(not(target_arch = "wasm32"))]
    before: (Option<NonNull<Table>>, Option<NonNull<Thread>>),
}

impl Entered {
    #[inline]
    fn new(table: &Table) -> Entered {
        #[cfg(not(target_arch = "wasm32"))]
        let before = (current::get(), current::thread());
        // A module has one instance's table, from its first request on.
        if !cfg!(target_arch = "wasm32") || current::get().is_none() {
            current::set(Some(NonNull::from(table)));
        }
        Entered {
            #[cfg(not(target_arch = "wasm32"))]
            before,
        }
    }

    /// What runs from here on is a thread of that table.
    #[inline]
    fn run(&self, thread: &Thread) {
        current::set_thread(Some(NonNull::from(thread)));
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        current::set(self.before.0);
        current::set_thread(self.before.1);
    }
}

/// The number of the thread that runs.
#[inline]
pub(crate) fn running() -> u32 {
    with_running(|thread| thread.number.get())
}

/// Has a thread polled again before `start` or `complete` returns.
#[inline]
pub(crate) fn wake(thread: u32) {
    try_table(|table| table.ready.set(table.ready.get() | 1 << thread));
}

/// Notes that a request is answered: the running thread's, unless a handler kept it for longer than itself, which ends the app.
#[inline]
pub(crate) fn set_answered(token: u32) {
    with_running(|thread| {
        assert!(
            thread.token.get() == token && !thread.answered.replace(true),
            "another handler's request was answered"
        );
    });
}

static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &WAKER),
    |data| wake(data.addr() as u32),
    |data| wake(data.addr() as u32),
    |_| {},
);

/// `start`'s values: the request is taken; no thread is free; it is answered as the record says. `complete` has the first and the last.
const TAKEN: i32 = 0;
const NO_THREAD: i32 = 1;
#[cfg(target_arch = "wasm32")]
const ANSWERED: i32 = 2;

#[repr(C, align(16))]
struct Slot<const BYTES: usize>(UnsafeCell<MaybeUninit<[u8; BYTES]>>);

/// The memory of all threads of an instance: all zero at first, so that it takes no room in a module.
pub struct Slots<const BYTES: usize, const THREADS: usize> {
    table: Table<[Thread; THREADS]>,
    slots: [Slot<BYTES>; THREADS],
}

#[cfg(target_arch = "wasm32")]
// SAFETY: a module without atomics has one thread of execution.
unsafe impl<const BYTES: usize, const THREADS: usize> Sync for Slots<BYTES, THREADS> {}

/// The bytes that the future of a handler takes.
pub const fn handler_bytes<S: 'static, F: Future<Output: Into<Response>>>(_: fn(Request, &'static S) -> F) -> usize {
    size_of::<F>()
}

/// The bytes that the future of an event handler takes.
pub const fn event_handler_bytes<S: 'static, F: Future<Output: Into<Response>>>(
    _: fn(Request, crate::DeviceEvent, &'static S) -> F,
) -> usize {
    size_of::<F>()
}

/// The largest of all.
pub const fn largest(bytes: &[usize]) -> usize {
    let mut largest = 1;
    let mut index = 0;
    while index < bytes.len() {
        if bytes[index] > largest {
            largest = bytes[index];
        }
        index += 1;
    }
    largest
}

/// Polls the future in a slot; drops it where it has finished.
///
/// # Safety
/// `slot` holds a live `F`, which this call ends where it returns `Ready`.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn poll_slot<F: Future<Output: Into<Response>>>(slot: *mut u8, context: &mut Context<'_>) -> Poll<Response> {
    let future = slot.cast::<F>();
    // SAFETY: live by contract, and slots are never moved.
    match unsafe { Pin::new_unchecked(&mut *future) }.poll(context) {
        Poll::Ready(output) => {
            // SAFETY: live, and forgotten by the caller now.
            unsafe { future.drop_in_place() };
            Poll::Ready(output.into())
        }
        Poll::Pending => Poll::Pending,
    }
}

impl<const BYTES: usize, const THREADS: usize> Slots<BYTES, THREADS> {
    /// All threads free.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        assert!(THREADS > 0 && THREADS <= THREADS_MAX, "threads: 1 to 64");
        Slots {
            table: Table { ready: Cell::new(0), taken: Cell::new(0), threads: [const { Thread::new() }; THREADS] },
            slots: [const { Slot(UnsafeCell::new(MaybeUninit::uninit())) }; THREADS],
        }
    }

    /// Starts a handler on a free thread and runs it until it waits or ends. Returns the ABI's value of `start`.
    #[inline]
    pub fn start<F: Future<Output: Into<Response>>>(&'static self, token: u32, make: impl FnOnce(Request) -> F) -> i32 {
        const { assert!(size_of::<F>() <= BYTES && align_of::<F>() <= SLOT_ALIGNMENT, "the future fits its slot") };
        let taken = self.table.taken.get();
        let index = (!taken).trailing_zeros();
        if index >= THREADS as u32 {
            return NO_THREAD;
        }
        self.table.taken.set(taken | 1 << index);
        let thread = &self.table.threads[index as usize];
        thread.token.set(token);
        thread.answered.set(false);
        thread.number.set(index);
        let entered = Entered::new(&self.table);
        entered.run(thread);
        #[cfg(target_arch = "wasm32")]
        record::open(token);
        let slot = self.slots[index as usize].0.get().cast::<u8>();
        // SAFETY: the slot is free, large enough and aligned (checked above).
        unsafe { slot.cast::<F>().write(make(Request::new(token))) };
        // SAFETY: just written.
        let polled = unsafe { poll_slot::<F>(slot, &mut Context::from_waker(&waker(index))) };
        #[cfg(target_arch = "wasm32")]
        record::close();
        let taken = match polled {
            #[cfg(target_arch = "wasm32")]
            Poll::Ready(response) => {
                if self.free(index) {
                    record::answer(response);
                    ANSWERED
                } else {
                    TAKEN
                }
            }
            #[cfg(not(target_arch = "wasm32"))]
            Poll::Ready(response) => {
                self.finish(index, token, response);
                TAKEN
            }
            Poll::Pending => {
                thread.lifecycle.set(Some(&LifecycleOf::<F>::LIFECYCLE));
                TAKEN
            }
        };
        self.run_ready(&entered);
        taken
    }

    /// What a thread waited for has happened. Returns the ABI's value of `complete`.
    pub fn complete(&'static self, wait: u32, result: i64) -> i32 {
        let entered = Entered::new(&self.table);
        let table: &Table = &self.table;
        let (thread, bit) = record_of(table, wait);
        assert!(thread.taken.get() & bit != 0 && thread.done.get() & bit == 0, "completed, but nobody waits");
        if thread.abandoned.get() & bit != 0 {
            thread.abandoned.set(thread.abandoned.get() & !bit);
            thread.taken.set(thread.taken.get() & !bit);
            return TAKEN;
        }
        thread.results[wait as usize % WAITS_MAX].set(result);
        let done = thread.done.get() | bit;
        thread.done.set(done);
        let gathering = thread.gathering.get();
        if gathering & bit != 0 && gathering & !done != 0 {
            return TAKEN;
        }
        let index = wait >> 16;
        let ended = self.poll_thread(&entered, index);
        // Others that it woke answer by the import: the record has room for one.
        self.run_ready(&entered);
        let Some(response) = ended else { return TAKEN };
        #[cfg(target_arch = "wasm32")]
        if self.free(index) {
            record::answer_to(thread.token.get(), response);
            return ANSWERED;
        }
        #[cfg(not(target_arch = "wasm32"))]
        self.finish(index, thread.token.get(), response);
        TAKEN
    }

    /// Polls a thread; the response of a handler that has ended, whose thread is still taken.
    #[inline]
    fn poll_thread(&'static self, entered: &Entered, index: u32) -> Option<Response> {
        let thread = &self.table.threads[index as usize];
        // A wake can come for a thread that has ended since.
        let lifecycle = thread.lifecycle.get()?;
        entered.run(thread);
        let slot = self.slots[index as usize].0.get().cast::<u8>();
        // SAFETY: `lifecycle` is set exactly while the slot holds a live future of its type.
        match unsafe { (lifecycle.poll)(slot, &mut Context::from_waker(&waker(index))) } {
            Poll::Ready(response) => {
                thread.lifecycle.set(None);
                Some(response)
            }
            Poll::Pending => None,
        }
    }

    /// Frees a thread whose handler has ended; whether its request is still to be answered.
    #[inline]
    fn free(&self, index: u32) -> bool {
        self.table.taken.set(self.table.taken.get() & !(1 << index));
        !self.table.threads[index as usize].answered.get()
    }

    #[inline]
    fn finish(&self, index: u32, token: u32, response: Response) {
        if self.free(index) {
            sys::respond(token, response.status, response.result);
        }
    }

    #[inline]
    fn run_ready(&'static self, entered: &Entered) {
        if self.table.ready.get() != 0 {
            self.run_all_ready(entered);
        }
    }

    #[cold]
    #[inline(never)]
    fn run_all_ready(&'static self, entered: &Entered) {
        loop {
            let ready = self.table.ready.get();
            if ready == 0 {
                return;
            }
            self.table.ready.set(ready & (ready - 1));
            let index = ready.trailing_zeros();
            if let Some(response) = self.poll_thread(entered, index) {
                self.finish(index, self.table.threads[index as usize].token.get(), response);
            }
        }
    }

    /// Drops the futures of all threads that wait: natively, when an instance ends.
    ///
    /// # Safety
    /// No import will use local memory of these futures any more, and the slots are not used afterwards.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) unsafe fn drop_threads(&self) {
        for (thread, slot) in self.table.threads.iter().zip(&self.slots) {
            if let Some(lifecycle) = thread.lifecycle.take() {
                // SAFETY: set exactly while the slot holds a live future of its type.
                unsafe { (lifecycle.drop)(slot.0.get().cast()) };
            }
        }
    }
}

#[inline]
fn waker(index: u32) -> ManuallyDrop<Waker> {
    // SAFETY: the functions of `WAKER` take any data, from any execution thread, and own nothing.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(core::ptr::without_provenance(index as usize), &WAKER)) })
}

/// The response of SPU-OS' side of the SDK to a handler number that the app does not have.
pub fn refuse(token: u32) -> i32 {
    sys::respond(token, Error::Refused.code() as u32, 0);
    0
}

/// Answers an event that the app does not care for.
pub fn ignore_event(token: u32) -> i32 {
    sys::respond(token, 0, 0);
    0
}
