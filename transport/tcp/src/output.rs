//! What is to be sent on a connection: framing in contiguous bytes, data in the buffers that the device wrote, all of it handed
//! to the kernel in as few calls as possible.
//!
//! Through TLS, small pieces are put together first, so that records are as large as they can be.
//!
//! What always holds: pieces leave in the order in which they were put; a data buffer is given back when its last byte has gone.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::config::{SEND_A_TURN_BYTES_MAX, SEND_PIECES_MAX};

/// Framing up to here is put behind the piece before it rather than into a piece of its own.
const BYTES_A_PIECE: usize = 16 << 10;
/// Through TLS: pieces from here on go from where they are, others by a buffer of [`SEALED_BYTES`].
const SEALED_PIECE_BYTES_MIN: usize = 16 << 10;
const SEALED_BYTES: usize = 64 << 10;

enum Piece {
    Bytes(Vec<u8>),
    Buffer { buffer: Vec<u8>, start: usize, end: usize },
}

impl Piece {
    fn as_slice(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Buffer { buffer, start, end } => &buffer[*start..*end],
        }
    }
}

/// The queue of pieces.
#[derive(Default)]
pub struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have gone.
    gone: usize,
    bytes: usize,
    /// Bytes of pieces that are not data buffers, as long as the piece is there.
    framing_bytes: usize,
    spare: Option<Vec<u8>>,
    /// Through TLS: bytes of pieces that are gone from the queue, and how many of them have gone.
    staged: Vec<u8>,
    staged_gone: usize,
}

/// How far sending got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything has gone.
    All,
    /// The kernel takes no more now.
    Blocked,
    /// As much as goes in one turn: the kernel would take more.
    Enough,
}

impl Output {
    /// Bytes that have not gone yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that it holds beside data buffers.
    #[inline]
    pub fn framing_bytes(&self) -> usize {
        self.framing_bytes + self.staged.len()
    }

    /// True where there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Adds what `write` appends to the bytes it is handed.
    #[inline]
    pub fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let room = matches!(self.pieces.back(), Some(Piece::Bytes(bytes)) if bytes.len() < BYTES_A_PIECE);
        if !room {
            let mut fresh = self.spare.take().unwrap_or_default();
            fresh.clear();
            self.pieces.push_back(Piece::Bytes(fresh));
        }
        if let Some(Piece::Bytes(bytes)) = self.pieces.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.bytes += bytes.len() - before;
            self.framing_bytes += bytes.len() - before;
        }
    }

    /// Adds a part of a buffer, which is given back when it has gone.
    #[inline]
    pub fn put_buffer(&mut self, buffer: Vec<u8>, start: usize, end: usize) {
        self.bytes += end - start;
        self.pieces.push_back(Piece::Buffer { buffer, start, end });
    }

    /// Sends as much as the kernel takes, and as goes in one turn; buffers that have gone are handed to `give`.
    pub fn send(&mut self, socket: BorrowedFd<'_>, mut give: impl FnMut(Vec<u8>)) -> rustix::io::Result<Sent> {
        let mut left = SEND_A_TURN_BYTES_MAX;
        while self.bytes > 0 {
            if left == 0 {
                return Ok(Sent::Enough);
            }
            let mut slices = [IoSlice::new(&[]); SEND_PIECES_MAX];
            let mut count = 0;
            let mut wanted = 0;
            for piece in self.pieces.iter().take(SEND_PIECES_MAX) {
                let skip = if count == 0 { self.gone } else { 0 };
                let bytes = &piece.as_slice()[skip..];
                let bytes = &bytes[..bytes.len().min(left - wanted)];
                slices[count] = IoSlice::new(bytes);
                wanted += bytes.len();
                count += 1;
                if wanted == left {
                    break;
                }
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = match sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => sent,
                Err(rustix::io::Errno::AGAIN) => return Ok(Sent::Blocked),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            self.took(sent, &mut give);
            if sent < wanted {
                return Ok(Sent::Blocked);
            }
            left -= sent;
        }
        Ok(Sent::All)
    }

    /// The same through TLS. What TLS has sealed of a piece and could not send stays the first of what it is handed.
    pub fn send_sealed(
        &mut self,
        session: &mut willow_tls::Session,
        socket: BorrowedFd<'_>,
        mut give: impl FnMut(Vec<u8>),
    ) -> rustix::io::Result<Sent> {
        let mut left = SEND_A_TURN_BYTES_MAX;
        while self.bytes > 0 {
            if left == 0 {
                return Ok(Sent::Enough);
            }
            self.stage(&mut give);
            let staged = self.staged_gone < self.staged.len();
            let bytes = match self.pieces.front() {
                _ if staged => &self.staged[self.staged_gone..],
                Some(piece) => &piece.as_slice()[self.gone..],
                None => &[],
            };
            let length = bytes.len();
            let sent = match session.write(socket, bytes) {
                Ok(None) => return Ok(Sent::Blocked),
                Ok(Some(sent)) => sent,
                Err(error) => {
                    tracing::debug!(%error, "TLS cannot send");
                    return Err(rustix::io::Errno::CONNABORTED);
                }
            };
            if staged {
                self.staged_gone += sent;
                self.bytes -= sent;
            } else {
                self.took(sent, &mut give);
            }
            if sent < length {
                return Ok(Sent::Blocked);
            }
            left = left.saturating_sub(sent);
        }
        Ok(Sent::All)
    }

    /// Puts small pieces together, as long as they fit and nothing of them has been handed to TLS.
    fn stage(&mut self, give: &mut impl FnMut(Vec<u8>)) {
        if self.staged_gone == self.staged.len() {
            self.staged.clear();
            self.staged_gone = 0;
        }
        while let Some(piece) = self.pieces.front() {
            let left = piece.as_slice().len() - self.gone;
            let large = left >= SEALED_PIECE_BYTES_MIN || self.gone > 0;
            if (large && self.staged.is_empty()) || self.staged.len() + left > SEALED_BYTES {
                return;
            }
            self.staged.extend_from_slice(&piece.as_slice()[self.gone..]);
            // Its bytes are still to be sent.
            self.bytes += left;
            self.took(left, give);
        }
    }

    fn took(&mut self, sent: usize, give: &mut impl FnMut(Vec<u8>)) {
        self.bytes -= sent;
        self.gone += sent;
        while let Some(piece) = self.pieces.front() {
            let length = piece.as_slice().len();
            if self.gone < length {
                break;
            }
            self.gone -= length;
            match self.pieces.pop_front() {
                Some(Piece::Buffer { buffer, .. }) => {
                    give(buffer);
                    continue;
                }
                Some(Piece::Bytes(bytes)) if bytes.capacity() <= 2 * BYTES_A_PIECE => self.spare = Some(bytes),
                Some(Piece::Bytes(_)) | None => {}
            }
            self.framing_bytes -= length;
        }
    }

    /// Gives all buffers back without sending them.
    pub fn clear(&mut self, mut give: impl FnMut(Vec<u8>)) {
        for piece in self.pieces.drain(..) {
            if let Piece::Buffer { buffer, .. } = piece {
                give(buffer);
            }
        }
        self.bytes = 0;
        self.framing_bytes = 0;
        self.gone = 0;
        self.staged.clear();
        self.staged_gone = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pieces_leave_in_order_and_buffers_come_back() {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let mut wanted = Vec::new();
        let (mut back, mut received) = (0, Vec::new());
        for round in 0..400u32 {
            output.put(|bytes| bytes.extend_from_slice(&round.to_le_bytes()));
            wanted.extend_from_slice(&round.to_le_bytes());
            let buffer = vec![round as u8; 3000];
            wanted.extend_from_slice(&buffer[10..2990]);
            output.put_buffer(buffer, 10, 2990);
        }
        let mut chunk = vec![0; 100_000];
        while output.send(near.as_fd(), |_| back += 1).unwrap() == Sent::Blocked {
            let count = far.read(&mut chunk).unwrap();
            received.extend_from_slice(&chunk[..count]);
        }
        drop(near);
        far.read_to_end(&mut received).unwrap();
        assert_eq!(back, 400);
        assert!(received == wanted && output.is_empty());
    }
}
