//! How imports reach SPU-OS: a call into an app lends it to the app's store, for the time of that call. This is the only place where a
//! store's data point out of the store.
//!
//! What always holds:
//! - the pointer is there while a call into the app runs, on the thread that makes the call, and at no other time, also where the call
//!   unwinds;
//! - whoever lends has SPU-OS exclusively, and does not use it before the call has returned; an import has it exclusively until it returns.
//!
//! A store whose call is suspended belongs to that call, so that nobody can write into its data. What such a store reaches lies beside it: a
//! [`Lender`] lends to the one [`Reach`] that it was made with, from when the call goes on until it is suspended again.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a store's data reach: an `Os` during a call, else nothing.
pub(crate) struct Reach<Os> {
    lent: Option<NonNull<Os>>,
    /// Of a store whose calls may be suspended.
    beside: Option<Arc<AtomicPtr<Os>>>,
    os: PhantomData<fn(&mut Os)>,
}

/// Lends to a store whose calls may be suspended.
pub(crate) struct Lender<Os>(Arc<AtomicPtr<Os>>);

// SAFETY: outside of a call, or of the part of one that goes on, there is no pointer. It ends on the thread that it began on: a call borrows
// the store, and with it this value, from its beginning to its end; a part of one is a call of the closure that `Lender::lend` is handed.
unsafe impl<Os> Send for Reach<Os> {}

/// A store, as far as it holds such a value.
pub(crate) trait Reaching<Os> {
    /// It.
    fn reach(&mut self) -> &mut Reach<Os>;
}

impl<Os> Reach<Os> {
    /// Reaches nothing.
    pub const NOTHING: Reach<Os> = Reach { lent: None, beside: None, os: PhantomData };

    /// For an import: what was lent to the call that it is made in.
    #[inline(always)]
    pub fn get(&mut self) -> Option<&mut Os> {
        // SAFETY: `lend` put the pointer here, holds the `&mut Os` that it came from, and takes the pointer out before it gives that up. It
        // does not use it meanwhile, and `&mut self` lets nobody else have what is returned here.
        self.lent.or_else(|| self.lent_beside()).map(|mut os| unsafe { os.as_mut() })
    }

    /// What a [`Lender`] lends.
    #[cold]
    fn lent_beside(&self) -> Option<NonNull<Os>> {
        NonNull::new(self.beside.as_ref()?.load(Ordering::Relaxed))
    }
}

impl<Os> Lender<Os> {
    /// One, and the only value that it lends to.
    pub fn new() -> (Self, Reach<Os>) {
        let beside = Arc::new(AtomicPtr::new(null_mut()));
        (Lender(beside.clone()), Reach { lent: None, beside: Some(beside), os: PhantomData })
    }

    /// Goes on with a call whose imports reach `os`, until it has ended or is suspended. `call` runs them on this thread.
    pub fn lend<R>(&mut self, os: &mut Os, call: impl FnOnce() -> R) -> R {
        self.0.store(os, Ordering::Relaxed);
        // However it ends.
        let _lent = LentBeside(&self.0);
        call()
    }
}

/// Takes the pointer out again.
struct LentBeside<'a, Os>(&'a AtomicPtr<Os>);

impl<Os> Drop for LentBeside<'_, Os> {
    fn drop(&mut self) {
        self.0.store(null_mut(), Ordering::Relaxed);
    }
}

/// Takes the pointer out again, however the call ends.
struct Lent<'a, Os, S: Reaching<Os>>(&'a mut S, PhantomData<fn(&mut Os)>);

impl<Os, S: Reaching<Os>> Drop for Lent<'_, Os, S> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.reach().lent = None;
    }
}

/// Makes a call into a store whose imports reach `os`.
#[inline(always)]
pub(crate) fn lend<Os, S: Reaching<Os>, R>(store: &mut S, os: &mut Os, call: impl FnOnce(&mut S) -> R) -> R {
    store.reach().lent = Some(NonNull::from(os));
    let lent = Lent(store, PhantomData);
    call(&mut *lent.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store {
        reach: Reach<Vec<u32>>,
        calls: u32,
    }

    impl Reaching<Vec<u32>> for Store {
        fn reach(&mut self) -> &mut Reach<Vec<u32>> {
            &mut self.reach
        }
    }

    fn import(store: &mut Store, word: u32) {
        store.calls += 1;
        store.reach.get().expect("it was lent").push(word);
    }

    #[test]
    fn imports_reach_what_was_lent_to_their_call_and_nothing_afterwards() {
        let mut store = Store { reach: Reach::NOTHING, calls: 0 };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(store.reach.get().is_none());
        let calls = lend(&mut store, &mut first, |store| {
            import(store, 1);
            import(store, 2);
            store.calls
        });
        assert!(store.reach.get().is_none());
        lend(&mut store, &mut second, |store| import(store, 3));
        first.push(4);
        assert_eq!((calls, store.calls, first, second), (2, 3, vec![1, 2, 4], vec![3]));
    }

    #[test]
    fn a_call_that_unwinds_leaves_nothing_in_reach() {
        let mut store = Store { reach: Reach::NOTHING, calls: 0 };
        let mut os = vec![7];
        let call = std::panic::AssertUnwindSafe(|| {
            lend(&mut store, &mut os, |store| {
                import(store, 8);
                std::panic::panic_any("a defect of an import");
            });
        });
        assert!(std::panic::catch_unwind(call).is_err());
        assert!(store.reach.get().is_none());
        assert_eq!(os, [7, 8]);
    }

    #[test]
    fn a_suspended_call_reaches_what_is_lent_when_it_goes_on_and_nothing_meanwhile() {
        let (mut lender, reach) = Lender::new();
        let mut store = Store { reach, calls: 0 };
        let mut first = vec![0];
        assert!(store.reach.get().is_none());
        // The store is within the call from here on, as that of a future is.
        let mut call = move |word: Option<u32>| match word {
            Some(word) => import(&mut store, word),
            None => assert!(store.reach.get().is_none()),
        };
        lender.lend(&mut first, || call(Some(1)));
        call(None);
        first.push(2);
        let unwound = std::panic::AssertUnwindSafe(|| {
            lender.lend(&mut first, || {
                call(Some(3));
                std::panic::panic_any("a defect of an import");
            });
        });
        assert!(std::panic::catch_unwind(unwound).is_err());
        call(None);
        lender.lend(&mut first, || {
            call(Some(4));
            call(Some(5));
        });
        assert_eq!(first, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_store_moves_between_threads_between_calls() {
        let mut store = Store { reach: Reach::NOTHING, calls: 0 };
        let mut os = Vec::new();
        lend(&mut store, &mut os, |store| import(store, 1));
        let (mut store, mut os) = std::thread::spawn(move || {
            lend(&mut store, &mut os, |store| import(store, 2));
            (store, os)
        })
        .join()
        .expect("no defect");
        lend(&mut store, &mut os, |store| import(store, 3));
        assert_eq!(os, [1, 2, 3]);
    }
}
