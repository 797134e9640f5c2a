//! What could move, free or share a file's blocks: by a descriptor, and by the file's path. docs/direct-ways.md lists them with the kernel's
//! functions; a test compares the two.

use super::{BYTES, World, check, ioctl, move_to, truncate, writable};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Ways that would end the file system for everybody, where root may: tests of what an administrator does have them.
pub const NOT_AS_ROOT: [&str; 6] = ["SHUTDOWN", "FIFREEZE", "RESIZE_FS", "GROUP_EXTEND", "GROUP_ADD", "FSGROWFSDATA"];
/// Ways that the kernel refuses while the file is open for writing: they are tried alone by a descriptor that reads.
pub const ONLY_READING: [&str; 1] = ["ENABLE_VERITY"];

/// Programs that only do something where there is something to be done.
pub const FOR_PIECES: [&str; 2] = ["e4defrag", "xfs_fsr"];

/// Ways by a descriptor: name, and what is done.
pub type By = (&'static str, fn(&World, &File) -> Result<()>);

/// `struct xfs_flock64`: type and whence 0, start, length.
fn space(descriptor: &File, request: u64) -> Result<()> {
    ioctl(descriptor.as_raw_fd(), request, &mut [0, 0, 8192, 0, 0, 0])
}

/// The attribute as it is: root may take it off, and is trusted not to.
fn immutable(file: &File) -> u64 {
    let mut flags = [0];
    ioctl(file.as_raw_fd(), 0x8008_6601, &mut flags).map_or(0, |()| flags[0] & 0x10)
}

fn allocate(file: &File, flags: FallocateFlags, at: u64) -> Result<()> {
    Ok(rustix::fs::fallocate(file, flags, at, 8192)?)
}

/// A new shared mapping, which is left there.
fn map(file: &File, rights: libc::c_int) -> Result<*mut libc::c_void> {
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(at) }
}

/// Writes by a mapping, and takes it away. The file may not be written by it any more (SIGBUS): a child finds that out.
pub fn store(at: *mut libc::c_void) -> Result<()> {
    let mut status = 0;
    // SAFETY: mapped for writing by the caller, and used by nobody else; the child does no more than write there.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            at.cast::<u8>().write_bytes(1, BYTES);
            libc::_exit(i32::from(libc::msync(at, BYTES, libc::MS_SYNC) != 0));
        }
        check(i64::from(child))?;
        check(i64::from(libc::waitpid(child, &raw mut status, 0)))?;
        check(i64::from(libc::munmap(at, BYTES)))?;
    }
    if status == 0 { Ok(()) } else { Err(Error::other(format!("the child that writes ended with {status:#x}"))) }
}

/// Another file, which holds the same bytes.
fn twin(world: &World) -> Result<File> {
    let file = world.spare()?;
    file.write_all_at(&[5; BYTES], 0)?;
    file.sync_all()?;
    Ok(file)
}

fn dedupe(from: &File, into: &File) -> Result<()> {
    let mut request = [0, 4096, 1, into.as_raw_fd() as u64, 0, 0, 0];
    ioctl(from.as_raw_fd(), 0xc018_9436, &mut request)?;
    match request[6] as i32 {
        0 => Ok(()),
        status => Err(Error::from_raw_os_error(status.abs())),
    }
}

/// What `quotactl` does to the quota of users on the file system that this is on.
fn quota(file: &File, what: u64) -> Result<()> {
    // Of the kernel's format with 64 bits (QFMT_VFS_V1), in an inode that has no name.
    let (nothing, format) = (std::ptr::null_mut::<u8>(), 4);
    // SAFETY: no memory.
    check(unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), what << 8, format, nothing) })
}

pub const BY_DESCRIPTOR: [By; 64] = [
    ("MOVE_EXT as original", |world, file| move_to(&world.spare()?, file.as_raw_fd())),
    ("MOVE_EXT as donor", |world, file| move_to(file, world.spare()?.as_raw_fd())),
    ("SWAP_BOOT", |_, file| ioctl(file.as_raw_fd(), 0x6611, &mut [0])),
    ("MIGRATE", |_, file| ioctl(file.as_raw_fd(), 0x6609, &mut [0])),
    ("ALLOC_DA_BLKS", |_, file| ioctl(file.as_raw_fd(), 0x660c, &mut [0])),
    ("CLEAR_ES_CACHE", |_, file| ioctl(file.as_raw_fd(), 0x6628, &mut [0])),
    ("SETFLAGS without extents", |_, file| ioctl(file.as_raw_fd(), 0x4008_6602, &mut [immutable(file)])),
    ("SETFLAGS journaled", |_, file| ioctl(file.as_raw_fd(), 0x4008_6602, &mut [0x8_4000 | immutable(file)])),
    ("FSSETXATTR realtime", |_, file| {
        // The realtime flag, and the immutable one as it is.
        ioctl(file.as_raw_fd(), 0x401c_5820, &mut [1 | immutable(file) >> 1, 0, 0, 0])
    }),
    ("ENABLE_VERITY", |_, file| {
        ioctl(file.as_raw_fd(), 0x4080_6685, &mut [1 | 1 << 32, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }),
    ("ftruncate to less", |_, file| file.set_len(0)),
    ("ftruncate to more", |_, file| file.set_len(BYTES as u64 * 2)),
    ("fallocate", |_, file| allocate(file, FallocateFlags::empty(), BYTES as u64)),
    ("fallocate and keep the size", |_, file| allocate(file, FallocateFlags::KEEP_SIZE, BYTES as u64)),
    ("punch", |_, file| allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0)),
    ("collapse", |_, file| allocate(file, FallocateFlags::COLLAPSE_RANGE, 0)),
    ("insert", |_, file| allocate(file, FallocateFlags::INSERT_RANGE, 0)),
    ("zero", |_, file| allocate(file, FallocateFlags::ZERO_RANGE, 0)),
    ("unshare", |_, file| allocate(file, FallocateFlags::UNSHARE_RANGE, 0)),
    ("write zeroes", |_, file| allocate(file, FallocateFlags::from_bits_retain(0x80), 0)),
    ("FICLONE into", |world, file| {
        // SAFETY: two descriptors, no memory.
        check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), 0x4004_9409, world.spare()?.as_raw_fd()) }))
    }),
    ("FICLONE from", |world, file| {
        // SAFETY: as above.
        check(i64::from(unsafe { libc::ioctl(world.spare()?.as_raw_fd(), 0x4004_9409, file.as_raw_fd()) }))
    }),
    ("FICLONERANGE into", |world, file| {
        ioctl(file.as_raw_fd(), 0x4020_940d, &mut [world.spare()?.as_raw_fd() as u64, 0, 4096, 0])
    }),
    ("dedupe into", |world, file| dedupe(&twin(world)?, file)),
    ("dedupe from", |world, file| dedupe(file, &twin(world)?)),
    ("copy_file_range into", |world, file| {
        Ok(rustix::fs::copy_file_range(world.spare()?, Some(&mut 0), file, Some(&mut 0), 4096).map(|_| ())?)
    }),
    ("splice into", |_, file| {
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(&[1; 4096])?;
        let (from, into, nothing) = (reader.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: two descriptors, no memory.
        check(unsafe { libc::splice(from, nothing, into, nothing, 4096, 0) } as i64)
    }),
    ("sendfile into", |world, file| Ok(rustix::fs::sendfile(file, world.spare()?, Some(&mut 0), 4096).map(|_| ())?)),
    ("pwrite", |_, file| file.write_all_at(&[1; 4096], 0)),
    ("shared mapping that writes", |_, file| {
        let at = map(file, libc::PROT_READ | libc::PROT_WRITE)?;
        store(at)
    }),
    ("mprotect of a shared mapping", |_, file| {
        let at = map(file, libc::PROT_READ)?;
        // SAFETY: mapped above.
        check(i64::from(unsafe { libc::mprotect(at, BYTES, libc::PROT_READ | libc::PROT_WRITE) }))?;
        store(at)
    }),
    ("/proc/self/fd for writing", |_, file| {
        truncate(&writable(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?)
    }),
    ("SWAPEXT", |world, file| {
        let mut request = [0; 24];
        let (target, other) = (file.as_raw_fd() as u64, world.spare()?);
        request[1..5].copy_from_slice(&[target, other.as_raw_fd() as u64, 0, BYTES as u64]);
        ioctl(file.as_raw_fd(), 0xc0c0_586d, &mut request)
    }),
    ("EXCHANGE_RANGE into", |world, file| {
        ioctl(file.as_raw_fd(), 0x4028_5881, &mut [world.spare()?.as_raw_fd() as u64, 0, 0, BYTES as u64, 0])
    }),
    ("EXCHANGE_RANGE from", |world, file| {
        ioctl(world.spare()?.as_raw_fd(), 0x4028_5881, &mut [file.as_raw_fd() as u64, 0, 0, BYTES as u64, 0])
    }),
    ("SWAPEXT with the file's times", |world, file| {
        // As xfs_fsr has it: the times of bulkstat, which are those of stat.
        let (mut request, stat, other) = ([0; 24], file.metadata()?, world.spare()?);
        request[1..5].copy_from_slice(&[file.as_raw_fd() as u64, other.as_raw_fd() as u64, 0, BYTES as u64]);
        request[14..18]
            .copy_from_slice(&[stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec()].map(|it| it as u64));
        ioctl(file.as_raw_fd(), 0xc0c0_586d, &mut request)
    }),
    ("RESVSP", |_, file| ioctl(file.as_raw_fd(), 0x4030_5828, &mut [0, BYTES as u64, 8192, 0, 0, 0])),
    ("FSSETXATTR extent size", |_, file| {
        let mut now = [0u64; 4];
        ioctl(file.as_raw_fd(), 0x801c_581f, &mut now)?;
        // The flag of an extent size, and the size.
        now[0] = (now[0] & 0xffff_ffff) | 0x800 | 8192 << 32;
        ioctl(file.as_raw_fd(), 0x401c_5820, &mut now)
    }),
    ("SETFLAGS with extents", |_, file| ioctl(file.as_raw_fd(), 0x4008_6602, &mut [0x8_0000 | immutable(file)])),
    ("OPEN_BY_HANDLE", |world, file| {
        let mut handle = [0u64; 4];
        let mut length = 0u32;
        let words = |descriptor: RawFd, flags: u64, from: *const u64, into: u64, length: *mut u32, by: u64| {
            // struct xfs_fsop_handlereq: descriptor, path, flags, handle and its length, result and its length.
            [descriptor as u64, 0, flags, from as u64, by, into, length as u64]
        };
        let into = handle.as_mut_ptr() as u64;
        let mut to_handle = words(file.as_raw_fd(), 0, std::ptr::null(), into, &raw mut length, 0);
        ioctl(file.as_raw_fd(), 0xc038_586a, &mut to_handle)?;
        let mut open = words(-1, libc::O_RDWR as u64, handle.as_ptr(), 0, std::ptr::null_mut(), u64::from(length));
        let folder = File::open(world.path.parent().unwrap_or(Path::new("/")))?;
        // SAFETY: the structure of 56 bytes, and the handle that the kernel has just written.
        let opened = unsafe { libc::ioctl(folder.as_raw_fd(), 0xc038_586b, open.as_mut_ptr()) };
        check(i64::from(opened))?;
        // SAFETY: opened above.
        truncate(&unsafe { File::from_raw_fd(opened) })
    }),
    ("FREE_EOFBLOCKS", |_, file| {
        let mut request = [0u64; 16];
        request[0] = 1;
        ioctl(file.as_raw_fd(), 0x8080_583a, &mut request)
    }),
    ("SCRUB with repair", |_, file| {
        // struct xfs_scrub_metadata: the file's data fork, to be repaired.
        let mut request = [0u64; 8];
        request[0] = 12 | 1 << 32;
        ioctl(file.as_raw_fd(), 0xc040_583c, &mut request)
    }),
    ("FITRIM", |_, file| ioctl(file.as_raw_fd(), 0xc018_5879, &mut [0, u64::MAX, 0])),
    ("SHUTDOWN", |_, file| ioctl(file.as_raw_fd(), 0x8004_587d, &mut [2])),
    ("FIFREEZE", |_, file| ioctl(file.as_raw_fd(), 0xc004_5877, &mut [0])),
    ("RESIZE_FS", |_, file| ioctl(file.as_raw_fd(), 0x4008_6610, &mut [1 << 14])),
    ("FSGROWFSDATA", |_, file| ioctl(file.as_raw_fd(), 0x4010_586e, &mut [1 << 14, 25])),
    ("GROUP_EXTEND", |_, file| ioctl(file.as_raw_fd(), 0x4008_6607, &mut [1 << 14])),
    ("GROUP_ADD", |_, file| ioctl(file.as_raw_fd(), 0x4028_6608, &mut [1, 0, 0, 0, 1 << 14])),
    ("CHECKPOINT", |_, file| ioctl(file.as_raw_fd(), 0x4004_662b, &mut [0])),
    ("PRECACHE_EXTENTS", |_, file| ioctl(file.as_raw_fd(), 0x6612, &mut [0])),
    ("SETVERSION", |_, file| ioctl(file.as_raw_fd(), 0x4008_6604, &mut [77])),
    ("SET_ENCRYPTION_POLICY", |_, file| ioctl(file.as_raw_fd(), 0x800c_6613, &mut [0x0004_0100, 0])),
    ("SETFLAGS append only", |_, file| {
        let mut now = [0];
        ioctl(file.as_raw_fd(), 0x8008_6601, &mut now)?;
        ioctl(file.as_raw_fd(), 0x4008_6602, &mut [(now[0] & 0xffff_ffff) | 0x20])?;
        // It is as it was, so that the next one finds it so.
        ioctl(file.as_raw_fd(), 0x4008_6602, &mut now)
    }),
    ("FSSETXATTR project", |_, file| {
        let mut now = [0u64; 4];
        ioctl(file.as_raw_fd(), 0x801c_581f, &mut now)?;
        now[1] = (now[1] & 0xffff_ffff) | 5 << 32;
        ioctl(file.as_raw_fd(), 0x401c_5820, &mut now)
    }),
    ("quota off", |_, file| quota(file, 0x80_0003)),
    ("quota on", |_, file| quota(file, 0x80_0002)),
    ("MADV_REMOVE", |_, file| {
        let at = map(file, libc::PROT_READ)?;
        // SAFETY: mapped above, and used by nobody else; no memory of this process is freed by it.
        let done = check(i64::from(unsafe { libc::madvise(at, BYTES, libc::MADV_REMOVE) }));
        // SAFETY: as above.
        check(i64::from(unsafe { libc::munmap(at, BYTES) }))?;
        done
    }),
    ("COMMIT_RANGE into", |world, file| {
        // struct xfs_commit_range: the other file, both offsets, length, flags, and what START_COMMIT has noted of the file.
        let (mut request, other) = ([0u64; 11], world.spare()?);
        ioctl(file.as_raw_fd(), 0x8058_5882, &mut request)?;
        request[..5].copy_from_slice(&[other.as_raw_fd() as u64, 0, 0, BYTES as u64, 0]);
        ioctl(file.as_raw_fd(), 0x4058_5883, &mut request)
    }),
    ("COMMIT_RANGE from", |world, file| {
        let (mut request, other) = ([0u64; 11], world.spare()?);
        ioctl(other.as_raw_fd(), 0x8058_5882, &mut request)?;
        request[..5].copy_from_slice(&[file.as_raw_fd() as u64, 0, 0, BYTES as u64, 0]);
        ioctl(other.as_raw_fd(), 0x4058_5883, &mut request)
    }),
    ("FREESP", |_, file| space(file, 0x4030_5825)),
    ("ALLOCSP", |_, file| space(file, 0x4030_5824)),
    ("UNRESVSP", |_, file| space(file, 0x4030_582b)),
    ("ZERO_RANGE", |_, file| space(file, 0x4030_5839)),
];

/// The same by the file's path.
pub type ByPath = (&'static str, fn(&World) -> Result<()>);

/// Ways by the file's path.
pub const BY_PATH: [ByPath; 18] = [
    ("open for writing", |world| truncate(&writable(&world.path)?)),
    ("open and truncate", |world| OpenOptions::new().write(true).truncate(true).open(&world.path).map(|_| ())),
    ("truncate", |world| {
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        // SAFETY: a path that ends with a zero byte.
        check(i64::from(unsafe { libc::truncate(path.as_ptr(), 0) }))
    }),
    ("truncate to more", |world| {
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        // SAFETY: as above.
        check(i64::from(unsafe { libc::truncate(path.as_ptr(), 1 << 20) }))
    }),
    ("unlink", |world| std::fs::remove_file(&world.path)),
    ("rename away", |world| std::fs::rename(&world.path, world.beside(".away"))),
    ("rename over", |world| {
        world.spare()?;
        std::fs::rename(world.beside(".spare"), &world.path)
    }),
    ("rename and exchange", |world| {
        world.spare()?;
        let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        Ok(rustix::fs::renameat_with(here, world.beside(".spare"), here, &world.path, flags)?)
    }),
    ("link", |world| std::fs::hard_link(&world.path, world.beside(".link"))),
    ("chmod", |world| std::fs::set_permissions(&world.path, std::os::unix::fs::PermissionsExt::from_mode(0o666))),
    ("chown", |world| std::os::unix::fs::chown(&world.path, None, Some(rustix::process::getgid().as_raw() + 1))),
    ("set the times", |world| {
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
            last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
        };
        Ok(rustix::fs::utimensat(rustix::fs::CWD, &world.path, &times, rustix::fs::AtFlags::empty())?)
    }),
    ("swap file", |world| {
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        // SAFETY: as above. It has no header of a swap file: where it comes to that, the file was opened.
        check(i64::from(unsafe { libc::swapon(path.as_ptr(), 0) }))
    }),
    ("set an attribute", |world| {
        Ok(rustix::fs::setxattr(&world.path, "user.a", &[1; 4000], rustix::fs::XattrFlags::empty())?)
    }),
    ("file_setattr", |world| {
        // Linux 6.17: struct file_attr has 24 bytes. Its flags, and that it is left out of dumps.
        const NUMBERS: [libc::c_long; 2] = [468, 469];
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        let mut now = [0u64; 3];
        for (step, number) in NUMBERS.into_iter().enumerate() {
            now[0] |= if step == 1 { 0x80 } else { 0 };
            // SAFETY: a path that ends with a zero byte, and a structure that is as long as is said.
            check(unsafe { libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), now.as_mut_ptr(), 24, 0) })?;
        }
        Ok(())
    }),
    ("open by handle", |world| {
        let mut handle = [0u64; 18];
        handle[0] = 128;
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        let (at, number) = (handle.as_mut_ptr(), libc::SYS_name_to_handle_at);
        let mut mount = 0i32;
        // SAFETY: room for a handle of 128 bytes behind its head.
        check(unsafe { libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), at, &raw mut mount, 0) })?;
        let folder = File::open(world.path.parent().unwrap_or(Path::new("/")))?;
        // SAFETY: the handle that the kernel has just written.
        let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, folder.as_raw_fd(), at, libc::O_RDWR) };
        check(opened)?;
        // SAFETY: opened above.
        truncate(&unsafe { File::from_raw_fd(opened as RawFd) })
    }),
    ("e4defrag", |world| program("e4defrag", world)),
    ("xfs_fsr", |world| program("xfs_fsr", world)),
];

/// Runs one; that it is not there is an error as well.
fn program(name: &str, world: &World) -> Result<()> {
    let nothing = std::process::Stdio::null;
    let mut command = std::process::Command::new(name);
    match command.arg(&world.path).stdout(nothing()).stderr(nothing()).status()?.success() {
        true => Ok(()),
        false => Err(Error::other("fails")),
    }
}
