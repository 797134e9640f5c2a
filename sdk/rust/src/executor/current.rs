//! Which instance's table of threads the code that runs belongs to, and which of its threads it is.
//!
//! What always holds: in a module there is one; natively each thread of the operating system has its own.

pub(super) use place::{get, set, set_thread, thread};

#[cfg(target_arch = "wasm32")]
mod place {
    use crate::executor::{Table, Thread};
    use core::cell::Cell;
    use core::ptr::NonNull;

    struct Current<T: ?Sized>(Cell<Option<NonNull<T>>>);
    #[cfg(target_feature = "atomics")]
    compile_error!("an SSD App has one thread of execution: build it without the atomics feature");
    // SAFETY: a module without atomics has one thread of execution.
    unsafe impl<T: ?Sized> Sync for Current<T> {}
    static CURRENT: Current<Table> = Current(Cell::new(None));
    static THREAD: Current<Thread> = Current(Cell::new(None));
    #[inline]
    pub fn get() -> Option<NonNull<Table>> {
        CURRENT.0.get()
    }
    #[inline]
    pub fn set(table: Option<NonNull<Table>>) {
        CURRENT.0.set(table);
    }
    #[inline]
    pub fn thread() -> Option<NonNull<Thread>> {
        THREAD.0.get()
    }
    #[inline]
    pub fn set_thread(thread: Option<NonNull<Thread>>) {
        THREAD.0.set(thread);
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod place {
    use crate::executor::{Table, Thread};
    use core::cell::Cell;
    use core::ptr::NonNull;

    std::thread_local! {
        static CURRENT: Cell<Option<NonNull<Table>>> = const { Cell::new(None) };
        static THREAD: Cell<Option<NonNull<Thread>>> = const { Cell::new(None) };
    }
    #[inline]
    pub fn get() -> Option<NonNull<Table>> {
        CURRENT.get()
    }
    #[inline]
    pub fn set(table: Option<NonNull<Table>>) {
        CURRENT.set(table);
    }
    #[inline]
    pub fn thread() -> Option<NonNull<Thread>> {
        THREAD.get()
    }
    #[inline]
    pub fn set_thread(thread: Option<NonNull<Thread>>) {
        THREAD.set(thread);
    }
}
