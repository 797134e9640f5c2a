//! What the program has: a few places for descriptors, a few names, and dice.

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

pub const SLOTS: usize = 6;
/// Bytes of most files.
pub const FILE_BYTES: u64 = 200_000;
/// Most bytes of most calls.
const CALL_BYTES: u64 = 20_000;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the signals that come of writing past a limit.
pub fn count_signals() {
    // SAFETY: the handler adds to a number.
    unsafe { libc::signal(libc::SIGXFSZ, note_signal as extern "C" fn(c_int) as libc::sighandler_t) };
}

/// Takes a number that a shell can name, so that no file of the program has it but when it wants it to.
pub fn reserve() {
    // SAFETY: a string, and numbers.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(nothing, SHELLS);
        libc::close(nothing);
    }
}

pub const SHELLS: c_int = 9;

pub struct World {
    pub folder: String,
    pub slots: [c_int; SLOTS],
    seed: u64,
    state: u64,
    step: u64,
    /// Who speaks.
    pub say_as: &'static str,
}

pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

pub fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

impl World {
    pub fn new(folder: &str, seed: u64) -> World {
        World { folder: folder.to_owned(), slots: [-1; SLOTS], seed, state: seed, step: 0, say_as: "" }
    }

    /// Throws the dice of a step.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        self.state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.wrapping_mul(0xd134_2543_de82_ef95);
        let _ = (self.random(), self.random());
    }

    pub fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.state;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.random() % end
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn slot(&mut self) -> usize {
        // The first two are open most of the time.
        let all = if self.chance(3) { SLOTS as u64 } else { 2 };
        self.below(all) as usize
    }

    pub fn descriptor(&mut self) -> c_int {
        let slot = self.slot();
        self.slots[slot]
    }

    pub fn offset(&mut self) -> i64 {
        let offset = self.below(FILE_BYTES - CALL_BYTES);
        match self.below(8) {
            0..=2 => (offset & !4095) as i64,
            3 => (FILE_BYTES - self.below(30_000)) as i64,
            _ => offset as i64,
        }
    }

    pub fn bytes(&mut self) -> usize {
        (match self.below(6) {
            0 => 4096 * (1 + self.below(4)),
            1 => self.below(20),
            _ => 1 + self.below(CALL_BYTES),
        }) as usize
    }

    /// Bytes to be written.
    pub fn data(&mut self, bytes: usize) -> Vec<u8> {
        let mut mark = self.random();
        let next = |_| {
            mark = mark.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (mark >> 56) as u8
        };
        (0..bytes).map(next).collect()
    }

    pub fn name(&mut self) -> String {
        format!("f{}", self.below(4))
    }

    pub fn path(&self, name: &str) -> CString {
        CString::new(format!("{}/{name}", self.folder)).expect("a path")
    }

    pub fn open(&mut self, slot: usize, name: &str, flags: c_int) {
        let path = self.path(name);
        self.replace(slot);
        // SAFETY: a string.
        let opened = unsafe { crate::spelled::open(self, &path, flags) };
        self.slots[slot] = opened;
        self.say(&format!("open {slot} {name} {flags:o}"), i64::from(opened.min(0)));
    }

    pub fn replace(&mut self, slot: usize) {
        if self.slots[slot] >= 0 {
            // SAFETY: its own.
            unsafe { crate::spelled::close(self, self.slots[slot]) };
            self.slots[slot] = -1;
        }
    }

    /// Prints what a call returned.
    pub fn say(&self, what: &str, returned: i64) {
        let error = if returned < 0 { errno() } else { 0 };
        let (step, who, signals) = (self.step, self.say_as, SIGNALS.load(Ordering::Relaxed));
        println!("{step} {who} {what}: {returned} errno {error} signals {signals}");
        // Nothing that was left behind is said again.
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = 0 };
    }

    /// The same of a call that read.
    pub fn say_read(&self, what: &str, returned: i64, bytes: &[u8]) {
        self.say(&format!("{what} of {:016x}", hash(bytes)), returned);
    }

    pub fn position(&self, descriptor: c_int) -> i64 {
        // SAFETY: any number will do.
        unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) }
    }

    pub fn say_position(&self, descriptor: c_int) {
        self.say("position", self.position(descriptor));
    }

    pub fn size(&self, descriptor: c_int) -> i64 {
        // SAFETY: filled by the call.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let done = unsafe { libc::fstat(descriptor, &raw mut stat) };
        if done < 0 { -1 } else { stat.st_size }
    }

    /// Prints what there is in the end.
    pub fn end(&mut self) {
        for slot in 0..SLOTS {
            self.say_position(self.slots[slot]);
            self.say("size", self.size(self.slots[slot]));
        }
        self.say_files();
    }

    /// Prints what all files hold.
    pub fn say_files(&mut self) {
        for name in ["f0", "f1", "f2", "f3", "f4"] {
            let path = self.path(name);
            // SAFETY: a string, and a buffer of that size.
            unsafe {
                let opened = libc::open(path.as_ptr(), libc::O_RDONLY);
                let mut all = vec![0_u8; 1 << 20];
                let count = libc::read(opened, all.as_mut_ptr().cast::<c_void>(), all.len());
                self.say_read(&format!("{name} is"), count as i64, &all);
                libc::close(opened);
            }
        }
    }
}

impl World {
    /// The name of the file of a descriptor: the last part of it.
    pub fn name_of_slot(&self, descriptor: c_int) -> String {
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap_or_default();
        link.file_name().map_or_else(|| "none".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}
