//! Append's library for hosts: which SPU a file's requests go to, what they are, and what is answered.
//!
//! What always holds: no input or output, no knowledge of a transport.
//!
//! Who may call it: the host library's client, and agents.

pub use append_spu::wire;
use wire::{AppendArguments, Delegation, Extent, RECORD_BYTES_MAX, handler};

/// Name that Append is installed under.
pub const APP_NAME: &str = "append";

/// A request to the app: where it goes, and its arguments, behind which a record follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The file's coordinator, or the SPU that is asked.
    pub spu: u16,
    /// Handler.
    pub handler: u8,
    /// Arguments.
    pub arguments: Vec<u8>,
}

/// The SPU that coordinates a file's appends.
pub fn coordinator(file: u64, spus: u16) -> u16 {
    (file % u64::from(spus.max(1))) as u16
}

/// Requests of a device with so many SPUs.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// SPUs.
    pub spus: u16,
}

impl Calls {
    fn of_file(self, file: u64, handler: u8, arguments: Vec<u8>) -> Call {
        Call { spu: coordinator(file, self.spus), handler, arguments }
    }

    /// Appends a record of so many bytes; `None`: of none, or of more than [`RECORD_BYTES_MAX`].
    pub fn append(self, file: u64, bytes: usize) -> Option<Call> {
        let bytes = u32::try_from(bytes).ok().filter(|bytes| (1..=RECORD_BYTES_MAX).contains(bytes))?;
        Some(self.of_file(file, handler::APPEND, AppendArguments { file, bytes }.encode().to_vec()))
    }

    fn with_extents(self, number: u8, delegation: Delegation, extents: &[Extent]) -> Call {
        let extents_bytes = extents.iter().flat_map(Extent::encode);
        let delegation = Delegation { extents: extents.len() as u32, ..delegation };
        let arguments = delegation.encode().into_iter().chain(extents_bytes).collect();
        self.of_file(delegation.file, number, arguments)
    }

    /// Has the app take over a file's length.
    pub fn delegate(self, delegation: Delegation, extents: &[Extent]) -> Call {
        self.with_extents(handler::DELEGATE, delegation, extents)
    }

    /// Adds extents to a delegated file.
    pub fn extend(self, file: u64, extents: &[Extent]) -> Call {
        self.with_extents(handler::EXTEND, Delegation { file, ..Delegation::default() }, extents)
    }

    /// Lets a process append to a file, or not any more. `process`: the upper 20 bits of its endpoints' ids.
    pub fn admit(self, file: u64, process: u32, admits: bool) -> Call {
        let last = u64::from(process) | u64::from(admits) << 32;
        self.of_file(file, handler::ADMIT, [file.to_le_bytes(), last.to_le_bytes()].concat())
    }

    /// [`handler::LENGTH`], [`handler::SUSPEND`] or [`handler::END`] of a file.
    pub fn about(self, number: u8, file: u64) -> Call {
        self.of_file(file, number, file.to_le_bytes().to_vec())
    }

    /// What an SPU has in a slot from this one on.
    pub fn list(self, spu: u16, from: u64) -> Call {
        Call { spu, handler: handler::LIST, arguments: from.to_le_bytes().to_vec() }
    }
}

/// The offset of a record, of the low 32 bits that an append is answered with: the first from `least` on, at or past which the file is known to have ended before.
pub fn offset(low: u32, least: u64) -> u64 {
    least + u64::from(low.wrapping_sub(least as u32))
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file is not delegated.
    NotFound,
    /// It is delegated already, or a delegation that failed has left something.
    Exists,
    /// Its extents have no room for the record.
    Insufficient,
    /// Nothing is appended to it any more.
    Suspended,
    /// It is to be suspended first.
    Appending,
    /// The process was not admitted, or may not write there.
    Permission,
    /// No slot, or no place for one more process.
    Full,
    /// Too much is under way, and nothing was done.
    Busy,
    /// Arguments that make no sense.
    Malformed,
    /// The media failed.
    Media,
    /// A status that this version does not know.
    Unknown(u32),
}

impl Refusal {
    /// What a status says.
    pub fn from_status(status: u32) -> Result<(), Refusal> {
        Err(match status {
            0 => return Ok(()),
            wire::STATUS_NOT_FOUND => Refusal::NotFound,
            wire::STATUS_EXISTS => Refusal::Exists,
            wire::STATUS_INSUFFICIENT => Refusal::Insufficient,
            wire::STATUS_SUSPENDED => Refusal::Suspended,
            wire::STATUS_APPENDING => Refusal::Appending,
            wire::STATUS_PERMISSION => Refusal::Permission,
            wire::STATUS_FULL => Refusal::Full,
            wire::STATUS_BUSY => Refusal::Busy,
            wire::STATUS_MALFORMED | wire::STATUS_RANGE => Refusal::Malformed,
            wire::STATUS_MEDIA_ERROR => Refusal::Media,
            other => Refusal::Unknown(other),
        })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Refusal::NotFound => "the file is not delegated to the drive",
            Refusal::Exists => {
                "the file is delegated to the drive already, or what failed has left something: end that first"
            }
            Refusal::Insufficient => "the file has no blocks for the record: its delegation is to be extended",
            Refusal::Suspended => "nothing is appended to the file in the drive any more",
            Refusal::Appending => "the file is to be suspended before its delegation ends",
            Refusal::Permission => "the process was not admitted to the file, or may not write there",
            Refusal::Full => "the drive has no room for one more",
            Refusal::Busy => "too much is under way: try again",
            Refusal::Malformed => "the request makes no sense",
            Refusal::Media => "the media failed",
            Refusal::Unknown(status) => return write!(formatter, "status {status}"),
        })
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_the_first_that_can_be() {
        assert_eq!((offset(0, 0), offset(7, 5), offset(5, 5)), (0, 7, 5));
        assert_eq!(offset(3, 0xffff_fff0), 1 << 32 | 3);
        assert_eq!((offset(3, 7 << 32 | 3), offset(2, 7 << 32 | 3)), (7 << 32 | 3, 8 << 32 | 2));
    }

    #[test]
    fn requests_go_to_a_files_coordinator_as_the_app_reads_them() {
        let calls = Calls { spus: 3 };
        let call = calls.append(10, 700).unwrap();
        assert_eq!((call.spu, call.handler), (1, handler::APPEND));
        assert_eq!(
            AppendArguments::decode(call.arguments[..].try_into().unwrap()),
            AppendArguments { file: 10, bytes: 700 }
        );
        assert_eq!((calls.append(10, 0), calls.append(10, RECORD_BYTES_MAX as usize + 1)), (None, None));
        let extents = [Extent { start: 1 << 40, bytes: 7 }, Extent { start: 3, bytes: 9 }];
        let delegation = Delegation { file: 11, length: 5, first: 4, base: 3, stripe_bytes: 8192, extents: 0 };
        let call = calls.delegate(delegation, &extents);
        assert_eq!((call.spu, call.arguments.len()), (2, Delegation::BYTES + 2 * Extent::BYTES));
        assert_eq!(Delegation::decode(&call.arguments), Delegation { extents: 2, ..delegation });
        assert_eq!(Extent::decode(&call.arguments[Delegation::BYTES..]), extents[0]);
    }
}
