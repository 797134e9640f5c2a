//! What an unmodified Linux host in a guest has direct access to files with: the command, the attacker, a key, and shell functions that
//! start an agent and use it.
//!
//! Who may call it: tests that boot a guest.

use crate::daemon::{Daemon, binary, own};
use crate::guest::{FUNCTIONS, HOST_ADDRESS};
use crate::scratch::Scratch;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The guest's id as a host.
pub const HOST_ID: &str = "0b9f6f3e-5f3d-4a0e-8e0b-6c3f5d1f7a42";

/// Functions of scripts that use an agent, which is reached at /tmp/agent: `AGENT` has what it is started with.
pub const AGENT_FUNCTIONS: &str = r#"
as() { local user=$1; shift; setpriv --reuid $user --regid $user --clear-groups -- "$@"; }
direct() { local user=$1; shift; as $user /host/willow direct "$@" --agent /tmp/agent; }
thawed() { ! lsattr $1 | cut -d ' ' -f 1 | grep -q i; }
frozen() { lsattr $1 | cut -d ' ' -f 1 | grep -q i; }
agent() {
    setsid /host/willow agent $AGENT --socket /tmp/agent --allow-xfs "$@" > /tmp/agent.out 2> /tmp/agent.log < /dev/null &
    echo $! > /tmp/agent.pid
    eventually 120 grep -q ready /tmp/agent.out
}
gone_agent() { ! kill -0 $(cat /tmp/agent.pid); }
end_agent() {
    kill $(cat /tmp/agent.pid)
    eventually 30 gone_agent
}
# A user who writes a file past the kernel without end, until something refuses.
endless() {
    mkdir -p /mnt/of-$1; chown $1:$1 /mnt/of-$1
    exec setpriv --reuid $1 --regid $1 --clear-groups -- /host/attacker - /tmp/agent /mnt/of-$1/file writer
}
# It ends with the first write that is refused, however.
stopped() { tail -n 1 /tmp/writer | grep -qv '^written'; }
written_on() { [ "$(wc -l < /tmp/writer)" -gt "$1" ]; }
"#;

/// The name of the guest as a host.
pub fn host_name() -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}")
}

/// A folder that a guest gets as a disk, with the command and the attacker in it.
pub fn folder(purpose: &str) -> Scratch {
    let folder = Scratch::new(purpose).expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    for (name, built) in [("willow", binary()), ("attacker", own("willow-attacker"))] {
        let program = folder.path().join(name);
        // What debuggers want of it would take a minute to be read there.
        let stripped = Command::new("strip").arg("-o").arg(&program).arg(&built).status();
        if !stripped.is_ok_and(|status| status.success()) {
            fs::copy(&built, &program).expect("a copy of the program");
        }
    }
    folder
}

/// Makes a key of the guest as a host, of this kind, in a file; what stands in it in quotes.
pub fn key(path: &Path, kind: &str) -> Vec<String> {
    let made = Command::new(binary()).args(["key", "new", "--host", &host_name(), kind]).arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "willow key new {kind}");
    let text = fs::read_to_string(path).expect("a key file");
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What a script of a guest begins with: how the device is reached, with this key in the guest, and by the kernel with these secrets.
pub fn prelude(daemon: &Daemon, key: &str, secrets: &str) -> String {
    let (nqn, port, name) = (daemon.nqn(), daemon.address().port(), host_name());
    format!(
        "{FUNCTIONS}{AGENT_FUNCTIONS}\nNQN={nqn}\nTARGET='-t tcp -a {HOST_ADDRESS} -s {port}'\nHOST='--hostnqn={name} --hostid={HOST_ID}'
         AGENT='--target {HOST_ADDRESS}:{port} --key {key}'\nSECRETS='{secrets}'\n"
    )
}
