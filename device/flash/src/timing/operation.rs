//! Operations with a life: from being submitted to being done.
//!
//! What always holds: an operation is in one place (a queue of its die, a register, the array, suspended); its place in the slab is free
//! again when it is done.

use crate::geometry::{PLANES_MAX, PageKind};

/// What a die has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Sense a page, with so many steps of the ladder, and send it over the bus.
    Read {
        /// Which bit of its cells.
        page: PageKind,
        /// Steps of the ladder of read retries.
        retries: u8,
    },
    /// Take pages from the bus and program them.
    Program {
        /// Which bit of their cells.
        page: PageKind,
    },
    /// Erase blocks.
    Erase,
    /// Sense pages and program them elsewhere in their planes.
    Copyback {
        /// Which bit it is read from.
        from: PageKind,
        /// Which bit it becomes.
        to: PageKind,
    },
}

impl Work {
    /// Reads leave blocks as they are.
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(self, Work::Read { .. })
    }

    /// As it is called in traces.
    pub fn name(self) -> &'static str {
        match self {
            Work::Read { .. } => "read",
            Work::Program { .. } => "program",
            Work::Erase => "erase",
            Work::Copyback { .. } => "copyback",
        }
    }
}

/// What is submitted.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The owner's name for it.
    pub token: u64,
    /// Die.
    pub die: u32,
    /// What to do.
    pub work: Work,
    /// The blocks that it reads or changes, 1 to as many as planes (a copyback: first those that it reads, then as many that it programs).
    pub blocks: &'a [u32],
    /// Bytes on the bus (a copyback: its new spare areas; an erase: none).
    pub bytes: u32,
}

/// An operation in the slab.
#[derive(Clone, Debug)]
pub struct Operation {
    pub token: u64,
    pub work: Work,
    pub die: u32,
    pub bytes: u32,
    /// Order of submission.
    pub sequence: u64,
    pub submitted_ns: u64,
    pub suspensions: u32,
    planes: u8,
    blocks: [u32; PLANES_MAX as usize],
}

impl Operation {
    pub fn new(submission: &Submission<'_>, sequence: u64, submitted_ns: u64) -> Operation {
        let mut blocks = [0; PLANES_MAX as usize];
        blocks[..submission.blocks.len()].copy_from_slice(submission.blocks);
        Operation {
            token: submission.token,
            work: submission.work,
            die: submission.die,
            bytes: submission.bytes,
            sequence,
            submitted_ns,
            suspensions: 0,
            planes: submission.blocks.len() as u8,
            blocks,
        }
    }

    #[inline]
    pub fn blocks(&self) -> &[u32] {
        &self.blocks[..self.planes.into()]
    }

    #[inline]
    pub fn shares_a_block(&self, other: &Operation) -> bool {
        self.blocks().iter().any(|block| other.blocks().contains(block))
    }
}

/// All operations under way, by place.
#[derive(Debug, Default)]
pub struct Slab {
    operations: Vec<Operation>,
    free: Vec<u32>,
}

impl Slab {
    #[inline]
    pub fn insert(&mut self, operation: Operation) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.operations[place as usize] = operation;
                place
            }
            None => {
                self.operations.push(operation);
                (self.operations.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub fn remove(&mut self, place: u32) -> &Operation {
        self.free.push(place);
        &self.operations[place as usize]
    }

    pub fn under_way(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    pub fn clear(&mut self) {
        self.operations.clear();
        self.free.clear();
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Operation;
    #[inline]
    fn index(&self, place: u32) -> &Operation {
        &self.operations[place as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut Operation {
        &mut self.operations[place as usize]
    }
}
