//! Lets an unmodified program read and write chosen files directly (`LD_PRELOAD=libwillow_preload.so`): the C library's calls for files,
//! of which those on files below `WILLOW_DIRECT` go to the host library and all others where they went before.
//!
//! ```text
//! process      what this process has open below the chosen folders; its session, its beginning and its end
//! sharing      descriptions of open files that others come to have too           real     the functions that these stand in front of
//! descriptors  open, close, dup and fcntl, locks          transfers  read, write and their like, sync
//! changes      what changes a file otherwise, by descriptor or by path, and what moves bytes in the kernel: the kernel's
//! looks        what is asked of a file without reading it
//! requests     to file systems, likewise                  prints     of the C library, to a descriptor
//! programs     fork, exec, spawn, exit     messages  descriptors in messages     streams  those of the C library
//! aliases      other names of these functions
//! identity     who the process is, where, and what it may do
//! raw          system calls by number, and asynchronous ones                     limits, memory  what a call may do, and has
//! ```
//!
//! What always holds:
//! - a program sees the same results as without it, but for times; where direct access does not go, the call goes through the kernel;
//! - positions of open files are the kernel's, so that dup and lseek need nothing here;
//! - without a device and an agent, or with none of its variables set, every call goes where it went before;
//! - calls that the library itself makes pass through.

mod aliases;
mod changes;
mod descriptors;
mod identity;
mod limits;
mod looks;
mod memory;
mod messages;
mod prints;
mod process;
mod programs;
mod raw;
mod real;
mod requests;
mod sharing;
mod streams;
mod transfers;

/// True where a test has planted this error, to see that it is found; never in a release build.
fn planted(error: &str) -> bool {
    #[cfg(debug_assertions)]
    {
        static PLANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("WILLOW_PRELOAD_PLANTED").unwrap_or_default()) == error
    }
    #[cfg(not(debug_assertions))]
    {
        let _ = error;
        false
    }
}

/// True where a test wants files to be taken again as soon as they have been given back; never in a release build.
fn is_eager() -> bool {
    cfg!(debug_assertions) && std::env::var_os("WILLOW_PRELOAD_EAGER").is_some()
}
