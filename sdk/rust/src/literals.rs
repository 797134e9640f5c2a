//! The literals accelerator: sets of literals, and the search for them in bytes at a port.

use core::future::Future;
use core::marker::PhantomData;

use crate::executor::{Issued, Operation, Wait};
use crate::request::{Request, Source, completed, issued};
use crate::{Error, sys};

/// Most literals of a set.
pub const LITERALS_MAX: usize = 4096;
/// Most bytes of a literal.
pub const LITERAL_BYTES_MAX: usize = 1024;
/// Most bytes of a set's literals as they are written down ([`write_literal`]).
pub const LITERAL_SET_BYTES_MAX: usize = 65536;
/// Most matches that one search brings.
pub const MATCHES_MAX: usize = 4096;
/// Most bytes that one search looks at.
pub const SEARCH_BYTES_MAX: u32 = 256 << 10;

/// Writes a literal down behind those that `into` has from its beginning to `at`; where the next one goes, or `None` where there is no room.
pub fn write_literal(into: &mut [u8], at: usize, literal: &[u8]) -> Option<usize> {
    let end = at.checked_add(4)?.checked_add(literal.len())?;
    let place = into.get_mut(at..end)?;
    place[..4].copy_from_slice(&(literal.len() as u32).to_le_bytes());
    place[4..].copy_from_slice(literal);
    Some(end)
}

/// How a set is searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiteralOptions {
    /// ASCII letters match in either case.
    pub ignore_case: bool,
    /// One match a line, which ends with this byte.
    pub lines: Option<u8>,
}

/// A set of literals in the accelerator of this SPU; dropped, it is given up.
#[derive(Debug)]
pub struct Literals(i32);

/// A match: offsets in the range that was searched, and the number of the literal in its set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// First byte.
    pub begin: u32,
    /// Byte behind the last one.
    pub end: u32,
    /// Which literal.
    pub literal: u32,
}

/// What a search has found: at most `N` matches. With an `N` of 0 they are counted and not brought.
///
/// The next search goes on with the same one: whether the text's next piece begins in a line that has had its match is part of it.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Found<const N: usize> {
    count: u32,
    looked_at: u32,
    state: u32,
    matches: [Match; N],
}

impl<const N: usize> Default for Found<N> {
    fn default() -> Self {
        Found::new()
    }
}

impl<const N: usize> Found<N> {
    /// For the beginning of a text.
    pub const fn new() -> Self {
        Found { count: 0, looked_at: 0, state: 0, matches: [Match { begin: 0, end: 0, literal: 0 }; N] }
    }

    /// How many matches the last search found.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The matches of the last search; none where `N` is 0.
    pub fn matches(&self) -> &[Match] {
        &self.matches[..N.min(self.count as usize)]
    }

    /// How far the last search got in its range: the next one begins there.
    pub fn looked_at(&self) -> u32 {
        self.looked_at
    }

    /// Whether the line of the last match had no end in the range: the next search passes over what is left of it.
    pub fn in_matched_line(&self) -> bool {
        self.state != 0
    }

    /// Another text begins.
    pub fn restart(&mut self) {
        (self.count, self.looked_at, self.state) = (0, 0, 0);
    }
}

impl Literals {
    /// Loads a set: literals as [`write_literal`] writes them.
    pub fn load(literals: &[u8], options: LiteralOptions) -> Result<Literals, Error> {
        let lines = options.lines.map_or(0, |end| 2 | u32::from(end) << 8);
        let flags = u32::from(options.ignore_case) | lines;
        // SAFETY: the import reads the bytes before it returns.
        match unsafe { sys::literals_load(literals.as_ptr(), literals.len() as u32, flags) } {
            handle if handle > 0 => Ok(Literals(handle)),
            error => Err(Error::from_code(error.into())),
        }
    }

    /// Looks for the set's literals in `bytes` bytes, as far as one search goes ([`Found::looked_at`]).
    pub fn find<A: Source, const N: usize>(
        &self,
        request: &Request,
        source: A,
        bytes: u32,
        found: &mut Found<N>,
    ) -> impl Future<Output = Result<(), Error>> {
        let (address, address_bytes) = source.source();
        let state = found.state;
        let to: *mut Found<N> = found;
        let fits = bytes <= address_bytes;
        let search: Search<A> = Search {
            token: request.token(),
            set: self.0,
            address,
            bytes,
            state,
            to: to.cast(),
            most: N as u32,
            fits,
            port: PhantomData,
        };
        Wait::new(search)
    }
}

impl Drop for Literals {
    fn drop(&mut self) {
        sys::literals_free(self.0);
    }
}

struct Search<A> {
    token: u32,
    set: i32,
    address: u64,
    bytes: u32,
    state: u32,
    to: *mut u8,
    most: u32,
    /// Whether a local buffer is long enough.
    fits: bool,
    port: PhantomData<A>,
}

impl<A: Source> Operation for Search<A> {
    type Output = Result<(), Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        // SAFETY: a local source is at least `bytes` long, `to` has room for the head and `most` matches (`Found` is laid out so), and both
        // are borrowed by the pending operation.
        issued(unsafe {
            sys::literals_find(
                self.token,
                self.set,
                A::SOURCE_PORT,
                self.address,
                self.bytes,
                self.state,
                self.to,
                self.most,
                wait,
            )
        })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}

const _: () = assert!(size_of::<Found<2>>() == 36 && align_of::<Found<2>>() == 4);
