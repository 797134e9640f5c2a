//! Requests to file systems (`ioctl`): those that change a file are the kernel's, when all files that they name have been given back.

use crate::memory;
use crate::process::by_kernel;
use crate::real;
use libc::{c_int, c_ulong, c_void};

/// Where a request has the descriptors of other files than the one that it is made of.
enum Others {
    None,
    /// The argument is one.
    Argument,
    /// In what the argument points to, so many bytes from its start.
    At(&'static [usize]),
    /// One each in a list of ranges.
    Ranges,
}

/// Requests that share, move, free, add or attribute a file's blocks. docs/direct-ways.md says what each comes to.
const CHANGING: [(c_ulong, Others); 18] = [
    (0x4004_9409, Others::Argument),     // FICLONE
    (0x4020_940d, Others::At(&[0])),     // FICLONERANGE
    (0xc018_9436, Others::Ranges),       // FIDEDUPERANGE
    (0x4008_6602, Others::None),         // FS_IOC_SETFLAGS
    (0x401c_5820, Others::None),         // FS_IOC_FSSETXATTR
    (0x4030_5828, Others::None),         // FS_IOC_RESVSP
    (0x4030_5829, Others::None),         // FS_IOC_UNRESVSP
    (0x4030_582a, Others::None),         // FS_IOC_RESVSP64
    (0x4030_582b, Others::None),         // FS_IOC_UNRESVSP64
    (0x4030_5839, Others::None),         // FS_IOC_ZERO_RANGE
    (0x4080_6685, Others::None),         // FS_IOC_ENABLE_VERITY
    (0xc028_660f, Others::At(&[4])),     // EXT4_IOC_MOVE_EXT
    (0x6609, Others::None),              // EXT4_IOC_MIGRATE
    (0x6611, Others::None),              // EXT4_IOC_SWAP_BOOT
    (0xc0c0_586d, Others::At(&[8, 16])), // XFS_IOC_SWAPEXT
    (0x4028_5881, Others::At(&[0])),     // XFS_IOC_EXCHANGE_RANGE
    (0x8058_5882, Others::None),         // XFS_IOC_START_COMMIT
    (0x4058_5883, Others::At(&[0])),     // XFS_IOC_COMMIT_RANGE
];
/// `struct file_dedupe_range`: the number of its ranges, the first of them, and how far one is from the next.
const RANGE_COUNT: usize = 16;
const RANGE_FIRST: usize = 24;
const RANGE_BYTES: usize = 32;

/// A number of the argument, where it is there: what is not is the kernel's to refuse.
fn number<T: Copy>(argument: c_ulong, at: usize) -> Option<T> {
    let place = (argument as *const c_void).wrapping_byte_add(at);
    // SAFETY: its memory is there.
    memory::is_there(place, size_of::<T>(), false).then(|| unsafe { place.cast::<T>().read_unaligned() })
}

fn others(others: &Others, argument: c_ulong) -> Vec<c_int> {
    let at = |at: &usize| number::<c_int>(argument, *at);
    match others {
        Others::None => Vec::new(),
        Others::Argument => vec![argument as c_int],
        Others::At(places) => places.iter().filter_map(at).collect(),
        Others::Ranges => {
            let count = number::<u16>(argument, RANGE_COUNT).unwrap_or(0);
            (0..usize::from(count)).filter_map(|index| at(&(RANGE_FIRST + index * RANGE_BYTES))).collect()
        }
    }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    let real = real!(ioctl: (c_int, c_ulong, c_ulong) -> c_int);
    // SAFETY: the caller's; an argument that it did not give is not looked at.
    let real = || unsafe { real(descriptor, request, argument) };
    let Some((_, more)) = CHANGING.iter().find(|(changing, _)| *changing == request) else { return real() };
    let mut all = others(more, argument);
    all.push(descriptor);
    by_kernel(&all, real)
}
