//! Linux with several paths to one device (native multipath and asymmetric access): what is written goes on when a path is cut, when the device
//! says that a path is worse or none, and when the device is killed and started again; nothing is lost.
//!
//! Skipped, with the reason, where a guest cannot run; never under `CI=true`.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use willow_tests::daemon::Daemon;
use willow_tests::guest::{FUNCTIONS, Guest, GuestOptions, HOST_ADDRESS};
use willow_tests::link::Link;
use willow_tests::scratch::Scratch;

const PATHS: &str = r#"
# path PORT: the controller that came by that port.
path() { basename "$(dirname "$(grep -l "trsvcid=$1" /sys/class/nvme/nvme*/address | head -n 1)")"; }
state() { cat /sys/class/nvme/"$(path $1)"/state; }
is() { [ "$(state $1)" = $2 ]; }
# access PORT: what the kernel knows of namespace 1 by that path. The path's device is nvmeScCnN; S is the subsystem's number, C the controller's.
access() {
    local number=$(path $1); number=${number#nvme}
    cat /sys/class/nvme/nvme$number/nvme*c${number}n*/ana_state | head -n 1
}
tells() { [ "$(access $1)" = $2 ]; }
begin() {
    rm -f /tmp/ended
    (cd /tmp && fio --output=/tmp/fio.log --name=paths --filename=$BLOCK --offset=$1 --size=4M --direct=1 --ioengine=libaio --rw=randwrite \
        --bs=4k --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --rate_iops=150; echo $? > /tmp/ended) > /dev/null 2>&1 < /dev/null &
    local before=$(written)
    moved() { [ $(($(written) - before)) -gt 100 ]; }
    eventually 120 moved
}
written() { awk '{ print $5 }' /sys/block/${BLOCK#/dev/}/stat; }
# A request that finds no path in the moment in which one comes back is left behind by Linux (6.12) until something has it look again, as a scan does. (Not so one that a
# device had lost: its time is over after 30 s.)
finish() {
    local turn
    for turn in {1..40}; do
        test -s /tmp/ended && break
        sleep 5
        nvme ns-rescan /dev/"$(path $ONE)" || true
    done
    test -s /tmp/ended || { echo 'fio has not ended'; dmesg | tail -n 30; return 1; }
    [ "$(cat /tmp/ended)" = 0 ] && grep -q 'err= 0' /tmp/fio.log || { cat /tmp/fio.log; dmesg | tail -n 30; return 1; }
}
"#;

fn write_config(folder: &Scratch, states: [&str; 2]) -> String {
    let path = folder.path().join("willow.toml");
    let listen = states.map(|state| format!("\"127.0.0.1:0={state}\""));
    let text = format!("size = \"64M\"\nkv_size = 0\nspus = 2\nlisten = [{}]\n", listen.join(", "));
    std::fs::write(&path, text).expect("a configuration");
    path.display().to_string()
}

#[test]
fn linux_goes_on_by_another_path() {
    let folder = Scratch::new("paths").expect("a temporary folder");
    let config = write_config(&folder, ["optimized", "optimized"]);
    let mut daemon = Daemon::start(&["--config", &config]);
    let Some(mut guest) = Guest::boot_or_skip("linux_goes_on_by_another_path", &GuestOptions::default()) else {
        return;
    };
    let links = [0, 1].map(|at: usize| Link::to(daemon.addresses()[at]));
    let [one, other] = [0, 1].map(|at: usize| links[at].address().port());
    let prelude = format!("{FUNCTIONS}\nNQN={}\nONE={one} OTHER={other}\n{PATHS}", daemon.nqn());
    let mut step = |script: &str| guest.check_for(Duration::from_secs(1200), &format!("{prelude}\n{script}"));
    let reload = |daemon: &Daemon, states: [&str; 2]| {
        write_config(&folder, states);
        let process = daemon.process_id().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-HUP", &process]).status().is_ok_and(|status| status.success()));
    };
    step(&format!(
        "[ $(cat /sys/module/nvme_core/parameters/multipath) = Y ]
         for port in $ONE $OTHER; do
             nvme connect -t tcp -a {HOST_ADDRESS} -s $port -n $NQN --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=600
         done
         eventually 60 block 1
         BLOCK=$(block 1)
         echo \"BLOCK=$BLOCK\" > /tmp/devices
         # One disk, by two paths.
         [ $(ls -d /sys/block/nvme*n* | grep -vc 'c[0-9]*n') = 1 ]
         eventually 30 tells $ONE optimized
         eventually 30 tells $OTHER optimized
         nvme id-ctrl /dev/$(path $ONE) | grep -qE '^cmic *: 0xb$'
         nvme ana-log /dev/$(path $ONE) | tee /tmp/ana; grep -qE '^state[[:space:]]*:[[:space:]]*optimized' /tmp/ana
         nvme list-subsys
         begin 0"
    ));
    // A path is cut in the midst, and mended.
    links[0].cut();
    step("eventually 60 is $ONE connecting; finish");
    links[0].mend(daemon.addresses()[0]);
    step("eventually 60 is $ONE live; begin 8M");
    links[1].cut();
    step("eventually 60 is $OTHER connecting; finish");
    links[1].mend(daemon.addresses()[1]);
    step("eventually 60 is $OTHER live; begin 16M");
    // What the device says of its paths, while it is written to: the kernel is told, and what was refused goes by the other path.
    reload(&daemon, ["inaccessible", "non-optimized"]);
    step("eventually 30 tells $ONE inaccessible; eventually 30 tells $OTHER non-optimized; finish");
    step("begin 24M");
    reload(&daemon, ["optimized", "inaccessible"]);
    step("eventually 30 tells $ONE optimized; eventually 30 tells $OTHER inaccessible; finish");
    reload(&daemon, ["optimized", "optimized"]);
    step("eventually 30 tells $OTHER optimized; begin 32M");
    // The device is killed, and is somewhere else when it comes back.
    daemon.kill();
    step("eventually 60 is $ONE connecting; eventually 60 is $OTHER connecting");
    daemon.restart();
    for (link, address) in links.iter().zip(daemon.addresses()) {
        link.mend(*address);
    }
    step("eventually 120 is $ONE live; eventually 120 is $OTHER live; finish");
    // All of it is there by either path.
    links[1].cut();
    step(
        "dd if=$BLOCK of=/tmp/by-one bs=1M count=36 iflag=direct status=none
         sha256sum < /tmp/by-one > /tmp/sum",
    );
    links[1].mend(daemon.addresses()[1]);
    step("eventually 60 is $OTHER live");
    links[0].cut();
    let kernel = step(
        "dd if=$BLOCK bs=1M count=36 iflag=direct status=none | sha256sum | cmp - /tmp/sum
         nvme disconnect -n $NQN
         dmesg",
    );
    for bad in ["BUG:", "WARNING: CPU", "Oops", "blocked for more than", "Buffer I/O error"] {
        assert!(!kernel.contains(bad), "the guest's kernel says {bad:?}:\n{kernel}");
    }
    assert!(daemon.stop().success());
}
