//! A user who has the device append to as many of its files as it gets, or says to the agent's part what only others may say.

use std::fs::{OpenOptions, metadata, remove_file};
use std::io::{BufRead, Error, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use willow_host::agent::append::message::{Ask, Told};
use willow_host::direct_io::{AgentClient, Appender, Session, SessionOptions};

/// Files that are made until enough of them have the coordinator that is wanted.
const MADE_MAX: usize = 1000;
/// How often each is appended to: more seldom, and it is given back.
const APPEND_EVERY: Duration = Duration::from_secs(3);

fn made(path: &Path) -> Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(&[1; 100])
}

/// Has the device append to so many files whose coordinator is one SPU of so many, and says how many those are.
pub fn holds(device: &str, agent: &str, beside: &Path, numbers: &[u64]) -> Result<()> {
    let &[spus, coordinator, wanted] = numbers else { return Err(Error::other("SPUS COORDINATOR COUNT")) };
    let mut paths: Vec<PathBuf> = Vec::new();
    for number in 0..MADE_MAX {
        if paths.len() as u64 == wanted {
            break;
        }
        let path = beside.with_extension(number.to_string());
        made(&path)?;
        // The others stay, so that their numbers are no others'.
        if metadata(&path)?.ino() % spus == coordinator {
            paths.push(path);
        }
    }
    let options = SessionOptions { kernel_operations_max: 0, ..SessionOptions::new(device, agent) };
    let session = Session::open(options).map_err(Error::other)?;
    let mut files = Vec::new();
    for path in &paths {
        files.push(Appender::open(&session, path).map_err(Error::other)?);
    }
    let append = |files: &[Appender]| {
        let before = session.counts().direct_appends;
        for file in files {
            let _ = file.append(&[7; 64]);
        }
        session.counts().direct_appends - before
    };
    println!("holds\t{}", append(&files));
    let (tell, told) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        drop(tell);
    });
    while told.recv_timeout(APPEND_EVERY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        append(&files);
    }
    drop(files);
    paths.iter().for_each(|path| drop(remove_file(path)));
    Ok(())
}

/// Says again and again that files of these numbers are appended to no more, of which none was ever shown; a line when that has begun.
pub fn ends_others(agent: &Path, numbers: &[u64]) -> Result<()> {
    let several: Vec<_> = (0..4).map(|_| AgentClient::connect(agent).map_err(Error::other)).collect::<Result<_>>()?;
    println!("ends\t");
    for agent in several {
        let numbers = numbers.to_vec();
        std::thread::spawn(move || {
            loop {
                for file in &numbers {
                    let _ = agent.ask_module::<_, Told>("append", &Ask::End { file: *file }, &[]);
                }
            }
        });
    }
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}
