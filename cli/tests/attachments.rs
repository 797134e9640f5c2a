//! What was set for hosts and users outlives the device's process: attachments of namespaces and weights, over real connections and SIGKILL.

mod support;

use std::time::Duration;
use support::{Folder, Served, fails};
use willow_host::nvme_tcp::{Transfer, Via};
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_sim::random::Random;
use willow_wire::bytes::u64_at;
use willow_wire::spec::identify::cns;
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{Status, SubmissionEntry};

fn nqn(name: &str) -> String {
    format!("nqn.2025-01.org.example:{name}")
}

fn wait<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
}

async fn host(device: &Served, name: &str) -> Controller {
    let subsystem = device.ready.split_whitespace().find_map(|word| word.strip_prefix("nqn=")).unwrap();
    let mut options = Options::new(device.address.parse().unwrap(), subsystem);
    options.host_nqn = nqn(name);
    options.reconnect_for = Duration::ZERO;
    Controller::connect(options).await.unwrap()
}

async fn manage(controller: &Controller, entry: SubmissionEntry, data: Vec<u8>) -> Option<(Status, u64)> {
    let done = controller.execute(Via::Admin, "management", entry, Transfer::ToController(data), false).await.ok()?;
    Some((done.entry.status, done.entry.result))
}

/// Namespace Management, create: MiB of 4 KiB blocks.
async fn create(controller: &Controller, mib: u64) -> (Status, u32) {
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&(mib * 256).to_le_bytes());
    data[8..16].copy_from_slice(&(mib * 256).to_le_bytes());
    (data[26], data[30]) = (1, 1);
    let entry = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT);
    let (status, result) = manage(controller, entry, data).await.expect("an answer");
    (status, result as u32)
}

/// Namespace Attachment of the host of `of`; `None`: nobody answered.
async fn attach(by: &Controller, of: &Controller, nsid: u32, attach: bool) -> Option<Status> {
    let mut data = vec![0; 4096];
    data[0] = 1;
    data[2..4].copy_from_slice(&of.ready().await.ok()?.controller_id.to_le_bytes());
    let entry = SubmissionEntry::new(admin::NAMESPACE_ATTACHMENT).with_nsid(nsid).with_cdw(10, u32::from(!attach));
    manage(by, entry, data).await.map(|(status, _)| status)
}

/// UNVMCAP.
async fn unallocated_bytes(controller: &Controller) -> u64 {
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_cdw(10, u32::from(cns::CONTROLLER));
    let done = controller.execute(Via::Admin, "identify", entry, Transfer::FromController(vec![0; 4096]), true).await;
    u64_at(&done.unwrap().buffer, 296)
}

/// Identify Namespace: NAWUN, NABSN, NPWG and NOWS, 0's based blocks, and NSFEAT.
async fn stripe_fields(controller: &Controller, nsid: u32) -> ([u16; 4], u8) {
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_nsid(nsid).with_cdw(10, u32::from(cns::NAMESPACE));
    let done = controller.execute(Via::Admin, "identify", entry, Transfer::FromController(vec![0; 4096]), true).await;
    let data = done.unwrap().buffer;
    ([34, 40, 64, 72].map(|at| u16::from_le_bytes([data[at], data[at + 1]])), data[24])
}

async fn numbers(controller: &Controller) -> Vec<u32> {
    controller.namespaces().await.unwrap().iter().map(|namespace| namespace.nsid).collect()
}

async fn blocks(controller: &Controller, nsid: u32) -> Option<BlockClient> {
    let hre = NvmeHre::new(controller.clone(), 1).await.unwrap();
    BlockClient::open(std::sync::Arc::new(hre), nsid).await.ok()
}

#[test]
fn what_is_attached_to_one_host_stays_closed_to_others_over_a_kill() {
    let folder = Folder::new();
    let media = folder.path("media");
    let arguments = ["--media", media.as_str(), "--size", "64M", "--kv-size", "0", "--spus", "2"];
    let mut device = Served::start(&arguments);
    let nsid = wait(async {
        let (one, other) = (host(&device, "one").await, host(&device, "other").await);
        let (status, nsid) = create(&one, 16).await;
        assert!(status.is_success(), "{status:?}");
        assert!(attach(&one, &one, nsid, true).await.unwrap().is_success());
        let own = blocks(&one, nsid).await.unwrap();
        own.write(0, b"precious".repeat(512), false).await.unwrap();
        assert!(blocks(&other, nsid).await.is_none());
        // Media files are sparse: what is left is the disk's affair.
        let left = unallocated_bytes(&one).await;
        let disk = rustix::fs::statvfs(&folder.0).unwrap();
        let free = disk.f_bavail * disk.f_frsize;
        assert!(left > 1 << 20 && left <= free + (1 << 30), "UNVMCAP {left} where {free} bytes are free");
        let (status, _) = create(&one, (left >> 20) + 1024).await;
        assert!(status.is(Status::NAMESPACE_INSUFFICIENT_CAPACITY), "{status:?}");
        nsid
    });
    device.ok(&["weight", "set", "1234", "7"]);
    let error = device.fails(&["ns", "attach", "9", "--host", &nqn("x")]);
    assert!(error.contains("there is no namespace 9"), "{error}");
    assert!(device.fails(&["ns", "detach", "1", "--host", &nqn("other")]).contains("open to every host"));
    assert!(fails(&["ns", "attach", "1", "--host", "me"]).contains("nqn.YYYY-MM"));
    let closed = device.ok(&["ns", "create", "--csi", "nvm", "--size", "4M", "--host", &nqn("one")]);
    let closed: u32 = closed.trim().strip_prefix("nsid ").unwrap().parse().unwrap();
    for _ in 0..2 {
        device.child.kill().unwrap();
        device.child.wait().unwrap();
        device = Served::start(&arguments[..2]);
        wait(async {
            let (one, other) = (host(&device, "one").await, host(&device, "other").await);
            assert_eq!(numbers(&one).await, [1, nsid, closed]);
            assert_eq!(numbers(&other).await, [1]);
            assert!(blocks(&other, nsid).await.is_none() && blocks(&other, closed).await.is_none());
            // Commands that do not ask first are refused, too.
            let entry = SubmissionEntry::new(willow_wire::spec::opcode::nvm::READ).with_nsid(nsid);
            let read = other.execute(Via::Any, "read", entry, Transfer::FromController(vec![0; 4096]), false).await;
            assert!(read.unwrap().entry.status.is(Status::INVALID_FIELD));
            assert_eq!(blocks(&one, nsid).await.unwrap().read(0, 4096).await.unwrap(), b"precious".repeat(512));
        });
        assert!(device.ok(&["weight", "list"]).contains("1234"), "{}", device.ok(&["weight", "list"]));
    }
    let listed = device.ok(&["ns", "list"]);
    assert!(listed.lines().any(|line| line.starts_with('1') && line.trim_end().ends_with("all")), "{listed}");
    assert!(listed.contains(&nqn("one")), "{listed}");
    device.ok(&["ns", "attach", &nsid.to_string(), "--all"]);
    wait(async { assert_eq!(numbers(&host(&device, "other").await).await, [1, nsid]) });
    device.end();
}

/// A kill at a random moment of an attachment leaves what was acknowledged, or what was under way.
#[test]
fn a_kill_in_the_midst_of_an_attachment_leaves_the_old_or_the_new() {
    let folder = Folder::new();
    let media = folder.path("media");
    let arguments = ["--media", media.as_str(), "--size", "1M", "--kv-size", "0", "--spus", "1"];
    let mut random = Random(12);
    let mut device = Served::start(&arguments);
    device.ok(&["ns", "detach", "1", "--all"]);
    let (mut attached, mut changes) = (false, 0);
    for round in 0.. {
        // On a slow machine more of them, later.
        if round >= 6 && changes > 0 {
            break;
        }
        assert!(round < 60, "no attachment was acknowledged before its kill");
        let pid = device.child.id();
        let pause = Duration::from_micros(500 + random.below(30_000 + 20_000 * round));
        let mut acknowledged = attached;
        let under_way = wait(async {
            let one = host(&device, "one").await;
            let killer = std::thread::spawn(move || {
                std::thread::sleep(pause);
                assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
            });
            let wanted = loop {
                let wanted = !acknowledged;
                match attach(&one, &one, 1, wanted).await {
                    Some(status) => assert!(status.is_success(), "{status:?}"),
                    None => break wanted,
                }
                acknowledged = wanted;
                changes += 1;
            };
            killer.join().unwrap();
            wanted
        });
        device.child.wait().unwrap();
        device = Served::start(&arguments[..2]);
        attached = wait(async { numbers(&host(&device, "one").await).await == [1] });
        assert!(attached == acknowledged || attached == under_way, "{attached}, {acknowledged} was acknowledged");
    }
    device.end();
}

#[test]
fn stripes_and_serving_apps_outlive_the_process_and_are_told_to_hosts() {
    let folder = Folder::new();
    let media = folder.path("media");
    let start = || Served::start(&["--media", &media, "--size", "16M", "--kv-size", "0", "--spus", "4"]);
    let device = start();
    let made = ["ns", "create", "--csi", "nvm", "--size", "16M", "--block-bytes", "512", "--stripe", "64K"];
    assert_eq!(device.ok(&[&made[..], &["--app", "base-io"]].concat()), "nsid 2\n");
    for (flags, why) in [
        (&["--stripe", "3000"][..], "a power of two from 4096"),
        (&["--stripe", "8G"], "--stripe is too long"),
        (&["--app", "nobody"], "app nobody"),
        (&["--stripe", "1"], "a stripe of 1 bytes"),
    ] {
        let refused = device.fails(&[&["ns", "create", "--csi", "nvm", "--size", "16M"], flags].concat());
        assert!(refused.contains(why), "{refused}");
    }
    let refused = device.fails(&["ns", "create", "--csi", "kv", "--size", "16M", "--stripe", "8K"]);
    assert!(refused.contains("has no stripes"), "{refused}");
    let written: Vec<u8> = (0..1u32 << 20).map(|at| ((at * 7) >> 9) as u8).collect();
    let check = |device: &Served, writes: bool| {
        let listed = device.ok(&["ns", "list"]);
        assert!(listed.contains("stripe") && listed.contains("64 KiB") && listed.contains("base-io"), "{listed}");
        wait(async {
            let one = host(device, "one").await;
            assert_eq!(stripe_fields(&one, 1).await, ([1, 1, 0, 0], 2));
            assert_eq!(stripe_fields(&one, 2).await, ([127; 4], 18));
            let blocks = blocks(&one, 2).await.unwrap();
            if writes {
                blocks.write(512 * 77, written.clone(), true).await.unwrap();
            }
            assert_eq!(blocks.read(512 * 77, written.len()).await.unwrap(), written);
        });
    };
    check(&device, true);
    device.signal("-KILL");
    drop(device);
    let device = start();
    check(&device, false);
    device.end();
}

#[test]
fn a_namespace_is_resized_under_a_host_and_keeps_its_size_over_a_kill() {
    let folder = Folder::new();
    let media = folder.path("media");
    let arguments = ["--media", media.as_str(), "--size", "16M", "--kv-size", "0", "--spus", "2"];
    let mut device = Served::start(&arguments);
    let size_of = |one: &BlockClient| one.bytes() >> 20;
    wait(async {
        let one = host(&device, "one").await;
        let namespace = blocks(&one, 1).await.unwrap();
        namespace.write(0, b"precious".repeat(512), false).await.unwrap();
        assert_eq!(size_of(&namespace), 16);
        assert_eq!(device.ok(&["ns", "resize", "1", "--size", "64M"]), "nsid 1 size 64 MiB\n");
        let grown = blocks(&one, 1).await.unwrap();
        assert_eq!(size_of(&grown), 64);
        grown.write((64 << 20) - 4096, vec![7; 4096], true).await.unwrap();
    });
    let error = device.fails(&["ns", "resize", "1", "--size", "32M"]);
    assert!(error.contains("64 MiB") && error.contains("--shrink"), "{error}");
    assert!(device.fails(&["ns", "resize", "7", "--size", "32M"]).contains("there is no namespace 7"));
    for (size, mib) in [(None, 64), (Some("32M"), 32), (Some("64M"), 64)] {
        if let Some(size) = size {
            device.ok(&["ns", "resize", "1", "--size", size, "--shrink"]);
        }
        device.child.kill().unwrap();
        device.child.wait().unwrap();
        device = Served::start(&arguments[..2]);
        wait(async {
            let namespace = blocks(&host(&device, "one").await, 1).await.unwrap();
            assert_eq!(size_of(&namespace), mib);
            assert_eq!(namespace.read(0, 4096).await.unwrap(), b"precious".repeat(512));
            let last = namespace.read((mib << 20) - 4096, 4096).await.unwrap();
            let expected = if size.is_none() { 7 } else { 0 };
            assert!(last.iter().all(|byte| *byte == expected), "{size:?}");
        });
    }
    device.end();
}
