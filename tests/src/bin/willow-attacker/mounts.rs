//! Files that a user reaches by mounts on which they are others', and what the agent and the kernel say to that.

use super::{World, check};
use std::fs::File;
use std::io::{BufRead, Result};
use std::path::Path;
use willow_host::direct_io::DirectError;
use willow_tests::idmapped::{copy_of, map_by};

/// Asks for a file that is there, to read it, and to have it released; what came of either.
pub fn asks(world: &World) -> Result<()> {
    let said = |done: std::result::Result<(), DirectError>| match done {
        Ok(()) => "done".to_owned(),
        Err(why) => why.to_string(),
    };
    println!("taken\t{}", said(world.take(File::open(&world.path)?).map(drop)));
    println!("released\t{}", said(world.agent.release(File::open(&world.path)?)));
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Opens a file for writing, by the kernel; what came of that.
pub fn writes(path: &Path) -> Result<()> {
    println!("{}\t", super::writable(path).map_or_else(|why| why.to_string(), |_| "written".to_owned()));
    Ok(())
}

/// Tries to have a mount of the file's folder on which files are other users', in a user namespace of its own.
pub fn idmaps(path: &Path) -> Result<()> {
    // SAFETY: a call without memory, in a process with one thread.
    if let Err(error) = check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })) {
        println!("unavailable\t{error}");
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let tree = copy_of(folder)?;
    match map_by(&tree, &File::open("/proc/self/ns/user")?) {
        Ok(()) => println!("mapped\t"),
        Err(error) => println!("refused\t{error}"),
    }
    Ok(())
}
