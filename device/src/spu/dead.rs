//! Instances that have trapped: the last of each app is kept as it was, so that its owner can read a core of it.
//!
//! What always holds:
//! - Nothing enters a dead instance again; its memory is read, piece by piece, and only by who may read the app's memory: its owner and the
//!   host's kernel (the control service asks).
//! - An app has one at most. It goes with the app, and when another instance of that app traps; of a version that replaces the app, or of
//!   a reset, it is still the last trap's.
//! - They take no more than the apps' own memory: that of one instance of each app.

use super::Instance;
use super::autopsy::Autopsy;
use super::os::Machine;
use crate::request::AppNumber;

/// Most memory of an instance that is kept when it has trapped. An FTL's map may be larger: then there is no core of it.
pub const CORE_MEMORY_BYTES_MAX: u64 = 64 << 20;

/// An instance that trapped.
pub(crate) struct Dead {
    /// Which trap of the app it was.
    pub trap: u32,
    pub spu: u16,
    /// The app's version then.
    pub version: String,
    /// Why it ended.
    pub why: String,
    pub autopsy: Autopsy,
    instance: Box<dyn Instance>,
}

impl Dead {
    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> u64 {
        self.instance.memory_bytes()
    }

    /// Some of its memory, as far as there is any.
    pub fn peek(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        self.instance.peek(from, bytes)
    }
}

impl Machine {
    /// An app's instance on an SPU has trapped, and is kept in the place of the one before. Where its code did not trap there is nothing to
    /// keep: it answered what makes no sense, or was ended from outside.
    #[cold]
    pub(super) fn keep_dead(&mut self, number: AppNumber, spu: u16, why: &str) {
        let resident = &mut self.spus[usize::from(spu)].residents[usize::from(number)];
        let Some(mut instance) = resident.instance.take() else { return };
        let Some(autopsy) = instance.autopsy() else { return };
        let Some(app) = self.app(number) else { return };
        let memory_bytes = instance.memory_bytes();
        if memory_bytes > CORE_MEMORY_BYTES_MAX {
            app.push_line(format!("{spu}: [SPU-OS] no core is kept: its memory has {memory_bytes} bytes"));
            return;
        }
        app.dead_count = app.dead_count.wrapping_add(1).max(1);
        let (trap, version) = (app.dead_count, app.version.clone());
        app.dead = Some(Box::new(Dead { trap, spu, version, why: why.to_owned(), autopsy, instance }));
    }
}
