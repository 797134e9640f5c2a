//! What Linux sends to discard or zero all of a namespace, in a guest: `blkdiscard` of the block namespace that a device has by default, and of
//! a larger one, with and without their first and last blocks.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::time::Duration;

use willow_tests::daemon::Daemon;
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS};

/// `DEVICE` is filled at places around each limit that there was: a block, what a DMA and what a range may have, and half of it.
const PLACES: &str = r#"
discarded() { awk '{ print $14 }' /sys/block/${DEVICE#/dev/}/stat; }
size() { blockdev --getsize64 $DEVICE; }
places() {
    local blocks=$(($(size) / 4096))
    echo 0 1 65535 65536 262143 262144 $((blocks / 2 - 1)) $((blocks / 2)) $((blocks - 2)) $((blocks - 1))
}
fill() { for place in $(places); do dd if=/tmp/block of=$DEVICE bs=4k seek=$place oflag=direct status=none; done; }
# A word for each place: written, zero, or neither.
look() {
    for place in $(places); do
        dd if=$DEVICE of=/tmp/found bs=4k skip=$place count=1 iflag=direct status=none
        if cmp -s /tmp/found /tmp/block; then echo -n ' written'
        elif cmp -s /tmp/found /tmp/zero; then echo -n ' zero'
        else echo -n ' neither'; fi
    done
    echo
}
repeat() { local number=0; while [ $number -lt $2 ]; do echo -n " $1"; number=$((number + 1)); done; }
"#;

#[test]
fn linux_discards_all_of_a_namespace() {
    // Without a size: what everybody has who does not ask for another.
    let mut daemon = Daemon::start(&["--kv-size", "0"]);
    let Some(mut guest) = Guest::boot_or_skip("linux_discards_all_of_a_namespace", &GuestOptions::default()) else {
        return;
    };
    daemon.command(&["ns", "create", "--csi", "nvm", "--size", "9G"]);
    let target = format!("-t tcp -a {HOST_ADDRESS} -s {}", daemon.address().port());
    let prelude = format!("{FUNCTIONS}\nNQN={}\nTARGET='{target}'\n{PLACES}", daemon.nqn());
    let mut step = |script: &str| guest.check_for(Duration::from_secs(1200), &format!("{prelude}\n{script}"));
    step(
        "nvme connect $TARGET -n $NQN --nr-io-queues=2
         eventually 60 block 1
         eventually 60 block 2
         echo \"DEFAULT=$(block 1) LARGE=$(block 2)\" > /tmp/devices
         [ $(blockdev --getsize64 $(block 1)) = $((4 << 30)) ]
         [ $(blockdev --getsize64 $(block 2)) = $((9 << 30)) ]
         head -c 4096 /dev/urandom > /tmp/block
         head -c 4096 /dev/zero > /tmp/zero
         dmesg --clear",
    );
    for device in ["$DEFAULT", "$LARGE"] {
        step(&format!(
            "DEVICE={device}
             # All but the first and the last block, then all of it.
             fill
             [ \"$(look)\" = \"$(repeat written 10)\" ]
             before=$(discarded)
             blkdiscard --offset 4096 --length $(($(size) - 8192)) $DEVICE
             [ \"$(look)\" = \" written$(repeat zero 8) written\" ]
             [ $((($(discarded) - before) * 512)) = $(($(size) - 8192)) ]
             fill
             before=$(discarded)
             blkdiscard $DEVICE
             [ \"$(look)\" = \"$(repeat zero 10)\" ]
             [ $((($(discarded) - before) * 512)) = $(size) ]
             # The same by Write Zeroes.
             fill
             blkdiscard --zeroout $DEVICE
             [ \"$(look)\" = \"$(repeat zero 10)\" ]
             # What mkfs discards first, and a file system on what was discarded.
             mkfs.ext4 -q -F -E discard,lazy_itable_init=1 $DEVICE
             e2fsck -fn $DEVICE"
        ));
    }
    let kernel = step("dmesg");
    for bad in ["I/O error", "critical", "Oops", "BUG:"] {
        assert!(!kernel.contains(bad), "the guest's kernel says {bad:?}:\n{kernel}");
    }
    step("nvme disconnect -n $NQN");
    assert!(daemon.stop().success());
}
