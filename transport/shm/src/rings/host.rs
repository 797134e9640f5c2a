//! The host's end of the rings: submits commands, takes completions. Without a wait and without a system call.
//!
//! What always holds: no more commands are under way than the endpoint's depth, so that neither ring can overflow; positions
//! are counted here, and what the device says of its own is only used to wait for it.

use super::Words;
use crate::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_SUBMISSION_HEAD, AT_VIEW_VERSION, COMPLETION_WORDS, Call,
    Command, Completion, Layout,
};
use std::sync::atomic::Ordering;

/// The device wrote a completion that is none, or one that no command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCompletion;

/// The host's end.
pub struct HostRings<W> {
    words: W,
    layout: Layout,
    depth: u32,
    /// Slots written, completions taken, commands under way.
    submitted: u64,
    taken: u64,
    under_way: u32,
    /// The device's submission head, as it was seen last.
    seen_head: u64,
    shown_head: u64,
}

impl<W: Words> HostRings<W> {
    /// Around fresh memory; `depth` commands may be under way.
    pub fn new(words: W, layout: Layout, depth: u32) -> Self {
        HostRings { words, layout, depth, submitted: 0, taken: 0, under_way: 0, seen_head: 0, shown_head: 0 }
    }

    /// The memory.
    #[inline]
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Where everything lies in it.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Completions taken so far: where the next one will be.
    #[inline]
    pub fn position(&self) -> u64 {
        self.taken
    }

    /// Commands under way.
    #[inline]
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// True where `slots` more slots and one more command fit.
    #[inline]
    pub fn has_room(&mut self, slots: u32) -> bool {
        if self.under_way >= self.depth {
            return false;
        }
        let entries = u64::from(self.layout.entries);
        if self.submitted + u64::from(slots) - self.seen_head > entries {
            let shown = self.words.load_half(AT_SUBMISSION_HEAD, Ordering::Acquire);
            // Never past what was submitted, whatever the device says.
            let passed = shown.wrapping_sub(self.seen_head as u32);
            self.seen_head = (self.seen_head + u64::from(passed)).min(self.submitted);
        }
        self.submitted + u64::from(slots) - self.seen_head <= entries
    }

    /// Submits a command with the RPCs behind its first; false where there is no room now. [`HostRings::must_ring`] is to be
    /// asked after the last of a batch.
    #[inline]
    pub fn submit(&mut self, command: &Command, calls: &[Call]) -> bool {
        let slots = command.slots(calls);
        if !self.has_room(slots) {
            return false;
        }
        let (words, layout, position) = (&self.words, &self.layout, self.submitted);
        command.encode(layout.turn(position), calls, |number, slot| {
            let at = layout.slot(position + u64::from(number));
            for (index, word) in slot.iter().enumerate().skip(1) {
                words.store(at + index * 8, *word, Ordering::Relaxed);
            }
            words.store(at, slot[0], Ordering::Release);
        });
        self.submitted += u64::from(slots);
        self.under_way += 1;
        true
    }

    /// True where the device sleeps, and has to be rung for what was submitted.
    #[inline]
    pub fn must_ring(&self) -> bool {
        // The slots are written before the flag is read; the device sets the flag before it looks at the slots for the last
        // time.
        self.words.fence();
        self.words.load_half(AT_DEVICE_ASLEEP, Ordering::Relaxed) != 0
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub fn completion(&mut self) -> Result<Option<Completion>, NoCompletion> {
        let at = self.layout.completion(self.taken);
        let mut words = [0; COMPLETION_WORDS];
        words[0] = self.words.load(at, Ordering::Acquire);
        if words[0] as u32 != self.layout.turn(self.taken) {
            return Ok(None);
        }
        for (index, word) in words.iter_mut().enumerate().skip(1) {
            *word = self.words.load(at + index * 8, Ordering::Relaxed);
        }
        let completion = Completion::decode(&words).ok_or(NoCompletion)?;
        self.under_way = self.under_way.checked_sub(1).ok_or(NoCompletion)?;
        self.taken += 1;
        // The device needs to know now and then: it keeps a completion free for each command that it takes.
        if self.under_way == 0 || self.taken - self.shown_head >= u64::from(self.layout.entries / 4) {
            self.show_head();
        }
        Ok(Some(completion))
    }

    /// Tells the device what was taken.
    #[inline]
    pub fn show_head(&mut self) {
        if self.shown_head != self.taken {
            self.shown_head = self.taken;
            self.words.store_half(AT_COMPLETION_HEAD, self.taken as u32, Ordering::Release);
        }
    }

    /// True where a completion waits to be taken.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let word = self.words.load(self.layout.completion(self.taken), Ordering::Acquire);
        word as u32 == self.layout.turn(self.taken)
    }

    /// Asks the device to ring at the next completion. To be followed by a look at the ring before sleeping.
    pub fn ask_for_doorbell(&self) {
        self.words.store_half(AT_HOST_ASLEEP, 1, Ordering::Relaxed);
        self.words.fence();
    }

    /// Grows when namespaces or apps may have changed.
    #[inline]
    pub fn view_version(&self) -> u32 {
        self.words.load_half(AT_VIEW_VERSION, Ordering::Acquire)
    }
}
