//! The two protocols that change small records so that every interruption leaves the old or the new one:
//! two copies with generations ([`TwoCopies`], for what is often saved) and a new file put in place by rename
//! ([`replace`], for blobs). The argument is in docs/media-format.md, section 5.
//!
//! What always holds for two copies:
//! - The copy that the last successful save wrote is never touched by the next save.
//! - Generations only rise, also over saves that failed; both copies exist from creation on.
//! - What `open` returns is durable when it returns.
//!
//! The keeper of the file store calls it, and the fault-injection tests, which cut it at every point.

use super::folder::Folder;
use super::record::{HEADER_BYTES, Kind, Record, RecordError, Uuid};
use std::io;

/// End of the name of a file that is not yet in its place.
pub const UNPLACED_SUFFIX: &str = ".new";

/// Why two copies could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CopiesError {
    /// A copy is missing. No interruption does that.
    #[error("{file}: the file is missing; restore it from a copy")]
    Missing {
        /// Name of the file.
        file: String,
    },
    /// A copy is not what it should be in a way that no interruption explains, or both copies are unreadable.
    #[error("{file}: {problem}")]
    Refused {
        /// Name of the file.
        file: String,
        /// What is wrong with it.
        problem: RecordError,
    },
    /// A copy belongs to another data folder.
    #[error("{file}: it belongs to another data folder; put the right file back")]
    ForeignFolder {
        /// Name of the file.
        file: String,
    },
    /// A copy could not be read at all.
    #[error("{file}: {error}")]
    Io {
        /// Name of the file.
        file: String,
        /// What the operating system said.
        error: io::Error,
    },
}

/// A record that is kept twice.
#[derive(Debug)]
pub struct TwoCopies {
    kind: Kind,
    names: [String; 2],
    uuid: Uuid,
    payload_bytes_max: usize,
    /// The highest generation ever tried.
    generation: u64,
    /// The copy that holds the newest durable record.
    newest: usize,
}

impl TwoCopies {
    /// Names of the two files.
    pub fn names(stem: &str) -> [String; 2] {
        [format!("{stem}-a"), format!("{stem}-b")]
    }

    /// Makes both files, with generation 0, in any order; durable once the folder has been synced. Nothing may rely on
    /// them before that.
    pub fn create(folder: &mut dyn Folder, kind: Kind, stem: &str, uuid: Uuid, payload: &[u8]) -> io::Result<()> {
        let bytes = Record { uuid, number: 0, payload: payload.to_vec() }.encode(kind);
        for name in TwoCopies::names(stem) {
            folder.create(&name, &bytes)?;
            folder.sync(&name)?;
        }
        Ok(())
    }

    /// Reads the newest intact copy. `uuid`: the data folder that both have to belong to, where it is known already.
    /// Returns the record and, where the other copy was unreadable, why.
    pub fn open(
        folder: &mut dyn Folder,
        kind: Kind,
        stem: &str,
        uuid: Option<Uuid>,
        payload_bytes_max: usize,
    ) -> Result<(TwoCopies, Record, Option<CopiesError>), CopiesError> {
        let names = TwoCopies::names(stem);
        let mut intact: Option<(usize, Record)> = None;
        let mut torn = None;
        let mut generation = 0;
        for (index, name) in names.iter().enumerate() {
            let file = name.clone();
            // Longer than any record that this code writes is possible: a newer format. One byte more tells.
            let bytes = match folder.read(name, (HEADER_BYTES + payload_bytes_max) as u64) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Err(CopiesError::Missing { file }),
                Err(error) => return Err(CopiesError::Io { file, error }),
            };
            let record = match Record::decode(kind, &bytes) {
                Ok(record) => record,
                Err(problem @ (RecordError::Newer { .. } | RecordError::WrongKind { .. })) => {
                    return Err(CopiesError::Refused { file, problem });
                }
                // A save that was cut leaves any mixture of old and new units: all of these can come of it.
                Err(problem) => {
                    if torn.is_some() {
                        return Err(CopiesError::Refused { file, problem });
                    }
                    torn = Some(CopiesError::Refused { file, problem });
                    continue;
                }
            };
            if uuid.is_some_and(|uuid| uuid != record.uuid)
                || intact.as_ref().is_some_and(|(_, other)| other.uuid != record.uuid)
            {
                return Err(CopiesError::ForeignFolder { file });
            }
            generation = generation.max(record.number);
            if intact.as_ref().is_none_or(|(_, other)| record.number > other.number) {
                intact = Some((index, record));
            }
        }
        let (newest, record) = intact.expect("two torn copies were refused above");
        // It may come from a save that a kill interrupted: whole in the page cache, but not on the disk. The next save
        // overwrites the other copy, so this one has to be durable first. Writing it again (the same bytes, so a cut
        // here changes nothing) also covers a sync that failed before and left its pages clean.
        let made_durable = match folder.overwrite(&names[newest], &record.encode(kind)) {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(error),
            _ => folder.sync(&names[newest]),
        };
        made_durable.map_err(|error| CopiesError::Io { file: names[newest].clone(), error })?;
        let copies = TwoCopies { kind, names, uuid: record.uuid, payload_bytes_max, generation, newest };
        Ok((copies, record, torn))
    }

    /// Reads the newest record again.
    pub fn read(&self, folder: &mut dyn Folder) -> Result<Record, CopiesError> {
        let file = self.names[self.newest].clone();
        match folder.read(&file, (HEADER_BYTES + self.payload_bytes_max) as u64) {
            Ok(Some(bytes)) => {
                Record::decode(self.kind, &bytes).map_err(|problem| CopiesError::Refused { file, problem })
            }
            Ok(None) => Err(CopiesError::Missing { file }),
            Err(error) => Err(CopiesError::Io { file, error }),
        }
    }

    /// Replaces the record. After success the new one is durable; after a failure or a cut it is the old or the new.
    pub fn save(&mut self, folder: &mut dyn Folder, payload: &[u8]) -> io::Result<()> {
        assert!(payload.len() <= self.payload_bytes_max, "the caller bounds the payload");
        self.generation += 1;
        let older = 1 - self.newest;
        let record = Record { uuid: self.uuid, number: self.generation, payload: payload.to_vec() };
        let name = &self.names[older];
        folder.overwrite(name, &record.encode(self.kind))?;
        folder.sync(name)?;
        self.newest = older;
        Ok(())
    }
}

/// Puts a record under a name, in place of what is there. After success it is durable; after a failure or a cut it is the
/// old or the new file as a whole.
pub fn replace(folder: &mut dyn Folder, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unplaced = format!("{name}{UNPLACED_SUFFIX}");
    let placed = folder
        .create(&unplaced, bytes)
        .and_then(|()| folder.sync(&unplaced))
        .and_then(|()| folder.rename(&unplaced, name));
    if let Err(error) = placed {
        // The room is wanted back; if even that fails, the next opening removes the file.
        let _ = folder.remove(&unplaced);
        return Err(error);
    }
    folder.sync_folder()
}

/// Removes a file durably.
pub fn remove(folder: &mut dyn Folder, name: &str) -> io::Result<()> {
    folder.remove(name)?;
    folder.sync_folder()
}
