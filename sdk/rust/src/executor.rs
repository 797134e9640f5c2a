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

use core::cell::{Cell, UnsafeCell};
use core::future::Future;
use core::marker::{PhantomData, PhantomPinned};
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
    /// The request that it serves.
    token: Cell<u32>,
    /// Whether the handler has responded before its end.
    answered: Cell<bool>,
    /// Records that belong to an import that has not completed, or whose result was not yet fetched.
    taken: Cell<u16>,
    /// Records whose result is there.
    done: Cell<u16>,
    /// Records whose future is gone: nobody will fetch the result.
    abandoned: Cell<u16>,
    /// Its future's functions; `None` while the thread is free or on its first poll.
    lifecycle: Cell<Option<&'static Lifecycle>>,
    results: [Cell<i64>; WAITS_MAX],
}

impl Thread {
    const fn new() -> Thread {
        Thread {
            token: Cell::new(0),
            answered: Cell::new(false),
            taken: Cell::new(0),
            done: Cell::new(0),
            abandoned: Cell::new(0),
            lifecycle: Cell::new(None),
            results: [const { Cell::new(0) }; WAITS_MAX],
        }
    }
}

/// The threads of one instance.
pub(crate) struct Table<T: ?Sized = [Thread]> {
    /// The thread that runs.
    running: Cell<u32>,
    /// Threads that were woken by another thread, one bit each.
    ready: Cell<u64>,
    /// Threads that are taken, one bit each.
    taken: Cell<u64>,
    threads: T,
}

#[cfg(target_arch = "wasm32")]
mod current {
    use super::{Cell, NonNull, Table};
    struct Current(Cell<Option<NonNull<Table>>>);
    #[cfg(target_feature = "atomics")]
    compile_error!("an SSD App has one thread of execution: build it without the atomics feature");
    // SAFETY: a module without atomics has one thread of execution.
    unsafe impl Sync for Current {}
    static CURRENT: Current = Current(Cell::new(None));
    pub fn get() -> Option<NonNull<Table>> {
        CURRENT.0.get()
    }
    pub fn set(table: Option<NonNull<Table>>) {
        CURRENT.0.set(table);
    }
}
#[cfg(not(target_arch = "wasm32"))]
mod current {
    use super::{Cell, NonNull, Table};
    std::thread_local! {
        static CURRENT: Cell<Option<NonNull<Table>>> = const { Cell::new(None) };
    }
    pub fn get() -> Option<NonNull<Table>> {
        CURRENT.get()
    }
    pub fn set(table: Option<NonNull<Table>>) {
        CURRENT.set(table);
    }
}

/// Calls `with` with the table of the instance that runs, where one does.
#[inline]
fn try_table<R>(with: impl FnOnce(&Table) -> R) -> Option<R> {
    // SAFETY: set by `Entered`, which outlives all that runs under it and takes it away again.
    current::get().map(|table| with(unsafe { table.as_ref() }))
}

#[inline]
fn table<R>(with: impl FnOnce(&Table) -> R) -> R {
    match try_table(with) {
        Some(result) => result,
        None => panic!("an operation of willow-sdk was used outside of a handler"),
    }
}

/// Makes a table the current one; natively until dropped, since other instances run on the same thread of the system.
struct Entered {
    #[cfg(not(target_arch = "wasm32"))]
    before: Option<NonNull<Table>>,
}

impl Entered {
    #[inline]
    fn new(table: &Table) -> Entered {
        let before = current::get();
        // A module has one instance's table, from its first request on.
        if !cfg!(target_arch = "wasm32") || before.is_none() {
            current::set(Some(NonNull::from(table)));
        }
        Entered {
            #[cfg(not(target_arch = "wasm32"))]
            before,
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        current::set(self.before);
    }
}

/// The number of the thread that runs.
#[inline]
pub(crate) fn running() -> u32 {
    table(|table| table.running.get())
}

/// Has a thread polled again before `start` or `complete` returns.
#[inline]
pub(crate) fn wake(thread: u32) {
    try_table(|table| table.ready.set(table.ready.get() | 1 << thread));
}

/// Notes that a request is answered: the running thread's, unless a handler kept it for longer than itself, which ends the app.
#[inline]
pub(crate) fn set_answered(token: u32) {
    table(|table| {
        let thread = &table.threads[table.running.get() as usize];
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

/// An import that may complete later.
pub(crate) trait Operation {
    /// What the handler gets.
    type Output;
    /// Whether the import may use local memory until it completes.
    const LOCAL: bool;
    /// Calls the import.
    fn issue(&mut self, wait: u32) -> Issued<Self::Output>;
    /// Turns `complete`'s result into the output.
    fn completed(&mut self, result: i64) -> Self::Output;
}

/// What came of [`Operation::issue`].
pub(crate) enum Issued<T> {
    /// Finished at once.
    Done(T),
    /// `complete` will come.
    Pending,
}

/// `start`'s values: the request is taken; no thread is free; it is answered as the record says. `complete` has the first and the last.
const TAKEN: i32 = 0;
const NO_THREAD: i32 = 1;
#[cfg(target_arch = "wasm32")]
const ANSWERED: i32 = 2;

const IDLE: u32 = u32::MAX;
const FINISHED: u32 = u32::MAX - 1;

/// The future of an operation: issued when first polled; where the import finishes at once the handler does not wait.
///
/// It may borrow local buffers which an import writes to later, and so must not be dropped while it is pending: an app that
/// does so is ended (operations without local buffers are merely forgotten). Leaking one while it is pending and using its
/// buffer again is the one thing that the types cannot prevent; it takes an allocator and `mem::forget` on purpose.
pub(crate) struct Wait<O: Operation> {
    operation: O,
    /// The wait's number, or [`IDLE`] or [`FINISHED`].
    wait: u32,
    _pinned: PhantomPinned,
}

impl<O: Operation> Wait<O> {
    #[inline]
    pub(crate) fn new(operation: O) -> Wait<O> {
        Wait { operation, wait: IDLE, _pinned: PhantomPinned }
    }
}

impl<O: Operation> Future for Wait<O> {
    type Output = O::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<O::Output> {
        // SAFETY: nothing is moved out of it.
        let this = unsafe { self.get_unchecked_mut() };
        if this.wait == IDLE {
            let wait = next_wait();
            return match this.operation.issue(wait) {
                Issued::Done(output) => {
                    this.wait = FINISHED;
                    Poll::Ready(output)
                }
                Issued::Pending => {
                    begin_wait(wait);
                    this.wait = wait;
                    Poll::Pending
                }
            };
        }
        match end_wait(this.wait) {
            Some(result) => {
                this.wait = FINISHED;
                Poll::Ready(this.operation.completed(result))
            }
            None => Poll::Pending,
        }
    }
}

impl<O: Operation> Drop for Wait<O> {
    #[inline]
    fn drop(&mut self) {
        if self.wait != IDLE && self.wait != FINISHED {
            abandon_wait(self.wait, O::LOCAL);
        }
    }
}

/// A number for a wait of the running thread, not taken yet.
#[inline(always)]
fn next_wait() -> u32 {
    table(|table| {
        let running = table.running.get();
        let record = table.threads.get(running as usize).map_or(u32::MAX, |thread| thread.taken.get().trailing_ones());
        if record >= WAITS_MAX as u32 {
            too_many_waits();
        }
        running << 16 | record
    })
}

#[cold]
fn too_many_waits() -> ! {
    panic!("more than WAITS_MAX operations of one handler are pending");
}

/// The thread and record bit of a wait's number.
fn record(table: &Table, wait: u32) -> (&Thread, u16) {
    match table.threads.get((wait >> 16) as usize) {
        Some(thread) if wait & 0xffff < WAITS_MAX as u32 => (thread, 1 << (wait & 0xffff)),
        _ => panic!("a finished operation was polled, or there is no such wait"),
    }
}

/// Takes a wait's record: `complete` will come.
#[inline(never)]
fn begin_wait(wait: u32) {
    table(|table| {
        let (thread, bit) = record(table, wait);
        thread.taken.set(thread.taken.get() | bit);
    });
}

/// Gives a wait's record back for its result, where that is there.
#[inline(never)]
fn end_wait(wait: u32) -> Option<i64> {
    table(|table| {
        let (thread, bit) = record(table, wait);
        if thread.done.get() & bit == 0 {
            return None;
        }
        thread.done.set(thread.done.get() & !bit);
        thread.taken.set(thread.taken.get() & !bit);
        Some(thread.results[(wait & 0xffff) as usize].get())
    })
}

/// The future of a wait is gone.
#[inline(never)]
fn abandon_wait(wait: u32, local: bool) {
    // Outside of a handler the instance itself is being dropped, after its host has drained its DMAs.
    try_table(|table| {
        let (thread, bit) = record(table, wait);
        if thread.done.get() & bit != 0 {
            thread.done.set(thread.done.get() & !bit);
            thread.taken.set(thread.taken.get() & !bit);
        } else if !local {
            thread.abandoned.set(thread.abandoned.get() | bit);
        } else {
            #[cfg(not(target_arch = "wasm32"))]
            if std::thread::panicking() {
                // The instance has ended and is kept until its DMAs are drained.
                return;
            }
            panic!("an operation with a local buffer was dropped while pending");
        }
    });
}

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
            table: Table {
                running: Cell::new(0),
                ready: Cell::new(0),
                taken: Cell::new(0),
                threads: [const { Thread::new() }; THREADS],
            },
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
        let _entered = Entered::new(&self.table);
        self.table.running.set(index);
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
        self.run_ready();
        taken
    }

    /// What a thread waited for has happened. Returns the ABI's value of `complete`.
    pub fn complete(&'static self, wait: u32, result: i64) -> i32 {
        let _entered = Entered::new(&self.table);
        let table: &Table = &self.table;
        let (thread, bit) = record(table, wait);
        assert!(thread.taken.get() & bit != 0 && thread.done.get() & bit == 0, "completed, but nobody waits");
        if thread.abandoned.get() & bit != 0 {
            thread.abandoned.set(thread.abandoned.get() & !bit);
            thread.taken.set(thread.taken.get() & !bit);
            return TAKEN;
        }
        thread.results[(wait & 0xffff) as usize].set(result);
        thread.done.set(thread.done.get() | bit);
        let index = wait >> 16;
        let ended = self.poll_thread(index);
        // Others that it woke answer by the import: the record has room for one.
        self.run_ready();
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
    fn poll_thread(&'static self, index: u32) -> Option<Response> {
        let thread = &self.table.threads[index as usize];
        // A wake can come for a thread that has ended since.
        let lifecycle = thread.lifecycle.get()?;
        self.table.running.set(index);
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
    fn run_ready(&'static self) {
        if self.table.ready.get() != 0 {
            self.run_all_ready();
        }
    }

    #[cold]
    #[inline(never)]
    fn run_all_ready(&'static self) {
        loop {
            let ready = self.table.ready.get();
            if ready == 0 {
                return;
            }
            self.table.ready.set(ready & (ready - 1));
            let index = ready.trailing_zeros();
            if let Some(response) = self.poll_thread(index) {
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
