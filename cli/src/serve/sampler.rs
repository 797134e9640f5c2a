//! Samples the device's thread for profiles of apps: a timer of that thread's processor time sends it a signal, and the signal's handler notes which
//! compiled functions are on the stack, by their frame pointers.
//!
//! What always holds:
//! - Without a profile there is neither timer nor handler at work: the device runs as it does in a program that cannot profile.
//! - The handler allocates nothing, takes no lock and leaves `errno` alone. It reads memory only through frame pointers of compiled functions,
//!   which it has checked to lie on the stack above it.
//! - One device of the process is sampled at a time. What the handler notes is read by the thread that it interrupts, and by no other.
//!
//! The timer counts processor time, so that a thread that sleeps is not woken. It interrupts system calls seldom, which all go on (`SA_RESTART`, and EINTR is
//! taken for what it is everywhere).

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use willow_device::profile::{Sampler, running};

/// Frames of a stack that are noted, the innermost.
const FRAMES_MAX: usize = 64;
/// Samples that are kept until they are read: some seconds of one busy thread.
const SAMPLES_MAX: usize = 2048;
/// How far above the stack pointer a frame may lie: a guest's stack, and what is between.
const STACK_BYTES_MAX: usize = 512 << 10;

/// A sample.
#[derive(Clone, Copy)]
struct Sample {
    spu: u16,
    frames: u16,
    addresses: [usize; FRAMES_MAX],
}

/// What the handler writes.
struct Ring {
    samples: Box<[UnsafeCell<Sample>]>,
    /// Samples that are there.
    count: AtomicUsize,
    lost: AtomicU64,
    code: Range<usize>,
}

// SAFETY: the handler and who reads run on one thread, and the handler writes only places from `count` on, which nobody reads.
unsafe impl Sync for Ring {}
// SAFETY: as above; it is made on that thread too.
unsafe impl Send for Ring {}

/// The ring of the thread that is sampled; null: none is.
static RING: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());
/// Somebody samples.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Samples the thread that starts it.
#[derive(Default)]
pub struct ThreadSampler {
    under_way: Option<UnderWay>,
}

struct UnderWay {
    timer: Timer,
    /// Never freed while the timer is there.
    ring: Box<Ring>,
}

/// A timer of the kernel's.
struct Timer(libc::timer_t);

// SAFETY: it is a number that the kernel gave this process, written as a pointer.
unsafe impl Send for Timer {}

/// Instruction, frame and stack pointer of what a signal interrupted.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize, usize) {
    let at = |register: i32| context.uc_mcontext.gregs[register as usize] as usize;
    (at(libc::REG_RIP), at(libc::REG_RBP), at(libc::REG_RSP))
}

/// Instruction, frame and stack pointer of what a signal interrupted.
#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize, usize) {
    let machine = &context.uc_mcontext;
    (machine.pc as usize, machine.regs[29] as usize, machine.sp as usize)
}

/// Of other processors nothing is known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn registers(_: &libc::ucontext_t) -> (usize, usize, usize) {
    (0, 0, 0)
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(spu) = running() else { return };
    let ring = RING.load(Ordering::Acquire);
    // SAFETY: `ThreadSampler::stop` takes the ring out on this thread, and frees it later; so it lives while the handler runs.
    let Some(ring) = (unsafe { ring.as_ref() }) else { return };
    let index = ring.count.load(Ordering::Relaxed);
    let Some(place) = ring.samples.get(index) else {
        ring.lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: the kernel hands a handler with SA_SIGINFO the context of what it interrupted.
    let (instruction, mut frame, stack) = registers(unsafe { &*context.cast::<libc::ucontext_t>() });
    // SAFETY: nobody else has a place from `count` on (see `Ring`).
    let sample = unsafe { &mut *place.get() };
    (sample.spu, sample.frames) = (spu, 0);
    if ring.code.contains(&instruction) {
        sample.addresses[0] = instruction;
        let mut frames = 1;
        while frames < FRAMES_MAX {
            if frame.wrapping_sub(stack) >= STACK_BYTES_MAX || !frame.is_multiple_of(size_of::<usize>()) {
                break;
            }
            // SAFETY: the code that this frame pointer belongs to is a compiled function, and so is all further in: its frame pointer is its caller's or its
            // own, and a frame begins with the caller's frame pointer and the return address.
            let [caller, back] = unsafe { *(frame as *const [usize; 2]) };
            if !ring.code.contains(&back) || caller <= frame {
                break;
            }
            // The call, not what follows it.
            sample.addresses[frames] = back - 1;
            frames += 1;
            frame = caller;
        }
        sample.frames = frames as u16;
    }
    ring.count.store(index + 1, Ordering::Release);
}

/// What the system said.
fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Has the signal's handler in its place. It stays there: it does nothing without a ring.
fn set_handler() -> Result<(), String> {
    // SAFETY: a zeroed sigaction is one without flags and with an empty mask; the handler has the type that SA_SIGINFO asks for and does only what
    // handlers may.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(system("the signal's handler")) }
}

impl Timer {
    /// One that counts this thread's processor time and sends it SIGPROF.
    fn new(period_ns: u64) -> Result<Timer, String> {
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: a zeroed sigevent is a valid one, of which the fields that SIGEV_THREAD_ID asks for are set.
        let made = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGPROF;
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer)
        };
        if made != 0 {
            return Err(system("a timer"));
        }
        let timer = Timer(timer);
        let period = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (period_ns % 1_000_000_000) as libc::c_long,
        };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer is there, and the times are on this stack.
        match unsafe { libc::timer_settime(timer.0, 0, &times, std::ptr::null_mut()) } {
            0 => Ok(timer),
            _ => Err(system("a timer's period")),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was made, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

impl Sampler for ThreadSampler {
    fn start(&mut self, code: Range<usize>, period_ns: u64) -> Result<(), String> {
        if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            return Err("this program does not know the stacks of this machine's processor".to_owned());
        }
        if self.under_way.is_some() || TAKEN.swap(true, Ordering::AcqRel) {
            return Err("another profile is under way in this process".to_owned());
        }
        let begin = || {
            let empty = Sample { spu: 0, frames: 0, addresses: [0; FRAMES_MAX] };
            let samples = (0..SAMPLES_MAX).map(|_| UnsafeCell::new(empty)).collect();
            let ring = Box::new(Ring { samples, count: AtomicUsize::new(0), lost: AtomicU64::new(0), code });
            RING.store((&raw const *ring).cast_mut(), Ordering::Release);
            set_handler()?;
            Ok(UnderWay { timer: Timer::new(period_ns)?, ring })
        };
        match begin() {
            Ok(under_way) => {
                self.under_way = Some(under_way);
                Ok(())
            }
            Err(why) => {
                RING.store(std::ptr::null_mut(), Ordering::Release);
                TAKEN.store(false, Ordering::Release);
                Err(why)
            }
        }
    }

    fn take(&mut self, each: &mut dyn FnMut(u16, &[usize])) {
        let Some(UnderWay { ring, .. }) = &self.under_way else { return };
        // What comes meanwhile is of no app, since none runs, and so is not noted.
        let count = ring.count.load(Ordering::Acquire);
        for place in &ring.samples[..count] {
            // SAFETY: the handler writes places from `count` on alone.
            let sample = unsafe { &*place.get() };
            each(sample.spu, &sample.addresses[..sample.frames.into()]);
        }
        ring.count.store(0, Ordering::Release);
    }

    fn lost(&self) -> u64 {
        self.under_way.as_ref().map_or(0, |under_way| under_way.ring.lost.swap(0, Ordering::Relaxed))
    }

    fn stop(&mut self) {
        let Some(UnderWay { timer, ring }) = self.under_way.take() else { return };
        // First the timer; a signal of it that is still to come finds no ring.
        drop(timer);
        RING.store(std::ptr::null_mut(), Ordering::Release);
        drop(ring);
        TAKEN.store(false, Ordering::Release);
    }
}

impl Drop for ThreadSampler {
    fn drop(&mut self) {
        self.stop();
    }
}
