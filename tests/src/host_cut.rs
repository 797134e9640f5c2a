//! A host whose power is cut: what its page cache had, and its file system had not made durable, is gone; the device goes on. The file system is shut down
//! without writing anything more (`EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`), and mounted again from what the device holds.
//!
//! Who may call it: tests, as root, when no process has anything of the file system open.

use crate::stage::{Stage, has, tool, within_seconds};

/// Why that cannot be done here.
pub fn possible() -> Result<(), String> {
    if has("xfs_io") { Ok(()) } else { Err("xfs_io is not installed".to_owned()) }
}

/// Cuts the power.
pub fn cut(stage: &Stage) {
    let files = stage.path("files");
    tool("xfs_io", &["-x", "-c", "shutdown", &files]).expect("shut down");
    // Descriptors of processes that were killed may take a moment to be closed.
    within_seconds("it is unmounted", || tool("umount", &[&files]).is_ok());
    tool("mount", &["-o", "noatime", stage.block(), &files]).expect("mounted again");
}
