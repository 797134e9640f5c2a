//! What Linux stacks on block devices, in a guest: btrfs on dm-crypt on LVM on a RAID 1 of two namespaces, one of which has blocks that cannot be
//! read, and goes for a while. And every command of nvme-cli that reads: each works, or is refused with a status that says so.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::time::Duration;

use willow_tests::daemon::Daemon;
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS};

/// What a command prints that works.
const READING: [(&str, &str); 46] = [
    ("id-ctrl /dev/nvme0", "mn        : Willow"),
    ("id-ns $BLOCK", "lbads:12 rp:0 (in use)"),
    ("id-ns-granularity /dev/nvme0", "Namespace Size Granularity"),
    ("id-ns-lba-format /dev/nvme0 --lba-format-index=1 --uuid-index=0", "lbads:12"),
    ("nvm-id-ns-lba-format /dev/nvme0 --lba-format-index=1 --uuid-index=0", "elbaf  1"),
    ("list-ns /dev/nvme0", "[   3]:0x4"),
    ("list-ns /dev/nvme0 --all", "[   3]:0x4"),
    ("list-ns /dev/nvme0 --csi=1", "[   0]:0x2"),
    ("list-ctrl /dev/nvme0", "num of ctrls present: 1"),
    ("list-ctrl /dev/nvme0 -n 1", "num of ctrls present: 1"),
    ("nvm-id-ctrl /dev/nvme0", "wusl   : 9"),
    ("nvm-id-ns /dev/nvme0 -n 1", "elbaf  1"),
    ("cmdset-ind-id-ns /dev/nvme0 -n 1", "nstat   : 0x1"),
    ("cmdset-ind-id-ns /dev/nvme0 -n 2", "nstat   : 0x1"),
    ("ns-descs /dev/nvme0 -n 1", "uuid    : "),
    ("id-iocs /dev/nvme0", "Combination[0]:3"),
    ("get-ns-id $BLOCK", "namespace-id:1"),
    ("supported-log-pages /dev/nvme0", "LID 0xc - Asymmetric Namespace Access"),
    ("fw-log /dev/nvme0", "frs1"),
    ("changed-ns-list-log /dev/nvme0", "changed"),
    ("smart-log /dev/nvme0", "available_spare				: 100%"),
    ("ana-log /dev/nvme0", "state	:	optimized"),
    ("error-log /dev/nvme0 -e 2", "Entry[ 0]"),
    ("effects-log /dev/nvme0 --csi=0", "IOCS4    [Write Uncorrectable"),
    ("effects-log /dev/nvme0 --csi=1", "KV Command Set Log Page"),
    ("resv-notif-log /dev/nvme0", "Empty Log Page"),
    ("fid-support-effects-log /dev/nvme0", "FID 0e -> Support Effects Log: 00200001"),
    ("mi-cmd-support-effects-log /dev/nvme0", "MI Commands Support Effects Log"),
    ("resv-report $BLOCK -n 1 --eds", "regctl    : 0"),
    ("get-feature /dev/nvme0 -f 0x01", "0x01 (Arbitration)"),
    ("get-feature /dev/nvme0 -f 0x02", "0x02 (Power Management)"),
    ("get-feature /dev/nvme0 -f 0x04", "0x04 (Temperature Threshold)"),
    ("get-feature /dev/nvme0 -f 0x05 -n 1", "0x05 (Error Recovery)"),
    ("get-feature /dev/nvme0 -f 0x07", "0x07 (Number of Queues)"),
    ("get-feature /dev/nvme0 -f 0x0a", "0x0a (Write Atomicity Normal)"),
    ("get-feature /dev/nvme0 -f 0x0b", "0x0b (Async Event Configuration)"),
    ("get-feature /dev/nvme0 -f 0x0e", "0x0e (Timestamp)"),
    ("get-feature /dev/nvme0 -f 0x0f", "0x0f (Keep Alive Timer)"),
    ("get-feature /dev/nvme0 -f 0x19", "0x19 (I/O Command Set Profile)"),
    ("get-feature /dev/nvme0 -f 0x82 -n 1", "0x82 (Reservation Notification Mask)"),
    ("get-feature /dev/nvme0 -f 0x83 -n 1", "0x83 (Reservation Persistence)"),
    ("get-feature /dev/nvme0 -f 0x81 --cdw11=1 -l 16", "0x81 (Host Identifier)"),
    ("get-property /dev/nvme0 --offset=0x1c", "(Controller Status), value: 0x1"),
    ("show-regs /dev/nvme0", "csts    : 0x1"),
    ("list-subsys", "live"),
    ("show-topology", "live optimized"),
];

/// What there is none of, and what asking for it ends with.
const REFUSED: [(&str, &[&str]); 3] = [
    (
        "Invalid Field in Command",
        &[
            "id-nvmset /dev/nvme0",
            "id-uuid /dev/nvme0",
            "id-domain /dev/nvme0",
            "list-endgrp /dev/nvme0",
            "primary-ctrl-caps /dev/nvme0",
            "list-secondary /dev/nvme0",
            "get-feature /dev/nvme0 -f 0x10",
            "get-feature /dev/nvme0 -f 0x1d",
            "get-feature /dev/nvme0 -f 0x81",
            "get-property /dev/nvme0 --offset=0x24",
            "zns id-ctrl /dev/nvme0",
        ],
    ),
    (
        "Invalid Log Page",
        &[
            "endurance-log /dev/nvme0 --group-id=1",
            "predictable-lat-log /dev/nvme0 --nvmset-id=1",
            "pred-lat-event-agg-log /dev/nvme0 --log-entries=1",
            "persistent-event-log /dev/nvme0 --action=0",
            "endurance-event-agg-log /dev/nvme0 --log-entries=1",
            "lba-status-log /dev/nvme0",
            "boot-part-log /dev/nvme0 --output-file=/tmp/boot",
            "phy-rx-eom-log /dev/nvme0",
            "reachability-groups-log /dev/nvme0",
            "reachability-associations-log /dev/nvme0",
            "changed-alloc-ns-list-log /dev/nvme0",
            "dispersed-ns-participating-nss-log /dev/nvme0 -n 1",
            "rotational-media-info-log /dev/nvme0",
            "mgmt-addr-list-log /dev/nvme0",
            "media-unit-stat-log /dev/nvme0",
            "supported-cap-config-log /dev/nvme0",
            "self-test-log /dev/nvme0",
            "sanitize-log /dev/nvme0",
            "host-discovery-log /dev/nvme0",
            "ave-discovery-log /dev/nvme0",
        ],
    ),
    (
        "Invalid Command Opcode",
        &[
            "dir-receive /dev/nvme0 -n 1 --dir-type=0 --dir-oper=1 --data-len=4096",
            "get-lba-status /dev/nvme0 -n 1 --start-lba=0 --max-dw=100 --action=16 --range-len=1",
            "device-self-test /dev/nvme0 -n 1 -s 1",
            "sanitize /dev/nvme0 -a 2",
            "security-recv /dev/nvme0 -p 0 -x 64",
            "virt-mgmt /dev/nvme0 -c 1 -r 0 -a 1",
            "capacity-mgmt /dev/nvme0 -O 0",
            "io-mgmt-recv $BLOCK --mo=1 --data-len=64",
            "lockdown /dev/nvme0",
        ],
    ),
];

/// Where the stack's parts are, and lvm without udev.
const STACK: &str = r#"
LEFT=$(block 3); RIGHT=$(block 4)
export DM_DISABLE_UDEV=1
mkdir -p /run/lvm /run/lock/lvm /etc/lvm
LVM='devices { use_devicesfile=0 } activation { udev_sync=0 udev_rules=0 monitoring=0 } backup { backup=0 archive=0 }'
open_stack() {
    vgchange --config "$LVM" -ay group
    cryptsetup open --allow-discards --key-file /tmp/secret /dev/mapper/group-volume clear
    mount /dev/mapper/clear /mnt
}
close_stack() {
    umount /mnt
    cryptsetup close clear
    vgchange --config "$LVM" -an group
    mdadm --stop /dev/md0
}
all_there() { (cd /mnt/snapshot && sha256sum --quiet -c /tmp/sums); }
"#;

#[test]
fn linux_stacks_on_namespaces_and_nvme_cli_reads_all_there_is() {
    let mut daemon = Daemon::start(&["--size", "16M", "--kv-size", "16M", "--spus", "4"]);
    let test = "linux_stacks_on_namespaces_and_nvme_cli_reads_all_there_is";
    let Some(mut guest) = Guest::boot_or_skip(test, &GuestOptions::default()) else { return };
    for _ in 0..2 {
        daemon.command(&["ns", "create", "--csi", "nvm", "--size", "160M"]);
    }
    let target = format!("-t tcp -a {HOST_ADDRESS} -s {}", daemon.address().port());
    let prelude = format!("{FUNCTIONS}\nNQN={}\nTARGET='{target}'\n", daemon.nqn());
    guest.check(&format!(
        "{prelude}
         nvme connect $TARGET -n $NQN --nr-io-queues=2
         for number in 1 3 4; do eventually 60 block $number; done
         echo \"BLOCK=$(block 1)\" > /tmp/devices"
    ));
    reads_all(&mut guest, &prelude);
    stacks(&mut guest, &format!("{prelude}{STACK}"));
    guest.check(&format!("{prelude}nvme disconnect -n $NQN"));
    let kernel = guest.console();
    for bad in ["BUG:", "WARNING: CPU", "Oops", "blocked for more than", "BTRFS error", "BTRFS warning"] {
        assert!(!kernel.contains(bad), "the guest's kernel says {bad:?}:\n{kernel}");
    }
    assert!(daemon.stop().success());
}

/// All commands in one script, since each call of the guest takes its time: what each prints, and how it ends.
fn reads_all(guest: &mut Guest, prelude: &str) {
    let refused = REFUSED.iter().flat_map(|(why, commands)| commands.iter().map(|command| (*command, *why, 1)));
    let all: Vec<(&str, &str, i32)> =
        READING.iter().map(|(command, says)| (*command, *says, 0)).chain(refused).collect();
    let mut script =
        format!("{prelude}say() {{ local status=0; \"$@\" 2>&1 || status=$?; echo \"@ended $status\"; }}\n");
    for (command, ..) in &all {
        script.push_str(&format!("say nvme {command}\n"));
    }
    let said = guest.check_for(Duration::from_secs(1200), &script);
    let mut ends = said.split_inclusive("@ended ");
    let mut wrong = Vec::new();
    // What one printed ends where the status of it begins, and the next one's begins behind that.
    let mut text = ends.next().unwrap_or_default();
    for (command, says, status) in all {
        let next = ends.next().unwrap_or_default();
        let (ended, rest) = next.split_once('\n').unwrap_or((next, ""));
        if ended.trim() != status.to_string() || !text.contains(says) {
            let beginning: String = text.chars().take(400).collect();
            wrong.push(format!("nvme {command}: status {ended}, not {status} with {says:?}:\n{beginning}"));
        }
        text = rest;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn stacks(guest: &mut Guest, prelude: &str) {
    let mut step = |script: &str| guest.check_for(Duration::from_secs(1200), &format!("{prelude}\n{script}"));
    step(
        "modprobe raid1; modprobe dm-crypt; modprobe btrfs
         mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --assume-clean --metadata=1.2 --bitmap=internal $LEFT $RIGHT
         pvcreate --config \"$LVM\" -ff -y /dev/md0
         vgcreate --config \"$LVM\" group /dev/md0
         lvcreate --config \"$LVM\" -y -Wn -Zn -n volume -l 100%FREE group
         echo -n secret > /tmp/secret
         cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file /tmp/secret /dev/mapper/group-volume
         cryptsetup open --allow-discards --key-file /tmp/secret /dev/mapper/group-volume clear
         mkfs.btrfs -q -f /dev/mapper/clear
         mount /dev/mapper/clear /mnt
         head -c 20000000 /dev/urandom > /mnt/large
         for number in {1..50}; do head -c $((number * number * 77)) /dev/urandom > /mnt/$number; done
         (cd /mnt && sha256sum *) > /tmp/sums
         btrfs subvolume snapshot /mnt /mnt/snapshot > /tmp/said
         rm /mnt/large; sync
         fstrim -v /mnt",
    );
    // Blocks of one leg cannot be read: the RAID takes the other's, and writes them anew.
    step(
        "first=$(($(mdadm --examine $LEFT | awk '/Data Offset/ { print $4 }') / 8 + 2048))
         nvme write-uncor $LEFT --start-block=$first --block-count=63
         ! nvme verify $LEFT --start-block=$first --block-count=63
         ! dd if=$LEFT of=/tmp/block bs=4096 skip=$first count=1 iflag=direct
         echo check > /sys/block/md0/md/sync_action
         mdadm --wait /dev/md0 || true
         nvme verify $LEFT --start-block=$first --block-count=63
         cmp -n $((64 * 4096)) $LEFT $RIGHT $((first * 4096)) $((first * 4096))
         all_there",
    );
    // One leg goes, and comes back with what was written meanwhile.
    step(
        "mdadm /dev/md0 --fail $RIGHT --remove $RIGHT
         head -c 3000000 /dev/urandom > /mnt/later
         (cd /mnt && sha256sum later) > /tmp/later
         sync
         mdadm /dev/md0 --re-add $RIGHT
         mdadm --wait /dev/md0 || true
         grep -q UU /proc/mdstat
         close_stack
         mdadm --assemble --run /dev/md0 $RIGHT
         open_stack
         all_there
         (cd /mnt && sha256sum --quiet -c /tmp/later)
         btrfs scrub start -B /mnt
         close_stack",
    );
}
