//! A newer Linux kernel as host, which has secure channel concatenation (from 6.15 on): `nvme connect --concat`.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use willow_tests::daemon::{Daemon, binary};
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS};
use willow_tests::scratch::Scratch;

#[test]
fn linux_comes_by_tls_with_a_key_that_its_authentication_generated() {
    const HOST_ID: &str = "6b1f3b2c-0f6e-4f0b-9a51-2d8f5f2f7c11";
    let test = "linux_comes_by_tls_with_a_key_that_its_authentication_generated";
    let folder = Scratch::new("keys").expect("a temporary folder");
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}");
    let file = folder.path().join("key");
    let made = Command::new(binary()).args(["key", "new", "--host", &name, "--secure-channel"]).arg(&file).status();
    assert!(made.is_ok_and(|status| status.success()), "willow key new");
    let text = std::fs::read_to_string(&file).expect("a key file");
    let secret = text.split('"').find(|part| part.starts_with("DHHC-1:")).expect("a secret");
    let options = GuestOptions { newer: true, ..GuestOptions::default() };
    let Some(mut guest) = Guest::boot_or_skip(test, &options) else { return };
    let file = file.display().to_string();
    let mut daemon = Daemon::start(&["--size", "64M", "--kv-size", "0", "--spus", "2", "--host-key", &file]);
    let prelude = format!(
        "{FUNCTIONS}\nNQN={}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {}'\nHOST='--hostnqn={name} --hostid={HOST_ID}'\n",
        daemon.nqn(),
        daemon.address().port()
    );
    guest.check_for(
        Duration::from_secs(300),
        &format!(
            "{prelude}
             serve_handshakes
             # Its key file says that it has to come by a generated key: by its secret alone it gets nothing.
             gone nvme connect $TARGET -n $NQN $HOST --dhchap-secret={secret}
             gone block 1
             connect() {{ nvme connect $TARGET -n $NQN $HOST --dhchap-secret={secret} --concat --nr-io-queues=2; }}
             eventually 60 connect || {{ cat /tmp/tlshd.log; dmesg | tail -n 40; exit 1; }}
             eventually 60 block 1
             BLOCK=$(block 1)
             [ \"$(cat /sys/class/nvme/$(controller)/tls_mode)\" = concat ]
             head -c 1048576 /dev/urandom > /tmp/data
             dd if=/tmp/data of=$BLOCK bs=64k oflag=direct status=none
             dd if=$BLOCK bs=64k count=16 iflag=direct status=none | cmp - /tmp/data
             # A reset makes another key, and all queues anew.
             before=$(cat /sys/class/nvme/$(controller)/tls_key)
             nvme reset /dev/$(controller)
             eventually 60 live
             [ \"$(cat /sys/class/nvme/$(controller)/tls_key)\" != \"$before\" ]
             dd if=$BLOCK bs=64k count=16 iflag=direct status=none | cmp - /tmp/data
             # The same in its channel, while it is used: the key is replaced.
             dmesg --clear
             again() {{ dmesg | grep -q 'authenticated with hash'; }}
             echo {secret} > /sys/class/nvme/$(controller)/dhchap_secret
             eventually 60 again
             dd if=$BLOCK bs=64k count=16 iflag=direct status=none | cmp - /tmp/data
             live
             nvme disconnect -n $NQN"
        ),
    );
    let log = daemon.log();
    assert!(log.matches("a key for TLS was generated").count() >= 3 && log.contains("replaces=true"), "{log}");
    assert!(!log.contains(&secret[10..30]), "a secret is in the log");
    assert!(daemon.stop().success());
}
