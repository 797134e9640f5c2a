//! One connection of a host to the scripted target.

use super::{BLOCK_BYTES, BLOCKS, Behaviour, Fault, SUBSYSTEM_NQN, Shared, lock};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use willow_wire::bytes::{put_ascii, put_c_string, put_u16, put_u32, put_u64, u64_at};
use willow_wire::pdu::{Data, Decoded, Decoder, Encoder, InitializeResponse, Pdu, ReadyToTransfer, Role, Termination};
use willow_wire::spec::identify::{self, cns, controller, namespace};
use willow_wire::spec::opcode::{self, admin, nvm};
use willow_wire::spec::property::{self, Capabilities, Configuration, csts};
use willow_wire::spec::{CompletionEntry, Status, SubmissionEntry, fabrics, feature, log, tunnel};

/// A write whose data are still coming.
struct Writing {
    entry: SubmissionEntry,
    data: Vec<u8>,
    at: usize,
    requested: usize,
}

/// One connection of a host.
pub(super) struct Peer {
    shared: Arc<Shared>,
    stream: TcpStream,
    decoder: Decoder,
    encoder: Encoder,
    input: Vec<u8>,
    output: Vec<u8>,
    behaviour: Behaviour,
    queue: Option<u16>,
    configuration: u32,
    writing: HashMap<u16, Writing>,
    event_request: Option<u16>,
    events_told: u64,
}

/// The connection is over.
pub(super) struct Over;

impl From<std::io::Error> for Over {
    fn from(_: std::io::Error) -> Self {
        Over
    }
}

impl Peer {
    pub(super) fn new(shared: Arc<Shared>, stream: TcpStream) -> Self {
        let behaviour = lock(&shared.behaviour).clone();
        let events_told = shared.events.load(Ordering::Relaxed);
        Peer {
            shared,
            stream,
            decoder: Decoder::new(Role::Controller),
            encoder: Encoder::default(),
            input: Vec::new(),
            output: Vec::new(),
            behaviour,
            queue: None,
            configuration: 0,
            writing: HashMap::new(),
            event_request: None,
            events_told,
        }
    }

    pub(super) fn run(&mut self) -> Result<(), Over> {
        self.stream.set_nodelay(true)?;
        self.stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        let mut chunk = vec![0; 65536];
        loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Err(Over);
            }
            self.tell_events()?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Over),
                Ok(bytes) => self.input.extend_from_slice(&chunk[..bytes]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) => return Err(error.into()),
            }
            loop {
                let decoded = match self.decoder.decode(&self.input) {
                    Ok(decoded) => decoded,
                    Err(error) => {
                        Encoder::termination(&mut self.output, Role::Controller, &error.termination(), &[]);
                        self.flush()?;
                        return Err(Over);
                    }
                };
                let Decoded::Head(head) = decoded else { break };
                if self.input.len() < head.pdu_bytes {
                    break;
                }
                let rest = self.input.split_off(head.pdu_bytes);
                let whole = std::mem::replace(&mut self.input, rest);
                let data = &whole[head.data_start..head.data_start + head.data_bytes];
                let digest_ok = !head.has_data_digest
                    || self.encoder.data_digest_of(data).is_none_or(|digest| whole.ends_with(&digest));
                self.pdu(head.pdu, data, digest_ok)?;
            }
            self.flush()?;
        }
    }

    fn flush(&mut self) -> Result<(), Over> {
        for piece in self.output.chunks(self.behaviour.write_bytes_max.max(1)) {
            self.stream.write_all(piece)?;
        }
        self.output.clear();
        Ok(())
    }

    fn tell_events(&mut self) -> Result<(), Over> {
        let now = self.shared.events.load(Ordering::Relaxed);
        if now != self.events_told
            && let Some(cid) = self.event_request.take()
        {
            self.events_told = now;
            let result = feature::event::result(
                feature::event::TYPE_NOTICE,
                feature::event::NOTICE_NAMESPACE_CHANGED,
                log::CHANGED_NAMESPACES,
            );
            self.respond(cid, Status::SUCCESS, u64::from(result));
            self.flush()?;
        }
        Ok(())
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) {
        self.encoder.response(&mut self.output, &CompletionEntry { result, sqhd: 0, sqid: 0, cid, status });
    }

    fn pdu(&mut self, pdu: Pdu, data: &[u8], digest_ok: bool) -> Result<(), Over> {
        match pdu {
            Pdu::InitializeRequest(request) => {
                Encoder::initialize_response(
                    &mut self.output,
                    &InitializeResponse {
                        version: 0,
                        alignment: self.behaviour.alignment,
                        header_digest: request.header_digest,
                        data_digest: request.data_digest,
                        host_data_bytes_max: self.behaviour.host_data_bytes_max,
                    },
                );
                self.decoder.initialize(request.header_digest, request.data_digest, self.behaviour.alignment);
                self.decoder.set_data_bytes_max(self.behaviour.host_data_bytes_max);
                self.encoder = Encoder::new(request.header_digest, request.data_digest, request.alignment);
                Ok(())
            }
            Pdu::HostTermination(termination) => {
                lock(&self.shared.terminations).push(termination);
                Err(Over)
            }
            Pdu::Command(entry) => {
                if !digest_ok {
                    self.respond(entry.cid(), Status::TRANSIENT_TRANSPORT_ERROR, 0);
                    return Ok(());
                }
                match self.queue {
                    _ if entry.opcode() == opcode::FABRICS => self.fabrics(&entry, data),
                    Some(0) => self.admin(&entry),
                    Some(_) => return self.io(&entry, data),
                    None => return Err(Over),
                }
                Ok(())
            }
            Pdu::HostData(piece) => self.host_data(&piece, data),
            _ => Err(Over),
        }
    }

    fn fabrics(&mut self, entry: &SubmissionEntry, data: &[u8]) {
        use opcode::fabrics::{CONNECT, PROPERTY_GET, PROPERTY_SET};
        let cid = entry.cid();
        match entry.fabrics_type() {
            CONNECT => {
                let connect = fabrics::ConnectCommand::from_entry(entry);
                let valid = data.first_chunk().is_some_and(|data| fabrics::ConnectData::from_bytes(data).is_ok());
                if !valid || connect.queue_size >= self.behaviour.queue_entries_max.max(32) {
                    return self.respond(cid, Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry(), 0);
                }
                self.queue = Some(connect.queue_id);
                self.respond(cid, Status::SUCCESS, 1);
            }
            PROPERTY_GET => {
                let value = match entry.cdw11() {
                    property::CAP => Capabilities::new(self.behaviour.queue_entries_max, 10, Capabilities::CSS_NVM).0,
                    property::VS => u64::from(property::version(2, 0, 0)),
                    property::CC => u64::from(self.configuration),
                    property::CSTS => {
                        let configuration = Configuration(self.configuration);
                        let ready = if configuration.enabled() { csts::RDY } else { 0 };
                        u64::from(ready | if configuration.shutdown() != 0 { csts::SHST_COMPLETE } else { 0 })
                    }
                    _ => return self.respond(cid, Status::INVALID_FIELD, 0),
                };
                self.respond(cid, Status::SUCCESS, value);
            }
            PROPERTY_SET if entry.cdw11() == property::CC => {
                self.configuration = entry.cdw12();
                self.respond(cid, Status::SUCCESS, 0);
            }
            _ => self.respond(cid, Status::INVALID_FIELD, 0),
        }
    }

    fn admin(&mut self, entry: &SubmissionEntry) {
        let cid = entry.cid();
        match entry.opcode() {
            admin::IDENTIFY => match self.identify(entry) {
                Some(data) => self.send(entry, &data, false),
                None => self.respond(cid, Status::INVALID_FIELD.with_do_not_retry(), 0),
            },
            admin::SET_FEATURES if entry.cdw10() as u8 == feature::NUMBER_OF_QUEUES => {
                let queues = u64::from(self.behaviour.queues - 1);
                self.respond(cid, Status::SUCCESS, queues << 16 | queues);
            }
            admin::SET_FEATURES | admin::KEEP_ALIVE => self.respond(cid, Status::SUCCESS, 0),
            admin::ASYNC_EVENT_REQUEST => self.event_request = Some(cid),
            admin::GET_LOG_PAGE => {
                let request = log::GetLogPage::from_entry(entry);
                self.send(entry, &vec![0; request.bytes.min(4096) as usize], false);
            }
            admin::ABORT => {
                self.shared.aborts.fetch_add(1, Ordering::Relaxed);
                let (queue, victim) = (entry.cdw10() as u16, (entry.cdw10() >> 16) as u16);
                let mut stalled = lock(&self.shared.stalled);
                let found = stalled.iter().position(|(of, cid, good, _)| (*of, *cid, *good) == (queue, victim, false));
                let found = found.map(|at| stalled.swap_remove(at));
                drop(stalled);
                if let Some((_, victim, _, mut stream)) = found {
                    let mut bytes = Vec::new();
                    let status = Status::ABORT_REQUESTED;
                    let aborted = CompletionEntry { result: 0, sqhd: 0, sqid: 0, cid: victim, status };
                    self.encoder.response(&mut bytes, &aborted);
                    // Where it fails the host sees the end of that connection.
                    let _ = stream.write_all(&bytes);
                }
                self.respond(cid, Status::SUCCESS, 0);
            }
            _ => self.respond(cid, Status::INVALID_OPCODE.with_do_not_retry(), 0),
        }
    }

    fn identify(&self, entry: &SubmissionEntry) -> Option<Vec<u8>> {
        let mut data = vec![0; identify::BYTES];
        match entry.cdw10() as u8 {
            cns::CONTROLLER => {
                put_ascii(&mut data, controller::SN, 20, "SCRIPTED");
                let model = if self.behaviour.start != 0 { controller::WILLOW } else { "Scripted target" };
                put_ascii(&mut data, controller::MN, 40, model);
                data[controller::START..controller::START + 8].copy_from_slice(&self.behaviour.start.to_le_bytes());
                put_ascii(&mut data, controller::FR, 8, "1");
                data[controller::MDTS] = self.behaviour.mdts;
                put_u16(&mut data, controller::CNTLID, 1);
                put_u32(&mut data, controller::OAES, feature::event::CONFIGURE_NAMESPACE);
                data[controller::CNTRLTYPE] = controller::TYPE_IO;
                put_u32(&mut data, controller::NN, 1);
                put_u32(&mut data, controller::IOCCSZ, (self.behaviour.capsule_data_bytes + 64) / 16);
                put_u32(&mut data, controller::IORCSZ, 1);
                put_c_string(&mut data, controller::SUBNQN, 256, SUBSYSTEM_NQN);
            }
            cns::ACTIVE_NAMESPACES if entry.nsid() == 0 => put_u32(&mut data, 0, 1),
            cns::ACTIVE_NAMESPACES => {}
            cns::NAMESPACE if entry.nsid() == 1 => {
                put_u64(&mut data, namespace::NSZE, BLOCKS);
                put_u64(&mut data, namespace::NCAP, BLOCKS);
                data[namespace::LBAF0 + 2] = BLOCK_BYTES.trailing_zeros() as u8;
            }
            cns::NAMESPACE_DESCRIPTORS if entry.nsid() == 1 => {
                data[..5].copy_from_slice(&[identify::descriptor::CSI, 1, 0, 0, identify::CSI_NVM]);
            }
            _ => return None,
        }
        Some(data)
    }

    /// Sends data to the host, cut to its buffer, and the answer.
    fn send(&mut self, entry: &SubmissionEntry, data: &[u8], corrupt_digest: bool) {
        let data = &data[..data.len().min(entry.sgl().length as usize)];
        let (cid, step) = (entry.cid(), self.behaviour.data_bytes_max.max(4) as usize & !3);
        let pieces = data.len().div_ceil(step);
        for (index, piece) in data.chunks(step).enumerate() {
            let last = index + 1 == pieces;
            self.encoder.controller_data(
                &mut self.output,
                &Data {
                    cid,
                    transfer_tag: 0,
                    offset: (index * step) as u32,
                    bytes: piece.len() as u32,
                    last,
                    success: last && self.behaviour.success_flag,
                },
            );
            self.encoder.payload(&mut self.output, piece);
            if corrupt_digest && let Some(byte) = self.output.last_mut() {
                *byte ^= 1;
            }
        }
        if !self.behaviour.success_flag || data.is_empty() {
            self.respond(cid, Status::SUCCESS, 0);
        }
    }

    fn io(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Result<(), Over> {
        self.shared.commands.fetch_add(1, Ordering::Relaxed);
        let fault = lock(&self.shared.behaviour).fault.take();
        let cid = entry.cid();
        let stall = |peer: &Self, good: bool| -> Result<(), Over> {
            let stream = peer.stream.try_clone()?;
            lock(&peer.shared.stalled).push((peer.queue.unwrap_or(0), cid, good, stream));
            Ok(())
        };
        let mut corrupt = false;
        match fault {
            None => {}
            Some(Fault::Stall) => return stall(self, false),
            Some(Fault::StallForGood) => return stall(self, true),
            Some(Fault::Disconnect) => return Err(Over),
            Some(Fault::DisconnectInHeader) => {
                self.respond(cid, Status::SUCCESS, 0);
                let half = self.output.len() - 10;
                self.output.truncate(half);
                self.flush()?;
                return Err(Over);
            }
            Some(Fault::CorruptDataDigest) => corrupt = true,
            Some(Fault::CorruptHeaderDigest) => {
                self.respond(cid, Status::SUCCESS, 0);
                if let Some(byte) = self.output.last_mut() {
                    *byte ^= 1;
                }
                return Ok(());
            }
            Some(Fault::WrongCid) => {
                self.respond(cid ^ 0x400, Status::SUCCESS, 0);
                return Ok(());
            }
            Some(Fault::Twice) => self.respond(cid, Status::SUCCESS, 0),
            Some(Fault::DataPastEnd) => {
                let bytes = entry.sgl().length + 4;
                let piece = Data { cid, transfer_tag: 0, offset: 0, bytes, last: true, success: true };
                self.encoder.controller_data(&mut self.output, &piece);
                self.encoder.payload(&mut self.output, &vec![0; bytes as usize]);
                return Ok(());
            }
            Some(Fault::TransferPastEnd) => {
                let bytes = entry.sgl().length + 4;
                self.encoder
                    .ready_to_transfer(&mut self.output, &ReadyToTransfer { cid, transfer_tag: 1, offset: 0, bytes });
                return Ok(());
            }
            Some(Fault::BadType) => {
                self.output.extend_from_slice(&[0x0f; 24]);
                return Ok(());
            }
            Some(Fault::Terminate) => {
                let termination = Termination { status: 2, information: 0 };
                Encoder::termination(&mut self.output, Role::Controller, &termination, &[1, 2, 3]);
                self.flush()?;
                return Err(Over);
            }
            Some(Fault::Status(status)) => {
                self.respond(cid, status, 0);
                return Ok(());
            }
        }
        let bytes = entry.blocks() as usize * BLOCK_BYTES as usize;
        let out_of_range = entry.lba().saturating_add(u64::from(entry.blocks())) > BLOCKS;
        match entry.opcode() {
            nvm::READ | nvm::WRITE | nvm::COMPARE if out_of_range => {
                self.respond(cid, Status::LBA_OUT_OF_RANGE.with_do_not_retry(), 0);
            }
            nvm::READ => {
                let start = entry.lba() as usize * BLOCK_BYTES as usize;
                let data = lock(&self.shared.memory)[start..start + bytes].to_vec();
                self.send(entry, &data, corrupt);
            }
            nvm::WRITE | nvm::COMPARE | nvm::DATASET_MANAGEMENT | tunnel::SEND => {
                if entry.sgl().is_in_capsule() {
                    self.written(entry, data);
                } else {
                    let writing =
                        Writing { entry: *entry, data: vec![0; entry.sgl().length as usize], at: 0, requested: 0 };
                    self.writing.insert(cid, writing);
                    self.request(cid);
                }
            }
            tunnel::CALL => {
                // Answers with the arguments, as often as they go into the reply.
                let arguments = tunnel::call_arguments(entry);
                let reply: Vec<u8> = arguments.iter().copied().cycle().take(entry.sgl().length as usize).collect();
                self.behaviour.success_flag = false;
                self.send(entry, &reply, corrupt);
            }
            tunnel::RECEIVE | nvm::FLUSH | nvm::WRITE_ZEROES | nvm::VERIFY => self.respond(cid, Status::SUCCESS, 0),
            _ => self.respond(cid, Status::INVALID_OPCODE.with_do_not_retry(), 0),
        }
        Ok(())
    }

    /// Asks for the next piece of a write.
    fn request(&mut self, cid: u16) {
        let Some(writing) = self.writing.get_mut(&cid) else { return };
        let left = writing.data.len() - writing.at;
        let bytes = left.min(self.behaviour.transfer_bytes_max.max(4) as usize & !3);
        writing.requested = writing.at + bytes;
        let ready = ReadyToTransfer { cid, transfer_tag: cid ^ 0x55, offset: writing.at as u32, bytes: bytes as u32 };
        if bytes == 0 {
            if let Some(writing) = self.writing.remove(&cid) {
                self.written(&writing.entry, &writing.data);
            }
            return;
        }
        self.encoder.ready_to_transfer(&mut self.output, &ready);
    }

    fn host_data(&mut self, piece: &Data, data: &[u8]) -> Result<(), Over> {
        let Some(writing) = self.writing.get_mut(&piece.cid) else { return Err(Over) };
        let end = writing.at + data.len();
        let fits = piece.offset as usize == writing.at && end <= writing.requested;
        if !fits || piece.transfer_tag != piece.cid ^ 0x55 || piece.last != (end == writing.requested) {
            let termination = Termination { status: 4, information: 12 };
            Encoder::termination(&mut self.output, Role::Controller, &termination, &[]);
            self.flush()?;
            return Err(Over);
        }
        writing.data[writing.at..end].copy_from_slice(data);
        writing.at = end;
        if end == writing.requested {
            self.request(piece.cid);
        }
        Ok(())
    }

    fn written(&mut self, entry: &SubmissionEntry, data: &[u8]) {
        // Of no meaning, and not used, where the command is none with a range that has been checked.
        let start = (entry.lba() as usize).wrapping_mul(BLOCK_BYTES as usize);
        let mut status = Status::SUCCESS;
        let mut result = 0;
        match entry.opcode() {
            nvm::WRITE => lock(&self.shared.memory)[start..start + data.len()].copy_from_slice(data),
            nvm::COMPARE if lock(&self.shared.memory)[start..start + data.len()] != *data => {
                status = Status::COMPARE_FAILURE.with_do_not_retry();
            }
            nvm::COMPARE => {}
            nvm::DATASET_MANAGEMENT => {
                for range in data.chunks_exact(nvm::DSM_RANGE_BYTES) {
                    let start = u64_at(range, 8).saturating_mul(u64::from(BLOCK_BYTES)) as usize;
                    let bytes = willow_wire::bytes::u32_at(range, 4) as usize * BLOCK_BYTES as usize;
                    if let Some(range) = lock(&self.shared.memory).get_mut(start..start.saturating_add(bytes)) {
                        range.fill(0);
                    }
                }
            }
            _ => result = tunnel::result(7, data.len() as u32),
        }
        self.respond(entry.cid(), status, result);
    }
}
