//! What the processes have prepared on this SPU.
//!
//! What always holds: all plans together have [`TOTAL_BYTES_MAX`] and [`PLANS_MAX`] at most; a plan that is being run stays; where there is no more
//! room, the process with most bytes loses the one that was used longest ago.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::wire::Plan;

/// Most plans.
const PLANS_MAX: usize = 64;
/// Most bytes of all plans, as they were sent.
const TOTAL_BYTES_MAX: usize = 192 << 10;
const _: () = assert!(crate::wire::PLAN_BYTES_MAX * 2 <= TOTAL_BYTES_MAX);

struct Entry {
    number: u32,
    process: u32,
    used: u64,
    bytes: usize,
    plan: Arc<Plan>,
}

/// All plans of an SPU.
pub struct Plans {
    entries: RefCell<Vec<Entry>>,
    last: Cell<u32>,
    uses: Cell<u64>,
}

impl Plans {
    /// None.
    pub const fn new() -> Plans {
        Plans { entries: RefCell::new(Vec::new()), last: Cell::new(0), uses: Cell::new(0) }
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    /// Keeps a plan of a process that was sent as so many bytes; its number, or `None` where all else is being run.
    pub fn keep(&self, process: u32, plan: Plan, bytes: usize) -> Option<u32> {
        let mut entries = self.entries.borrow_mut();
        let taken = |entries: &[Entry]| entries.iter().map(|entry| entry.bytes).sum::<usize>();
        while entries.len() >= PLANS_MAX || taken(&entries) + bytes > TOTAL_BYTES_MAX {
            // What a process has, the new plan included.
            let has = |of: u32| {
                let own = entries.iter().filter(|entry| entry.process == of).map(|entry| entry.bytes);
                own.sum::<usize>() + if of == process { bytes } else { 0 }
            };
            let free = entries.iter().enumerate().filter(|(_, entry)| Arc::strong_count(&entry.plan) == 1);
            let (index, _) = free.max_by_key(|(_, entry)| (has(entry.process), u64::MAX - entry.used))?;
            entries.swap_remove(index);
        }
        entries.try_reserve(1).ok()?;
        let mut number = self.last.get();
        loop {
            number = number.wrapping_add(1);
            if number != 0 && !entries.iter().any(|entry| entry.number == number) {
                break;
            }
        }
        self.last.set(number);
        entries.push(Entry { number, process, used: self.next_use(), bytes, plan: Arc::new(plan) });
        Some(number)
    }

    /// The plan of that number, if it is this process'.
    pub fn get(&self, process: u32, number: u32) -> Option<Arc<Plan>> {
        let used = self.next_use();
        let mut entries = self.entries.borrow_mut();
        let entry = entries.iter_mut().find(|entry| entry.number == number && entry.process == process)?;
        entry.used = used;
        Some(entry.plan.clone())
    }

    /// Gives a plan up; runs of it go on.
    pub fn release(&self, process: u32, number: u32) {
        self.entries.borrow_mut().retain(|entry| entry.number != number || entry.process != process);
    }
}
