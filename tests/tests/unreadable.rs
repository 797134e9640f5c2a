//! Blocks that a host has made unreadable (Write Uncorrectable) are so by every way to the device, and over SIGKILL, until somebody has written
//! them.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use willow_host::nvme_tcp::{Transfer, Via};
use willow_host::{BlockClient, Controller, Hre, HreError, NvmeHre, Options, ShmHre, ShmOptions};
use willow_tests::daemon::{Daemon, binary};
use willow_tests::scratch::Scratch;
use willow_wire::spec::SubmissionEntry;
use willow_wire::spec::opcode::nvm;

const BLOCK: usize = 4096;
/// What the test looks at.
const BLOCKS: u64 = 8;
const NONE: [u64; 0] = [];

/// Both ways to the device that NVMe commands and RPCs take.
struct Ways {
    controller: Controller,
    network: BlockClient,
    shared: BlockClient,
}

impl Ways {
    async fn open(daemon: &Daemon, socket: &Path) -> Ways {
        let controller = Controller::connect(Options::new(daemon.address(), daemon.nqn())).await.expect("a controller");
        let network: Arc<dyn Hre> = Arc::new(NvmeHre::new(controller.clone(), 1).await.expect("an endpoint"));
        let shared: Arc<dyn Hre> = Arc::new(ShmHre::open(socket, ShmOptions::default()).expect("an endpoint"));
        let network = BlockClient::open(network, 1).await.expect("namespace 1");
        let shared = BlockClient::open(shared, 1).await.expect("namespace 1");
        Ways { controller, network, shared }
    }

    async fn mark(&self, lba: u64, blocks: u32) {
        let entry = SubmissionEntry::new(nvm::WRITE_UNCORRECTABLE).with_nsid(1).with_lba(lba).with_cdw(12, blocks - 1);
        let done = self.controller.command(Via::Any, "Write Uncorrectable", entry, Transfer::None, false).await;
        done.expect("blocks are marked");
    }

    /// The blocks that cannot be read, which are the same by both ways; what the others have is the same, too.
    async fn unreadable(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for lba in 0..BLOCKS {
            let (at, bytes) = (lba * BLOCK as u64, BLOCK);
            match (self.network.read(at, bytes).await, self.shared.read(at, bytes).await) {
                (Ok(one), Ok(other)) => assert_eq!(one, other, "block {lba}"),
                (Err(HreError::Media), Err(HreError::Media)) => found.push(lba),
                (one, other) => panic!("block {lba}: {:?} and {:?}", one.map(drop), other.map(drop)),
            }
        }
        found
    }
}

/// `willow mount`, gone at the end whatever happens.
struct Mount(Child, String);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new("umount").args(["-l", &self.1]).stderr(Stdio::null()).status();
    }
}

/// The blocks of the file of a mount that cannot be read: input and output errors.
fn unreadable_in_file(socket: &Path, folder: &Path) -> Vec<u64> {
    std::fs::create_dir_all(folder).expect("a folder");
    let mut command = Command::new(binary());
    command.arg("mount").arg(folder).arg("--target").arg(socket).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("willow runs");
    let mut line = String::new();
    let output = child.stdout.take().expect("standard output is a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let _mount = Mount(child, folder.display().to_string());
    assert!(line.starts_with("mounted "), "{line:?}");
    let file = File::open(folder.join("disk")).expect("the file");
    // As a loop device reads with direct I/O: nothing is read ahead of what is asked for.
    let is_error = |lba: &u64| match file.read_exact_at(&mut [0; BLOCK], lba * BLOCK as u64) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "block {lba}");
            true
        }
    };
    (0..BLOCKS).filter(is_error).collect()
}

#[test]
fn what_a_host_made_unreadable_is_so_by_every_way_and_over_kills_until_it_is_written() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let scratch = Scratch::new("unreadable").expect("a temporary folder");
    let socket = scratch.path().join("socket");
    let path = socket.display().to_string();
    let mut daemon = Daemon::start(&["--size", "16M", "--kv-size", "0", "--spus", "4", "--socket", &path]);
    runtime.block_on(async {
        let ways = Ways::open(&daemon, &socket).await;
        ways.network.write(0, vec![7; BLOCK * BLOCKS as usize], true).await.expect("it is written");
        assert_eq!(ways.unreadable().await, NONE);
        // On two SPUs.
        ways.mark(1, 3).await;
        assert_eq!(ways.unreadable().await, [1, 2, 3]);
    });
    daemon.kill();
    daemon.restart();
    runtime.block_on(async {
        let ways = Ways::open(&daemon, &socket).await;
        assert_eq!(ways.unreadable().await, [1, 2, 3], "after SIGKILL");
        // By shared memory, and nobody asks for durability.
        ways.shared.write(2 * BLOCK as u64, vec![9; BLOCK], false).await.expect("it is written");
        assert_eq!(ways.unreadable().await, [1, 3]);
    });
    daemon.kill();
    daemon.restart();
    runtime.block_on(async {
        let ways = Ways::open(&daemon, &socket).await;
        assert_eq!(ways.unreadable().await, [1, 3]);
        assert_eq!(ways.network.read(2 * BLOCK as u64, BLOCK).await.expect("it is written"), [9; BLOCK]);
    });
    match willow_skip::missing_for_fuse_mounts() {
        Some(why) => willow_skip::skip("blocks that cannot be read in the file of a mount", &why),
        None => assert_eq!(unreadable_in_file(&socket, &scratch.path().join("mnt")), [1, 3]),
    }
    runtime.block_on(async {
        let ways = Ways::open(&daemon, &socket).await;
        ways.network.write_zeroes(0, BLOCK as u64 * BLOCKS, true).await.expect("they are zeroed");
        assert_eq!(ways.unreadable().await, NONE);
    });
    assert!(daemon.stop().success());
}
