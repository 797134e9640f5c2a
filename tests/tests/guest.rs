//! An unmodified Linux kernel as host: it attaches to the device over NVMe/TCP, keeps file systems on it, sends KV commands
//! and RPCs by passthrough, and gets through resets and a device that is killed.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use willow_tests::daemon::{Daemon, binary};
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS, skip};
use willow_tests::scratch::Scratch;

/// One guest at a time: two would each be half as fast.
static ONE_GUEST: Mutex<()> = Mutex::new(());

struct Host {
    guest: Guest,
    prelude: String,
}

impl Host {
    fn boot(test: &str, options: &GuestOptions, daemon: &Daemon) -> Option<Self> {
        let guest = Guest::boot_or_skip(test, options)?;
        let prelude = format!(
            "{FUNCTIONS}\nNQN={}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {}'\n",
            daemon.nqn(),
            daemon.address().port()
        );
        Some(Self { guest, prelude })
    }

    /// Runs one step, which must succeed.
    fn step(&mut self, script: &str) -> String {
        self.guest.check_for(Duration::from_secs(1200), &format!("{}\n{script}", self.prelude))
    }
}

#[test]
fn a_linux_host_uses_the_drive() {
    let _one = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut daemon = Daemon::start(&["--size", "400M", "--kv-size", "64M", "--spus", "4", "--log", "info"]);
    let Some(mut host) = Host::boot("a_linux_host_uses_the_drive", &GuestOptions::default(), &daemon) else { return };

    discovers_and_connects(&mut host, &daemon);
    keeps_file_systems(&mut host);
    passes_fio_verification(&mut host);
    tunnels_rpcs_and_key_value_commands(&mut host);
    sees_namespaces_come_and_go(&mut host, &daemon);
    resets(&mut host);
    outlives_a_killed_device(&mut host, &mut daemon);

    host.step(
        "nvme disconnect -n $NQN | grep -q 'disconnected 1 controller'
         [ ! -e $BLOCK ]
         [ ! -e $PAIRS ]",
    );
    uses_a_flash_drive(&mut host);
    proves_itself(&mut host);
    encrypts(&mut host);
    let kernel = host.guest.console();
    for bad in
        ["BUG:", "WARNING: CPU", "Oops", "blocked for more than", "Buffer I/O error", "EXT4-fs error", "Corruption"]
    {
        assert!(!kernel.contains(bad), "the guest's kernel says {bad:?}:\n{kernel}");
    }
    let ended = daemon.stop();
    assert!(ended.success(), "willow serve ended with {ended}");
}

fn discovers_and_connects(host: &mut Host, daemon: &Daemon) {
    let found = host.step("nvme discover $TARGET");
    assert!(found.contains(daemon.nqn()), "{found}");
    assert!(found.contains("trtype:  tcp"), "{found}");
    assert!(found.contains("subtype: nvme subsystem"), "{found}");
    assert!(found.contains(&format!("trsvcid: {}", daemon.address().port())), "{found}");

    host.step(
        "nvme connect $TARGET -n $NQN --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=300
         eventually 30 block 1
         eventually 30 generic 1
         # The KV namespace has no block device, and a character device of its own.
         eventually 30 generic 2
         gone block 2
         echo \"BLOCK=$(block 1) GENERIC=$(generic 1) PAIRS=$(generic 2)\" > /tmp/devices
         . /tmp/devices
         # One admin queue and two for I/O.
         [ $(cat /sys/class/nvme/nvme0/queue_count) = 3 ]
         [ $(cat /sys/block/${BLOCK#/dev/}/queue/logical_block_size) = 4096 ]
         [ $(blockdev --getsize64 $BLOCK) = $((400 << 20)) ]",
    );
    let identity = host.step("nvme id-ctrl /dev/nvme0 -o json");
    assert!(identity.contains("\"subnqn\""), "{identity}");
    // Everything that a host's tools ask for is answered, and says what nvme-cli can decode.
    host.step(
        "nvme id-ctrl /dev/nvme0 -H > /tmp/id-ctrl
         nvme id-ns $BLOCK -H
         nvme ns-descs $BLOCK
         nvme ns-descs $PAIRS | tee /tmp/descs; grep -qiE 'csi *: *(0x)?0*1' /tmp/descs
         nvme list-ns /dev/nvme0 | tee /tmp/ns; grep -q '0x1$' /tmp/ns
         nvme smart-log /dev/nvme0
         nvme effects-log /dev/nvme0 --csi=0 > /tmp/effects
         nvme effects-log /dev/nvme0 --csi=1 > /tmp/effects
         nvme fw-log /dev/nvme0
         nvme error-log /dev/nvme0 -e 4
         nvme get-feature /dev/nvme0 -f 7
         nvme show-regs /dev/nvme0 > /tmp/registers
         nvme list -v
         nvme list-subsys",
    );
    // What cannot be is refused, and the connection lives on.
    host.step(
        "! nvme get-log /dev/nvme0 --log-id=0x7f --log-len=512
         ! nvme admin-passthru /dev/nvme0 --opcode=0xc7
         ! nvme io-passthru $GENERIC --opcode=0x7d --namespace-id=1
         ! nvme read $BLOCK --start-block=102400 --block-count=0 --data-size=4096 --data=/tmp/x
         ! nvme connect $TARGET -n nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000
         live",
    );
}

fn keeps_file_systems(host: &mut Host) {
    for (make, check) in [("mkfs.ext4 -q -F", "e2fsck -fn"), ("mkfs.xfs -q -f", "xfs_repair -n")] {
        host.step(&format!(
            "{make} $BLOCK
             mount $BLOCK /mnt
             mkdir /mnt/few
             for size in 0 1 511 512 4095 4097 70000 1048577 5000000; do
                 head -c $size /dev/urandom > /mnt/few/$size
             done
             # One process a file would take longer than the files.
             mkdir /mnt/many
             for number in {{1..300}}; do echo \"file $number $RANDOM\" > /mnt/many/$number; done
             (cd /mnt && sha256sum few/* many/*) > /tmp/sums
             ln /mnt/few/1 /mnt/link; mv /mnt/few/511 /mnt/moved; rm /mnt/many/2??
             grep -vE ' (few/511|many/2..)$' /tmp/sums > /tmp/left
             umount /mnt
             mount $BLOCK /mnt
             (cd /mnt && sha256sum --quiet -c /tmp/left)
             [ $(ls /mnt/many | wc -l) = 200 ]
             fstrim -v /mnt
             (cd /mnt && sha256sum --quiet -c /tmp/left)
             umount /mnt
             {check} $BLOCK"
        ));
    }
}

fn passes_fio_verification(host: &mut Host) {
    let fio = "cd /tmp && fio --output=/tmp/fio.log --verify=crc32c --verify_fatal=1 --verify_state_save=0";
    host.step(&format!(
        "{fio} --name=small --filename=$BLOCK --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --size=6M --iodepth=64 ||
             {{ cat /tmp/fio.log; exit 1; }}"
    ));
    host.step(&format!(
        "{fio} --name=mixed --filename=$BLOCK --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-256k --size=24M \
             --iodepth=16 --fdatasync=16 || {{ cat /tmp/fio.log; exit 1; }}"
    ));
    host.step(&format!(
        "{fio} --name=passthrough --filename=$GENERIC --ioengine=io_uring_cmd --cmd_type=nvme --rw=randwrite --bs=8k --size=4M \
             --iodepth=16 || {{ cat /tmp/fio.log; exit 1; }}"
    ));
}

fn tunnels_rpcs_and_key_value_commands(host: &mut Host) {
    // 82h, handler 7 of the control service: the namespaces as JSON.
    let listed = host.step(
        "nvme io-passthru $GENERIC -n 1 --opcode=0x82 --cdw10=0x00000007 --cdw11=0xffffffff --data-len=4096 --read -b \
             2> /dev/null | tr -d '\\0'",
    );
    assert!(listed.contains("\"csi\":\"kv\"") && listed.contains("\"csi\":\"nvm\""), "{listed}");
    // 81h, handler 11: the number of the app whose name is sent.
    let number = host.step(
        "printf key-value > /tmp/name
         nvme io-passthru $GENERIC -n 1 --opcode=0x81 --cdw10=0x0000000b --cdw11=0xffffffff --data-len=9 --write \
             --input-file=/tmp/name 2>&1",
    );
    let result = number.rsplit("result: 0x").next().and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    assert!(result.is_some_and(|app| app > 0), "key-value has a number above 0: {number}");
    // An app that is not there: an error status, not a success.
    host.step(
        "! nvme io-passthru $GENERIC -n 1 --opcode=0x82 --cdw10=0x7fff0001 --cdw11=0 --data-len=512 --read
         live",
    );

    host.step(
        "kv() { nvme io-passthru $PAIRS -n 2 $ALPHA \"$@\"; }
         head -c 5000 /dev/urandom > /tmp/value
         ! kv --opcode=0x14 --cdw11=5                                    # Exist: not yet
         kv --opcode=0x01 --cdw10=5000 --cdw11=5 --data-len=5000 --write --input-file=/tmp/value
         kv --opcode=0x14 --cdw11=5
         kv --opcode=0x02 --cdw10=5000 --cdw11=5 --data-len=5000 --read -b > /tmp/back 2> /tmp/said
         cmp /tmp/value /tmp/back
         ! kv --opcode=0x01 --cdw10=5000 --cdw11=0x205 --data-len=5000 --write --input-file=/tmp/value  # must not exist
         # A short buffer gets the beginning, and the whole size as the result.
         kv --opcode=0x02 --cdw10=512 --cdw11=5 --data-len=512 --read -b 2> /tmp/said > /tmp/back
         cmp /tmp/back <(head -c 512 /tmp/value)
         kv --opcode=0x06 --cdw10=4096 --cdw11=0 --data-len=4096 --read -b 2> /dev/null | tr -d '\\0' | grep -q alpha
         kv --opcode=0x10 --cdw11=5
         ! kv --opcode=0x10 --cdw11=5                                    # Delete: gone already
         ! kv --opcode=0x02 --cdw10=512 --cdw11=5 --data-len=512 --read
         ! kv --opcode=0x14 --cdw11=17                                   # no key is that long
         live",
    );
}

fn sees_namespaces_come_and_go(host: &mut Host, daemon: &Daemon) {
    daemon.command(&["ns", "create", "--csi", "kv", "--size", "64M"]);
    host.step("eventually 60 generic 3; gone block 3; echo \"LATER=$(generic 3)\" >> /tmp/devices");
    daemon.command(&["ns", "create", "--csi", "nvm", "--size", "32M", "--block-bytes", "512"]);
    host.step(
        "eventually 60 block 4
         ODD=$(block 4)
         [ $(cat /sys/block/${ODD#/dev/}/queue/logical_block_size) = 512 ]
         head -c 1536 /dev/urandom > /tmp/odd
         dd if=/tmp/odd of=$ODD bs=512 seek=3 oflag=direct status=none
         dd if=$ODD bs=512 skip=3 count=3 iflag=direct status=none | cmp - /tmp/odd
         nvme io-passthru $LATER -n 3 $ALPHA --opcode=0x01 --cdw10=9 --cdw11=5 --data-len=9 --write --input-file=/tmp/name",
    );
    daemon.command(&["ns", "delete", "4"]);
    host.step("eventually 60 gone block 4; eventually 60 gone generic 4");
}

fn resets(host: &mut Host) {
    host.step(
        "dd if=/dev/urandom of=/tmp/before bs=4k count=64 status=none
         dd if=/tmp/before of=$BLOCK bs=64k oflag=direct status=none
         nvme reset /dev/nvme0
         eventually 60 live
         dd if=$BLOCK bs=64k count=4 iflag=direct status=none | cmp - /tmp/before
         # While commands are on their way.
         dd if=$BLOCK of=/dev/null bs=128k count=300 iflag=direct status=none & reader=$!
         nvme reset /dev/nvme0
         wait $reader
         eventually 60 live",
    );
}

fn outlives_a_killed_device(host: &mut Host, daemon: &mut Daemon) {
    // A file system with what was synced, raw blocks that were never flushed, and a verifying job that is in the middle.
    host.step(
        "mkfs.ext4 -q -F -E nodiscard $BLOCK 100M
         mount $BLOCK /mnt
         head -c 3000000 /dev/urandom > /mnt/synced
         sync
         sha256sum /mnt/synced > /tmp/synced.sum
         dd if=/tmp/before of=$BLOCK bs=64k seek=3200 oflag=direct status=none
         written() { awk '{ print $5 }' /sys/block/${BLOCK#/dev/}/stat; }
         before=$(written)
         cd /tmp
         setsid fio --output=/tmp/fio.log --name=killed --filename=$BLOCK --offset=256M --size=6M --direct=1 \
             --ioengine=libaio --rw=randwrite --bs=4k --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
             --rate_iops=150 --allow_mounted_write=1 > /dev/null 2>&1 < /dev/null &
         echo $! > /tmp/fio.pid
         busy() { [ $(($(written) - before)) -gt 200 ]; }
         eventually 120 busy",
    );
    daemon.kill();
    host.step("still_there() { live; }; eventually 60 bash -c \"! grep -q live /sys/class/nvme/nvme0/state\"");
    daemon.restart();
    host.step(
        "eventually 120 live
         # fio saw no error: the kernel sent again what had not been answered.
         ended() { ! kill -0 $(cat /tmp/fio.pid); }
         eventually 200 ended
         grep -q 'err= 0' /tmp/fio.log || { cat /tmp/fio.log; exit 1; }
         dd if=$BLOCK bs=64k skip=3200 count=4 iflag=direct status=none | cmp - /tmp/before
         sha256sum --quiet -c /tmp/synced.sum
         head -c 100000 /dev/urandom > /mnt/after
         umount /mnt
         mount $BLOCK /mnt
         sha256sum --quiet -c /tmp/synced.sum
         umount /mnt
         e2fsck -fn $BLOCK
         # The pair that was stored in the namespace made at run time.
         nvme io-passthru $LATER -n 3 $ALPHA --opcode=0x02 --cdw10=9 --cdw11=5 --data-len=9 --read -b 2> /dev/null |
             cmp - /tmp/name",
    );
}

/// ext4 on a drive of flash that feels like the board: what was synced is there after SIGKILL, and the file system is sound.
fn uses_a_flash_drive(host: &mut Host) {
    let flash = ["--preset", "jasmine", "--ftl", "page", "--clock", "real", "--size", "96M", "--kv-size", "0"];
    let mut daemon = Daemon::start(&flash);
    let kept = std::mem::take(&mut host.prelude);
    host.prelude =
        format!("{kept}\nNQN={}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {}'\n", daemon.nqn(), daemon.address().port());
    host.step(
        "nvme connect $TARGET -n $NQN --nr-io-queues=2
         eventually 60 block 1
         BLOCK=$(block 1)
         # The kernel knows that it has to flush.
         [ \"$(cat /sys/block/${BLOCK#/dev/}/queue/write_cache)\" = 'write back' ]
         mkfs.ext4 -q -F -E nodiscard $BLOCK 64M
         mount $BLOCK /mnt
         head -c 3000000 /dev/urandom > /mnt/synced
         sync
         sha256sum /mnt/synced > /tmp/flash.sum
         umount /mnt
         # Behind the file system, answered and never flushed: it may be lost.
         dd if=/dev/urandom of=$BLOCK bs=64k seek=1200 count=20 oflag=direct status=none",
    );
    daemon.kill();
    host.step(
        "nvme disconnect -n $NQN
         eventually 60 gone block 1",
    );
    daemon.restart();
    host.step(
        "nvme connect $TARGET -n $NQN --nr-io-queues=2
         eventually 60 block 1
         BLOCK=$(block 1)
         mount $BLOCK /mnt
         sha256sum --quiet -c /tmp/flash.sum
         umount /mnt
         e2fsck -fn $BLOCK
         nvme smart-log /dev/$(controller) | grep -qiE 'available_spare[[:space:]]*:[[:space:]]*100%'
         nvme disconnect -n $NQN
         eventually 60 gone block 1",
    );
    host.prelude = kept;
    assert!(daemon.stop().success(), "willow serve ended");
}

/// Another device, which knows one host by its key: DH-HMAC-CHAP both ways, and hosts that cannot.
fn proves_itself(host: &mut Host) {
    const HOST_ID: &str = "6b1f3b2c-0f6e-4f0b-9a51-2d8f5f2f7c11";
    let folder = Scratch::new("keys").expect("a temporary folder");
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let make = |file: &str, hash: &str| {
        let path = folder.path().join(file);
        let made =
            Command::new(binary()).args(["key", "new", "--host", &name, "--both", "--hash", hash]).arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "willow key new");
        let text = std::fs::read_to_string(&path).expect("a key file");
        let secret = |at: usize| {
            text.split('"').filter(|part| part.starts_with("DHHC-1:")).nth(at).expect("a secret").to_owned()
        };
        (path.display().to_string(), secret(0), secret(1))
    };
    let (file, secret, controller_secret) = make("key", "sha384");
    let (_, stolen, other) = make("stolen", "sha256");
    let mut daemon = Daemon::start(&["--size", "64M", "--kv-size", "0", "--spus", "2", "--host-key", &file]);
    let prelude = std::mem::take(&mut host.prelude);
    host.prelude = format!(
        "{prelude}\nNQN={}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {}'\nHOST='--hostnqn={name} --hostid={HOST_ID}'\n",
        daemon.nqn(),
        daemon.address().port()
    );
    host.step(&format!(
        "# Anyone may ask what there is, and has no more of it.
         nvme discover $TARGET | grep -q $NQN
         gone nvme connect $TARGET -n $NQN
         gone nvme connect $TARGET -n $NQN $HOST
         gone nvme connect $TARGET -n $NQN $HOST --dhchap-secret={stolen}
         # A device that does not have the secret that this host knows of it.
         gone nvme connect $TARGET -n $NQN $HOST --dhchap-secret={secret} --dhchap-ctrl-secret={other}
         gone block 1
         dmesg --clear
         nvme connect $TARGET -n $NQN $HOST --dhchap-secret={secret} --dhchap-ctrl-secret={controller_secret} --nr-io-queues=2
         eventually 60 block 1
         dmesg | grep 'authenticated with hash'
         dmesg | grep 'controller authenticated'
         BLOCK=$(block 1)
         head -c 65536 /dev/urandom > /tmp/proven
         dd if=/tmp/proven of=$BLOCK bs=64k oflag=direct status=none
         # All queues authenticate anew while they are in use, and after a reset.
         dmesg --clear
         echo {secret} > /sys/class/nvme/$(controller)/dhchap_secret
         again() {{ dmesg | grep -q 'controller authenticated'; }}
         eventually 60 again
         dd if=$BLOCK bs=64k count=1 iflag=direct status=none | cmp - /tmp/proven
         nvme reset /dev/$(controller)
         eventually 60 live
         dd if=$BLOCK bs=64k count=1 iflag=direct status=none | cmp - /tmp/proven
         nvme disconnect -n $NQN
         # Without the device's proof.
         nvme connect $TARGET -n $NQN $HOST --dhchap-secret={secret}
         eventually 60 block 1
         nvme disconnect -n $NQN"
    ));
    let log = daemon.log();
    assert!(log.contains("host authenticated") && log.contains("authentication failed"), "{log}");
    for secret in [&secret, &controller_secret, &stolen] {
        assert!(!log.contains(&secret[10..30]), "a secret is in the log");
    }
    assert!(daemon.stop().success());
    host.prelude = prelude;
}

/// Another device, to which one host comes by TLS alone: the kernel's TLS, with keys that nvme-cli derives and tlshd's handshake.
fn encrypts(host: &mut Host) {
    const HOST_ID: &str = "6b1f3b2c-0f6e-4f0b-9a51-2d8f5f2f7c11";
    let folder = Scratch::new("keys").expect("a temporary folder");
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let make = |file: &str, flags: &[&str]| {
        let path = folder.path().join(file);
        let made = Command::new(binary()).args(["key", "new", "--host", &name]).args(flags).arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "willow key new");
        let text = std::fs::read_to_string(&path).expect("a key file");
        let psk = text.split('"').find(|part| part.starts_with("NVMeTLSkey-1:")).expect("a key for TLS").to_owned();
        (path.display().to_string(), psk)
    };
    let (_, stolen) = make("stolen", &["--tls-only"]);
    host.step("serve_handshakes");
    let prelude = std::mem::take(&mut host.prelude);
    // Keys of 32 bytes: the GnuTLS that tlshd uses here proves external keys by SHA-256 alone.
    for (hash, identity) in [("sha256", 1), ("sha256", 0)] {
        let (file, psk) = make(&format!("{hash}-{identity}"), &["--tls-only", "--hash", hash]);
        let arguments = ["--size", "64M", "--kv-size", "0", "--spus", "2", "--tls", "required", "--host-key", &file];
        let mut daemon = Daemon::start(&arguments);
        host.prelude = format!(
            "{prelude}\nNQN={}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {}'\nHOST='--hostnqn={name} --hostid={HOST_ID}'\n\
             insert() {{ nvme check-tls-key --insert --identity={identity} --hostnqn={name} --subsysnqn=$NQN --keydata=$1; }}\n",
            daemon.nqn(),
            daemon.address().port()
        );
        host.step(&format!(
            "gone nvme connect $TARGET -n $NQN $HOST
             gone nvme discover $TARGET
             # Without a key of the right name, and with another one of it.
             gone nvme connect $TARGET -n $NQN $HOST --tls
             insert {stolen}
             gone nvme connect $TARGET -n $NQN $HOST --tls
             gone block 1
             keyctl clear %:.nvme
             insert {psk}
             eventually 60 nvme connect $TARGET -n $NQN $HOST --tls --nr-io-queues=2 || {{ cat /tmp/tlshd.log; dmesg | tail; exit 1; }}
             eventually 60 block 1
             BLOCK=$(block 1)
             mkfs.ext4 -q $BLOCK
             mount $BLOCK /mnt
             fio --name=verify --directory=/mnt --size=8M --rw=randwrite --bsrange=4k-128k --iodepth=8 --ioengine=libaio \
                 --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal > /dev/null
             umount /mnt
             # The handshake anew for all queues.
             nvme reset /dev/$(controller)
             eventually 60 live
             e2fsck -fn $BLOCK
             nvme disconnect -n $NQN
             keyctl clear %:.nvme"
        ));
        let log = daemon.log();
        assert!(log.contains("does not begin with TLS") && log.contains("connection refused"), "{log}");
        for key in [&psk, &stolen] {
            assert!(!log.contains(&key[20..40]), "a key is in the log");
        }
        assert!(daemon.stop().success());
    }
    host.prelude = prelude;
}

#[test]
fn a_session_decodes_without_a_malformed_packet() {
    let test = "a_session_decodes_without_a_malformed_packet";
    let _one = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    if !Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip(test, "tshark is not installed (scripts/bootstrap --tests installs it)");
    }
    let folder = Scratch::new("capture").expect("a temporary folder");
    let capture = folder.path().join("session.pcap");
    let mut daemon = Daemon::start(&["--size", "64M", "--kv-size", "64M", "--spus", "2"]);
    let options = GuestOptions { capture: Some(capture.clone()), ..GuestOptions::default() };
    let Some(mut host) = Host::boot(test, &options, &daemon) else { return };
    host.step("nvme discover $TARGET > /tmp/found");
    // The same session three ways: no digests, header digests, both.
    for digests in ["", "-g", "-g -G"] {
        host.step(&format!(
            "nvme connect $TARGET -n $NQN {digests} --keep-alive-tmo=2
             eventually 30 block 1
             eventually 30 generic 2
             BLOCK=$(block 1) GENERIC=$(generic 1) PAIRS=$(generic 2)
             head -c 300000 /dev/urandom > /tmp/data
             for bytes in 4096 8192 262144; do
                 head -c $bytes /tmp/data > /tmp/part
                 dd if=/tmp/part of=$BLOCK bs=$bytes count=1 seek=1 oflag=direct status=none
                 dd if=$BLOCK bs=$bytes count=1 skip=1 iflag=direct status=none | cmp - /tmp/part
             done
             nvme compare $BLOCK --start-block=64 --block-count=63 --data-size=262144 --data=/tmp/part
             nvme verify $BLOCK --start-block=64 --block-count=63
             nvme write-zeroes $BLOCK --start-block=64 --block-count=7
             nvme dsm $BLOCK --ad --slbs=72 --blocks=8
             ! nvme compare $BLOCK --start-block=64 --block-count=63 --data-size=262144 --data=/tmp/part
             nvme flush $BLOCK -n 1
             nvme resv-register $BLOCK -n 1 --nrkey=0x11 --rrega=0
             nvme resv-acquire $BLOCK -n 1 --crkey=0x11 --rtype=1 --racqa=0
             nvme resv-report $BLOCK -n 1 --eds | tee /tmp/report; grep -qiE 'rkey *: *(0x)?11$' /tmp/report
             nvme resv-release $BLOCK -n 1 --crkey=0x11 --rtype=1 --rrela=1
             ! nvme resv-acquire $BLOCK -n 1 --crkey=0x11 --rtype=1 --racqa=0
             nvme write $BLOCK --start-block=3 --block-count=0 --data-size=4096 --data=/tmp/part --force-unit-access
             nvme io-passthru $PAIRS -n 2 $ALPHA --opcode=0x01 --cdw10=7000 --cdw11=5 --data-len=7000 --write --input-file=/tmp/data
             nvme io-passthru $PAIRS -n 2 $ALPHA --opcode=0x02 --cdw10=7000 --cdw11=5 --data-len=7000 --read -b 2> /dev/null |
                 cmp - <(head -c 7000 /tmp/data)
             ! nvme io-passthru $GENERIC -n 1 --opcode=0x7d
             sleep 3 # a keep alive or two
             nvme reset /dev/nvme0
             eventually 60 live
             nvme disconnect -n $NQN"
        ));
    }
    assert!(daemon.stop().success());
    drop(host);

    let port = daemon.address().port();
    let malformed = tshark(&capture, port, &["-Y", "_ws.malformed || nvme-tcp.unknown_data"]);
    assert_eq!(malformed, "", "tshark finds malformed packets");
    let lost = tshark(&capture, port, &["-Y", "tcp.analysis.lost_segment"]);
    assert_eq!(lost, "", "the capture is not whole");
    let types = tshark(&capture, port, &["-Y", "nvme-tcp", "-T", "fields", "-e", "nvme-tcp.type"]);
    let seen: std::collections::BTreeSet<&str> = types.split([',', '\n']).filter(|kind| !kind.is_empty()).collect();
    // ICReq, ICResp, CapsuleCmd, CapsuleResp, H2CData, C2HData, R2T (NVMe/TCP 3.6.2).
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["0", "1", "4", "5", "6", "7", "9"], "kinds of PDU on the wire");
    for field in ["nvme-tcp.hdgst.status", "nvme-tcp.ddgst.status"] {
        let states = tshark(&capture, port, &["-Y", field, "-T", "fields", "-e", field]);
        let mut checked = states.split([',', '\n']).filter(|state| !state.is_empty()).peekable();
        assert!(checked.peek().is_some(), "no {field} in the capture");
        assert!(checked.all(|state| state == "1"), "{field}: tshark computes another digest");
    }
}

/// What tshark prints of the packets that a filter lets through.
fn tshark(capture: &Path, port: u16, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args(["-n", "-d", &format!("tcp.port=={port},nvme-tcp")])
        .args(["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"])
        .args(arguments)
        .output()
        .expect("tshark runs");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
