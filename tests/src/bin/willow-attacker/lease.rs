//! A user who keeps a file of his own mapped, and has a lease of it that he takes again whenever it is broken.

use super::{BYTES, check};
use std::fs::File;
use std::io::{BufRead, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use willow_tests::mapped::Mapped;

const F_SETLEASE: libc::c_int = 1024;
const F_GETLEASE: libc::c_int = 1025;

fn lease(file: &File, what: libc::c_int) -> Result<()> {
    // SAFETY: a call without memory.
    check(i64::from(unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, what) }))
}

/// Until it is told.
pub fn leases(path: &Path) -> Result<()> {
    // SAFETY: no handler is installed, the signal is ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let file = File::open(path)?;
    let mapped = Mapped::new(&file, BYTES);
    lease(&file, libc::F_RDLCK)?;
    println!("leased\t");
    let ends = Arc::<AtomicBool>::default();
    let told = ends.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        told.store(true, Ordering::SeqCst);
    });
    while !ends.load(Ordering::SeqCst) {
        // SAFETY: a call without memory.
        if unsafe { libc::fcntl(file.as_raw_fd(), F_GETLEASE) } != libc::F_RDLCK {
            let _ = lease(&file, libc::F_UNLCK);
            // As soon as the kernel gives it.
            let _ = lease(&file, libc::F_RDLCK);
        }
        std::thread::yield_now();
    }
    drop(mapped);
    Ok(())
}
