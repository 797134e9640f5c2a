//! A file's attributes, by which the file system itself keeps its blocks where they are while processes have it directly.
//!
//! What always holds: while a file is immutable nobody opens it for writing, and no operation that asks the inode goes on: truncating,
//! preallocating and punching by path, sharing blocks with it, moving it elsewhere, unlink and rename. What was open for writing
//! before still writes, truncates and moves: [`super::lease`] proves that there is no such thing.

use std::os::fd::{AsRawFd, BorrowedFd};

const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
const XFS_IOC_FSGEOMETRY_V1: libc::c_ulong = 0x8070_5864;
/// Attributes of linux/fs.h.
const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;
/// Those with which a file's extents do not hold its bytes, or not always, and why that is.
const UNSUITABLE: [(u32, &str); 6] = [
    (0x4, "it is compressed by the file system (chattr +c)"),
    (0x800, "it is encrypted by the file system"),
    (0x4000, "its data go through the journal (chattr +j)"),
    (0x10_0000, "it is sealed by fs-verity"),
    (0x0200_0000, "it is in directly accessed memory (DAX)"),
    (0x1000_0000, "it is kept inside of its inode (inline data): it must be larger"),
];
/// The same of the extended ones.
const UNSUITABLE_EXTENDED: [(u32, &str); 2] = [
    (0x1, "it is on the file system's realtime device, which is another one"),
    (0x8000, "it is in directly accessed memory (DAX)"),
];
/// In xfs' geometry: blocks can be shared.
const GEOMETRY_REFLINK: u32 = 1 << 20;
/// Types of file systems.
pub const EXT4: u64 = 0xef53;
/// xfs.
pub const XFS: u64 = 0x5846_5342;

/// Permission bits of files that somebody may execute.
pub const EXECUTABLE: u32 = 0o111;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Extended {
    flags: u32,
    rest: [u32; 6],
}

/// `struct xfs_fsop_geom_v1`.
#[repr(C)]
#[derive(Default)]
struct Geometry {
    before: [u64; 11],
    version: i32,
    flags: u32,
    behind: [u64; 2],
}

const _: () = assert!(size_of::<Extended>() == 28 && size_of::<Geometry>() == 112);

fn flags(file: BorrowedFd<'_>) -> std::io::Result<u32> {
    let mut flags: libc::c_ulong = 0;
    // SAFETY: the kernel writes one integer, of at most the size of a long.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS as _, &raw mut flags) } {
        0 => Ok(flags as u32),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What keeps a file as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nobody opens it for writing.
    Immutable,
    /// Nobody opens it for writing but for appending.
    AppendOnly,
    /// Nothing.
    Nothing,
}

/// Puts this guard in the place of whatever guards an open file. Waits while its file system is frozen.
pub fn guard(file: BorrowedFd<'_>, guard: Guard) -> std::io::Result<()> {
    let wanted = match guard {
        Guard::Immutable => IMMUTABLE,
        Guard::AppendOnly => APPEND_ONLY,
        Guard::Nothing => 0,
    };
    change(file, IMMUTABLE | APPEND_ONLY, wanted)
}

/// Makes an open file immutable, or no longer so. Waits while its file system is frozen.
pub fn set_immutable(file: BorrowedFd<'_>, immutable: bool) -> std::io::Result<()> {
    change(file, IMMUTABLE, if immutable { IMMUTABLE } else { 0 })
}

fn change(file: BorrowedFd<'_>, which: u32, to: u32) -> std::io::Result<()> {
    let now = flags(file)?;
    let wanted = now & !which | to;
    if wanted == now {
        return Ok(());
    }
    let wanted = libc::c_ulong::from(wanted);
    // SAFETY: the kernel reads one integer.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS as _, &raw const wanted) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// True where an open file is immutable now, by an agent or otherwise; false where its file system has no attributes.
pub fn is_immutable(file: BorrowedFd<'_>) -> bool {
    matches!(guarded(file), Ok(Guard::Immutable))
}

/// True where an open file is append-only now, by an agent or otherwise.
pub fn is_append_only(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    Ok(flags(file)? & APPEND_ONLY != 0)
}

/// What guards an open file, by its attributes.
pub fn guarded(file: BorrowedFd<'_>) -> std::io::Result<Guard> {
    let now = flags(file)?;
    Ok(match (now & IMMUTABLE, now & APPEND_ONLY) {
        (0, 0) => Guard::Nothing,
        (0, _) => Guard::AppendOnly,
        _ => Guard::Immutable,
    })
}

/// Whether a file is of a kind whose extents are to be relied on, and whether it is immutable. The error is a sentence about the file.
pub fn check(file: BorrowedFd<'_>) -> Result<bool, String> {
    let said = |error| format!("its file system has no attributes ({error})");
    let now = flags(file).map_err(said)?;
    let mut extended = Extended::default();
    // SAFETY: the kernel writes a structure of 28 bytes, which this is.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, &raw mut extended) };
    if done != 0 {
        return Err(said(std::io::Error::last_os_error()));
    }
    let trouble = UNSUITABLE.iter().find(|(flag, _)| now & flag != 0);
    match trouble.or_else(|| UNSUITABLE_EXTENDED.iter().find(|(flag, _)| extended.flags & flag != 0)) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(now & IMMUTABLE != 0),
    }
}

/// Why a file that could be written directly is not: the kernel takes privileges from a file when it is written, lets nobody run what
/// somebody has open for writing, or write what runs (ETXTBSY), and lets an append-only one grow alone. None of that changes while it is
/// immutable.
pub fn check_writing(file: BorrowedFd<'_>) -> Result<(), String> {
    const SET_ID: u32 = 0o6000;
    const SET_USER_ID: u32 = 0o4000;
    let mode = rustix::fs::fstat(file).map_err(|error| error.to_string())?.st_mode;
    let gives = |what: &str| format!("it gives who runs it {what}, which the kernel takes away when it is written");
    if mode & SET_ID != 0 {
        return Err(gives(if mode & SET_USER_ID != 0 {
            "another user (set-user-id)"
        } else {
            "a group (set-group-id)"
        }));
    }
    if mode & EXECUTABLE != 0 {
        let why = "it may be executed (chmod -x), and the kernel keeps those who run a file from those who write it (ETXTBSY)";
        return Err(why.to_owned());
    }
    // A value that has no room is one.
    match rustix::fs::fgetxattr(file, "security.capability", &mut [0; 64][..]) {
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
        Ok(_) | Err(rustix::io::Errno::RANGE) => return Err(gives("capabilities")),
        Err(error) => return Err(format!("whether it gives who runs it capabilities cannot be found out ({error})")),
    }
    match is_append_only(file).map_err(|error| error.to_string())? {
        false => Ok(()),
        true => Err("it is append-only (chattr +a)".to_owned()),
    }
}

/// True where the file system, of this type, can let another file share this one's blocks, which the attribute does not prevent for what
/// is written directly.
pub fn can_share_blocks(file: BorrowedFd<'_>, system: u64) -> bool {
    if system != XFS {
        return system != EXT4;
    }
    let mut geometry = Geometry::default();
    // SAFETY: the kernel writes a structure of 112 bytes, which this is.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, &raw mut geometry) };
    done != 0 || geometry.flags & GEOMETRY_REFLINK != 0
}
