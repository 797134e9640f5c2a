//! Weaknesses that tests plant into SPU-OS: only in builds for tests.

/// A weakness that somebody planted, which tests of the whole must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hole {
    /// Imports are charged to nobody.
    SkipsMeter,
    /// NV memory is everybody's.
    SkipsPermission,
    /// The end of an RPC is told to nobody.
    ForgetsWake,
    /// Hosts' requests are answered twice.
    AnswersTwice,
    /// What an app that ends had under way keeps its places.
    KeepsPlaces,
}
