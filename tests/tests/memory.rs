//! Media files that are much larger than the memory that the device may have: it works within that memory, its page cache
//! included, and everything that was written is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_tests::daemon::Daemon;

const MIB: usize = 1 << 20;
/// Bytes written and read back.
const WRITTEN_BYTES: usize = 384 * MIB;
/// Memory of the device, where a control group can be made.
const MEMORY_BYTES_MAX: usize = 128 * MIB;
/// Memory of its own at any time, files' pages not counted.
const OWN_BYTES_MAX: usize = 128 * MIB;
/// Commands under way.
const DEPTH: usize = 8;

/// A control group with a limit of memory; gone when dropped, after its processes.
struct Group(PathBuf);

impl Group {
    /// Puts a process under the limit; `None` where this machine or user has no such groups.
    fn limit(process_id: u32) -> Option<Group> {
        let places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        places.into_iter().find_map(|(root, limit)| {
            let folder = Path::new(root).join(format!("willow-test-{process_id}"));
            fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            let write = |name: &str, value: String| fs::write(group.0.join(name), value).ok();
            write(limit, MEMORY_BYTES_MAX.to_string())?;
            write("cgroup.procs", process_id.to_string())?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Bytes of a process' memory that no file stands behind, or one that is memory itself.
fn own_bytes(process_id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process_id}/status")).expect("the device runs");
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
        1024 * line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number")
    };
    bytes("RssAnon:") + bytes("RssShmem:")
}

fn content(place: usize) -> Vec<u8> {
    let word = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes().iter().copied().cycle().take(MIB).collect()
}

#[test]
fn files_larger_than_memory_are_served_in_bounded_memory() {
    let daemon = Daemon::start(&["--size", "512M", "--spus", "2"]);
    let process_id = daemon.process_id().expect("it runs");
    let group = Group::limit(process_id);
    eprintln!("memory is {}", if group.is_some() { "limited by a control group" } else { "looked at, not limited" });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut options = Options::new(daemon.address(), daemon.nqn());
        options.command_timeout = Duration::from_secs(120);
        let controller = Controller::connect(options).await.expect("the device takes a host");
        let hre = Arc::new(NvmeHre::new(controller, 1).await.expect("an endpoint"));
        let client = Arc::new(BlockClient::open(hre, 1).await.expect("namespace 1"));
        let mut own_bytes_max = 0;
        for write in [true, false] {
            let mut commands = tokio::task::JoinSet::new();
            for place in 0..WRITTEN_BYTES / MIB {
                if commands.len() == DEPTH {
                    commands.join_next().await.expect("some").expect("no panic");
                    own_bytes_max = own_bytes_max.max(own_bytes(process_id));
                }
                let client = client.clone();
                commands.spawn(async move {
                    let offset = (place * MIB) as u64;
                    if write {
                        client.write(offset, content(place), false).await.expect("it is written");
                    } else {
                        assert!(client.read(offset, MIB).await.expect("it is read") == content(place), "MiB {place}");
                    }
                });
            }
            while let Some(done) = commands.join_next().await {
                done.expect("no panic");
            }
            client.flush().await.expect("it is flushed");
        }
        assert!(own_bytes_max < OWN_BYTES_MAX, "{own_bytes_max} bytes of its own");
    });
    drop(daemon);
    drop(group);
}
