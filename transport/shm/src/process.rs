//! What the kernel tells of other processes (proc(5)): when one began, and whether it has ended though the kernel still keeps it.
//!
//! A process that was killed is kept while a thread of it waits in the kernel for what no signal ends (an inode that a user keeps busy, say). Until
//! it comes back all its descriptors stay open: sockets are served by nobody, and locks held.
//!
//! What always holds: a process that is told to be ending runs no instruction of its program any more. One of which only the first thread has
//! ended is not; nor is one that this process cannot look at.

use std::path::{Path, PathBuf};

/// SIGKILL in the masks of proc(5), which each thread has pending once its process ends.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

fn folder(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// What `stat` says of a process or thread behind its name, which is in parentheses and may hold anything: the state is the first.
fn stat(of: &Path) -> Option<String> {
    let text = std::fs::read_to_string(of.join("stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.to_owned())
}

/// When a process started, in clock ticks after boot (field 22 of `stat`).
pub fn started(pid: i32) -> Option<u64> {
    stat(&folder(pid))?.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// True where a process with this id is ending, or has ended and was not waited for.
pub fn is_ending(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    let Ok(threads) = std::fs::read_dir(folder(pid).join("task")) else { return false };
    // One that is gone meanwhile runs nothing. The first one may be the one that waits.
    threads.flatten().all(|thread| !thread.path().exists() || has_run(&thread.path()) || is_killed(&thread.path()))
}

/// A thread that has ended, by its folder in proc(5).
fn has_run(thread: &Path) -> bool {
    stat(thread).is_some_and(|rest| rest.starts_with(['Z', 'X']))
}

fn is_killed(thread: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(thread.join("status")) else { return false };
    let pending = text.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILLED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no processes")]
    fn a_process_that_runs_is_not_ending_and_one_that_nobody_has_waited_for_is() {
        assert!(!is_ending(std::process::id() as i32) && !is_ending(0) && !is_ending(-1));
        let mut child = Command::new("sleep").arg("100").spawn().expect("it runs");
        let pid = child.id() as i32;
        assert!(!is_ending(pid));
        child.kill().expect("killed");
        while !has_run(&folder(pid)) {
            std::thread::yield_now();
        }
        assert!(is_ending(pid));
        child.wait().expect("an end");
        assert!(!is_ending(pid));
    }

    /// Python's first thread ends, and another goes on.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no processes")]
    fn a_process_whose_first_thread_alone_has_ended_is_not_ending() {
        let program = "import ctypes, threading, time\n\
                       threading.Thread(target=time.sleep, args=(100,)).start()\n\
                       ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", program]).spawn().expect("python3 runs");
        let process = folder(child.id() as i32);
        while !has_run(&process) {
            assert!(child.try_wait().expect("its state").is_none(), "it has ended");
            std::thread::yield_now();
        }
        assert!(!is_ending(child.id() as i32));
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
}
