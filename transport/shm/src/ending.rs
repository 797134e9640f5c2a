//! Processes that were killed, or have ended, and that the kernel still keeps: a thread of theirs waits in the kernel for what no signal ends
//! (an inode that a user keeps busy, say). Until it comes back all their descriptors stay open: sockets are served by nobody, and locks held.
//!
//! What always holds: a process that is told to be ending runs no instruction of its program any more. One of which only the first thread has
//! ended is not; nor is one that this process cannot look at.

use std::path::Path;

/// SIGKILL in the masks of proc(5), which each thread has pending once its process ends.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// True where a process with this id is ending, or has ended and was not waited for.
pub fn is_ending(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    let process = Path::new("/proc").join(pid.to_string());
    if !has_run(&process) {
        return false;
    }
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return false };
    // One that is gone meanwhile runs nothing.
    threads.flatten().all(|thread| !thread.path().exists() || has_run(&thread.path()) || is_killed(&thread.path()))
}

/// A thread that has ended, by its folder in proc(5).
fn has_run(thread: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(thread.join("stat")) else { return false };
    // The name, in parentheses, may hold anything.
    matches!(text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()), Some('Z' | 'X'))
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
    fn a_process_that_runs_is_not_ending_and_one_that_nobody_has_waited_for_is() {
        assert!(!is_ending(std::process::id() as i32) && !is_ending(0) && !is_ending(-1));
        let mut child = Command::new("sleep").arg("100").spawn().expect("it runs");
        let pid = child.id() as i32;
        assert!(!is_ending(pid));
        child.kill().expect("killed");
        while !has_run(&Path::new("/proc").join(pid.to_string())) {
            std::thread::yield_now();
        }
        assert!(is_ending(pid));
        child.wait().expect("an end");
        assert!(!is_ending(pid));
    }

    /// Python's first thread ends, and another goes on.
    #[test]
    fn a_process_whose_first_thread_alone_has_ended_is_not_ending() {
        let program = "import ctypes, threading, time\n\
                       threading.Thread(target=time.sleep, args=(100,)).start()\n\
                       ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", program]).spawn().expect("python3 runs");
        let process = Path::new("/proc").join(child.id().to_string());
        while !has_run(&process) {
            assert!(child.try_wait().expect("its state").is_none(), "it has ended");
            std::thread::yield_now();
        }
        assert!(!is_ending(child.id() as i32));
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
}
