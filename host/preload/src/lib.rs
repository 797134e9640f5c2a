//! Lets an unmodified program read and write chosen files directly (`LD_PRELOAD=libwillow_preload.so`): the C library's calls for files,
//! of which those on files below `WILLOW_DIRECT` go to the host library and all others where they went before.
//!
//! ```text
//! process      what this process has open below the chosen folders; its session; forks, exec and exit
//! descriptors  open, close, dup and fcntl          transfers  read, write and their like, sync
//! changes      what changes a file otherwise, by descriptor or by path: the kernel's, when the file was given back
//! real         the functions that these stand in front of
//! ```
//!
//! What always holds:
//! - a program sees the same results as without it, but for times; where direct access does not go, the call goes through the kernel;
//! - positions of open files are the kernel's, so that dup, fork, exec and lseek need nothing here;
//! - without a device and an agent, or with none of its variables set, every call goes where it went before;
//! - calls that the library itself makes pass through.

mod changes;
mod descriptors;
mod process;
mod real;
mod transfers;
