//! All ways in which a direct file's blocks could move, on the kernel of the guest (Linux 6.12), whose file systems have what the machine's
//! own kernel may lack: fs-verity, quotas, projects. What comes of each is held against docs/direct-ways.md. And what only a machine of
//! one's own can be put through: file systems that grow under direct files, and a kernel that does not wait for leases.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::time::Duration;
use willow_tests::attacker::Found;
use willow_tests::daemon::Daemon;
use willow_tests::guest::{Guest, GuestOptions};
use willow_tests::guest_agent::{folder, key, prelude};
use willow_tests::ways::{Ways, version};

/// Longest time of a step: a hundred ways, each with a file that is opened directly, on an emulated machine.
const STEP_MAX: Duration = Duration::from_secs(1800);
/// A user.
const ALICE: u32 = 1000;

/// A guest that has attached a device, of which an agent runs for each file system that is made.
struct Host {
    guest: Guest,
    daemon: Daemon,
    prelude: String,
    kernel: String,
}

impl Host {
    fn boot_or_skip(test: &str) -> Option<Host> {
        let folder = folder("guest-ways");
        let path = folder.path().join("key");
        let found = key(&path, "--both");
        let secrets: Vec<&String> = found.iter().filter(|part| part.starts_with("DHHC-1:")).collect();
        let secrets = format!("--dhchap-secret={} --dhchap-ctrl-secret={}", secrets[0], secrets[1]);
        let path = path.display().to_string();
        let daemon = Daemon::start(&["--size", "400M", "--kv-size", "0", "--spus", "4", "--host-key", &path]);
        let options = GuestOptions { folder: Some(folder.path().to_owned()), ..GuestOptions::default() };
        let mut guest = Guest::boot_or_skip(test, &options)?;
        let prelude = prelude(&daemon, "/tmp/key", &secrets);
        let attach = "mkdir -p /host && mount -o ro /dev/vdb /host
            install -m 600 /host/key /tmp/key
            nvme connect $TARGET -n $NQN $HOST $SECRETS --nr-io-queues=2
            eventually 60 block 1";
        guest.check(&format!("{prelude}{attach}"));
        let kernel = version(&guest.check("uname -r"));
        Some(Host { guest, daemon, prelude, kernel })
    }

    fn step(&mut self, script: &str) -> String {
        self.guest.check_for(STEP_MAX, &format!("{}{script}", self.prelude))
    }

    /// Makes a file system by this command, mounts it with these options, and starts an agent.
    fn begin(&mut self, make: &str, options: &str) {
        self.step(&format!("{make}\nmount -o noatime{options} $(block 1) /mnt\nagent"));
    }

    fn end(&mut self) {
        self.step("end_agent; umount /mnt");
    }

    /// What comes of each way on the file system that is mounted differs nowhere from what the document has of it.
    fn all_hold(&mut self, system: &str, what: &str) -> Vec<String> {
        let mut found = Found::default();
        for user in [ALICE, 0] {
            let said = self.step(&format!(
                "mkdir -p /mnt/of-{user}; chown {user}:{user} /mnt/of-{user}
                 as {user} /host/attacker - /tmp/agent /mnt/of-{user}/file '{what}' < /dev/null > /tmp/said 2> /tmp/errors ||
                     {{ tail -n 3 /tmp/said; cat /tmp/errors; tail -n 5 /tmp/agent.log; false; }}
                 cat /tmp/said"
            ));
            for line in said.lines() {
                found.note(line, user == 0).unwrap_or_else(|why| panic!("{system}, user {user}: {why}"));
            }
        }
        let cells = found.cells();
        println!("kernel {}, {system}, {what}: {} ways", self.kernel, cells.len());
        let ways = Ways::read();
        assert!(ways.kernels.contains(&self.kernel), "docs/direct-ways.md says nothing of Linux {}", self.kernel);
        ways.wrong(system, &self.kernel, &cells)
    }
}

#[test]
fn no_way_to_move_extents_on_the_guests_kernel_is_another_than_the_document_says() {
    let Some(mut host) =
        Host::boot_or_skip("no_way_to_move_extents_on_the_guests_kernel_is_another_than_the_document_says")
    else {
        return;
    };
    let mut wrong = Vec::new();
    for (system, what) in
        [("ext4", "attacks"), ("ext4", "attacks of a reader"), ("ext4 by block map", "attacks by block map")]
    {
        host.begin("mkfs.ext4 -q -F -O verity,quota,project $(block 1)", ",usrquota,prjquota");
        wrong.extend(host.all_hold(system, what));
        host.end();
        host.step("e2fsck -fn $(block 1)");
    }
    host.begin("mkfs.xfs -q -f -m reflink=0 -i exchange=1 $(block 1)", ",uquota");
    wrong.extend(host.all_hold("xfs", "attacks"));
    host.end();
    host.step("xfs_repair -n $(block 1)");
    host.begin("mkfs.xfs -q -f -m reflink=1 -i exchange=1 $(block 1)", ",uquota");
    wrong.extend(host.all_hold("xfs with reflink", "attacks of a reader"));
    host.end();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(host.daemon.stop().success());
}

#[test]
fn on_the_guests_kernel_file_systems_grow_under_direct_files_and_leases_are_waited_for() {
    let test = "on_the_guests_kernel_file_systems_grow_under_direct_files_and_leases_are_waited_for";
    let Some(mut host) = Host::boot_or_skip(test) else { return };
    let grow = |command: &str| {
        format!(
            "begin /tmp/writer endless {ALICE} < <(sleep 3000)
             writer=$!
             file=/mnt/of-{ALICE}/file
             eventually 60 grep -q written /tmp/writer
             extents() {{ filefrag -v $file | grep -E '^ +[0-9]+:'; }}
             before=$(extents); size=$(stat -f -c %b /mnt)
             {command}
             test $(stat -f -c %b /mnt) -gt $((size * 5 / 4))
             count=$(wc -l < /tmp/writer)
             eventually 60 written_on $count || {{ tail -n 3 /tmp/writer; false; }}
             frozen $file
             test \"$before\" = \"$(extents)\"
             # What has grown is used, by others.
             head -c 60M /dev/urandom > /mnt/others; sync /mnt/others; sum=$(sha256sum < /mnt/others)
             count=$(wc -l < /tmp/writer)
             eventually 60 written_on $count
             # What an administrator tries besides: nothing takes the file system from who writes there.
             ! mount -o remount,ro /mnt
             ! umount /mnt
             fstrim /mnt || true
             count=$(wc -l < /tmp/writer)
             eventually 60 written_on $count
             test \"$before\" = \"$(extents)\"
             kill $writer
             eventually 30 thawed $file
             echo 3 > /proc/sys/vm/drop_caches
             test \"$sum\" = \"$(sha256sum < /mnt/others)\""
        )
    };
    host.begin("mkfs.ext4 -q -F $(block 1) 100M", "");
    host.step(&grow("resize2fs $(block 1)"));
    // A kernel that lets others write while the agent may still be revoking is not relied upon.
    host.step(&format!(
        "head -c 50000 /dev/urandom > /mnt/his; chown {ALICE} /mnt/his
         was=$(cat /proc/sys/fs/lease-break-time)
         echo 5 > /proc/sys/fs/lease-break-time
         ! direct {ALICE} read /mnt/his > /tmp/got 2> /tmp/refused
         grep 'lease-break-time is 5' /tmp/refused
         thawed /mnt/his
         echo $was > /proc/sys/fs/lease-break-time
         direct {ALICE} read /mnt/his | cmp - /mnt/his"
    ));
    host.end();
    host.step("e2fsck -fn $(block 1)");
    host.begin("mkfs.xfs -q -f -m reflink=0 -d size=300m $(block 1)", "");
    host.step(&grow("xfs_growfs -d /mnt"));
    host.end();
    host.step("xfs_repair -n $(block 1)");
    // A file system that is shut down allocates nothing any more: what is permitted stays the file's, which stays as it is, and on the list.
    for make in ["mkfs.ext4 -q -F $(block 1)", "mkfs.xfs -q -f -m reflink=0 $(block 1)"] {
        host.begin(make, "");
        host.step(&format!(
            "begin /tmp/writer endless {ALICE} < <(sleep 3000)
             writer=$!
             eventually 60 grep -q written /tmp/writer
             xfs_io -x -c shutdown /mnt
             ! touch /mnt/other
             count=$(wc -l < /tmp/writer)
             eventually 60 written_on $count
             kill $writer"
        ));
        host.end();
        host.step(&format!("grep -q 'of-{ALICE}/file' /tmp/agent.frozen"));
    }
    assert!(host.daemon.stop().success());
}

#[test]
fn on_the_guests_kernel_a_truncation_that_waits_in_an_overlay_does_what_it_does_on_others() {
    let test = "on_the_guests_kernel_a_truncation_that_waits_in_an_overlay_does_what_it_does_on_others";
    let Some(mut host) = Host::boot_or_skip(test) else { return };
    let overlays =
        [("mkfs.ext4 -q -F $(block 1)", "EPERM\tsame"), ("mkfs.xfs -q -f -m reflink=0 $(block 1)", "done\tVIOLATION")];
    for (make, direct) in overlays {
        host.begin(make, "");
        for (what, outcome) in [("overlay, alone", "done\tmoves"), ("overlay", direct)] {
            let said = host.step(&format!(
                "rm -rf /mnt/below; mkdir -p /mnt/below/upper; head -c 65536 /dev/urandom > /mnt/below/upper/file
                 chown -R {ALICE}:{ALICE} /mnt/below; chmod 600 /mnt/below/upper/file; sync -f /mnt
                 as {ALICE} /host/attacker - /tmp/agent /mnt/below/upper/file '{what}' < /dev/null 2> /tmp/errors ||
                     {{ cat /tmp/errors; false; }}
                 eventually 30 thawed /mnt/below/upper/file"
            ));
            assert_eq!(said.trim_end(), outcome, "{make}, {what}");
        }
        host.end();
    }
    assert!(host.daemon.stop().success());
}
