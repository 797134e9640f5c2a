//! What tasks ask of the device, carried out between their turns.

use crate::simulation::{Owner, Simulation};
use crate::thread::Shared;
use crate::world::{Brought, Mail, Then};
use std::sync::Arc;
use willow_host::device_queue::view_of;

impl Simulation {
    /// Carries out what tasks asked of the device.
    pub(crate) fn carry_mail(&mut self, shared: &Shared) -> bool {
        let mut worked = false;
        loop {
            let (mail, now_ns) = {
                let mut world = shared.lock();
                (world.mail.pop_front(), world.now_ns)
            };
            let Some(mail) = mail else { return worked };
            worked = true;
            let (key, brought) = match mail {
                Mail::Close(hre) => {
                    self.device.close_hre(hre);
                    continue;
                }
                Mail::Request(hre, request, key) => match self.submit(now_ns, hre, request, Owner::Wait(key)) {
                    Ok(()) => continue,
                    Err(_) => (key, Brought::Refused),
                },
                Mail::Upcall(hre, ns, key) => {
                    let mut world = shared.lock();
                    let until = world.now_ns.saturating_add(ns);
                    let at_ns = until.max(world.now_ns + 1);
                    world.at(at_ns, Then::NoUpcall(key));
                    self.upcalls.push((hre, key));
                    self.device_ns = Some(0);
                    continue;
                }
                Mail::Answer(hre, id, status, result, key) => {
                    self.device.set_time(now_ns);
                    let answered = self.device.answer_upcall(hre, id, status, result);
                    self.device_ns = Some(0);
                    (key, Brought::Flag(answered))
                }
                Mail::Look(key) => (key, Brought::View(Arc::new(view_of(&self.device)))),
            };
            shared.lock().end_wait(key, brought);
        }
    }
}
