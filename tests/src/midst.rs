//! Processes that are killed with commands under way, proved to be.

use crate::stage::{WAIT_MAX, tool, within_seconds};
use std::fs;
use std::io::Read;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// A process that is stopped; it goes on with the end of this.
struct Stopped(String);

impl Stopped {
    fn stop(pid: u32) -> Stopped {
        let pid = pid.to_string();
        tool("kill", &["-STOP", &pid]).expect("stopped");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = tool("kill", &["-CONT", &self.0]);
    }
}

/// True where all threads of a process wait for something.
pub fn is_asleep(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it was not waited for");
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('S'))
    })
}

/// Kills processes that write to their standard output what they read from the device, `bytes` in all, in the middle: the device is stopped
/// when the first bytes of each are there, and each is killed when it waits for more. The device goes on after that.
pub fn killed_with_commands_under_way(device_pid: u32, mut clients: Vec<Child>, bytes: usize) {
    let got: Vec<AtomicUsize> = clients.iter().map(|_| AtomicUsize::new(0)).collect();
    let pipes: Vec<_> = clients.iter_mut().map(|client| client.stdout.take().expect("its output")).collect();
    let unread: Vec<_> = pipes.iter().map(|pipe| rustix::io::dup(pipe).expect("a descriptor")).collect();
    std::thread::scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let goes_on: Vec<_> = pipes
            .into_iter()
            .zip(&got)
            .map(|(mut pipe, got)| {
                let (go_on, may_go_on) = mpsc::channel::<()>();
                let begun = begun.clone();
                scope.spawn(move || {
                    // What it cannot write yet keeps it from its end.
                    let first = pipe.read(&mut [0]).expect("read");
                    got.store(first, Ordering::SeqCst);
                    begun.send(first).expect("somebody waits");
                    let _ = may_go_on.recv();
                    let mut buffer = vec![0; 1 << 16];
                    loop {
                        match pipe.read(&mut buffer).expect("read") {
                            0 => break,
                            count => drop(got.fetch_add(count, Ordering::SeqCst)),
                        }
                    }
                });
                go_on
            })
            .collect();
        for _ in &clients {
            let first = begins.recv_timeout(WAIT_MAX).expect("it begins");
            assert_eq!(first, 1, "it ended before it wrote anything");
        }
        let stopped = Stopped::stop(device_pid);
        drop(goes_on);
        for ((client, got), unread) in clients.iter_mut().zip(&got).zip(&unread) {
            within_seconds("it waits for the device", || {
                let before = got.load(Ordering::SeqCst);
                let is_drained = || rustix::io::ioctl_fionread(unread).expect("a pipe") == 0;
                is_drained() && is_asleep(client.id()) && is_drained() && got.load(Ordering::SeqCst) == before
            });
            client.kill().expect("killed");
            client.wait().expect("an end");
            let got = got.load(Ordering::SeqCst);
            assert!((1..bytes).contains(&got), "it had {got} of {bytes} bytes");
        }
        drop(stopped);
    });
}
