//! A process that has a file directly and does all that could move the file's blocks: for the tests of what the agent promises.
//!
//! `willow-attacker DEVICE AGENT FILE attacks` prints two kinds of lines, in parts by tabs, and waits for a line on its input after each of the first kind, so that
//! somebody else may look at the device:
//! - `direct`, name of the way, what the kernel said, and what came of it: `refused` (no direct access while it has that), `revoked` (the
//!   device permits nothing any more), `same` (it permits what is the file's own still), `shared` (of a file that is only read: a clone has its blocks too),
//!   or `VIOLATION` (it permits blocks that are not the file's any more);
//! - `alone`, name of the way, and what it does to the same file when nobody has that directly.
//!
//! With `unguarded` each way is tried by a descriptor that writes, opened before the file is taken, which no agent gives then but one that was
//! planted.
//!
//! With `attacks by block map` the file has a block map of ext2 in the place of extents.
//!
//! `willow-attacker DEVICE AGENT FILE victim` keeps a second writable descriptor, takes the file directly, moves its blocks to
//! another file that it cuts, waits for a line on its input while somebody else writes, and prints what it then reads past the kernel.
//! `writer` writes past the kernel without end, and says so; `goes on` writes on when its file's mode forbids to open it; `insistent` keeps a descriptor and asks again and again; `crowd` connects to the agent as often as that goes; `turncoat` changes its
//! user; `appends SPUS COORDINATOR COUNT` has the device append to so many of its files, all of one coordinator; `ends NUMBER...` tells the agent again and again that others' files are appended
//! to no more; `hoard` opens as many files of its own directly as it gets (`hoard one`: the same one); `confirms` takes a file in the agent's two steps (`confirms once`: a single time, and
//! says what came of it); `locks` has an inode's or folder's lock until it is told, as root: a user does the same by a file system of his own; `overlay` truncates the file by way of overlayfs while it has it directly (`overlay, alone`: while
//! nobody has); `floods` has as many reads of its file under way as go (`goes along`: one); `leases` keeps the
//! file mapped and under a lease of its own; `asks` asks for a file that is there, and to have it released; `writes` opens it
//! for writing; `idmaps` tries to make a mount on which its folder's files are others'; `stalls` asks for it while a write of its own does not come to an end.

mod alone;
mod appends;
mod flood;
mod kept;
mod lease;
mod mounts;
mod overlay;
mod ring;
mod stalled;
mod unguarded;
mod ways;

use alone::State;
use kept::{KEPT, keep};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Error, Read, Result, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use willow_host::direct_io::{AgentClient, DirectError, DirectFile};
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::space;
use willow_tests::stage::WAIT_MAX;

const BYTES: usize = 64 << 10;

struct World {
    agent: Arc<AgentClient>,
    hre: Arc<dyn Hre>,
    runtime: tokio::runtime::Runtime,
    path: PathBuf,
    /// Its file has a block map.
    by_block_map: bool,
}

fn check(done: i64) -> Result<()> {
    if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// An ioctl with a structure of these 64-bit words.
fn ioctl(descriptor: RawFd, request: u64, words: &mut [u64]) -> Result<()> {
    // SAFETY: the words are as many as the request's structure has, or more.
    check(i64::from(unsafe { libc::ioctl(descriptor, request as _, words.as_mut_ptr()) }))
}

fn writable(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl World {
    fn beside(&self, name: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(name);
        path.into()
    }

    /// Another file of the same length, written, and open for both.
    fn spare(&self) -> Result<File> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.beside(".spare"))?;
        file.write_all(&[9; BYTES])?;
        file.sync_all()?;
        Ok(file)
    }

    fn take(&self, file: File) -> std::result::Result<DirectFile, DirectError> {
        DirectFile::open(&self.agent, self.hre.clone(), file)
    }

    /// What the device permits now, of what it permitted.
    fn verdict(&self, direct: &DirectFile, reader: &File) -> &'static str {
        let mut buffer = vec![0; BYTES];
        match self.runtime.block_on(direct.read_at(&mut buffer, 0)) {
            Err(DirectError::Permission) => return "revoked",
            Err(error) => panic!("the device: {error}"),
            Ok(_) => {}
        }
        let length = reader.metadata().map_or(0, |about| about.len());
        let now = willow_host::agent::extents::of_file(reader.as_fd()).map(|mut now| {
            // What lies past the file's end was not permitted.
            willow_host::agent::extents::cut(&mut now, length);
            now
        });
        match now {
            Ok(now) if now == direct.extents() => "same",
            // Read alone, they are the file's as well as the clone's.
            Err(why) if why.contains("shares blocks") && direct.rights() == 1 => "shared",
            _ => "VIOLATION",
        }
    }
}

/// Tells what came of a way, and waits until it has been looked at.
fn told(name: &str, done: &Result<()>, verdict: &str) {
    let said = done.as_ref().map_or_else(alone::name_of, |()| "done".to_owned());
    println!("direct\t{name}\t{said}\t{verdict}");
    // Nobody looks where there is no input.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

fn truncate(file: &File) -> Result<()> {
    file.set_len(0)?;
    file.set_len(BYTES as u64)
}

fn move_to(spare: &File, orig: RawFd) -> Result<()> {
    // EXT4_IOC_MOVE_EXT: donor, both from block 0, as many as there are.
    let donor = (spare.as_raw_fd() as u64) << 32;
    ioctl(orig, 0xc028_660f, &mut [donor, 0, 0, (BYTES / 4096) as u64, 0])
}

/// The file as it was at the beginning.
fn renew(world: &World) -> Result<()> {
    alone::fresh(world, false).map(|_| ())
}

/// What may be kept of the file, which is there, on its file system.
fn kept_here(world: &World) -> Result<Vec<&'static str>> {
    let is_root = rustix::process::geteuid().is_root();
    let system = rustix::fs::statfs(&world.path)?.f_type as u64;
    let can_be_sealed = stalled::can_be_sealed(&File::open(&world.path)?);
    // Another file system has no such call, and asks for no memory then.
    let is_there = |name: &str| match name {
        "stalled in ENABLE_VERITY" => can_be_sealed,
        "stalled in MOVE_EXT" => system == willow_host::agent::freeze::EXT4,
        "stalled in EXCHANGE_RANGE" => system == willow_host::agent::freeze::XFS,
        _ => true,
    };
    Ok(KEPT.into_iter().filter(|name| is_there(name) && (is_root || !kept::ONLY_AS_ROOT.contains(name))).collect())
}

/// Of a file that is taken to be read alone, or to be written too.
fn attacks(world: &World, reads: bool) -> Result<()> {
    let open = || if reads { File::open(&world.path) } else { writable(&world.path) };
    let is_root = rustix::process::geteuid().is_root();
    renew(world)?;
    for name in kept_here(world)? {
        renew(world)?;
        let (kept, attack) = keep(world, name)?;
        let named = format!("kept: {name}");
        // Nobody opens a file for writing that is being sealed.
        let file = if name == "stalled in ENABLE_VERITY" { File::open(&world.path)? } else { open()? };
        match world.take(file) {
            Err(DirectError::Contended { .. }) => told(&named, &Ok(()), "refused"),
            Err(error) => told(&named, &Err(Error::other(error)), "refused otherwise"),
            Ok(direct) => {
                let reader = File::open(&world.path)?;
                let done = attack();
                told(&named, &done, world.verdict(&direct, &reader));
                let _ = direct.close();
                continue;
            }
        }
        // And for reading alone: what is read could be another's by then.
        match world.take(File::open(&world.path)?) {
            Err(DirectError::Contended { .. }) => told(&format!("{named}, to read"), &Ok(()), "refused"),
            _ => told(&format!("{named}, to read"), &Ok(()), "VIOLATION"),
        }
        // What was refused would have been that.
        let reader = File::open(&world.path)?;
        let before = State::of(world, &reader)?;
        let done = attack();
        alone::told(&named, &done, &before, &State::of(world, &reader)?);
        drop(kept);
    }
    let is_tried = |name: &str| !is_root || !ways::NOT_AS_ROOT.contains(&name);
    renew(world)?;
    let mut before = File::open(&world.path)?;
    let mut direct = Some(world.take(open()?).map_err(Error::other)?);
    for when in ["before", "after"] {
        for (name, way) in ways::BY_DESCRIPTOR.iter().filter(|(name, _)| is_tried(name)) {
            let reader = if when == "before" { before.try_clone()? } else { File::open(&world.path)? };
            again(world, &format!("{name}, opened {when}"), way(world, &reader), (&mut direct, &mut before), &open)?;
        }
    }
    for (name, way) in ways::BY_PATH {
        again(world, name, way(world), (&mut direct, &mut before), &open)?;
    }
    drop(direct);
    // What each of them is where nobody has the file directly.
    for (name, way) in ways::BY_DESCRIPTOR.iter().filter(|(name, _)| is_tried(name)) {
        let writer = alone::fresh(world, false)?;
        let file = match ways::ONLY_READING.contains(name) {
            true => {
                drop(writer);
                File::open(&world.path)?
            }
            false => writer,
        };
        let before = State::of(world, &file)?;
        let done = way(world, &file);
        alone::told(name, &done, &before, &State::of(world, &file)?);
    }
    for (name, way) in ways::BY_PATH {
        drop(alone::fresh(world, ways::FOR_PIECES.contains(&name))?);
        let file = File::open(&world.path)?;
        let before = State::of(world, &file)?;
        let done = way(world);
        alone::told(name, &done, &before, &State::of(world, &file)?);
    }
    Ok(())
}

/// Tells what came of a way; where it was more than nothing, the next one has a new file.
fn again(
    world: &World,
    name: &str,
    done: Result<()>,
    (direct, before): (&mut Option<DirectFile>, &mut File),
    open: &impl Fn() -> Result<File>,
) -> Result<()> {
    let verdict = direct.as_ref().map_or("nothing", |direct| world.verdict(direct, before));
    told(name, &done, verdict);
    // A block map is made one of extents by what goes on in spite of everything.
    if verdict != "same" || world.by_block_map && done.is_ok() {
        drop(direct.take());
        renew(world)?;
        *before = File::open(&world.path)?;
        *direct = Some(world.take(open()?).map_err(Error::other)?);
    }
    Ok(())
}

/// Keeps a descriptor, takes the file directly, gives its blocks away, and reads them past the kernel when somebody else has them.
fn victim(world: &World) -> Result<()> {
    renew(world)?;
    let kept = writable(&world.path)?;
    let direct = match world.take(writable(&world.path)?) {
        Ok(direct) => direct,
        Err(error) => {
            println!("refused\t{error}");
            return Ok(());
        }
    };
    let spare = world.spare()?;
    let moved = move_to(&spare, kept.as_raw_fd());
    let gone = if moved.is_ok() { spare.set_len(0) } else { kept.set_len(0) };
    spare.sync_all()?;
    println!("taken\t{moved:?} {gone:?}");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut buffer = vec![0; BYTES];
    let read = world.runtime.block_on(direct.read_at(&mut buffer, 0));
    let at = buffer.windows(10).position(|part| part == b"Bob alone ").unwrap_or(0);
    println!("read\t{}", String::from_utf8_lossy(&buffer[at..at + 60]));
    let wrote = world.runtime.block_on(direct.write_at(b"changed by another user", at as u64));
    println!("wrote\t{wrote:?} {read:?}");
    Ok(())
}

/// Fills files beside the world's with what that holds, until the file system has no more; says how many, and keeps them open until it is told.
fn fills(world: &World) -> Result<()> {
    let data = std::fs::read(&world.path)?;
    let filled: Vec<File> = (0..)
        .map_while(|number| {
            let file = OpenOptions::new().write(true).open(world.path.with_file_name(format!("bobs-{number}"))).ok()?;
            file.write_all_at(&data, 0).ok()?;
            Some(file)
        })
        .collect();
    println!("filled\t{}", filled.len());
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Writes past the kernel without end, a line for each write, until the device refuses.
fn writer(world: &World) -> Result<()> {
    renew(world)?;
    let direct = world.take(writable(&world.path)?).map_err(Error::other)?;
    let mut number = 0u64;
    let stdout = std::io::stdout();
    loop {
        number += 1;
        let done = world.runtime.block_on(direct.write_at(&number.to_le_bytes(), 0));
        let said = match done {
            Ok(_) => "written".to_owned(),
            Err(error) => error.to_string(),
        };
        if said != "written" || number.is_multiple_of(100) {
            writeln!(stdout.lock(), "{said}\t{number}")?;
        }
        if said != "written" {
            break;
        }
    }
    // Its files stay with it until it is told.
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes the file below an overlay in which a truncation of it waits past its check, and lets that go on. Without `takes` the same to a
/// file that nobody has directly.
fn below_an_overlay(waiting: overlay::Waiting, world: Option<&World>, path: &Path) -> Result<()> {
    let direct = match world.map(|world| world.take(writable(path)?).map_err(Error::other)).transpose() {
        Ok(direct) => direct,
        Err(error) => {
            println!("refused\t{error}");
            return waiting.go_on().map(|_| ());
        }
    };
    let reader = File::open(path)?;
    let before = space::of_file(&reader)?;
    let said = waiting.go_on()?;
    let is_moved = space::of_file(&reader)? != before;
    let verdict = match (world, &direct) {
        (Some(world), Some(direct)) => world.verdict(direct, &reader),
        _ if is_moved => "moves",
        _ => "nothing",
    };
    println!("{said}\t{verdict}");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    Ok(())
}

/// Asks for a file while a write of its own to it waits for memory; lets the write go on when the input says so.
fn stalls(world: &World) -> Result<()> {
    renew(world)?;
    let ends = stalled::in_write(writable(&world.path)?)?;
    println!("stalled\t");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            // Whether it is written is seen in the file.
            let _ = ends();
        });
        match world.take(writable(&world.path)?) {
            Ok(direct) => {
                let mut first = [0; 8];
                let read = world.runtime.block_on(direct.read_at(&mut first, 0));
                println!("taken\t{first:?} {read:?}");
            }
            Err(error) => println!("refused\t{error}"),
        }
        Ok(())
    })
}

/// Has a file that is there prepared, and confirms it, a line of its input before each, again and again; keeps it for some time.
fn confirms(world: &World, agent: &Path, once: bool) -> Result<()> {
    use willow_host::agent::message::{Request, VERSION};
    let mut lines = std::io::stdin().lines();
    while lines.next().is_some() {
        // What was frozen thaws some time after.
        let begun = std::time::Instant::now();
        let file = loop {
            match writable(&world.path) {
                Err(_) if begun.elapsed() < WAIT_MAX => std::thread::sleep(Duration::from_millis(5)),
                opened => break opened?,
            }
        };
        let channel = willow_shm::socket::Channel::connect(agent)?;
        let ask = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
            channel.send(&willow_shm::message::encode(request), descriptors).map_err(Error::from)
        };
        ask(&Request::Open { version: VERSION, again: false, ready: false }, &[file.as_fd()])?;
        let answer = channel.receive_within(WAIT_MAX).map_err(|error| Error::other(error.to_string()))?;
        drop(file);
        println!("{}\t", String::from_utf8_lossy(&answer.bytes));
        if lines.next().is_none() {
            break;
        }
        // Its number is the first of this connection.
        ask(&Request::Confirm { file: 1 }, &[])?;
        if once {
            let answer = channel.receive_within(WAIT_MAX);
            let answer = answer.map_err(|error| Error::other(error.to_string()))?;
            println!("{}\t", String::from_utf8_lossy(&answer.bytes));
            continue;
        }
        std::thread::sleep(Duration::from_millis(1500));
    }
    Ok(())
}

/// Asks for the file again and again while it keeps a descriptor by which it writes, a line for each answer.
fn insistent(world: &World) -> Result<()> {
    renew(world)?;
    let _kept = writable(&world.path)?;
    for _ in 0..40 {
        match world.take(writable(&world.path)?) {
            Ok(_) => println!("taken\t"),
            Err(error) => println!("refused\t{error}"),
        }
    }
    Ok(())
}

/// A file whose mode forbids to open it so any more is written on by who has it open.
fn goes_on(device: &str, agent: &str, path: &Path) -> Result<()> {
    use rustix::fs::Mode;
    use willow_host::direct_io::{File as DirectlyOpen, Session, SessionOptions};
    let session = Session::open(SessionOptions::new(device, agent)).map_err(Error::other)?;
    let mut made = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    made.write_all(&[1; BYTES])?;
    let file = DirectlyOpen::new(&session, made).map_err(Error::other)?;
    file.change(|descriptor| rustix::fs::fchmod(descriptor, Mode::RUSR))?;
    assert_eq!(writable(path).map(|_| ()).map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    for round in 1..4u64 {
        file.take().map_err(Error::other)?;
        assert_eq!(file.pwrite(b"directly", 0).map_err(Error::other)?, 8);
        assert!(file.is_direct());
        // It grows, which the kernel does.
        let end = BYTES as u64 * round;
        assert_eq!(file.pwrite(&[2; BYTES], end).map_err(Error::other)?, BYTES);
        assert_eq!(file.bytes().map_err(Error::other)?, end + BYTES as u64);
    }
    println!("went on\t");
    Ok(())
}

/// Connects as often as that goes, and stays.
fn crowd(agent: &Path) -> Result<()> {
    let many = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, many)?;
    let all: Vec<_> = (0..1100).map_while(|_| willow_shm::socket::Channel::connect(agent).ok()).collect();
    println!("there\t{}", all.len());
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Opens files of its own directly, or one that is there again and again, as often as it gets them, and keeps them.
fn hoard(world: &World, one: bool) -> Result<()> {
    let mut held = Vec::new();
    let refusal = loop {
        let file = if one {
            File::open(&world.path)?
        } else {
            let path = world.beside(&format!(".{}.{}", std::process::id(), held.len()));
            std::fs::write(&path, [5; 4096])?;
            writable(&path)?
        };
        match world.take(file) {
            Ok(direct) => held.push(direct),
            Err(error) => break error.to_string(),
        }
        if held.len() >= 300 {
            break "nothing".to_owned();
        }
    };
    println!("held\t{}\t{refusal}", held.len());
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Has the lock of a file's or folder's inode until it is told.
fn locks(path: &Path) -> Result<()> {
    let ends = match path.is_dir() {
        true => stalled::in_listing(File::open(path)?)?,
        false => stalled::in_read(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?)?,
    };
    println!("locked\t");
    std::io::stdin().lock().read_line(&mut String::new())?;
    ends()
}

/// Becomes another user, and asks as the one that it was.
fn turncoat(world: &World, user: u32) -> Result<()> {
    let file = File::open(&world.path)?;
    // SAFETY: a call without memory.
    check(i64::from(unsafe { libc::setresuid(user, user, user) }))?;
    match world.take(file) {
        Ok(_) => println!("taken\t"),
        Err(error) => println!("refused\t{error}"),
    }
    Ok(())
}

/// Root does without what it may not have where tests run in a container, so that what it gets is the same everywhere.
fn drop_resource_capability() -> Result<()> {
    const VERSION: u32 = 0x2008_0522;
    const SYS_RESOURCE: u32 = 1 << 24;
    let head = [VERSION, 0];
    // Effective, permitted and inheritable, of the first 32 and of the others.
    let mut sets = [0u32; 6];
    // SAFETY: the structures of version 3: two words, and two of three words each.
    check(unsafe { libc::syscall(libc::SYS_capget, head.as_ptr(), sets.as_mut_ptr()) })?;
    sets[..3].iter_mut().for_each(|set| *set &= !SYS_RESOURCE);
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()) })
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, device, agent, file, what] = &arguments[..] else { panic!("DEVICE AGENT FILE WHAT") };
    if what == "crowd" {
        return crowd(Path::new(agent));
    }
    if what == "locks" {
        return locks(Path::new(file));
    }
    let mut words = what.split(' ');
    let name = words.next().unwrap_or_default();
    let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    match name {
        "leases" => return lease::leases(Path::new(file)),
        "idmaps" => return mounts::idmaps(Path::new(file)),
        "writes" => return mounts::writes(Path::new(file)),
        "appends" => return appends::holds(device, agent, Path::new(file), &numbers),
        "ends" => return appends::ends_others(Path::new(agent), &numbers),
        _ => {}
    }
    if what == "goes on" {
        return goes_on(device, agent, Path::new(file));
    }
    let waiting = match what.strip_prefix("overlay") {
        // Before this process has another thread.
        Some(_) => {
            let folder = Path::new(file).parent().and_then(Path::parent).unwrap_or(Path::new("/"));
            match overlay::Waiting::begin(folder) {
                Ok(waiting) => Some(waiting),
                Err(error) => {
                    println!("unavailable\t{error}");
                    return Ok(());
                }
            }
        }
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    let agent = AgentClient::connect(Path::new(agent)).map_err(Error::other)?;
    let hre: Arc<dyn Hre> = match device.as_str() {
        // Wherever the agent says.
        "-" => runtime.block_on(willow_host::direct_io::endpoint(&agent)).map_err(Error::other)?,
        device => Arc::new(ShmHre::open(Path::new(device), options).map_err(Error::other)?),
    };
    if rustix::process::geteuid().is_root() {
        drop_resource_capability()?;
    }
    let by_block_map = what == "attacks by block map";
    let world = World { agent, hre, runtime, path: PathBuf::from(file), by_block_map };
    if let Some(waiting) = waiting {
        return below_an_overlay(waiting, (what == "overlay").then_some(&world), &world.path);
    }
    match what.as_str() {
        "stalls" => stalls(&world),
        "attacks" | "attacks by block map" => attacks(&world, false),
        "attacks of a reader" => attacks(&world, true),
        "unguarded" => unguarded::attacks(&world),
        "victim" => victim(&world),
        "fills" => fills(&world),
        "writer" => writer(&world),
        "insistent" => insistent(&world),
        "confirms" => confirms(&world, Path::new(&arguments[2]), false),
        "confirms once" => confirms(&world, Path::new(&arguments[2]), true),
        "floods" => flood::floods(&world, Path::new(&arguments[2]), 64),
        "goes along" => flood::floods(&world, Path::new(&arguments[2]), 1),
        "asks" => mounts::asks(&world),
        "hoard" => hoard(&world, false),
        "hoard one" => hoard(&world, true),
        "turncoat" => turncoat(&world, 54_802),
        _ => panic!("there is no {what}"),
    }
}
