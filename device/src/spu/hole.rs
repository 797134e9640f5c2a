//! What tests plant into SPU-OS, and what they see of it: only in builds for tests.

use super::os::Machine;

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
    /// An app is told an end twice.
    WakesTwice,
    /// The token of another app's request is as good as one's own.
    TakesOthersTokens,
}

/// How full the tables of SPU-OS are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Requests of hosts.
    pub transfers: usize,
    /// Requests at SPUs.
    pub activities: usize,
    /// Operations that handlers wait for.
    pub groups: usize,
    /// Ends of operations that users' apps have been promised.
    pub waits: u64,
    /// Messages that are put together.
    pub messages: usize,
    /// Upcalls that are not answered.
    pub upcalls: usize,
    /// Operations of the store.
    pub operations: usize,
    /// DMAs that are parked.
    pub parked: usize,
    /// DMAs that wait for a place among the operations of the store.
    pub in_line: usize,
    /// Events that are to come, under a model of time.
    pub events: usize,
    /// Handlers that sleep.
    pub sleeping: usize,
    /// Activities in the background.
    pub background: u64,
    /// Subscriptions to upcalls.
    pub subscriptions: usize,
}

impl Machine {
    /// Plants a weakness, for good.
    pub(crate) fn plant(&mut self, hole: Hole) {
        self.hole = Some(hole);
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables {
            transfers: self.bridge.transfers.len(),
            activities: self.held.activities,
            groups: self.held.groups,
            waits: self.waits.taken(),
            messages: self.held.messages,
            upcalls: self.upcalls.len(),
            operations: self.media.in_flight(),
            parked: self.parked(),
            in_line: self.line.len(),
            events: self.events.held(),
            sleeping: self.events.alarms(),
            background: self.backgrounds.taken(),
            subscriptions: self.subscriptions.len(),
        }
    }
}
