//! What tests plant into SPU-OS, and what they see of it: only in builds for tests.

use super::os::Machine;
use std::sync::{Condvar, Mutex, PoisonError};

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
    /// A long run makes way for nobody.
    KeepsProcessor,
    /// An app's message to another is the device's own.
    ForgetsOrigin,
    /// A message is on behalf of whichever other endpoint's request the app has at that time.
    MixesOrigins,
    /// Handlers for the kernel, and apps that are not public, are everybody's.
    AdmitsAll,
    /// What is revoked stays permitted.
    KeepsRights,
    /// Whoever answers an upcall is believed.
    BelievesAnswers,
    /// An app's upcalls reach whatever endpoint it names.
    TellsAnybody,
    /// The number of a request that has ended is that of the next one in its place.
    ReusesNumbers,
    /// All SPUs look permissions up in one table.
    SharesPermissions,
    /// Compiling a module whose last bytes are `panics` does so.
    CompilerPanics,
    /// Compiling a module whose last bytes are `waits` takes until [`release_compilers`].
    CompilerWaits,
}

/// Whether compilers may go on that were held up, and who waits for that.
static RELEASED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Compilers that were held up go on, and none is any more.
pub fn release_compilers() {
    *RELEASED.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    RELEASED.1.notify_all();
}

/// Holds a compiler up.
pub(crate) fn wait_for_release() {
    let released = RELEASED.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(RELEASED.1.wait_while(released, |released| !*released));
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
        for spu in &mut self.spus {
            spu.activities.reuses_keys = hole == Hole::ReusesNumbers;
        }
    }

    pub(crate) fn walks(&self) -> u64 {
        self.walks
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables {
            transfers: self.bridge.transfers.len(),
            activities: self.activities(),
            groups: self.spus.iter().map(|spu| spu.groups.len()).sum(),
            waits: self.spus.iter().map(|spu| spu.waits.taken()).sum(),
            messages: self.spus.iter().map(|spu| spu.messages.len()).sum(),
            upcalls: self.bridge.upcalls.len(),
            operations: self.media.in_flight(),
            parked: self.parked(),
            in_line: self.line.len(),
            events: self.events.held(),
            sleeping: self.events.alarms(),
            background: self.spus.iter().map(|spu| spu.backgrounds.taken()).sum(),
            subscriptions: self.bridge.subscriptions.len(),
        }
    }
}
