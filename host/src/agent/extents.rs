//! Where a file's bytes lie on its block device, from the file system (FIEMAP), and whether that is something to rely on.
//!
//! Invariant: extents that are handed out hold the file's bytes as they are, at block addresses of their own: no delayed, inline,
//! compressed, encrypted, shared or unwritten ones.

use super::EXTENTS_MAX;
use direct_io_host::FileExtent;
use std::os::fd::{AsRawFd, BorrowedFd};

const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
const FIEMAP_FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
/// Extents of one call.
const BATCH: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct RawMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<RawMap>() == 32 + 56 * BATCH);

/// Why an extent is of no use: the flags of linux/fiemap.h.
fn trouble(flags: u32) -> Option<&'static str> {
    let known = [
        (0x0200, "a part of it is kept inside of the inode (inline data): it must be larger"),
        (0x0004, "a part of it has no blocks yet (delayed allocation), and fsync did not change that"),
        (0x0002, "the file system does not say where a part of it is"),
        (0x0080, "it is encrypted by the file system"),
        (0x0008, "it is compressed or otherwise encoded by the file system"),
        (0x2000, "it shares blocks with another file (reflink or snapshot): copy it"),
        (0x0800, "a part of it is allocated and was never written: write it first"),
        (0x0400, "its end shares a block with other files"),
        (0x0100, "a part of it is not aligned to blocks"),
    ];
    known.iter().find(|(flag, _)| flags & flag != 0).map(|(_, why)| *why)
}

/// The extents of an open file, in order; what is between them are holes. The error is a sentence about the file.
pub fn of_file(file: BorrowedFd<'_>) -> Result<Vec<FileExtent>, String> {
    let mut extents: Vec<FileExtent> = Vec::new();
    let mut start = 0;
    loop {
        let map = ask(file, start, BATCH)?;
        let found = &map.extents[..(map.mapped as usize).min(BATCH)];
        for raw in found {
            if let Some(why) = trouble(raw.flags) {
                return Err(why.to_owned());
            }
            let extent = FileExtent { file_offset: raw.logical, namespace_offset: raw.physical, bytes: raw.length };
            match extents.last_mut() {
                Some(last)
                    if last.file_end() == extent.file_offset
                        && last.namespace_offset + last.bytes == extent.namespace_offset =>
                {
                    last.bytes += extent.bytes;
                }
                _ => extents.push(extent),
            }
            if extents.len() > EXTENTS_MAX {
                return Err(format!("it has more than {EXTENTS_MAX} extents: copy it to where there is more room"));
            }
        }
        match found.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(extents),
        }
    }
}

/// How many an open file has at most, with as little work as that takes.
pub fn count(file: BorrowedFd<'_>) -> Result<usize, String> {
    /// So many blocks are not worth a question.
    const BLOCKS_FEW: u64 = 16;
    const BLOCK_BYTES: u64 = 4096;
    /// Of st_blocks.
    const UNIT_BYTES: u64 = 512;
    let blocks =
        rustix::fs::fstat(file).map_err(|error| error.to_string())?.st_blocks as u64 * UNIT_BYTES / BLOCK_BYTES;
    if blocks <= BLOCKS_FEW {
        return Ok(blocks as usize);
    }
    Ok(ask(file, 0, 0)?.mapped as usize)
}

/// What the file system says of a file from here on: so many extents, or, of none, their number.
fn ask(file: BorrowedFd<'_>, start: u64, count: usize) -> Result<Box<RawMap>, String> {
    let nothing = RawExtent { logical: 0, physical: 0, length: 0, reserved64: [0; 2], flags: 0, reserved: [0; 3] };
    let mut map = Box::new(RawMap {
        start,
        length: u64::MAX - start,
        flags: FIEMAP_FLAG_SYNC,
        mapped: 0,
        count: count.min(BATCH) as u32,
        reserved: 0,
        extents: [nothing; BATCH],
    });
    // SAFETY: the kernel writes at most `count` extents behind the head, which the structure has.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, std::ptr::from_mut(&mut *map)) };
    if done < 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("its file system does not say where it lies (FIEMAP: {error})"));
    }
    Ok(map)
}

/// Cuts what lies past a file's length: blocks that are allocated there hold nobody's data yet.
pub fn cut(extents: &mut Vec<FileExtent>, file_bytes: u64) {
    extents.retain(|extent| extent.file_offset < file_bytes);
    if let Some(last) = extents.last_mut() {
        last.bytes = last.bytes.min(file_bytes - last.file_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn extents_end_with_the_file() {
        let extent = |file_offset, bytes| FileExtent { file_offset, namespace_offset: file_offset + 4096, bytes };
        let mut extents = vec![extent(0, 4096), extent(8192, 8192), extent(20480, 4096)];
        cut(&mut extents, 9000);
        assert_eq!(extents, [extent(0, 4096), extent(8192, 808)]);
        cut(&mut extents, 0);
        assert!(extents.is_empty());
    }

    #[test]
    fn every_kind_of_trouble_has_its_reason() {
        for flag in [2, 4, 8, 0x80, 0x100, 0x200, 0x400, 0x800, 0x2000] {
            assert!(trouble(flag | EXTENT_LAST).is_some());
        }
        assert_eq!(trouble(EXTENT_LAST | 0x1000), None);
    }

    #[test]
    fn a_file_system_that_says_nothing_is_refused_or_answers() {
        // Whatever file system the temporary folder is on: an answer or a sentence.
        let path = std::env::temp_dir().join(format!("willow-extents-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).expect("a file");
        file.write_all(&[1; 10_000]).expect("written");
        file.sync_all().expect("synced");
        match of_file(file.as_fd()) {
            Ok(extents) => assert!(extents.iter().map(|extent| extent.bytes).sum::<u64>() >= 10_000),
            Err(why) => assert!(!why.is_empty()),
        }
        std::fs::remove_file(path).expect("removed");
    }
}
