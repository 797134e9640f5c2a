//! Files of numbers: inputs that are looked at once, and an output that gets its name when it is whole.
//!
//! What always holds: an output of a new file is written beside the place where it is wanted, as `NAME.PID.part`, and renamed when all of it is durable;
//! what fails removes it. Only a process that is killed leaves it.

use super::ComputeError;
use crate::direct_io::DirectFile;
use compute_host::Element;
use compute_host::npy::{Array, HEADER_BYTES_MAX, NpyError};
use compute_host::plan::Laid;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that are written, or worked on by this host, at a time.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// fallocate's FALLOC_FL_WRITE_ZEROES (linux 6.17): blocks that are written with zeroes, not merely set aside.
const WRITE_ZEROES: u32 = 0x80;

/// How numbers lie in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As numpy saves them.
    Npy,
    /// One behind the other, and nothing else.
    Raw(Element),
}

/// A file that is read.
pub(super) struct Input {
    pub path: PathBuf,
    pub file: File,
    pub array: Array,
    /// Where its numbers begin.
    pub begin: u64,
    /// Its length, and when it was changed last.
    state: (u64, i64, i64),
}

fn state(file: &File) -> std::io::Result<(u64, i64, i64)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// The array that a file is, and where its numbers begin.
fn array(path: &Path, file: &File, form: Form) -> Result<(Array, u64), ComputeError> {
    let of_file = || ComputeError::of_file(path);
    let there = file.metadata().map_err(of_file())?.len();
    let mut head = vec![0; HEADER_BYTES_MAX.min(usize::try_from(there).unwrap_or(usize::MAX))];
    let (array, begin) = match form {
        Form::Raw(element) => {
            if !there.is_multiple_of(element.bytes()) {
                let what = format!("its {there} bytes are no whole numbers of {element}");
                return Err(ComputeError::unfit(path, what));
            }
            (Array { element, fortran_order: false, shape: vec![there / element.bytes()] }, 0)
        }
        Form::Npy => {
            let count = file.read_at(&mut head, 0).map_err(of_file())?;
            let npy = |error: NpyError| ComputeError::Npy { path: path.to_owned(), error };
            Array::read(&head[..count]).map_err(npy)?
        }
    };
    let wanted = begin.saturating_add(array.bytes());
    if there < wanted {
        return Err(ComputeError::Shorter { path: path.to_owned(), there, wanted });
    }
    Ok((array, begin))
}

impl Input {
    pub fn open(path: &Path, form: Form) -> Result<Input, ComputeError> {
        let of_file = || ComputeError::of_file(path);
        // A pipe that nobody writes is not waited for.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(of_file())?;
        if !file.metadata().map_err(of_file())?.is_file() {
            return Err(ComputeError::unfit(path, "it is no regular file"));
        }
        let (array, begin) = array(path, &file, form)?;
        let state = state(&file).map_err(of_file())?;
        Ok(Input { path: path.to_owned(), file, array, begin, state })
    }

    /// A descriptor for direct access.
    pub fn descriptor(&self) -> Result<File, ComputeError> {
        self.file.try_clone().map_err(ComputeError::of_file(&self.path))
    }

    /// That a file that is direct, and cannot change any more, is still what was looked at.
    pub fn check_length(&self, direct: &DirectFile) -> Result<(), ComputeError> {
        let wanted = self.state.0;
        match direct.bytes() {
            there if there < wanted => Err(ComputeError::Shorter { path: self.path.clone(), there, wanted }),
            _ => Ok(()),
        }
    }

    /// Reads numbers by this host.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<(), ComputeError> {
        self.file.read_exact_at(into, self.begin + offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                let there = self.file.metadata().map_or(0, |metadata| metadata.len());
                ComputeError::Shorter { path: self.path.clone(), there, wanted: self.begin + self.array.bytes() }
            }
            _ => ComputeError::File { path: self.path.clone(), error },
        })
    }

    /// That nobody has written it while this host read it.
    pub fn check_unchanged(&self) -> Result<(), ComputeError> {
        match state(&self.file).map_err(ComputeError::of_file(&self.path))? == self.state {
            true => Ok(()),
            false => Err(ComputeError::Changed(self.path.clone())),
        }
    }
}

/// Where numbers of a direct file lie.
pub(super) fn laid(file: &DirectFile, begin: u64) -> Laid<'_> {
    Laid { geometry: file.geometry(), extents: file.extents(), begin }
}

/// A file that is written.
pub(super) struct Output {
    pub path: PathBuf,
    /// Its name until it is whole; none where it is written in its place.
    part: Option<PathBuf>,
    pub begin: u64,
    file: Option<File>,
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // Where it cannot be removed there is nothing more to do.
            let _ = std::fs::remove_file(part);
        }
    }
}

/// Gives a file so many blocks that the file system calls written, since others cannot be accessed directly.
fn reserve(file: &mut File, bytes: u64) -> std::io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if rustix::fs::fallocate(&*file, FallocateFlags::from_bits_retain(WRITE_ZEROES), 0, bytes).is_ok() {
        return Ok(());
    }
    rustix::fs::fallocate(&*file, FallocateFlags::empty(), 0, bytes).or_else(|error| match error {
        // Then the file system finds blocks as it is written.
        rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS => Ok(()),
        error => Err(error),
    })?;
    let zeroes = vec![0; PIECE_BYTES];
    let mut left = bytes;
    file.rewind()?;
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64) as usize;
        file.write_all(&zeroes[..now])?;
        left -= now as u64;
    }
    Ok(())
}

impl Output {
    /// A new file for an array, or one that is there and is to be written over. None of `inputs` may be it.
    pub fn new(
        path: &Path,
        (array, form, in_place): (&Array, Form, bool),
        inputs: &[&Input],
    ) -> Result<Output, ComputeError> {
        let header = if form == Form::Npy { array.header() } else { Vec::new() };
        if in_place {
            return Output::existing(path, array, form, inputs);
        }
        if path.is_dir() {
            return Err(ComputeError::unfit(path, "it is a folder"));
        }
        Output::part(path, (&header, array.bytes()))
    }

    /// A new file, which does not have its name yet: a header, and room for so many bytes.
    fn part(path: &Path, (header, bytes): (&[u8], u64)) -> Result<Output, ComputeError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{count}.part", std::process::id()));
        let part = path.with_file_name(name);
        let of_file = || ComputeError::of_file(&part);
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&part).map_err(of_file())?;
        // From here on it is removed by whatever fails.
        let mut output =
            Output { path: path.to_owned(), part: Some(part.clone()), begin: header.len() as u64, file: None };
        if let Ok(before) = std::fs::metadata(path) {
            // As open to others as the one before, from the first byte on; that its owner may write goes when it has its name.
            let mut permissions = before.permissions();
            permissions.set_mode(permissions.mode() | 0o600);
            file.set_permissions(permissions).map_err(of_file())?;
        }
        reserve(&mut file, header.len() as u64 + bytes).map_err(of_file())?;
        file.write_all_at(header, 0).and_then(|()| file.sync_all()).map_err(of_file())?;
        output.file = Some(file);
        Ok(output)
    }

    /// A file of so many bytes beside another one, which is removed when this is dropped.
    pub fn scratch(beside: &Path, bytes: u64) -> Result<Output, ComputeError> {
        Output::part(beside, (&[], bytes))
    }

    fn existing(path: &Path, wanted: &Array, form: Form, inputs: &[&Input]) -> Result<Output, ComputeError> {
        let of_file = || ComputeError::of_file(path);
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(of_file())?;
        let metadata = file.metadata().map_err(of_file())?;
        if !metadata.is_file() {
            return Err(ComputeError::unfit(path, "it is no regular file"));
        }
        for input in inputs {
            let other = input.file.metadata().map_err(ComputeError::of_file(&input.path))?;
            if (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()) {
                let what = "it is read as well: a failed run would leave neither the input nor the result";
                return Err(ComputeError::unfit(path, what));
            }
        }
        let (begin, is_right) = match form {
            Form::Npy => {
                let (there, begin) = array(path, &file, form)?;
                (begin, there == *wanted)
            }
            // Plain numbers have no shape.
            Form::Raw(_) => {
                let (there, begin) = array(path, &file, Form::Raw(wanted.element))?;
                (begin, there.elements() == wanted.elements())
            }
        };
        if !is_right {
            return Err(ComputeError::unfit(path, "it is not of the result's type, order and shape"));
        }
        Ok(Output { path: path.to_owned(), part: None, begin, file: Some(file) })
    }

    fn now_at(&self) -> &Path {
        self.part.as_deref().unwrap_or(&self.path)
    }

    /// The descriptor, once: for direct access, which wants to be the only one that writes.
    pub fn take(&mut self) -> Result<File, ComputeError> {
        match self.file.take() {
            Some(file) => Ok(file),
            None => self.open(),
        }
    }

    fn open(&self) -> Result<File, ComputeError> {
        let opened = OpenOptions::new().read(true).write(true).open(self.now_at());
        opened.map_err(ComputeError::of_file(self.now_at()))
    }

    /// Writes numbers by this host.
    pub fn write(&mut self, from: &[u8], offset: u64) -> Result<(), ComputeError> {
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(from, self.begin + offset).map_err(ComputeError::of_file(&self.path))
    }

    /// Reads numbers that were written, by this host.
    pub fn read(&mut self, into: &mut [u8], offset: u64) -> Result<(), ComputeError> {
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.read_exact_at(into, self.begin + offset).map_err(ComputeError::of_file(&self.path))
    }

    /// Makes it durable, and gives it its name.
    pub fn commit(mut self) -> Result<(), ComputeError> {
        let at = self.now_at().to_owned();
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(&at).map_err(ComputeError::of_file(&at))?,
        };
        if let (Some(_), Ok(before)) = (&self.part, std::fs::metadata(&self.path)) {
            file.set_permissions(before.permissions()).map_err(ComputeError::of_file(&at))?;
        }
        file.sync_all().map_err(ComputeError::of_file(&at))?;
        drop(file);
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // One that may be written and not read is found out before it has its name.
        let opened = File::open(folder).map_err(ComputeError::of_file(folder))?;
        let Some(part) = self.part.take() else { return Ok(()) };
        if let Err(error) = std::fs::rename(&part, &self.path) {
            self.part = Some(part);
            return Err(ComputeError::File { path: self.path.clone(), error });
        }
        opened.sync_all().map_err(ComputeError::of_file(folder))
    }
}
