//! Ends of threads that nobody else looks at.

use std::thread::JoinHandle;

/// Waits for a thread. Its panic goes on here, so that whoever ends it cannot take it for an orderly end; where this thread panics already,
/// the message is all.
pub(crate) fn ended(thread: JoinHandle<()>) {
    if let Err(panic) = thread.join()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_panic_goes_on_where_the_thread_is_waited_for() {
        ended(std::thread::spawn(|| ()));
        let panics = || std::thread::spawn(|| std::panic::panic_any(7));
        let panic = catch_unwind(|| ended(panics())).expect_err("it goes on");
        assert_eq!(panic.downcast_ref(), Some(&7));
        // In the midst of another panic it is that one which goes on.
        struct Waits(Option<JoinHandle<()>>);
        impl Drop for Waits {
            fn drop(&mut self) {
                self.0.take().into_iter().for_each(ended);
            }
        }
        let panic = std::thread::spawn(move || {
            let _waits = Waits(Some(panics()));
            std::panic::panic_any(8);
        });
        assert_eq!(panic.join().expect_err("it panics").downcast_ref(), Some(&8));
    }
}
