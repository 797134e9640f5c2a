//! Files directly over NVMe/TCP on a host of its own: an unmodified Linux kernel attaches the device and has an ext4 on it, the agent
//! runs there with the host's key, and an unprivileged user reads and writes his file past that kernel.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::time::Duration;
use willow_tests::daemon::Daemon;
use willow_tests::guest::{Guest, GuestOptions};
use willow_tests::guest_agent::{folder, host_name, key as make_key, prelude};

#[test]
fn a_user_of_a_linux_host_reaches_his_file_past_its_kernel() {
    let test = "a_user_of_a_linux_host_reaches_his_file_past_its_kernel";
    let folder = folder("guest-direct");
    let name = host_name();
    let (key, tls_key) = (folder.path().join("key"), folder.path().join("tls-key"));
    let found = make_key(&key, "--both");
    let secret = |at: usize| found.iter().filter(|part| part.starts_with("DHHC-1:")).nth(at).expect("a secret").clone();
    let found_tls = make_key(&tls_key, "--tls");
    let of_tls = |start: &str| found_tls.iter().find(|part| part.starts_with(start)).expect("a key").clone();
    let (tls_secret, psk) = (of_tls("DHHC-1:"), of_tls("NVMeTLSkey-1:"));
    let (key, tls_key) = (key.display().to_string(), tls_key.display().to_string());
    let mut daemon =
        Daemon::start(&["--size", "300M", "--kv-size", "0", "--spus", "4", "--log", "info", "--host-key", &key]);
    let options = GuestOptions { folder: Some(folder.path().to_owned()), ..GuestOptions::default() };
    let Some(mut guest) = Guest::boot_or_skip(test, &options) else { return };
    let secrets = format!("--dhchap-secret={} --dhchap-ctrl-secret={}", secret(0), secret(1));
    let mut prelude_now = prelude(&daemon, "/tmp/key", &secrets);
    let mut step = |prelude: &str, script: &str| {
        let functions = "
            writer() {
                exec setpriv --reuid 1000 --regid 1000 --clear-groups -- /host/willow direct write /mnt/his --agent /tmp/agent
            }
            freezes() {
                begin /tmp/writer endless 1000 < <(sleep 2000)
                eventually 60 grep -q written /tmp/writer
                fsfreeze -f /mnt
                eventually 60 stopped || { tail -n 3 /tmp/writer; tail -n 20 /tmp/agent.log; false; }
                fsfreeze -u /mnt
                kill $!
                eventually 30 thawed /mnt/of-1000/file
            }
            # The user's file, of which /tmp/model is a copy, is read and written past the kernel, which sees it afterwards.
            goes_directly() {
                agent
                direct 1000 read /mnt/his | cmp - /tmp/model
                head -c 70000 /dev/urandom > /tmp/new
                direct 1000 write /mnt/his --offset 4321 < /tmp/new
                dd if=/tmp/new of=/tmp/model bs=64k seek=4321 oflag=seek_bytes conv=notrunc status=none
                eventually 30 thawed /mnt/his
                cmp /mnt/his /tmp/model
                end_agent
            }
            ";
        guest.check_for(Duration::from_secs(1200), &format!("{prelude}{functions}{script}"))
    };
    step(
        &prelude_now,
        "mkdir -p /host && mount -o ro /dev/vdb /host
         install -m 600 /host/key /tmp/key
         # Before the kernel has attached anything there is nothing for an agent to do, and it says so.
         ! /host/willow agent $AGENT --socket /tmp/agent 2> /tmp/refused
         grep 'attach it (nvme connect)' /tmp/refused
         nvme connect $TARGET -n $NQN $HOST $SECRETS --nr-io-queues=2
         eventually 60 block 1
         mkfs.ext4 -q -F $(block 1)
         mount $(block 1) /mnt
         head -c 3000001 /dev/urandom > /mnt/his; chown 1000:1000 /mnt/his; chmod 600 /mnt/his
         head -c 50000 /dev/urandom > /mnt/others; chown 1001:1001 /mnt/others; chmod 666 /mnt/others
         cp /mnt/his /tmp/model
         agent",
    );
    // The kernel's view and the direct one are the same, both ways, once the file was closed.
    step(
        &prelude_now,
        "direct 1000 read /mnt/his | cmp - /tmp/model
         head -c 200000 /dev/urandom > /tmp/new
         direct 1000 write /mnt/his --offset 12345 < /tmp/new
         dd if=/tmp/new of=/tmp/model bs=64k seek=12345 oflag=seek_bytes conv=notrunc status=none
         eventually 30 thawed /mnt/his
         cmp /mnt/his /tmp/model
         head -c 5000 /dev/urandom > /tmp/new
         dd if=/tmp/new of=/mnt/his bs=5000 seek=100 conv=notrunc status=none
         dd if=/tmp/new of=/tmp/model bs=5000 seek=100 conv=notrunc status=none
         direct 1000 read /mnt/his | cmp - /tmp/model",
    );
    // What is not his, what was opened for reading only, and what is on no disk of the device.
    step(
        &prelude_now,
        "! direct 1000 read /mnt/others > /tmp/got 2> /tmp/refused
         grep 'belongs to another user' /tmp/refused
         ! direct 1000 write /mnt/his --read-only < /tmp/new 2> /tmp/refused
         grep 'no such permission' /tmp/refused
         cmp /mnt/his /tmp/model
         head -c 5000 /dev/urandom > /tmp/elsewhere; chown 1000 /tmp/elsewhere
         ! direct 1000 read /tmp/elsewhere > /tmp/got 2> /tmp/refused
         cat /tmp/refused",
    );
    // A process that is killed while it has the file, and an agent that is.
    step(
        &prelude_now,
        "chown 1000:1000 /mnt/his
         writer < <(sleep 2000) > /dev/null 2>&1 &
         eventually 60 frozen /mnt/his
         kill -KILL $!
         eventually 30 thawed /mnt/his
         writer < <(sleep 2000) > /dev/null 2>&1 &
         echo $! > /tmp/writer.pid
         eventually 60 frozen /mnt/his
         kill -KILL $(cat /tmp/agent.pid)
         frozen /mnt/his
         # It may have ended by itself, where the agent had not answered yet.
         kill -KILL $(cat /tmp/writer.pid) || true
         agent
         thawed /mnt/his
         direct 1000 read /mnt/his | cmp - /tmp/model",
    );
    step(&prelude_now, "freezes");
    step(
        &prelude_now,
        "kill $(cat /tmp/agent.pid)
         eventually 30 gone_agent
         cat /tmp/agent.log
         cmp /mnt/his /tmp/model
         umount /mnt
         e2fsck -fn $(block 1)",
    );
    step(
        &prelude_now,
        "mkfs.xfs -q -f -m reflink=0 $(block 1)
         mount $(block 1) /mnt
         agent
         freezes
         kill $(cat /tmp/agent.pid)
         eventually 30 gone_agent
         umount /mnt",
    );
    // The same on a partition, which begins elsewhere in the namespace.
    step(
        &prelude_now,
        "number() {
             printf \"$(printf '\\\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)))\"
         }
         unit=$(blockdev --getss $(block 1)); begin=$(((5 << 20) / unit))
         {
             head -c 446 /dev/zero; printf '\\0\\0\\0\\0\\x83\\0\\0\\0'
             number $begin; number $(($(blockdev --getsize64 $(block 1)) / unit - begin))
             head -c 48 /dev/zero; printf '\\x55\\xaa'
         } > /tmp/table
         dd if=/tmp/table of=$(block 1) conv=notrunc,fsync status=none
         blockdev --rereadpt $(block 1)
         eventually 30 test -b $(block 1)p1
         mkfs.ext4 -q -F $(block 1)p1
         mount $(block 1)p1 /mnt
         cp /tmp/model /mnt/his; chown 1000:1000 /mnt/his; chmod 600 /mnt/his
         goes_directly
         umount /mnt
         e2fsck -fn $(block 1)p1
         nvme disconnect -n $NQN",
    );
    // A device that demands TLS: the kernel comes by it, the agent, and the user's process by a key that came with its ticket.
    let arguments = ["--size", "64M", "--kv-size", "0", "--spus", "2", "--log", "info", "--tls", "required"];
    let mut tls_daemon = Daemon::start(&[&arguments[..], &["--host-key", &tls_key]].concat());
    prelude_now = prelude(&tls_daemon, "/tmp/tls-key", &format!("--dhchap-secret={tls_secret}"));
    step(
        &prelude_now,
        &format!(
            "install -m 600 /host/tls-key /tmp/tls-key
             serve_handshakes
             nvme check-tls-key --insert --identity=1 --hostnqn={name} --subsysnqn=$NQN --keydata={psk}
             eventually 60 nvme connect $TARGET -n $NQN $HOST $SECRETS --tls --nr-io-queues=2 || {{ cat /tmp/tlshd.log; dmesg | tail; exit 1; }}
             eventually 60 block 1
             mkfs.ext4 -q -F $(block 1)
             mount $(block 1) /mnt
             head -c 1000001 /dev/urandom > /mnt/his; chown 1000:1000 /mnt/his; chmod 600 /mnt/his
             cp /mnt/his /tmp/model
             goes_directly
             umount /mnt
             nvme disconnect -n $NQN"
        ),
    );
    let kernel = guest.console();
    for bad in ["BUG:", "WARNING: CPU", "Oops", "blocked for more than", "Buffer I/O error", "EXT4-fs error"] {
        assert!(!kernel.contains(bad), "the guest's kernel says {bad:?}:\n{kernel}");
    }
    let log = daemon.log();
    for secret in [secret(0), secret(1)] {
        assert!(!log.contains(&secret[10..30]), "a secret is in the log");
    }
    let log = tls_daemon.log();
    assert!(log.contains("ticket issued"), "{log}");
    for secret in [&tls_secret, &psk] {
        assert!(!log.contains(&secret[20..40]), "a secret is in the log");
    }
    assert!(tls_daemon.stop().success());
    assert!(daemon.stop().success());
}
