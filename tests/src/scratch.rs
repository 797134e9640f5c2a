//! A temporary folder that goes away with its value.
//!
//! Who may call it: tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder of its own under the system's temporary folder; removed, with all in it, on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder. Its path is short enough to hold Unix sockets.
    ///
    /// Never one that is there: processes of another namespace have the same numbers, and so had those of a run that was killed.
    pub fn new(purpose: &str) -> io::Result<Self> {
        let name = || format!("willow-{purpose}-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        loop {
            let path = std::env::temp_dir().join(name());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps the folder: whoever has its path removes it.
    pub fn into_path(self) -> PathBuf {
        std::mem::take(&mut std::mem::ManuallyDrop::new(self).0)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
