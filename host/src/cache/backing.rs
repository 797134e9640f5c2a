//! The file or block device behind a cache.
//!
//! What always holds: what tells one file from another ([`Backing::identity`]) is no other file's later, also where that has its number; a file that is
//! as it was has the same stamp, and one that was written since has another, as far as its file system's times tell. A disk is told from another that has
//! its name later by what the kernel says of it, where that says anything.

use caching_host::wire::{PATH_BYTES_MAX, Stamp};
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A file or block device that is open.
#[derive(Debug)]
pub struct Backing {
    file: File,
    /// It may be written by this.
    pub is_writable: bool,
    /// It is a block device: root's affair, and its times tell nothing.
    pub is_device: bool,
    /// Its identity is its own, also after the machine has started anew: a file, or a disk of which the kernel tells a number, name or file.
    pub is_told: bool,
    /// Its length when it was opened.
    pub bytes: u64,
    /// Its path at that time.
    pub path: PathBuf,
    /// Which file it is.
    pub identity: [u8; 24],
}

/// Mixes words to one (FNV-1a over bytes): equal files have equal ones.
fn mixed(words: &[u64], bytes: &[u8]) -> u64 {
    let all = words.iter().flat_map(|word| word.to_le_bytes()).chain(bytes.iter().copied());
    all.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn three(words: [u64; 3]) -> [u8; 24] {
    let mut bytes = [0; 24];
    words.iter().zip(bytes.chunks_exact_mut(8)).for_each(|(word, to)| to.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// What tells a disk from others, under `/sys/dev/block/MAJOR:MINOR`: of itself, and where it is a partition of the disk that it is on.
const OF_DISKS: [&str; 8] = [
    "wwid",
    "device/wwid",
    "device/serial",
    "dm/uuid",
    "loop/backing_file",
    "../wwid",
    "../device/wwid",
    "../device/serial",
];
/// What tells partitions of a disk from each other.
const OF_PARTITIONS: [&str; 2] = ["partition", "start"];
/// Most bytes of one of these.
const TOLD_MAX: u64 = 4096;

/// What the kernel tells of a block device, and whether that tells it from others.
fn told_of(device: u64) -> (Vec<u8>, bool) {
    let folder = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let (mut told, mut is_told) = (Vec::new(), false);
    for (at, name) in OF_DISKS.iter().chain(&OF_PARTITIONS).enumerate() {
        let mut bytes = Vec::new();
        let read = File::open(format!("{folder}/{name}")).and_then(|file| file.take(TOLD_MAX).read_to_end(&mut bytes));
        let bytes = bytes.trim_ascii();
        if read.is_ok() && !bytes.is_empty() {
            is_told |= at < OF_DISKS.len();
            told.extend_from_slice(name.as_bytes());
            told.push(0);
            told.extend_from_slice(bytes);
            told.push(0);
        }
    }
    (told, is_told)
}

impl Backing {
    /// Of a descriptor, in its access mode. The error is a sentence.
    pub fn of(file: File) -> Result<Backing, String> {
        let system_said = |error: rustix::io::Errno| error.to_string();
        let flags = rustix::fs::fcntl_getfl(&file).map_err(system_said)?;
        let is_writable = match flags & OFlags::RWMODE {
            _ if flags.contains(OFlags::PATH) => return Err("its descriptor is a mere path (O_PATH)".to_owned()),
            OFlags::RDONLY => false,
            OFlags::RDWR if flags.contains(OFlags::APPEND) => {
                return Err("it is open for appending, and a cache writes anywhere".to_owned());
            }
            OFlags::RDWR => true,
            _ => return Err("its descriptor does not read".to_owned()),
        };
        let stat = rustix::fs::fstat(&file).map_err(system_said)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|e| e.to_string())?;
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(format!("its path has more than {PATH_BYTES_MAX} bytes"));
        }
        let path_sum = mixed(&[], path.as_os_str().as_bytes());
        let (is_device, is_told, bytes, identity) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                if stat.st_nlink == 0 {
                    return Err("it has no name any more".to_owned());
                }
                let which = crate::agent::which_file(file.as_fd())
                    .ok_or("its file system tells neither handles nor when files were made")?;
                (false, true, stat.st_size as u64, three([stat.st_dev, stat.st_ino, mixed(&[], which.as_bytes())]))
            }
            FileType::BlockDevice => {
                let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(system_said)?;
                let (told, is_told) = told_of(stat.st_rdev);
                (true, is_told, bytes, three([u64::MAX, bytes, mixed(&[path_sum], &told)]))
            }
            _ => return Err("it is neither a file nor a block device".to_owned()),
        };
        if bytes == 0 {
            return Err("it is empty: a cache does not make a file longer".to_owned());
        }
        Ok(Backing { file, is_writable, is_device, is_told, bytes, path, identity })
    }

    /// What it is like now; zeroes: nobody can tell.
    pub fn stamp(&self) -> io::Result<Stamp> {
        if self.is_device {
            return Ok(Stamp::default());
        }
        let stat = rustix::fs::fstat(&self.file)?;
        let ns = |seconds: i64, ns: u64| (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(ns);
        let times = (ns(stat.st_mtime, stat.st_mtime_nsec), ns(stat.st_ctime, stat.st_ctime_nsec));
        Ok(three([times.0, times.1, stat.st_size as u64]))
    }

    /// Reads a range; zeroes past the end.
    pub fn read(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut into = vec![0; bytes];
        let wanted = (self.bytes.saturating_sub(offset)).min(bytes as u64) as usize;
        let mut done = 0;
        while done < wanted {
            match self.file.read_at(&mut into[done..wanted], offset + done as u64) {
                // It was cut meanwhile.
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(into)
    }

    /// Writes a range, as far as the file goes.
    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let wanted = (self.bytes.saturating_sub(offset)).min(from.len() as u64) as usize;
        self.file.write_all_at(&from[..wanted], offset)
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
