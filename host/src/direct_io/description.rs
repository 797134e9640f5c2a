//! Open files of this process ("file descriptions": what descriptors that were duplicated share), and read-only placeholders for them.
//!
//! What always holds:
//! - while a file is direct, none of its descriptors that the library knows can write: each is open for reading alone, under the number,
//!   with the position and the close-on-exec flag that it had; descriptors that shared a position share it again;
//! - while the device has a file's length, all descriptors of it are mere paths, and the program's positions are kept here;
//! - a descriptor is exchanged under its number at once (`dup3`): nobody finds the number closed;
//! - descriptors of a file are exchanged while nothing else is done by them.

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::{Errno, FdFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Flags that an open file keeps, apart from its access mode.
const KEPT: OFlags = OFlags::APPEND
    .union(OFlags::NONBLOCK)
    .union(OFlags::DIRECT)
    .union(OFlags::NOATIME)
    .union(OFlags::SYNC)
    .union(DSYNC);
/// `O_DSYNC`. `OFlags::DSYNC` is `O_SYNC` on Linux, which is that and another bit: no descriptor that has the one bit alone contains it.
pub(crate) const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as u32);
/// `KCMP_FILE` of kcmp(2).
const KCMP_FILE: libc::c_int = 0;

/// True where what is written by a descriptor with these flags is durable when the call returns: `O_DSYNC`, or `O_SYNC`, which has its bit.
pub(crate) fn are_durable(flags: OFlags) -> bool {
    flags.contains(DSYNC)
}

/// True where two descriptors of this process share one open file.
fn is_same(one: RawFd, other: RawFd) -> bool {
    let process = std::process::id();
    // SAFETY: a call without memory; an error (a kernel without it, no such descriptor) is no zero.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, one, other) };
    compared == 0
}

/// An open file.
pub(crate) struct Description {
    /// As it was opened: access mode, and what can be changed.
    flags: OFlags,
    numbers: Vec<RawFd>,
    is_placeholder: bool,
    /// The program's position, while the placeholder is a mere path, which has none.
    position: Option<AtomicU64>,
}

/// A number that is registered.
fn borrowed(number: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: a number is taken off before whoever registered it closes it.
    unsafe { BorrowedFd::borrow_raw(*number) }
}

/// Puts an open file under all of these numbers.
fn put(file: BorrowedFd<'_>, numbers: &[RawFd]) -> Result<(), Errno> {
    for number in numbers {
        let closes = rustix::io::fcntl_getfd(borrowed(number))?.contains(FdFlags::CLOEXEC);
        let flags = if closes { libc::O_CLOEXEC } else { 0 };
        // By a system call: what stands before the C library's calls is not to see it.
        // SAFETY: both are open; what was under the number is what this replaces.
        if unsafe { libc::syscall(libc::SYS_dup3, file.as_raw_fd(), *number, flags) } < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error));
        }
    }
    Ok(())
}

/// Opens the file of a descriptor anew. ENOENT: there is no /proc by which that is done, or another one.
pub(crate) fn open_anew(descriptor: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    const NUMBERS: &str = "/proc/self/fd";
    // Something else may be mounted there by now, with anything under these names: to open that may wait for ever.
    if rustix::fs::statfs(NUMBERS)?.f_type != rustix::fs::PROC_SUPER_MAGIC {
        return Err(Errno::NOENT);
    }
    let file = rustix::fs::open(format!("{NUMBERS}/{}", descriptor.as_raw_fd()), flags, Mode::empty())?;
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    match identity(rustix::fs::fstat(&file)?) == identity(rustix::fs::fstat(descriptor)?) {
        true => Ok(file),
        false => Err(Errno::NOENT),
    }
}

/// A number above those that programs count on: 0 to 2 stay free where a program has closed them.
fn high(file: OwnedFd) -> Result<OwnedFd, Errno> {
    match file.as_raw_fd() {
        0..=2 => rustix::io::fcntl_dupfd_cloexec(&file, 3),
        _ => Ok(file),
    }
}

impl Description {
    fn new(number: RawFd, flags: OFlags) -> Self {
        Description { flags, numbers: vec![number], is_placeholder: false, position: None }
    }

    /// Access mode and flags as the program has them.
    pub fn flags(&self) -> OFlags {
        self.flags
    }

    /// True where it is open for writing, as far as the program knows.
    pub fn writes(&self) -> bool {
        self.flags & OFlags::RWMODE != OFlags::RDONLY
    }

    /// True while it is a placeholder.
    pub fn is_placeholder(&self) -> bool {
        self.is_placeholder
    }

    fn number(&self) -> RawFd {
        self.numbers[0]
    }

    /// One of its descriptors.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        borrowed(&self.numbers[0])
    }

    /// The same, for as long as the number is registered and the state of its file locked.
    pub fn lent(&self) -> BorrowedFd<'static> {
        // SAFETY: as for `borrowed`; callers use it while they hold that lock.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    /// Opens the file anew by this access mode, with the flags that it has, but for this one.
    fn opened(&self, mode: OFlags, without: OFlags) -> Result<OwnedFd, Errno> {
        let flags = mode | self.flags & (KEPT - without) | OFlags::CLOEXEC;
        // It waits where a lease is being given up: what it is done for is no call that a signal ends.
        high(rustix::io::retry_on_intr(|| open_anew(self.descriptor(), flags))?)
    }

    /// A file to stand in for it: the process may read it, and nothing else by it.
    pub fn placeholder(&self) -> Result<OwnedFd, Errno> {
        self.opened(OFlags::RDONLY, OFlags::APPEND)
    }

    /// The file as it was: refused where the process may not open it so any more, and while the file is direct somewhere.
    pub fn real(&self) -> Result<OwnedFd, Errno> {
        // With O_NONBLOCK a lease that is being given up would be an error. [`Self::restore`] sets it.
        self.opened(self.flags & OFlags::RWMODE, OFlags::NONBLOCK)
    }

    /// True while its placeholder is a mere path.
    fn is_path(&self) -> bool {
        self.position.is_some()
    }

    fn position(&self) -> Result<u64, Errno> {
        match &self.position {
            Some(position) => Ok(position.load(Ordering::Relaxed)),
            None => rustix::fs::tell(self.descriptor()),
        }
    }

    /// Exchanges it: the position stays.
    fn exchange(&mut self, with: &OwnedFd, is_placeholder: bool) -> Result<(), Errno> {
        let at = self.position()?;
        rustix::fs::seek(with, SeekFrom::Start(at))?;
        self.is_placeholder = is_placeholder;
        put(with.as_fd(), &self.numbers)?;
        self.position = None;
        Ok(())
    }

    /// Puts a mere path in its place.
    fn become_path(&mut self, path: BorrowedFd<'_>) -> Result<(), Errno> {
        let at = self.position()?;
        self.is_placeholder = true;
        put(path, &self.numbers)?;
        self.position = Some(at.into());
        Ok(())
    }

    /// Puts a placeholder in its place.
    pub fn give_up(&mut self, placeholder: &OwnedFd) -> Result<(), Errno> {
        self.exchange(placeholder, true)
    }

    /// Puts it back.
    pub fn restore(&mut self, real: &OwnedFd) -> Result<(), Errno> {
        // Its flags, which the program may have changed meanwhile.
        rustix::fs::fcntl_setfl(real, self.flags & KEPT)?;
        self.exchange(real, false)
    }
}

/// All of a file that the library knows.
#[derive(Default)]
pub(crate) struct Descriptions(Vec<Description>);

impl Descriptions {
    /// Takes a number in; the flags of its open file, as the program has them.
    pub fn add(&mut self, descriptor: BorrowedFd<'_>) -> Result<OFlags, Errno> {
        let number = descriptor.as_raw_fd();
        if let Some(same) = self.0.iter_mut().find(|one| one.numbers.contains(&number) || is_same(one.number(), number))
        {
            same.numbers.push(number);
            return Ok(same.flags);
        }
        let flags = rustix::fs::fcntl_getfl(descriptor)?;
        if !flags.contains(OFlags::PATH) {
            self.0.push(Description::new(number, flags));
        }
        Ok(flags)
    }

    /// Takes a number off, once.
    pub fn remove(&mut self, number: RawFd) {
        let Some(index) = self.0.iter().position(|one| one.numbers.contains(&number)) else { return };
        let numbers = &mut self.0[index].numbers;
        if let Some(place) = numbers.iter().position(|one| *one == number) {
            numbers.swap_remove(place);
        }
        if numbers.is_empty() {
            self.0.swap_remove(index);
        }
    }

    /// The open file of a number.
    pub fn of(&mut self, number: RawFd) -> Option<&mut Description> {
        self.0.iter_mut().find(|one| one.numbers.contains(&number))
    }

    /// Changes what the program's `fcntl(F_SETFL)` changes.
    pub fn set_flags(&mut self, number: RawFd, flags: OFlags) -> Result<(), Errno> {
        let Some(one) = self.of(number) else { return Err(Errno::BADF) };
        // O_SYNC and O_DSYNC are not changed by that.
        let changed = OFlags::APPEND | OFlags::NONBLOCK | OFlags::DIRECT | OFlags::NOATIME;
        let shown = if one.is_placeholder { flags - OFlags::APPEND } else { flags };
        rustix::fs::fcntl_setfl(one.descriptor(), shown)?;
        one.flags = (one.flags - changed) | (flags & changed);
        Ok(())
    }

    /// All of them.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Description> {
        self.0.iter_mut()
    }

    /// True where one of them is a placeholder.
    pub fn are_placeholders(&self) -> bool {
        self.0.iter().any(Description::is_placeholder)
    }

    /// Those that write, and are no placeholders: with a placeholder for each. EACCES: the process may not read the file.
    pub fn placeholders(&self) -> Result<Vec<(usize, OwnedFd)>, Errno> {
        let those = self.0.iter().enumerate().filter(|(_, one)| one.writes() && !one.is_placeholder);
        those.map(|(index, one)| Ok((index, one.placeholder()?))).collect()
    }

    /// True where all of them do nothing but append, as far as the program knows, and are what it opened.
    pub fn all_append(&self) -> bool {
        self.0.iter().all(|one| one.writes() && one.flags.contains(OFlags::APPEND) && !one.is_placeholder)
    }

    /// True where all of them are mere paths.
    pub fn are_paths(&self) -> bool {
        self.0.iter().all(Description::is_path)
    }

    /// Makes all of them mere paths.
    pub fn become_paths(&mut self, path: BorrowedFd<'_>) -> Result<(), Errno> {
        self.0.iter_mut().try_for_each(|one| one.become_path(path))
    }

    /// The program's position of a number, by which it has just appended, is there now.
    pub fn moved(&self, number: RawFd, to: u64) {
        match self.0.iter().find(|one| one.numbers.contains(&number)) {
            Some(Description { position: Some(position), .. }) => position.store(to, Ordering::Relaxed),
            // It has become what it was meanwhile.
            Some(one) => drop(rustix::fs::seek(one.descriptor(), SeekFrom::Start(to))),
            None => {}
        }
    }

    /// Puts those in.
    pub fn give_up(&mut self, placeholders: &[(usize, OwnedFd)]) -> Result<(), Errno> {
        placeholders.iter().try_for_each(|(index, placeholder)| self.0[*index].give_up(placeholder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn descriptors_with_either_flag_write_durably() {
        let path = std::env::temp_dir().join(format!("willow-durable-{}", std::process::id()));
        for (flag, is_durable) in [(0, false), (libc::O_DIRECT, false), (libc::O_DSYNC, true), (libc::O_SYNC, true)] {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::from_bits_retain(flag as u32);
            match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => assert_eq!(are_durable(rustix::fs::fcntl_getfl(file).unwrap()), is_durable, "{flag:o}"),
                // Where temporary files are in memory.
                Err(error) => assert_eq!((flag, error), (libc::O_DIRECT, Errno::INVAL)),
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn placeholders_keep_numbers_positions_and_what_is_shared() {
        let path = std::env::temp_dir().join(format!("willow-description-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut one = open();
        // Shares its open file with the first, and is not closed on exec.
        let mut twin = std::fs::File::from(rustix::io::dup(&one).unwrap());
        let mut other = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let reader = std::fs::File::open(&path).unwrap();
        let mut all = Descriptions::default();
        for file in [&one, &twin, &other, &reader] {
            all.add(file.as_fd()).unwrap();
        }
        assert_eq!(all.0.len(), 3);
        one.read_exact(&mut [0; 3]).unwrap();
        let placeholders = all.placeholders().unwrap();
        assert_eq!(placeholders.len(), 2);
        all.give_up(&placeholders).unwrap();
        drop(placeholders);
        assert!(all.are_placeholders());
        assert_eq!(rustix::io::write(&one, b"x"), Err(Errno::BADF));
        assert_eq!(rustix::io::write(&other, b"x"), Err(Errno::BADF));
        // One moves, the other has moved.
        one.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(rustix::fs::tell(&twin).unwrap(), 5);
        assert!(!rustix::io::fcntl_getfd(&twin).unwrap().contains(FdFlags::CLOEXEC));
        assert!(rustix::io::fcntl_getfd(&one).unwrap().contains(FdFlags::CLOEXEC));
        for description in all.all().filter(|it| it.is_placeholder()) {
            let real = description.real().unwrap();
            description.restore(&real).unwrap();
        }
        assert!(!all.are_placeholders());
        twin.write_all(b"ab").unwrap();
        one.write_all(b"c").unwrap();
        other.write_all(b"end").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"01234abc89end");
        // As mere paths, which have no position.
        let mere = open_anew(one.as_fd(), OFlags::PATH | OFlags::CLOEXEC).unwrap();
        assert!(!all.are_paths() && !all.all_append());
        all.become_paths(mere.as_fd()).unwrap();
        assert!(all.are_paths() && all.are_placeholders());
        assert_eq!(rustix::fs::tell(&one), Err(Errno::BADF));
        assert!(!rustix::io::fcntl_getfd(&twin).unwrap().contains(FdFlags::CLOEXEC));
        all.moved(twin.as_raw_fd(), 3);
        for description in all.all() {
            let real = description.real().unwrap();
            description.restore(&real).unwrap();
        }
        assert!(!all.are_placeholders());
        assert_eq!((rustix::fs::tell(&one).unwrap(), rustix::fs::tell(&other).unwrap()), (3, 13));
        all.moved(one.as_raw_fd(), 4);
        assert_eq!(rustix::fs::tell(&twin).unwrap(), 4);
        all.remove(one.as_raw_fd());
        assert_eq!(all.0.len(), 3);
        all.remove(twin.as_raw_fd());
        assert_eq!(all.0.len(), 2);
        std::fs::remove_file(&path).unwrap();
    }
}
