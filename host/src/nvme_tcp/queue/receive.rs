//! The receiving half of a queue: responses, data and requests to transfer, out of the receive buffer or straight into the
//! buffers of commands.

use super::{Queue, QueueError, Receiving, SLOT_BITS, SlotState, Way};
use std::io::IoSliceMut;
use willow_wire::pdu::{
    self, DIGEST_BYTES, Data, Decoded, Digest, Encoder, FatalStatus, Pdu, PduError, PduType, ReadyToTransfer, Role,
};
use willow_wire::spec::{CompletionEntry, Status};

impl Queue {
    /// Where to receive: the rest of the data that are under way first, then the receive buffer.
    pub fn input(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.input_start == self.input_end {
            self.input_start = 0;
            self.input_end = 0;
            if let Some(receiving) = &self.receiving {
                let slot = &mut self.slots[usize::from(receiving.slot)];
                return [
                    IoSliceMut::new(&mut slot.buffer[receiving.at..receiving.at + receiving.left]),
                    IoSliceMut::new(&mut self.input),
                ];
            }
        } else if self.input_start > 0 {
            // What is left is less than a header.
            self.input.copy_within(self.input_start..self.input_end, 0);
            self.input_end -= self.input_start;
            self.input_start = 0;
        }
        [IoSliceMut::new(&mut self.input[self.input_end..]), IoSliceMut::new(&mut [])]
    }

    /// `bytes` have been received into [`Queue::input`]; completions come out of [`Queue::completed`].
    pub fn received(&mut self, mut bytes: usize) -> Result<(), QueueError> {
        if self.input_start == self.input_end
            && let Some(receiving) = &mut self.receiving
        {
            let direct = bytes.min(receiving.left);
            let slot = &self.slots[usize::from(receiving.slot)];
            if let Some(digest) = &mut receiving.digest {
                digest.update(&slot.buffer[receiving.at..receiving.at + direct]);
            }
            receiving.at += direct;
            receiving.left -= direct;
            bytes -= direct;
        }
        self.input_end += bytes;
        let outcome = self.parse();
        if let Err(QueueError::Protocol(error)) = &outcome {
            tracing::debug!(%error, "ending the connection");
            let before = self.output.len();
            let offending = &self.input[self.input_start..self.input_end.min(self.input_start + 128)];
            Encoder::termination(&mut self.output, Role::Host, &error.termination(), offending);
            self.pushed(before);
        }
        outcome
    }

    fn parse(&mut self) -> Result<(), QueueError> {
        loop {
            if let Some(receiving) = &mut self.receiving {
                let available = self.input_end - self.input_start;
                let step = available.min(receiving.left);
                if step > 0 {
                    let slot = &mut self.slots[usize::from(receiving.slot)];
                    let from = &self.input[self.input_start..self.input_start + step];
                    let to = &mut slot.buffer[receiving.at..receiving.at + step];
                    to.copy_from_slice(from);
                    if let Some(digest) = &mut receiving.digest {
                        digest.update(to);
                    }
                    receiving.at += step;
                    receiving.left -= step;
                    self.input_start += step;
                }
                if receiving.left > 0 {
                    return Ok(());
                }
                if let Some(digest) = receiving.digest {
                    let Some(field) = self.input[self.input_start..self.input_end].first_chunk::<DIGEST_BYTES>() else {
                        return Ok(());
                    };
                    if u32::from_le_bytes(*field) != digest.value() {
                        self.slots[usize::from(receiving.slot)].digest_failed = true;
                    }
                    self.input_start += DIGEST_BYTES;
                }
                let Receiving { slot, success, .. } = *receiving;
                self.receiving = None;
                if success {
                    let cid = u16::from(self.slots[usize::from(slot)].generation) << SLOT_BITS | slot;
                    self.complete(slot, CompletionEntry { result: 0, sqhd: 0, sqid: 0, cid, status: Status::SUCCESS });
                }
                continue;
            }
            let input = &self.input[self.input_start..self.input_end];
            if input.is_empty() {
                return Ok(());
            }
            let head = match self.decoder.decode(input).map_err(QueueError::Protocol)? {
                Decoded::NeedMore(_) => return Ok(()),
                Decoded::Head(head) => head,
            };
            // Padding behind a header is part of it; so is what a termination request quotes.
            let termination = matches!(head.pdu, Pdu::ControllerTermination(_));
            let head_bytes = if termination { head.pdu_bytes } else { head.data_start };
            if input.len() < head_bytes {
                return Ok(());
            }
            match head.pdu {
                Pdu::ControllerData(data) => {
                    self.receiving = Some(self.begin_data(&data, head.has_data_digest)?);
                }
                Pdu::Response(entry) => {
                    let index = self.slot_of(entry.cid, PduType::Response)?;
                    self.complete(index, entry);
                }
                Pdu::ReadyToTransfer(ready) => self.ready_to_transfer(&ready)?,
                Pdu::InitializeResponse(response) => {
                    if response.header_digest != self.config.header_digest
                        || response.data_digest != self.config.data_digest
                    {
                        return Err(QueueError::Initialization("other digests than were asked for"));
                    }
                    self.decoder.initialize(response.header_digest, response.data_digest, 0);
                    self.encoder = Encoder::new(response.header_digest, response.data_digest, response.alignment);
                    self.host_data_bytes_max = response.host_data_bytes_max as usize;
                    self.initialized = true;
                }
                Pdu::ControllerTermination(termination) => return Err(QueueError::Terminated(termination)),
                // The decoder of a host refuses what hosts send.
                Pdu::InitializeRequest(_) | Pdu::HostTermination(_) | Pdu::Command(_) | Pdu::HostData(_) => {
                    return Err(QueueError::Initialization("a PDU that only hosts send"));
                }
            }
            self.input_start += head_bytes;
        }
    }

    /// The slot of a command in flight.
    fn slot_of(&self, cid: u16, pdu_type: PduType) -> Result<u16, QueueError> {
        let index = cid & ((1 << SLOT_BITS) - 1);
        match self.slots.get(usize::from(index)) {
            Some(slot) if slot.state == SlotState::InFlight && u16::from(slot.generation) == cid >> SLOT_BITS => {
                Ok(index)
            }
            _ => {
                let offset = if pdu_type == PduType::Response { 20 } else { pdu::field::CCCID };
                Err(QueueError::Protocol(PduError::field(
                    pdu_type as u8,
                    offset,
                    "no command of that identifier is in flight",
                )))
            }
        }
    }

    fn begin_data(&mut self, data: &Data, has_digest: bool) -> Result<Receiving, QueueError> {
        let index = self.slot_of(data.cid, PduType::ControllerData)?;
        let slot = &mut self.slots[usize::from(index)];
        let end = u64::from(data.offset) + u64::from(data.bytes);
        let error = |status, information, reason| {
            QueueError::Protocol(PduError { status, information, type_byte: PduType::ControllerData as u8, reason })
        };
        if slot.way != Way::FromController || end > slot.buffer.len() as u64 {
            return Err(error(
                FatalStatus::DataOutOfRange,
                pdu::field::LENGTH,
                "data past the end of the host's buffer",
            ));
        }
        if data.offset != slot.moved {
            return Err(error(FatalStatus::DataOutOfRange, pdu::field::OFFSET, "data out of order"));
        }
        slot.moved = end as u32;
        Ok(Receiving {
            slot: index,
            at: data.offset as usize,
            left: data.bytes as usize,
            digest: has_digest.then(Digest::new),
            success: data.success,
        })
    }

    fn ready_to_transfer(&mut self, ready: &ReadyToTransfer) -> Result<(), QueueError> {
        let index = self.slot_of(ready.cid, PduType::ReadyToTransfer)?;
        let slot = &mut self.slots[usize::from(index)];
        let end = u64::from(ready.offset) + u64::from(ready.bytes);
        let error = |information, reason| {
            QueueError::Protocol(PduError {
                status: FatalStatus::DataOutOfRange,
                information,
                type_byte: PduType::ReadyToTransfer as u8,
                reason,
            })
        };
        if slot.way != Way::ToController || end > slot.buffer.len() as u64 {
            return Err(error(pdu::field::LENGTH, "asks for more than the command's data"));
        }
        // In order only: so what is queued for one command is never more than its data.
        if ready.offset != slot.moved {
            return Err(error(pdu::field::OFFSET, "asks for data out of order"));
        }
        slot.moved = end as u32;
        let (mut at, end) = (ready.offset as usize, end as usize);
        while at < end {
            let bytes = (end - at).min(self.host_data_bytes_max);
            let before = self.output.len();
            self.encoder.host_data(
                &mut self.output,
                &Data {
                    cid: ready.cid,
                    transfer_tag: ready.transfer_tag,
                    offset: at as u32,
                    bytes: bytes as u32,
                    last: at + bytes == end,
                    success: false,
                },
            );
            self.payload(before, index, at, bytes);
            at += bytes;
        }
        Ok(())
    }
}
