//! Bugs that the tests plant, to see that they are caught. No handler ever has one unless a test of this crate asks for it.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Recovery applies what was applied and marked so.
    AppliesTwice,
    /// The coordinator forgets a commit, its own part first, as soon as all are prepared.
    CoordinatorForgets,
    /// The coordinator has parts applied before all others are prepared.
    AppliesBeforeAll,
    /// A part is said to be prepared before it is durable.
    AnswersBeforeFlush,
    /// A part is marked as applied before that is durable.
    MarksBeforeFlush,
    /// A part is never marked as applied.
    NeverMarks,
    /// Recovery believes a head without a look at its data.
    TornData,
    /// Recovery leaves a head where it is whose data are not there.
    KeepsTornHeads,
    /// The right to write is not looked up again when the transaction is committed.
    TrustsOldRights,
    /// A commit does not look whether all writes have come.
    CountsNothing,
    /// A revocation does not wait for what is decided.
    SettlesNothing,
    /// What a process may not write any more is left out.
    LeavesOut,
    /// The app traps when a part is prepared, and when it has been copied to its place. Not a mistake of this app, but what any may come to.
    Traps,
    /// The app traps while it recovers.
    TrapsRecovering,
}

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: core::cell::Cell<Option<Planted>> = const { core::cell::Cell::new(None) };
}

/// Has all instances of this thread of the operating system have that bug from now on.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}

/// Traps where that bug is planted.
#[inline(always)]
pub(crate) fn trap_if_planted(bug: Planted) {
    assert!(!planted(bug), "a planted trap");
}

/// True where that bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Planted) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.get() == Some(bug);
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}
