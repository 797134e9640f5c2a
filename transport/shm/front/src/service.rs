//! Commands that the front serves itself: upcalls, the view of the device, taking commands back.
//!
//! What always holds: what waits for an upcall is bounded by the commands that its endpoint may have under way.

use crate::endpoint::Taken;
use crate::front::{Front, tag};
use willow_device::CommandSet;
use willow_device::shared::SharedWindow;
use willow_nvme::Backend;
use willow_shm::layout::Outcome;
use willow_shm::message::{NamespaceView, View, encode};

/// Bytes before an upcall's body in its reply: id, app, handler, SPU.
const UPCALL_HEAD_BYTES: usize = 16;

/// An upcall that is waited for.
pub(crate) struct Receive {
    pub index: usize,
    pub generation: u16,
    pub flight: u16,
    pub window: Option<SharedWindow>,
    pub until_ns: u64,
}

impl Front {
    #[cold]
    pub(crate) fn do_other<B: Backend>(&mut self, device: &mut B, index: usize, taken: Taken, now_ns: u64) {
        let view = matches!(taken, Taken::View(..)).then(|| view_of(device));
        let generation = self.generations[index];
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let Some(endpoint) = connection.endpoint.as_mut() else { return };
        match taken {
            Taken::Request(..) | Taken::Done => {}
            Taken::Receive(flight, window, wait_ms) => {
                let until_ns = now_ns + u64::from(wait_ms) * 1_000_000;
                self.next_limit_ns = self.next_limit_ns.min(until_ns);
                self.receives.push(Receive { index, generation, flight, window, until_ns });
            }
            Taken::Answer(flight, id, status, result) => {
                let done = device.answer_upcall(endpoint.hre, id, status, result);
                endpoint.end(flight, if done { Outcome::Answered } else { Outcome::Nothing }, 0, 0, 0);
            }
            Taken::View(flight, window) => {
                let view = encode(&view.unwrap_or_else(|| view_of(device)));
                let written = put(window, &[&view]);
                endpoint.end(flight, Outcome::Answered, 0, view.len() as u32, written);
            }
            Taken::Abort(flight, of) => {
                let found = endpoint.flight_of(of).filter(|other| *other != flight);
                let parked = |receive: &Receive| {
                    receive.index == index && receive.generation == generation && Some(receive.flight) == found
                };
                let mut aborted = false;
                if let Some(place) = self.receives.iter().position(parked) {
                    let receive = self.receives.swap_remove(place);
                    endpoint.end(receive.flight, Outcome::Aborted, 0, 0, 0);
                    aborted = true;
                } else if let Some(other) = found {
                    aborted = device.abort(endpoint.hre, tag(index, generation, other));
                }
                endpoint.end(flight, Outcome::Answered, 0, u32::from(aborted), 0);
            }
        }
        self.mark_dirty(index);
    }

    pub(crate) fn deliver_upcalls<B: Backend>(&mut self, device: &mut B, now_ns: u64) {
        let mut place = 0;
        while place < self.receives.len() {
            let (index, flight) = (self.receives[place].index, self.receives[place].flight);
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                self.receives.swap_remove(place);
                continue;
            };
            let Some(endpoint) = connection.endpoint.as_mut() else {
                self.receives.swap_remove(place);
                continue;
            };
            if let Some(upcall) = device.upcall(endpoint.hre) {
                let receive = self.receives.swap_remove(place);
                let mut head = [0; UPCALL_HEAD_BYTES];
                head[..8].copy_from_slice(&upcall.id.to_le_bytes());
                head[8..10].copy_from_slice(&upcall.app.to_le_bytes());
                head[10] = upcall.handler;
                head[12..14].copy_from_slice(&upcall.spu.to_le_bytes());
                let written = put(receive.window, &[&head, &upcall.body]);
                endpoint.end(flight, Outcome::Answered, 0, (UPCALL_HEAD_BYTES + upcall.body.len()) as u32, written);
                self.mark_dirty(index);
            } else if now_ns >= self.receives[place].until_ns {
                self.receives.swap_remove(place);
                endpoint.end(flight, Outcome::Nothing, 0, 0, 0);
                self.mark_dirty(index);
            } else {
                self.next_limit_ns = self.next_limit_ns.min(self.receives[place].until_ns);
                place += 1;
            }
        }
    }
}

/// Copies parts one after the other into a window, as much as fits; returns how much that is.
fn put(window: Option<SharedWindow>, parts: &[&[u8]]) -> u32 {
    let Some(mut window) = window else { return 0 };
    let mut at = 0;
    for part in parts {
        let bytes = part.len().min(window.bytes() - at);
        window.write(at, &part[..bytes]);
        at += bytes;
    }
    at as u32
}

fn view_of<B: Backend>(device: &B) -> View {
    let namespaces = device.namespaces();
    View {
        spus: device.spus(),
        namespaces: (namespaces.iter())
            .map(|namespace| NamespaceView {
                nsid: namespace.nsid,
                key_value: namespace.csi == CommandSet::Kv,
                size_bytes: namespace.size_bytes,
                block_bytes: namespace.block_bytes,
                base: namespace.base,
                nguid: namespace.nguid,
                stripe_bytes: namespace.stripe_bytes,
                app: namespace.app.clone(),
                app_number: device.app_number(&namespace.app),
            })
            .collect(),
    }
}
