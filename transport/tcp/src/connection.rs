//! One connection: bytes in, PDUs out. It decodes what came, hands commands to the subsystem, fetches their data by R2T, and
//! frames completions (NVMe/TCP 3.3 to 3.6).
//!
//! The states: waiting for ICReq; running; terminating, when only output is sent until the host closes or a time is over.
//! What always holds: bytes of an unfinished PDU are kept in `carry`, which never grows past one receive; data of a transfer are
//! received into the command's buffer; at most one R2T a command is outstanding.

use std::os::fd::{AsFd, OwnedFd};

use willow_nvme::buffer::{HEADROOM_BYTES, TAILROOM_BYTES};
use willow_nvme::config::IN_CAPSULE_BYTES_MAX;
use willow_nvme::{Backend, Completion, ConnectionId, Fetch, Next, Subsystem};
use willow_wire::bytes::u32_at;
use willow_wire::pdu::{
    DIGEST_BYTES, Data, Decoded, Decoder, Digest, Encoder, FatalStatus, Head, InitializeRequest, InitializeResponse,
    Pdu, PduError, PduType, ReadyToTransfer, Role, digest, field,
};
use willow_wire::spec::SubmissionEntry;

use crate::channel::{self, Channel};
use crate::config::*;
use crate::output::{Output, Sent};
use crate::pace::Pace;
use crate::unsent::limit_unsent;

/// Data of a transfer that are received into the command's buffer without a copy.
const DIRECT_BYTES_MIN: u32 = 4096;

/// Why a connection is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The host closed it, or said that it will.
    Host,
    /// A termination request is on its way: it ends when that has gone and the host has closed, or in time.
    Terminating,
}

/// A transfer that an R2T asked for.
struct Transfer {
    fetch: Fetch,
    received: u32,
    /// A data digest did not match: the rest is taken, then the command fails.
    damaged: bool,
}

/// Data of an H2CData PDU on their way into a command's buffer.
#[derive(Clone, Copy)]
struct Receiving {
    /// The command's slot, which is also the transfer's tag.
    slot: u16,
    /// Data bytes of the PDU that are still to come.
    left: u32,
    digest: Option<Digest>,
}

pub(crate) struct Connection {
    pub socket: OwnedFd,
    pub id: ConnectionId,
    /// It came to an address where all have to come by TLS.
    pub tls_required: bool,
    /// How many were accepted before it: tells which of two is older where both came at the same time.
    pub number: u64,
    /// Address of the host.
    pub peer: Option<std::net::IpAddr>,
    pub channel: Channel,
    /// TLS has, or may have, plaintext that the socket tells nothing of.
    pub more: bool,
    pub output: Output,
    /// When it was accepted, and when bytes last came.
    pub accepted_ns: u64,
    pub progress_ns: u64,
    /// When the first byte of the PDU came that is not whole yet.
    pdu_ns: u64,
    /// Data of transfers, and output that the kernel does not take.
    data_pace: Pace,
    output_pace: Pace,
    /// Set while the kernel takes no more output.
    pub blocked: bool,
    /// A command waits for room: nothing is read until it has some.
    pub waiting: bool,
    /// It was told to wait, and all that was received then is not used up yet.
    pub waited: bool,
    /// See [`Connection::may_read`].
    framing_bytes_max: usize,
    /// The kernel keeps little of its output: it has proved nothing.
    is_limited: bool,
    pub terminating_ns: Option<u64>,
    /// What the poll was last told to look for.
    pub interest: rustix::event::epoll::EventFlags,
    /// True while it is in the reactor's list of connections with output.
    pub dirty: bool,
    decoder: Decoder,
    encoder: Encoder,
    carry: Vec<u8>,
    receiving: Option<Receiving>,
    /// By slot.
    transfers: Vec<Option<Transfer>>,
    transfers_open: usize,
}

impl Connection {
    pub fn new(socket: OwnedFd, id: ConnectionId, channel: Channel, now_ns: u64) -> Self {
        Connection {
            socket,
            id,
            tls_required: false,
            number: 0,
            peer: None,
            channel,
            more: false,
            output: Output::default(),
            accepted_ns: now_ns,
            progress_ns: now_ns,
            pdu_ns: now_ns,
            data_pace: Pace::default(),
            output_pace: Pace::default(),
            blocked: false,
            waiting: false,
            waited: false,
            framing_bytes_max: UNPROVED_FRAMING_BYTES_MAX,
            is_limited: true,
            terminating_ns: None,
            interest: rustix::event::epoll::EventFlags::empty(),
            dirty: false,
            decoder: Decoder::new(Role::Controller),
            encoder: Encoder::default(),
            carry: Vec::new(),
            receiving: None,
            transfers: Vec::new(),
            transfers_open: 0,
        }
    }

    /// Since when a PDU is not whole that the host has begun.
    pub fn pdu_since_ns(&self) -> Option<u64> {
        (!self.carry.is_empty() && !self.waiting && self.may_read()).then_some(self.pdu_ns)
    }

    /// When too little of the data that the host was asked for has come.
    pub fn data_due_ns(&self, stall_ns: u64) -> Option<u64> {
        self.data_pace.due_ns(stall_ns)
    }

    /// When the host has taken too little of what is sent.
    pub fn output_due_ns(&self, stall_ns: u64) -> Option<u64> {
        self.output_pace.due_ns(stall_ns)
    }

    /// Takes note of what moved.
    pub fn keep_pace(&mut self, now_ns: u64) {
        self.data_pace.keep(now_ns);
        self.output_pace.keep(now_ns);
    }

    /// True where it may be read from.
    #[inline]
    pub fn may_read(&self) -> bool {
        !self.waiting && self.output.bytes() < OUTPUT_BYTES_MAX && self.output.framing_bytes() < self.framing_bytes_max
    }

    /// Tells the subsystem what it holds beside data buffers, and learns how much that may be.
    #[inline]
    pub fn tell_held<B: Backend>(&mut self, subsystem: &mut Subsystem<B>) {
        let held = self.carry.capacity() + self.output.framing_bytes();
        subsystem.set_transport_bytes(self.id, held, self.output.bytes());
        let unproved = subsystem.is_unproved(self.id);
        self.framing_bytes_max = if unproved { UNPROVED_FRAMING_BYTES_MAX } else { FRAMING_BYTES_MAX };
        if self.is_limited && !unproved {
            self.is_limited = false;
            if let Err(error) = limit_unsent(self.socket.as_fd(), None) {
                tracing::warn!(%error, "a connection goes on slowly");
            }
        }
    }

    /// Receives once: into the command's buffer where data of one are on their way and enough to be worth it, and what is
    /// behind them into `rest`. Returns how many bytes the first piece has room for, and how many came in all.
    pub fn receive(&mut self, rest: &mut [u8]) -> (usize, rustix::io::Result<usize>) {
        let direct = match self.receiving {
            Some(receiving) if receiving.left >= DIRECT_BYTES_MIN && self.carry.is_empty() => {
                self.transfers.get_mut(usize::from(receiving.slot)).and_then(Option::as_mut).map(|transfer| {
                    let at = transfer.fetch.start + transfer.received as usize;
                    &mut transfer.fetch.buffer[at..at + receiving.left as usize]
                })
            }
            _ => None,
        };
        if let Channel::Tls(session) = &mut self.channel {
            let length = direct.as_ref().map_or(0, |direct| direct.len());
            let room = length + rest.len();
            let outcome = channel::receive(session, &self.socket, direct, rest);
            self.more = outcome == Ok(room) || (outcome.is_ok() && session.is_over());
            return (length, outcome);
        }
        match direct {
            Some(direct) => {
                let length = direct.len();
                let mut pieces = [std::io::IoSliceMut::new(direct), std::io::IoSliceMut::new(rest)];
                (length, rustix::io::readv(&self.socket, &mut pieces))
            }
            None => {
                (0, rustix::net::recv(&self.socket, rest, rustix::net::RecvFlags::DONTWAIT).map(|(_, count)| count))
            }
        }
    }

    /// Sends what goes now; buffers whose last byte has gone are handed to `give`.
    #[inline]
    pub fn send(&mut self, now_ns: u64, give: impl FnMut(Vec<u8>)) -> rustix::io::Result<Sent> {
        let before = self.output.bytes();
        let sent = self.send_some(give);
        match sent {
            Ok(Sent::Blocked) => {
                self.output_pace.begin(now_ns);
                self.output_pace.moved(before.saturating_sub(self.output.bytes()));
            }
            _ => self.output_pace.end(),
        }
        sent
    }

    #[inline]
    fn send_some(&mut self, give: impl FnMut(Vec<u8>)) -> rustix::io::Result<Sent> {
        match &mut self.channel {
            Channel::Plain => self.output.send(self.socket.as_fd(), give),
            Channel::Tls(session) => self.output.send_sealed(session, self.socket.as_fd(), give),
            // Nothing leaves that is not proved whom it is for.
            Channel::Unknown | Channel::Handshake(_) | Channel::Failed => {
                self.output.clear(give);
                Ok(Sent::All)
            }
        }
    }

    /// Says that nothing more comes.
    pub fn say_goodbye(&mut self) {
        if let Channel::Tls(session) = &mut self.channel {
            session.close(self.socket.as_fd());
        }
    }

    /// Takes note of bytes that [`Connection::receive`] put into a command's buffer.
    pub fn direct_received<B: Backend>(&mut self, bytes: usize, subsystem: &mut Subsystem<B>) {
        self.data_received(bytes as u32, subsystem);
    }

    /// Bytes that wait for their PDU to be whole.
    pub fn carry(&mut self) -> &mut Vec<u8> {
        &mut self.carry
    }

    /// Takes what was received. `bytes` begins with what was in `carry`. An end is final: nothing more is to be read.
    pub fn received<B: Backend>(&mut self, bytes: &[u8], now_ns: u64, subsystem: &mut Subsystem<B>) -> Result<(), End> {
        let begun_before = !self.carry.is_empty();
        self.carry.clear();
        if self.terminating_ns.is_some() {
            return Ok(());
        }
        let mut at = 0;
        let outcome = loop {
            let rest = &bytes[at..];
            if rest.is_empty() {
                break Ok(());
            }
            match self.step(rest, now_ns, subsystem) {
                Ok(Some(taken)) => at += taken,
                Ok(None) => {
                    if at > 0 || !begun_before {
                        self.pdu_ns = now_ns;
                    }
                    self.carry.extend_from_slice(rest);
                    break Ok(());
                }
                Err(Failed::Ended) => break Err(End::Host),
                Err(Failed::Pdu(error)) => {
                    self.terminate(&error, rest, now_ns);
                    break Err(End::Terminating);
                }
            }
        };
        self.waited = self.waiting || (self.waited && at == 0);
        if self.carry.len() <= IN_CAPSULE_BYTES_MAX as usize
            && self.carry.capacity() > 2 * IN_CAPSULE_BYTES_MAX as usize
        {
            self.carry.shrink_to_fit();
        }
        outcome
    }

    /// Tries again what had to wait for room.
    pub fn retry<B: Backend>(&mut self, now_ns: u64, subsystem: &mut Subsystem<B>) -> Result<(), End> {
        self.waiting = false;
        let bytes = std::mem::take(&mut self.carry);
        self.received(&bytes, now_ns, subsystem)
    }

    /// Does what the first bytes of `rest` allow; returns how many were used up, `None`: more are needed (or a buffer).
    #[inline]
    fn step<B: Backend>(
        &mut self,
        rest: &[u8],
        now_ns: u64,
        subsystem: &mut Subsystem<B>,
    ) -> Result<Option<usize>, Failed> {
        if let Some(receiving) = self.receiving {
            return self.step_data(receiving, rest, subsystem);
        }
        let head = match self.decoder.decode(rest)? {
            Decoded::NeedMore(_) => return Ok(None),
            Decoded::Head(head) => head,
        };
        match head.pdu {
            Pdu::Command(entry) => self.command(&entry, &head, rest, now_ns, subsystem),
            Pdu::HostData(data) => {
                if rest.len() < head.data_start {
                    return Ok(None);
                }
                self.host_data(&data, &head)?;
                Ok(Some(head.data_start))
            }
            Pdu::InitializeRequest(request) => {
                self.initialize(&request, now_ns);
                Ok(Some(head.pdu_bytes))
            }
            Pdu::HostTermination(termination) => {
                if rest.len() < head.pdu_bytes {
                    return Ok(None);
                }
                tracing::warn!(
                    status = termination.status,
                    information = termination.information,
                    "the host ended the connection"
                );
                Err(Failed::Ended)
            }
            other => Err(PduError::sequence(other.pdu_type() as u8, "PDU of the wrong direction").into()),
        }
    }

    fn initialize(&mut self, request: &InitializeRequest, now_ns: u64) {
        let (header_digest, data_digest) = (request.header_digest, request.data_digest);
        self.output.put(|bytes| {
            Encoder::initialize_response(
                bytes,
                &InitializeResponse {
                    version: 0,
                    alignment: 0,
                    header_digest,
                    data_digest,
                    host_data_bytes_max: HOST_DATA_BYTES_MAX,
                },
            );
        });
        self.decoder.initialize(header_digest, data_digest, 0);
        self.decoder.set_data_bytes_max(HOST_DATA_BYTES_MAX);
        self.decoder.set_capsule_data_bytes_max(IN_CAPSULE_BYTES_MAX);
        self.encoder = Encoder::new(header_digest, data_digest, request.alignment);
        self.accepted_ns = now_ns;
    }

    #[inline]
    fn command<B: Backend>(
        &mut self,
        entry: &SubmissionEntry,
        head: &Head,
        rest: &[u8],
        now_ns: u64,
        subsystem: &mut Subsystem<B>,
    ) -> Result<Option<usize>, Failed> {
        if rest.len() < head.pdu_bytes {
            return Ok(None);
        }
        let data = &rest[head.data_start..head.data_start + head.data_bytes];
        let intact = !head.has_data_digest || digest(data) == u32_at(rest, head.data_start + head.data_bytes);
        let next = if intact {
            subsystem.command(self.id, entry, data)
        } else {
            tracing::warn!(cid = entry.cid(), "data digest of a capsule does not match");
            subsystem.refuse(self.id, entry)
        };
        match next {
            Next::Taken => {}
            Next::Fetch(fetch) => self.ask_for(fetch, now_ns),
            Next::Wait => {
                self.waiting = true;
                return Ok(None);
            }
            Next::Violation(reason) => return Err(PduError::sequence(PduType::Command as u8, reason).into()),
        }
        Ok(Some(head.pdu_bytes))
    }

    /// Sends the R2T for a command's data.
    pub fn ask_for(&mut self, fetch: Fetch, now_ns: u64) {
        let ready = ReadyToTransfer { cid: fetch.cid, transfer_tag: fetch.slot, offset: 0, bytes: fetch.bytes };
        let encoder = self.encoder;
        self.output.put(|bytes| encoder.ready_to_transfer(bytes, &ready));
        let slot = usize::from(fetch.slot);
        if self.transfers.len() <= slot {
            self.transfers.resize_with(slot + 1, || None);
        }
        self.transfers[slot] = Some(Transfer { fetch, received: 0, damaged: false });
        self.transfers_open += 1;
        self.data_pace.begin(now_ns);
    }

    /// Checks an H2CData PDU against the R2T that it answers (NVMe/TCP 3.6.2.8).
    fn host_data(&mut self, data: &Data, head: &Head) -> Result<(), PduError> {
        let kind = PduType::HostData as u8;
        let Some(Some(transfer)) = self.transfers.get(usize::from(data.transfer_tag)) else {
            return Err(PduError::field(kind, field::TTAG, "no R2T with this tag is outstanding"));
        };
        if transfer.fetch.cid != data.cid {
            return Err(PduError::field(kind, field::CCCID, "CCCID is not that of the R2T"));
        }
        let out_of_range = |offset, reason| PduError {
            status: FatalStatus::DataOutOfRange,
            information: offset,
            type_byte: kind,
            reason,
        };
        if data.offset != transfer.received {
            return Err(out_of_range(field::OFFSET, "DATAO does not go on where the transfer stands"));
        }
        let left = transfer.fetch.bytes - transfer.received;
        if data.bytes > left {
            return Err(out_of_range(field::LENGTH, "more data than the R2T asked for"));
        }
        if data.last != (data.bytes == left) {
            return Err(PduError::field(kind, field::FLAGS, "LAST_PDU does not stand at the end of the transfer"));
        }
        let digest = head.has_data_digest.then(Digest::new);
        self.receiving = Some(Receiving { slot: data.transfer_tag, left: data.bytes, digest });
        Ok(())
    }

    fn step_data<B: Backend>(
        &mut self,
        receiving: Receiving,
        rest: &[u8],
        subsystem: &mut Subsystem<B>,
    ) -> Result<Option<usize>, Failed> {
        if receiving.left > 0 {
            let count = rest.len().min(receiving.left as usize);
            if let Some(Some(transfer)) = self.transfers.get_mut(usize::from(receiving.slot)) {
                let at = transfer.fetch.start + transfer.received as usize;
                transfer.fetch.buffer[at..at + count].copy_from_slice(&rest[..count]);
            }
            self.data_received(count as u32, subsystem);
            return Ok(Some(count));
        }
        // Only the digest is missing.
        let Some(field) = rest.first_chunk::<DIGEST_BYTES>() else { return Ok(None) };
        let intact = receiving.digest.is_none_or(|digest| digest.value() == u32::from_le_bytes(*field));
        self.receiving = None;
        if !intact {
            // Not fatal: the command fails when its transfer is over (NVMe/TCP 3.3.1.1.2).
            tracing::warn!(slot = receiving.slot, "data digest of H2CData does not match");
            if let Some(Some(transfer)) = self.transfers.get_mut(usize::from(receiving.slot)) {
                transfer.damaged = true;
            }
        }
        self.finish_transfer(receiving.slot, subsystem);
        Ok(Some(DIGEST_BYTES))
    }

    /// Counts data that arrived in their place.
    fn data_received<B: Backend>(&mut self, count: u32, subsystem: &mut Subsystem<B>) {
        let Some(receiving) = self.receiving.as_mut() else { return };
        let slot = receiving.slot;
        let Some(Some(transfer)) = self.transfers.get_mut(usize::from(slot)) else { return };
        if let Some(digest) = receiving.digest.as_mut() {
            let at = transfer.fetch.start + transfer.received as usize;
            digest.update(&transfer.fetch.buffer[at..at + count as usize]);
        }
        transfer.received += count;
        self.data_pace.moved(count as usize);
        receiving.left -= count;
        if receiving.left == 0 && receiving.digest.is_none() {
            self.receiving = None;
            self.finish_transfer(slot, subsystem);
        }
    }

    fn finish_transfer<B: Backend>(&mut self, slot: u16, subsystem: &mut Subsystem<B>) {
        let whole = matches!(
            self.transfers.get(usize::from(slot)),
            Some(Some(transfer)) if transfer.received == transfer.fetch.bytes
        );
        if whole && let Some(transfer) = self.take_transfer(slot) {
            let Fetch { slot, buffer, .. } = transfer.fetch;
            if transfer.damaged {
                subsystem.data_failed(self.id, slot, buffer);
            } else {
                subsystem.data(self.id, slot, buffer);
            }
        }
    }

    fn take_transfer(&mut self, slot: u16) -> Option<Transfer> {
        let transfer = self.transfers.get_mut(usize::from(slot))?.take()?;
        self.transfers_open -= 1;
        if self.transfers_open == 0 {
            self.data_pace.end();
        }
        Some(transfer)
    }

    /// Frames a completion and its data.
    #[inline]
    pub fn complete<B: Backend>(&mut self, completion: Completion, subsystem: &mut Subsystem<B>) {
        if self.terminating_ns.is_some() {
            if let Some(payload) = completion.payload {
                subsystem.give_buffer(self.id, payload.buffer);
            }
            return;
        }
        let encoder = self.encoder;
        let entry = completion.entry;
        let Some(payload) = completion.payload else {
            return self.output.put(|bytes| encoder.response(bytes, &entry));
        };
        let success = completion.entry_optional && entry.status.is_success() && entry.result == 0;
        let data =
            Data { cid: entry.cid, transfer_tag: 0, offset: 0, bytes: payload.bytes as u32, last: true, success };
        let mut buffer = payload.buffer;
        let end = payload.start + payload.bytes;
        let tail = encoder.data_digest_of(&buffer[payload.start..end]);
        // Framing goes around the data where there is room in the buffer, so that all of it is one piece.
        let mut framing = FRAMING.take();
        framing.clear();
        encoder.controller_data(&mut framing, &data);
        let head_bytes = framing.len();
        if let Some(tail) = tail {
            framing.extend_from_slice(&tail);
        }
        if !success {
            encoder.response(&mut framing, &entry);
        }
        let tail_bytes = framing.len() - head_bytes;
        debug_assert!(head_bytes <= HEADROOM_BYTES + 16 && tail_bytes <= TAILROOM_BYTES);
        let head_fits = payload.start >= head_bytes;
        if head_fits {
            buffer[payload.start - head_bytes..payload.start].copy_from_slice(&framing[..head_bytes]);
        } else {
            self.output.put(|bytes| bytes.extend_from_slice(&framing[..head_bytes]));
        }
        let start = if head_fits { payload.start - head_bytes } else { payload.start };
        if end + tail_bytes <= buffer.len() {
            buffer[end..end + tail_bytes].copy_from_slice(&framing[head_bytes..]);
            self.output.put_buffer(buffer, start, end + tail_bytes);
        } else {
            self.output.put_buffer(buffer, start, end);
            self.output.put(|bytes| bytes.extend_from_slice(&framing[head_bytes..]));
        }
        FRAMING.set(framing);
    }

    /// Puts a termination request behind what is to be sent.
    pub fn terminate(&mut self, error: &PduError, offending: &[u8], now_ns: u64) {
        tracing::warn!(%error, "connection terminated");
        let header = PduType::from_byte(error.type_byte).map_or(8, PduType::header_bytes);
        let offending = &offending[..offending.len().min(header)];
        self.output.put(|bytes| Encoder::termination(bytes, Role::Controller, &error.termination(), offending));
        self.terminating_ns = Some(now_ns);
        self.carry = Vec::new();
        self.receiving = None;
    }

    /// Gives back all buffers that it holds.
    pub fn clear<B: Backend>(&mut self, subsystem: &mut Subsystem<B>) {
        self.output.clear(|buffer| subsystem.give_buffer(self.id, buffer));
        for transfer in self.transfers.drain(..).flatten() {
            subsystem.give_buffer(self.id, transfer.fetch.buffer);
        }
        self.transfers_open = 0;
        self.data_pace.end();
        self.receiving = None;
    }
}

thread_local! {
    /// Scratch for framing, so that it is not allocated for each completion.
    static FRAMING: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
}

enum Failed {
    Ended,
    Pdu(PduError),
}

impl From<PduError> for Failed {
    fn from(error: PduError) -> Self {
        Failed::Pdu(error)
    }
}
