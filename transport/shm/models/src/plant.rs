//! Mistakes, each at one place of one end. The models must catch every one of them.

/// Which end of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Submits.
    Host,
    /// Answers.
    Device,
}

/// What can be planted in an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The first word of an entry is published without release.
    RelaxedPublish,
    /// The other end's entry is looked at without acquire.
    RelaxedLook,
    /// What was taken is shown without release.
    RelaxedShow,
    /// What the other end has taken is read without acquire.
    RelaxedHead,
    /// No fence between publishing and looking whether the other end sleeps.
    NoFenceBeforeRinging,
    /// No fence between saying that this end sleeps and its last look.
    NoFenceBeforeSleeping,
    /// The first word of an entry is written before the others.
    FirstWordFirst,
    /// An entry is shown as taken before it was read.
    HeadBeforeEntry,
    /// This end says that it sleeps after its last look.
    FlagAfterLook,
    /// Completions are published before their commands' slots are shown as taken (of the device alone).
    LateHead,
}

/// A mistake, and the end that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plant(pub Side, pub Mistake);
