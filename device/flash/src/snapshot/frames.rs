//! A stream in frames with checksums: what was cut short, damaged or put together otherwise is told before it is believed.
//!
//! What always holds: bytes come out only of frames whose length and checksum are right, in their order; the end is told only where the last frame says so.
//!
//! ```text
//! frame: u32 length (1 to FRAME_BYTES_MAX; 0: the last), u32 CRC32C of the frame's number (u64) and its bytes, the bytes; all little-endian
//! ```

use std::io::{self, Read, Write};

/// Most bytes of a frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes)
}

/// Writes frames.
pub struct FrameWriter<W> {
    inner: W,
    bytes: Vec<u8>,
    number: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Over a stream.
    pub fn new(inner: W) -> FrameWriter<W> {
        FrameWriter { inner, bytes: Vec::with_capacity(FRAME_BYTES_MAX), number: 0 }
    }

    fn put(&mut self) -> io::Result<()> {
        self.inner.write_all(&(self.bytes.len() as u32).to_le_bytes())?;
        self.inner.write_all(&checksum(self.number, &self.bytes).to_le_bytes())?;
        self.inner.write_all(&self.bytes)?;
        self.number += 1;
        self.bytes.clear();
        Ok(())
    }

    /// Writes the rest and the end; the stream.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.bytes.is_empty() {
            self.put()?;
        }
        self.put()?;
        self.inner.flush()?;
        Ok(self.inner)
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME_BYTES_MAX - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..taken]);
        if self.bytes.len() == FRAME_BYTES_MAX {
            self.put()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        // A frame ends when it is full, or at the end.
        Ok(())
    }
}

/// Reads frames.
pub struct FrameReader<R> {
    inner: R,
    bytes: Vec<u8>,
    /// Of the bytes, how many were taken.
    taken: usize,
    number: u64,
    has_ended: bool,
}

fn refuse<T>(what: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl<R: Read> FrameReader<R> {
    /// Over a stream.
    pub fn new(inner: R) -> FrameReader<R> {
        FrameReader { inner, bytes: Vec::new(), taken: 0, number: 0, has_ended: false }
    }

    fn get(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "it is truncated"),
            _ => error,
        })
    }

    fn next(&mut self) -> io::Result<()> {
        let (mut length, mut sum) = ([0; 4], [0; 4]);
        self.get(&mut length)?;
        self.get(&mut sum)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_BYTES_MAX {
            return refuse(format!("it is damaged: part {} has {length} bytes", self.number));
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(length, 0);
        self.get(&mut bytes)?;
        if checksum(self.number, &bytes) != u32::from_le_bytes(sum) {
            return refuse(format!("it is damaged: part {} has another checksum", self.number));
        }
        (self.bytes, self.taken, self.has_ended) = (bytes, 0, length == 0);
        self.number += 1;
        Ok(())
    }

    /// All was read.
    ///
    /// # Errors
    /// There is more, or less: the end is missing.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.has_ended && self.taken == self.bytes.len() {
            self.next()?;
        }
        if !self.has_ended {
            return refuse("it is damaged: there is more than belongs there".into());
        }
        match self.inner.read(&mut [0])? {
            0 => Ok(()),
            _ => refuse("it is damaged: something follows its end".into()),
        }
    }
}

impl<R: Read> Read for FrameReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.bytes.len() && !self.has_ended && !into.is_empty() {
            self.next()?;
        }
        let count = into.len().min(self.bytes.len() - self.taken);
        into[..count].copy_from_slice(&self.bytes[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
