//! Which block device of this machine is which block namespace of the Willow device.
//!
//! Invariant: that a block device is a namespace is not believed but compared: what both say of the first bytes must be the same.

use super::AgentError;
use crate::block::BlockClient;
use crate::control::NamespaceInfo;
use crate::shm::ShmHre;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes compared.
const COMPARED_BYTES: usize = 64 << 10;

/// A block device of the host's kernel that is a namespace: by FUSE and a loop device, or by NVMe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its path.
    pub path: PathBuf,
    /// The namespace.
    pub nsid: u32,
}

impl std::str::FromStr for BlockDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not DEVICE=NSID, as /dev/loop0=1");
        let (path, nsid) = text.rsplit_once('=').ok_or_else(wrong)?;
        let nsid = nsid.parse().map_err(|_| wrong())?;
        Ok(BlockDevice { path: PathBuf::from(path), nsid })
    }
}

/// Reads a number from sysfs; 0 where there is none.
fn number(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl BlockDevice {
    /// Its device number.
    pub fn number(&self) -> std::io::Result<u64> {
        let stat = rustix::fs::stat(&self.path)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::BlockDevice {
            return Err(std::io::Error::other("it is no block device"));
        }
        Ok(stat.st_rdev)
    }

    /// Where in the namespace the block device `of_file_system` begins: this one, or a partition of it. `None`: it is neither.
    pub fn offset_of(&self, of_file_system: u64) -> Option<u64> {
        let own = self.number().ok()?;
        let folder = |device: u64| {
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
        };
        let loop_offset = number(&folder(own).join("loop/offset"));
        if of_file_system == own {
            return Some(loop_offset);
        }
        let partition = folder(of_file_system);
        if !partition.join("partition").exists() {
            return None;
        }
        let parent = std::fs::canonicalize(&partition).ok()?;
        let parent = std::fs::read_to_string(parent.parent()?.join("dev")).ok()?;
        let own = format!("{}:{}", rustix::fs::major(own), rustix::fs::minor(own));
        (parent.trim() == own).then(|| loop_offset + number(&partition.join("start")) * 512)
    }

    /// Checks that the block device's first bytes are the namespace's.
    pub async fn check(&self, hre: Arc<ShmHre>, namespace: &NamespaceInfo) -> Result<(), AgentError> {
        let failed = |what: &str| AgentError(format!("{}: {what}", self.path.display()));
        let own = self.number().map_err(|error| failed(&error.to_string()))?;
        let offset = self.offset_of(own).unwrap_or(0);
        let block = BlockClient::open(hre, self.nsid).await?;
        let left = namespace.size_bytes.saturating_sub(offset);
        let of_namespace = block.read(offset, COMPARED_BYTES.min(left as usize)).await?;
        let of_device = direct_read(&self.path, of_namespace.len()).map_err(|error| failed(&error.to_string()))?;
        if of_device != of_namespace {
            return Err(failed(&format!(
                "its first bytes are not those of namespace {}: it is another device, or it is being written (sync, try again)",
                self.nsid
            )));
        }
        Ok(())
    }
}

/// Reads from the device itself, not from the page cache.
fn direct_read(path: &Path, bytes: usize) -> std::io::Result<Vec<u8>> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty())?;
    let mut buffer = vec![0u8; bytes + 4096];
    let skip = buffer.as_ptr().align_offset(4096);
    let mut done = 0;
    while done < bytes {
        match rustix::io::pread(&file, &mut buffer[skip + done..skip + bytes], done as u64)? {
            0 => return Err(std::io::Error::other("it is shorter than the namespace")),
            count => done += count,
        }
    }
    Ok(buffer[skip..skip + bytes].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_named_with_its_namespace() {
        let parsed: BlockDevice = "/dev/loop=3=12".parse().unwrap();
        assert_eq!(parsed, BlockDevice { path: PathBuf::from("/dev/loop=3"), nsid: 12 });
        for wrong in ["/dev/loop0", "/dev/loop0=", "/dev/loop0=x", ""] {
            assert!(wrong.parse::<BlockDevice>().is_err(), "{wrong}");
        }
        assert!(BlockDevice { path: PathBuf::from("/dev/null"), nsid: 1 }.number().is_err());
    }
}
