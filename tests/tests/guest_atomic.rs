//! Linux's RWF_ATOMIC on a namespace that was made with `--atomic`, in a guest: what statx and sysfs say, what is written, what is refused.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::time::Duration;

use willow_tests::daemon::Daemon;
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS};

/// pwritev2 by Python, which passes flags on as they are: 40h is RWF_ATOMIC. Prints what was written, or the error's name.
const WRITE: &str = r#"
import errno, os, sys
path, offset, length, direct, byte = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "direct", int(sys.argv[5])
file = os.open(path, os.O_RDWR | (os.O_DIRECT if direct else 0))
try:
    print(os.pwritev(file, [bytes([byte]) * length], offset, 0x40))
except OSError as error:
    print(errno.errorcode[error.errno])
"#;

#[test]
fn linux_writes_atomically_and_refuses_misuse() {
    let mut daemon = Daemon::start(&["--size", "64M", "--kv-size", "64M", "--spus", "4"]);
    let Some(mut guest) = Guest::boot_or_skip("linux_writes_atomically_and_refuses_misuse", &GuestOptions::default())
    else {
        return;
    };
    daemon.command(&["ns", "create", "--csi", "nvm", "--size", "32M", "--atomic", "64K"]);
    let target = format!("-t tcp -a {HOST_ADDRESS} -s {}", daemon.address().port());
    let prelude =
        format!("{FUNCTIONS}\nNQN={}\nTARGET='{target}'\ncat > /tmp/write.py <<'END'{WRITE}END\n", daemon.nqn());
    let mut step = |script: &str| guest.check_for(Duration::from_secs(1200), &format!("{prelude}\n{script}"));
    let told = step(
        "# Linux 6.12's multipath devices do not pass the units on.
         modprobe -r nvme_tcp nvme_fabrics nvme_core
         modprobe nvme_core multipath=N
         modprobe nvme_tcp
         nvme connect $TARGET -n $NQN --nr-io-queues=2
         eventually 60 block 1
         eventually 60 block 3
         echo \"PLAIN=$(block 1) WHOLE=$(block 3)\" > /tmp/devices
         . /tmp/devices
         for device in $PLAIN $WHOLE; do
             (cd /sys/block/${device#/dev/}/queue; grep . atomic_write_max_bytes atomic_write_boundary_bytes atomic_write_unit_min_bytes \\
                 atomic_write_unit_max_bytes)
             xfs_io -r -c 'statx -r -m 0x10000' $device | grep atomic
         done",
    );
    let values = |name: &str| -> Vec<u64> {
        let lines = told.lines().filter_map(|line| line.trim().strip_prefix(name));
        let number = |rest: &str| rest.trim_start_matches([':', ' ', '=']).trim().parse().expect("a number");
        lines.map(number).collect()
    };
    // A plain namespace keeps a block whole, the other 64 KiB.
    assert_eq!(values("atomic_write_unit_max_bytes"), [4096, 65536], "{told}");
    assert_eq!(values("atomic_write_unit_min_bytes"), [4096, 4096], "{told}");
    assert_eq!(values("atomic_write_max_bytes"), [4096, 65536], "{told}");
    assert_eq!(values("atomic_write_boundary_bytes")[1], 65536, "{told}");
    assert_eq!(values("stat.atomic_write_unit_max"), [4096, 65536], "{told}");
    assert_eq!(values("stat.atomic_write_unit_min"), [4096, 4096], "{told}");
    let mut write = |device: &str, offset: u32, length: u32, how: &str, byte: u8| {
        step(&format!("python3 /tmp/write.py ${device} {offset} {length} {how} {byte}")).trim().to_owned()
    };
    for (number, (offset, length)) in (1..).zip([(0, 65536), (65536, 4096), (1 << 20, 65536), (131_072, 16384)]) {
        assert_eq!(write("WHOLE", offset, length, "direct", number), length.to_string());
    }
    // Not a power of two, not at a multiple of its length, longer than a unit, shorter than a block.
    for (offset, length, how) in
        [(0, 12288, "direct"), (4096, 65536, "direct"), (0, 131_072, "direct"), (0, 512, "direct")]
    {
        assert_eq!(write("WHOLE", offset, length, how, 99), "EINVAL", "{length} bytes at {offset}");
    }
    // The same number as EOPNOTSUPP.
    assert_eq!(write("WHOLE", 0, 65536, "cached", 99), "ENOTSUP");
    assert_eq!(write("PLAIN", 0, 65536, "direct", 99), "EINVAL");
    // What was written is there after the device is killed, and nothing of what was refused.
    daemon.kill();
    daemon.restart();
    let read = step(
        "eventually 120 live
         dd if=$WHOLE bs=4k count=272 iflag=direct status=none | od -An -v -tu1 -w4096 | awk '{ print $1 }' | uniq -c | tr -s ' '",
    );
    let runs: Vec<&str> = read.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(runs, ["16 1", "1 2", "15 0", "4 4", "220 0", "16 3"], "{read}");
    assert!(daemon.stop().success());
}
