//! The file system: a folder with one file in it.
//!
//! What always holds: each thread of the session serves one request at a time, from the kernel's message to the answer, so that
//! requests under way are bounded by the threads; the mount goes when the session ends.

use crate::disk::Disk;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, Session, SessionACL, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use willow_host::HreError;

/// Name of the file.
pub const FILE_NAME: &str = "disk";
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Attributes never change.
const VALID: Duration = Duration::from_secs(3600);
/// Most bytes that the kernel writes at once.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way beside those that somebody waits for.
const BACKGROUND_MAX: u16 = 64;
/// Most threads.
pub const THREADS_MAX: usize = 64;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Requests served at the same time, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Writes are refused.
    pub read_only: bool,
    /// Other users see the mount as well.
    pub allow_other: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions { threads: 8, read_only: false, allow_other: false }
    }
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel's FUSE is not there.
    #[error("{0}: FUSE is not there (modprobe fuse; in a container, pass the device in)")]
    NoFuse(String),
    /// The folder.
    #[error("cannot mount at {path}: {source}")]
    Mount {
        /// The folder.
        path: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// A value.
    #[error("{0}")]
    Option(String),
}

/// The mount, until it is run and ends.
pub struct Mounted {
    session: Session<Files>,
    path: PathBuf,
}

impl Mounted {
    /// Mounts a disk at an empty folder. Requests are driven by `runtime`, which has threads of its own.
    pub fn new(disk: Arc<Disk>, folder: &Path, options: &MountOptions, runtime: Handle) -> Result<Self, MountError> {
        if options.threads == 0 || options.threads > THREADS_MAX {
            return Err(MountError::Option(format!("{} threads: must be 1 to {THREADS_MAX}", options.threads)));
        }
        let failed = |source| MountError::Mount { path: folder.display().to_string(), source };
        if let Err(error) = std::fs::File::open("/dev/fuse")
            && error.kind() == io::ErrorKind::NotFound
        {
            return Err(MountError::NoFuse("/dev/fuse".to_owned()));
        }
        let path = folder.canonicalize().map_err(failed)?;
        if !path.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("willow".to_owned()),
            MountOption::Subtype("willow".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
            if options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads);
        // A queue of its own for each thread.
        config.clone_fd = true;
        let files = Files {
            disk,
            runtime,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            made: SystemTime::now(),
            read_only: options.read_only,
        };
        let session = Session::new(files, &path, &config).map_err(failed)?;
        Ok(Mounted { session, path })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until somebody unmounts it.
    pub fn run(self) -> Result<(), MountError> {
        let path = self.path.display().to_string();
        self.session.run().map_err(|source| MountError::Mount { path, source })
    }
}

/// Unmounts; an error where it is in use. `at_once`: it leaves the tree of files now, and ends when nobody uses it any more.
pub fn unmount(path: &Path, at_once: bool) -> io::Result<()> {
    let flags = if at_once { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        // Not root: the program that may, where it is installed.
        Err(rustix::io::Errno::PERM) => {
            let mut command = std::process::Command::new("fusermount3");
            command.arg("-u").args(at_once.then_some("-z")).arg("--").arg(path);
            let output = command.output()?;
            if output.status.success() {
                return Ok(());
            }
            Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// What an endpoint's error is to a program.
fn errno(error: &HreError) -> Errno {
    match error {
        HreError::OutOfRange | HreError::Full => Errno::ENOSPC,
        // The device had no place for it, for longer than it was asked again.
        error if error.is_busy() => Errno::EAGAIN,
        HreError::NotPermitted => Errno::EACCES,
        HreError::Namespace { .. } => Errno::ENXIO,
        _ => Errno::EIO,
    }
}

/// The folder and the file.
struct Files {
    disk: Arc<Disk>,
    runtime: Handle,
    uid: u32,
    gid: u32,
    made: SystemTime,
    read_only: bool,
}

impl Files {
    fn attributes(&self, inode: u64) -> FileAttr {
        let is_file = inode == FILE;
        let size = if is_file { self.disk.bytes() } else { 0 };
        let writable = if self.read_only { 0 } else { 0o200 };
        FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o400 | writable } else { 0o500 },
            nlink: if is_file { 1 } else { 2 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: self.disk.block_bytes(),
            flags: 0,
        }
    }

    /// Does a request to its end, on this thread.
    fn wait<T>(&self, what: &str, request: impl Future<Output = Result<T, HreError>>) -> Result<T, Errno> {
        self.runtime.block_on(request).map_err(|error| {
            tracing::warn!(%error, "{what} failed");
            errno(&error)
        })
    }
}

fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Smaller limits of the kernel are as good.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.add_capabilities(fuser::InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && name == FILE_NAME {
            reply.entry(&VALID, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        match inode.0 {
            ROOT | FILE => reply.attr(&VALID, &self.attributes(inode.0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // The file is as large as the namespace, and belongs to whoever mounted it. Times are of no meaning here.
        let other_size = size.is_some_and(|size| inode.0 != FILE || size != self.disk.bytes());
        if other_size || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&VALID, &self.attributes(inode.0));
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match inode.0 {
            // Not cached: other hosts write to the namespace as well.
            FILE => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES),
            ROOT => reply.error(Errno::EISDIR),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.wait("a read", self.disk.read(offset, size as usize)) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // O_SYNC holds O_DSYNC's bit.
        let durable = flags.0 & rustix::fs::OFlags::DSYNC.bits() as i32 != 0;
        match self.wait("a write", self.disk.write(offset, data, durable)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _request: &Request, _inode: INodeNo, _file: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Closing a descriptor: nothing is held back here.
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _inode: INodeNo, _file: FileHandle, _data: bool, reply: ReplyEmpty) {
        empty(reply, self.wait("a flush", self.disk.flush()));
    }

    fn fsyncdir(&self, _request: &Request, _inode: INodeNo, _file: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        use rustix::fs::FallocateFlags as Mode;
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.disk.bytes());
        let mode = Mode::from_bits_retain(mode as u32);
        let done = if mode.contains(Mode::PUNCH_HOLE) {
            self.wait("a discard", self.disk.zero(offset, length, true))
        } else if mode.contains(Mode::ZERO_RANGE) && (inside || mode.contains(Mode::KEEP_SIZE)) {
            self.wait("a zeroing", self.disk.zero(offset, length, false))
        } else if mode.difference(Mode::KEEP_SIZE).is_empty() && inside {
            // All of the file has its place already.
            Ok(())
        } else {
            Err(if inside { Errno::EOPNOTSUPP } else { Errno::ENOSPC })
        };
        empty(reply, done);
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, _file: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode.0 != ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (ROOT, FileType::Directory, "."),
            (ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, FILE_NAME),
        ];
        for (place, (inode, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(inode), place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let block = self.disk.block_bytes();
        reply.statfs(self.disk.bytes() / u64::from(block.max(1)), 0, 0, 2, 0, block, 255, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_no_place_is_no_media_error() {
        assert_eq!(errno(&HreError::Refused).code(), Errno::EAGAIN.code());
        assert_eq!(errno(&HreError::Media).code(), Errno::EIO.code());
    }
}
