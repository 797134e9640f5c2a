//! The SATA port at work: requests of generators go into it, its commands to the device, and whoever waits is told.
//!
//! What always holds: commands go to the device at the moment at which something has changed; a run is over only when the port is idle, so that
//! what was written counts with all the time that it took. Tasks' requests, and those of paths that have queues of their own, go past it.

use super::*;
use crate::generator::Stage;
use crate::operation;
use crate::sata::{Member, SataParameters, SataPort};
use willow_device::HostCompletion;
use willow_device::model::parameters::LinkParameters;

/// Most buffers that are kept for later commands.
const BUFFERS_MAX: usize = 64;

/// The port, and the link that it is at.
pub(crate) struct Port {
    sata: SataPort,
    link: LinkParameters,
    /// When the link has taken the data of all writes that were sent.
    link_free_ns: u64,
    buffers: Vec<Vec<u8>>,
}

impl Port {
    pub fn new(parameters: SataParameters, merge_bytes_max: u32, link: LinkParameters) -> Port {
        Port { sata: SataPort::new(parameters, merge_bytes_max), link, link_free_ns: 0, buffers: Vec::new() }
    }

    /// When the host is told that a write's data are in the buffer, which are sent now.
    fn buffered_ns(&mut self, now_ns: u64, bytes: u32) -> u64 {
        self.link_free_ns = self.link_free_ns.max(now_ns) + self.link.inward_ns(bytes.into());
        self.link_free_ns + self.link.in_latency_ns + self.link.fetch_ns + self.link.out_latency_ns
    }
}

impl Simulation {
    /// Requests that went to the SATA port, and the commands that they became; `None`: there is none.
    pub fn port_counts(&self) -> Option<(u64, u64)> {
        self.port.as_ref().map(|port| (port.sata.requests, port.sata.sent))
    }

    pub(super) fn port_is_idle(&self) -> bool {
        self.port.as_ref().is_none_or(|port| port.sata.is_idle())
    }

    /// A slot's operation goes to the port.
    #[cold]
    pub(crate) fn to_port(&mut self, world: &mut World, (number, index): Member) {
        let generator = &mut self.generators[number as usize];
        let merges = generator.path != Path::Bare;
        let slot = &mut generator.slots[index as usize];
        slot.stage = Stage::Port;
        slot.sent_ns = world.now_ns;
        if let Some(port) = &mut self.port {
            port.sata.take(slot.operation, slot.hre, (number, index), merges);
        }
        self.pump(world);
    }

    /// Gives the device what the port has for it.
    #[cold]
    pub(super) fn pump(&mut self, world: &mut World) {
        while let Some(port) = &mut self.port
            && let Some(number) = port.sata.next()
        {
            let command = port.sata.command(number);
            let (operation, hre, serial) = (command.operation, command.hre, command.serial);
            let mut buffer = port.buffers.pop().unwrap_or_default();
            if operation.is_write() {
                buffer.resize(operation.bytes() as usize, 0x5a);
            }
            // Operations on blocks were checked when they came.
            let Some(block) = &self.block else { return };
            let request = match operation {
                Operation::Read { offset, bytes } | Operation::Write { offset, bytes } => {
                    operation::block_request(block, operation.is_write(), (offset, bytes), buffer)
                }
                _ => operation::plain_request(block, operation, buffer),
            };
            let sent = self.submit(world.now_ns, hre, request, Owner::Command(number));
            let Some(port) = &mut self.port else { return };
            match sent {
                Ok(()) if operation.is_write() => {
                    let at_ns = port.buffered_ns(world.now_ns, operation.bytes());
                    world.at(at_ns, Then::Buffered(number, serial));
                }
                Ok(()) => {}
                Err(_) => {
                    if !port.sata.refused(number) {
                        let what = "the device takes none of the SATA port's commands".to_owned();
                        self.broken.get_or_insert(SimulationError::Workload { workload: "SATA".to_owned(), what });
                    }
                    return;
                }
            }
        }
    }

    /// A write's data are in the buffer.
    #[cold]
    pub(super) fn buffered(&mut self, world: &mut World, command: u32, serial: u32) {
        let Some(port) = &mut self.port else { return };
        let members = port.sata.acknowledge(command, serial);
        self.tell(world, &members);
        self.pump(world);
    }

    /// The device has done a command.
    #[cold]
    pub(super) fn command_ended(&mut self, world: &mut World, number: u32, done: HostCompletion) {
        let Some(port) = &mut self.port else { return };
        let operation = port.sata.command(number).operation;
        let members = port.sata.ended(number);
        if let Some(what) = operation::failure(&operation, &done) {
            self.broken.get_or_insert(SimulationError::Workload { workload: "SATA".to_owned(), what });
        }
        if port.buffers.len() < BUFFERS_MAX {
            port.buffers.push(done.buffer);
        }
        self.tell(world, &members);
        world.fired.push_back(Then::Port);
    }

    fn tell(&self, world: &mut World, members: &[Member]) {
        for &(number, index) in members {
            let generator = &self.generators[number as usize];
            if self.parameters.polls(generator.path) {
                world.polled_ns += world.now_ns - generator.slots[index as usize].sent_ns;
            }
            world.fired.push_back(Then::Slot(number, index));
        }
    }
}
