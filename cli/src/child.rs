//! A `willow serve` that another command starts for itself: the demo and some benchmarks.
//!
//! Invariant: the process does not outlive the value.

use crate::failure::{Context, Failure, Outcome, fail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a device may take until it is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a device may take to end cleanly.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// What the line `ready …` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Name of the subsystem.
    pub nqn: String,
    /// Address for NVMe/TCP.
    pub listen: String,
}

impl Ready {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.trim().strip_prefix("ready ")?.split(' ');
        let nqn = words.next()?.strip_prefix("nqn=")?.to_owned();
        let listen = words.next()?.strip_prefix("listen=")?.to_owned();
        Some(Ready { nqn, listen })
    }
}

/// The process.
pub struct DeviceProcess {
    child: Child,
    /// Where it answers.
    pub ready: Ready,
}

impl DeviceProcess {
    /// Starts `willow serve` with these arguments and waits until it is ready.
    pub fn start<S: AsRef<OsStr>>(arguments: &[S]) -> Outcome<Self> {
        let program = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
        let mut child = Command::new(&program)
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context(|| format!("cannot start {} serve", program.display()))?;
        let ready = child.stdout.take().ok_or_else(|| Failure::new("the device has no output")).and_then(wait_ready);
        match ready {
            Ok(ready) => Ok(DeviceProcess { child, ready }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as a crash would (SIGKILL).
    pub fn kill(mut self) -> Outcome<()> {
        self.child.kill().context(|| "cannot kill the device".to_owned())?;
        self.child.wait().context(|| "cannot wait for the device".to_owned())?;
        Ok(())
    }

    /// Asks it to end cleanly (SIGTERM) and waits.
    pub fn end(mut self) -> Outcome<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context(|| "cannot signal the device".to_owned())?;
        let begun = Instant::now();
        while begun.elapsed() < END_TIME_MAX {
            if let Some(status) = self.child.try_wait().context(|| "cannot wait for the device".to_owned())? {
                if !status.success() {
                    fail!("the device ended with {status} when it was asked to end");
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        fail!("the device did not end within {} s of SIGTERM", END_TIME_MAX.as_secs())
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        // Ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_ready(output: ChildStdout) -> Outcome<Ready> {
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the line, or with the process that would write it.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    match receiver.recv_timeout(READY_TIME_MAX) {
        Ok(Ok(line)) => match Ready::parse(&line) {
            Some(ready) => Ok(ready),
            None if line.is_empty() => fail!("the device ended before it was ready: see the line above"),
            None => fail!("the device's first line was {line:?} instead of `ready …`"),
        },
        Ok(Err(error)) => fail!("cannot read the device's output: {error}"),
        Err(_) => fail!("the device was not ready within {} s", READY_TIME_MAX.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ready_line() {
        let ready = Ready::parse("ready nqn=nqn.2025-01.x:y listen=127.0.0.1:4420 socket=-\n").unwrap();
        assert_eq!(ready, Ready { nqn: "nqn.2025-01.x:y".into(), listen: "127.0.0.1:4420".into() });
        assert_eq!(Ready::parse(""), None);
        assert_eq!(Ready::parse("ready listen=x"), None);
    }
}
