//! A truncation by way of overlayfs that has passed its check and waits: for a lease on overlayfs' own inode, which nobody but its user
//! knows of.
//!
//! All of it as an ordinary user, in a user namespace of his own. The process that mounts has one thread: it is made before any other.

use super::check;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Error, PipeReader, PipeWriter, Read, Result, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use willow_tests::stage::WAIT_MAX;

const F_SETLEASE: libc::c_int = 1024;

fn text(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

/// The process that has the overlay, and a truncation under way in it.
pub struct Waiting {
    tells: PipeWriter,
    hears: PipeReader,
}

impl Waiting {
    /// In this folder, of which `upper/file` is the file, which is there. An error says what does not go here.
    pub fn begin(folder: &Path) -> Result<Waiting> {
        for name in ["lower", "work", "merged"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let ((hears, says), (listens, tells)) = (std::io::pipe()?, std::io::pipe()?);
        // SAFETY: this process has one thread yet; the child ends below.
        match unsafe { libc::fork() } {
            -1 => Err(Error::last_os_error()),
            0 => {
                drop((hears, tells));
                let mut says = says;
                let done = truncate_later(folder, &mut says, listens);
                let word = done.map_or_else(|error| super::alone::name_of(&error), |()| "done".to_owned());
                let _ = writeln!(says, "{word}");
                std::process::exit(0);
            }
            _ => {
                let mut waiting = Waiting { tells, hears };
                match waiting.word()?.as_str() {
                    "waits" => Ok(waiting),
                    error => Err(Error::other(format!("there is no overlay: {error}"))),
                }
            }
        }
    }

    fn word(&mut self) -> Result<String> {
        let (mut word, mut byte) = (String::new(), [0]);
        while self.hears.read(&mut byte)? == 1 && byte[0] != b'\n' {
            word.push(byte[0] as char);
        }
        Ok(word)
    }

    /// The truncation goes on: what it came to.
    pub fn go_on(mut self) -> Result<String> {
        self.tells.write_all(b"x")?;
        self.word()
    }
}

fn truncate_later(folder: &Path, says: &mut PipeWriter, mut listens: PipeReader) -> Result<()> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: a call without memory, in a process with one thread.
    check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) }))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    let part = |name: &str| folder.join(name);
    let (lower, upper, work) = (part("lower"), part("upper"), part("work"));
    let options =
        format!("lowerdir={},upperdir={},workdir={},userxattr", lower.display(), upper.display(), work.display());
    let (kind, options, merged) = (CString::new("overlay")?, CString::new(options)?, text(&part("merged"))?);
    // SAFETY: strings that end with a zero byte.
    let mounted = unsafe { libc::mount(kind.as_ptr(), merged.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    check(i64::from(mounted))?;
    let path = part("merged").join("file");
    let reader = File::open(&path)?;
    // SAFETY: what the kernel tells of the lease by would end the process; it is ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // SAFETY: a call without memory.
    check(i64::from(unsafe { libc::fcntl(reader.as_raw_fd(), F_SETLEASE, libc::F_RDLCK) }))?;
    let named = text(&path)?;
    let (begun, has_begun) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: a call without arguments.
        let _ = begun.send(unsafe { libc::gettid() });
        // SAFETY: a string that ends with a zero byte.
        check(i64::from(unsafe { libc::truncate(named.as_ptr(), 0) }))
    });
    let number = has_begun.recv().map_err(Error::other)?;
    let since = Instant::now();
    // It waits for the lease when it sleeps in the call.
    loop {
        let call = fs::read_to_string(format!("/proc/self/task/{number}/syscall"))?;
        if call.starts_with(&format!("{} ", libc::SYS_truncate)) {
            break;
        }
        if since.elapsed() > WAIT_MAX {
            return Err(Error::other("the truncation does not begin"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    writeln!(says, "waits")?;
    listens.read_exact(&mut [0])?;
    // SAFETY: a call without memory.
    check(i64::from(unsafe { libc::fcntl(reader.as_raw_fd(), F_SETLEASE, libc::F_UNLCK) }))?;
    thread.join().map_err(|_| Error::other("the thread has panicked"))?
}
