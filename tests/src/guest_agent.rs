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
# begin FILE COMMAND...: starts it in the background with what it says in the file. The background shell opens that file when it gets to
# it: until then nothing may be there that a command before this one has said.
begin() {
    local file=$1; shift
    rm -f "$file"
    "$@" > "$file" 2>&1 <&0 &
}
agent() {
    begin /tmp/agent.log setsid /host/willow agent $AGENT --socket /tmp/agent --allow-xfs "$@" < /dev/null
    echo $! > /tmp/agent.pid
    eventually 120 grep -q '^ready' /tmp/agent.log
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is in `said` before `says` could say anything is not its.
    const SAYS: &str = r#"
cd "$1"
trap 'kill $! 2> /dev/null || true' EXIT
says() { cat input; }
echo 'said before' > said
mkfifo input
START
! grep -qs said said || { echo 'taken for its word'; exit 1; }
echo 'said now' > input
eventually 60 grep -q 'said now' said
wait $!
"#;

    fn run(start: &str) -> (bool, String) {
        let folder = Scratch::new("guest-begin").expect("a temporary folder");
        let script = format!("set -e\n{FUNCTIONS}{AGENT_FUNCTIONS}{}", SAYS.replace("START", start));
        let output = Command::new("bash").args(["-c", &script, "bash"]).arg(folder.path()).output().expect("bash");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn what_was_said_before_a_command_began_is_not_taken_for_its_word() {
        let (done, said) = run("begin said says");
        assert!(done, "{said}");
        // A background shell that gets late to its output: it waits for the input first.
        let (done, said) = run("says < input > said 2>&1 &");
        assert!(!done && said.contains("taken for its word"), "{said}");
    }
}
