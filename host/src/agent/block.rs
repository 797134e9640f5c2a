//! Which block device of this machine is which block namespace of the Willow device.
//!
//! What always holds: that a block device is a namespace is not believed, and no name or number is. What the kernel's NVMe driver has
//! attached says itself which it is (NGUID and the subsystem's NQN, in sysfs), and is asked for each file; of all else, a loop device say,
//! the first bytes must be those of the namespace, and it is that disk as long as the kernel's sequence number of the disk is the same
//! (diskseq in sysfs): a loop device that is attached again has another one. Partitions count from where they begin; what is stacked on
//! a block device (dm, md) is none.

use super::AgentError;
use crate::block::BlockClient;
use crate::control::NamespaceInfo;
use crate::hre::Hre;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes compared.
const COMPARED_BYTES: usize = 64 << 10;
/// How often they are looked at before they are taken for others.
const COMPARISONS_MAX: u32 = 40;
/// Wait between two looks.
const COMPARE_AGAIN: Duration = Duration::from_millis(25);

/// Where the kernel tells of devices.
const SYSTEM: &str = "/sys";

/// What a namespace that the kernel has attached says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    nguid: [u8; 16],
    subsystem_nqn: String,
    /// Where in it the block device begins: 0, or where the partition does.
    offset: u64,
}

impl Identity {
    /// Of a block device (whole or partition) by its number; `None` where it is nothing of NVMe.
    fn of(system: &Path, device: u64) -> Option<Identity> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let folder = std::fs::canonicalize(system.join(format!("dev/block/{major}:{minor}"))).ok()?;
        let is_partition = folder.join("partition").exists();
        let (disk, offset) = match is_partition {
            true => (folder.parent()?, number(&folder.join("start"))?.checked_mul(512)?),
            false => (folder.as_path(), 0),
        };
        Identity::of_disk(disk).map(|identity| Identity { offset, ..identity })
    }

    fn of_disk(disk: &Path) -> Option<Identity> {
        let text = |name: &str| std::fs::read_to_string(disk.join(name)).ok();
        let nguid = parse_nguid(text("nguid")?.trim())?;
        Some(Identity { nguid, subsystem_nqn: text("device/subsysnqn")?.trim().to_owned(), offset: 0 })
    }
}

/// 32 hexadecimal digits, however they are grouped.
fn parse_nguid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text.chars().filter(|it| *it != '-').map(|it| it.to_digit(16)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    let nguid: [u8; 16] = bytes.try_into().ok().filter(|_| digits.len() == 32)?;
    // All zeroes: it has none.
    (nguid != [0; 16]).then_some(nguid)
}

/// The block devices of this host that are namespaces of the device.
pub struct Places {
    named: Vec<Checked>,
    /// Namespaces, by NGUID, that the kernel may have attached under any name.
    attached: BTreeMap<[u8; 16], u32>,
    subsystem_nqn: String,
    system: PathBuf,
}

impl Places {
    /// Those that were named and checked.
    pub fn named(named: Vec<Checked>) -> Places {
        Places { named, attached: BTreeMap::new(), subsystem_nqn: String::new(), system: PathBuf::from(SYSTEM) }
    }

    /// Those of `namespaces`, of the subsystem with this NQN, that this host's kernel has attached now. The error is a sentence.
    pub fn attached(subsystem_nqn: &str, namespaces: &[NamespaceInfo]) -> Result<Places, AgentError> {
        Places::attached_in(Path::new(SYSTEM), subsystem_nqn, namespaces)
    }

    fn attached_in(system: &Path, subsystem_nqn: &str, namespaces: &[NamespaceInfo]) -> Result<Places, AgentError> {
        let folder = std::fs::read_dir(system.join("block"));
        let folder = folder.map_err(|error| AgentError(format!("{}: {error}", system.join("block").display())))?;
        let disks = folder.flatten().filter_map(|entry| Identity::of_disk(&entry.path()));
        let here: Vec<[u8; 16]> =
            disks.filter(|disk| disk.subsystem_nqn == subsystem_nqn).map(|disk| disk.nguid).collect();
        let block = namespaces.iter().filter(|it| it.csi == crate::control::CommandSet::Nvm);
        let attached: BTreeMap<_, _> =
            block.filter(|it| here.contains(&it.nguid)).map(|it| (it.nguid, it.nsid)).collect();
        if attached.is_empty() {
            let why = format!(
                "no block device of this host is a namespace of {subsystem_nqn}: attach it (nvme connect), or name one (--block)"
            );
            return Err(AgentError(why));
        }
        let subsystem_nqn = subsystem_nqn.to_owned();
        Ok(Places { named: Vec::new(), attached, subsystem_nqn, system: system.to_owned() })
    }

    /// The namespaces that are in use here.
    pub fn namespaces(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.named.iter().map(|it| it.block.nsid).chain(self.attached.values().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Namespace of a file system's block device, and where in it that begins. The error is a sentence.
    pub fn find(&self, of_file_system: u64) -> Result<(u32, u64), String> {
        const NONE: &str = "it is not on a block device that is a namespace which the agent serves";
        let place = Place::of(&self.system, of_file_system);
        let disk = place.as_ref().map(|place| place.disk);
        let is_at = |checked: &&Checked| checked.number == of_file_system || Some(checked.number) == disk;
        if let Some(checked) = self.named.iter().find(is_at) {
            return match place.filter(|place| place.sequence == checked.sequence) {
                Some(place) => Ok((checked.block.nsid, place.offset)),
                None => Err(format!(
                    "{} is another disk than when the agent was started: where that is right, start the agent again",
                    checked.block.path.display()
                )),
            };
        }
        // Asked of the kernel each time: numbers and names may be another disk's by now.
        let found = Identity::of(&self.system, of_file_system).ok_or(NONE)?;
        let nsid = self.attached.get(&found.nguid).filter(|_| found.subsystem_nqn == self.subsystem_nqn);
        Ok((*nsid.ok_or(NONE)?, found.offset))
    }
}

/// A block device, whole or partition, as sysfs has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Number of the whole disk.
    disk: u64,
    /// Of the disk: no other one that is attached before the machine starts again has it, whatever its number and name.
    sequence: u64,
    /// Where in what the disk is made of the block device begins.
    offset: u64,
}

impl Place {
    /// `None` where the kernel knows no such block device, or does not number its disks (before Linux 5.15).
    fn of(system: &Path, device: u64) -> Option<Place> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let folder = std::fs::canonicalize(system.join(format!("dev/block/{major}:{minor}"))).ok()?;
        let is_partition = folder.join("partition").exists();
        let disk = if is_partition { folder.parent()? } else { folder.as_path() };
        let start = if is_partition { number(&folder.join("start"))?.checked_mul(512)? } else { 0 };
        // Of a loop device alone.
        let offset = number(&disk.join("loop/offset")).unwrap_or(0).checked_add(start)?;
        let text = std::fs::read_to_string(disk.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        let number_of_disk = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Place { disk: number_of_disk, sequence: number(&disk.join("diskseq"))?, offset })
    }

    /// True where its blocks are other devices', in whatever order (dm, md).
    fn is_stacked(system: &Path, device: u64) -> bool {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let slaves = std::fs::read_dir(system.join(format!("dev/block/{major}:{minor}/slaves")));
        slaves.is_ok_and(|mut slaves| slaves.next().is_some())
    }
}

/// A block device that was found to be the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    block: BlockDevice,
    number: u64,
    sequence: u64,
}

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

/// Reads a number from sysfs.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
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

    /// Checks that the block device is the namespace: by what it says of itself, or by its first bytes.
    pub async fn check(&self, hre: Arc<dyn Hre>, namespace: &NamespaceInfo) -> Result<Checked, AgentError> {
        let failed = |what: &str| AgentError(format!("{}: {what}", self.path.display()));
        let own = self.number().map_err(|error| failed(&error.to_string()))?;
        let system = Path::new(SYSTEM);
        let unknown = || failed("the kernel says nothing of its disk in /sys (Linux 5.15 and later do)");
        let place = Place::of(system, own).ok_or_else(unknown)?;
        let checked = || Checked { block: self.clone(), number: own, sequence: place.sequence };
        if Place::is_stacked(system, own) {
            return Err(failed(
                "it is stacked on other block devices (dm, md), which have its blocks wherever they like",
            ));
        }
        if let Some(identity) = Identity::of(system, own) {
            if identity.nguid != namespace.nguid {
                return Err(failed(&format!("its NGUID is not that of namespace {}: it is another device", self.nsid)));
            }
            return Ok(checked());
        }
        let block = BlockClient::open(hre, self.nsid).await?;
        let left = namespace.size_bytes.saturating_sub(place.offset);
        let (bytes, mut are_same) = (COMPARED_BYTES.min(left as usize), false);
        // A file system that is in use writes there at any moment. What the kernel has not written yet it writes when it is read past the page cache.
        for _ in 0..COMPARISONS_MAX {
            let before = direct_read(&self.path, bytes).map_err(|error| failed(&error.to_string()))?;
            are_same = block.read(place.offset, bytes).await? == before;
            if are_same {
                break;
            }
            tokio::time::sleep(COMPARE_AGAIN).await;
        }
        if !are_same {
            return Err(failed(&format!(
                "its first bytes are not those of namespace {}: it is another device, or it is being written (sync, try again)",
                self.nsid
            )));
        }
        // Attached anew meanwhile, it would be something else that was read.
        match Place::of(system, own) == Some(place.clone()) && self.number().is_ok_and(|number| number == own) {
            true => Ok(checked()),
            false => Err(failed("it was attached anew while it was looked at: try again")),
        }
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

    fn info(nsid: u32, nguid: u8) -> NamespaceInfo {
        let csi = crate::control::CommandSet::Nvm;
        let (app, stripe_bytes, nguid) = ("base-io".to_owned(), 8192, [nguid; 16]);
        NamespaceInfo {
            nsid,
            csi,
            size_bytes: 1 << 20,
            block_bytes: 4096,
            base: 0,
            bank_bytes: 0,
            nguid,
            app,
            stripe_bytes,
        }
    }

    #[test]
    fn a_disk_is_known_by_its_nguid_and_subsystem_and_by_no_name() {
        let system = std::env::temp_dir().join(format!("willow-sys-{}", std::process::id()));
        let nqn = "nqn.2025-01.org.example:device";
        let disk = |name: &str, nguid: &str, nqn: &str| {
            let disk = system.join("devices").join(name);
            std::fs::create_dir_all(disk.join("device")).unwrap();
            std::fs::write(disk.join("nguid"), format!("{nguid}\n")).unwrap();
            std::fs::write(disk.join("device/subsysnqn"), format!("{nqn}\n")).unwrap();
            std::fs::create_dir_all(system.join("block")).unwrap();
            std::os::unix::fs::symlink(&disk, system.join("block").join(name)).unwrap();
            disk
        };
        let number = |disk: &Path, minor: u32| {
            std::fs::create_dir_all(system.join("dev/block")).unwrap();
            std::os::unix::fs::symlink(disk, system.join(format!("dev/block/259:{minor}"))).unwrap();
            rustix::fs::makedev(259, minor)
        };
        let own = disk("nvme0n1", "07070707-0707-0707-0707-070707070707", nqn);
        // Another subsystem with the same NGUID, one without NGUID, and something stacked on a disk.
        let others = disk("nvme1n1", "07070707-0707-0707-0707-070707070707", "nqn.2025-01.org.example:other");
        let nameless = disk("nvme2n1", "00000000-0000-0000-0000-000000000000", nqn);
        let stacked = system.join("devices/dm-0");
        let partition = own.join("nvme0n1p2");
        for folder in [&stacked, &partition] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(partition.join("partition"), "2\n").unwrap();
        std::fs::write(partition.join("start"), "2048\n").unwrap();
        let places = Places::attached_in(&system, nqn, &[info(3, 7), info(4, 8)]).unwrap();
        assert_eq!(places.namespaces(), [3]);
        assert_eq!(places.find(number(&own, 0)), Ok((3, 0)));
        assert_eq!(places.find(number(&partition, 1)), Ok((3, 2048 * 512)));
        for (minor, none) in [(2, &others), (3, &nameless), (4, &stacked)] {
            assert!(places.find(number(none, minor)).is_err(), "{}", none.display());
        }
        assert!(places.find(rustix::fs::makedev(259, 77)).is_err());
        let refused = Places::attached_in(&system, nqn, &[info(1, 9)]).err().unwrap();
        assert!(refused.to_string().contains("nvme connect"), "{refused}");
        std::fs::remove_dir_all(&system).unwrap();
    }

    #[test]
    fn a_disk_that_was_named_is_known_by_its_sequence_number_and_its_partitions_by_their_begin() {
        let system = std::env::temp_dir().join(format!("willow-sys-named-{}", std::process::id()));
        let (disk, partition) = (system.join("devices/loop5"), system.join("devices/loop5/loop5p1"));
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(disk.join("dev"), "7:5\n");
        write(disk.join("diskseq"), "41\n");
        write(disk.join("loop/offset"), "4096\n");
        write(partition.join("partition"), "1\n");
        write(partition.join("start"), "100\n");
        std::fs::create_dir_all(disk.join("slaves")).unwrap();
        std::fs::create_dir_all(system.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(&disk, system.join("dev/block/7:5")).unwrap();
        std::os::unix::fs::symlink(&partition, system.join("dev/block/259:5")).unwrap();
        let (whole, part) = (rustix::fs::makedev(7, 5), rustix::fs::makedev(259, 5));
        // Whether the disk or the partition was named, a file system on the partition begins where that does.
        let named = |number: u64| {
            let block = BlockDevice { path: PathBuf::from("/dev/it"), nsid: 3 };
            let named = vec![Checked { block, number, sequence: 41 }];
            Places { named, attached: BTreeMap::new(), subsystem_nqn: String::new(), system: system.clone() }
        };
        assert_eq!(named(whole).find(whole), Ok((3, 4096)));
        assert_eq!(named(whole).find(part), Ok((3, 4096 + 51_200)));
        assert_eq!(named(part).find(part), Ok((3, 4096 + 51_200)));
        assert!(named(part).find(whole).is_err());
        // Attached again it is another disk, whatever it holds, and its partitions are.
        write(disk.join("diskseq"), "42\n");
        for (named, place) in [(named(whole), whole), (named(whole), part), (named(part), part)] {
            assert!(named.find(place).unwrap_err().contains("another disk"));
        }
        std::fs::remove_file(disk.join("diskseq")).unwrap();
        assert!(named(whole).find(whole).is_err() && Place::of(&system, whole).is_none());
        assert!(!Place::is_stacked(&system, whole));
        std::fs::create_dir_all(disk.join("slaves/sda")).unwrap();
        assert!(Place::is_stacked(&system, whole));
        std::fs::remove_dir_all(&system).unwrap();
    }

    #[test]
    fn ids_are_read_however_they_are_grouped() {
        assert_eq!(parse_nguid("0102030405060708090a0b0c0d0e0f10").unwrap()[15], 0x10);
        for wrong in ["", "01", "0102030405060708090a0b0c0d0e0f1", "0102030405060708090a0b0c0d0e0f1g", &"00".repeat(16)]
        {
            assert_eq!(parse_nguid(wrong), None, "{wrong}");
        }
    }

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
