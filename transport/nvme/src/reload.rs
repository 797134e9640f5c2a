//! What may change while hosts are connected: who may connect, and where.
//!
//! What always holds:
//! - a host whose key is gone, or another, has no controller from then on; others notice nothing;
//! - whoever reads the discovery log can tell that it has changed.

use std::net::SocketAddr;

use willow_wire::spec::feature::event;

use crate::authentication::HostAuthentication;
use crate::backend::Backend;
use crate::config::ListenAddress;
use crate::controller::Controller;
use crate::subsystem::Subsystem;

impl<B: Backend> Subsystem<B> {
    /// Who may connect from now on. Controllers of hosts that prove themselves by something else now, or by nothing, end, and those that
    /// came without TLS where they have to come by it; returns how many. The error says what cannot be, and nothing has changed.
    pub fn change_hosts(&mut self, authentication: HostAuthentication) -> Result<usize, String> {
        authentication.validate()?;
        let before = self.config.authentication.take().unwrap_or_default();
        self.keys.replace(before.keys().into_keys(), authentication.keys());
        let stays = |one: &Controller| {
            let queue = self.queues[usize::from(one.admin)].as_ref();
            let is_secured = queue.is_some_and(|queue| queue.secured.is_some());
            before.agrees_on(&one.host_nqn, &authentication)
                && (is_secured || !authentication.requires_tls(&one.host_nqn))
        };
        // Who came by a ticket goes with the host that asked for it.
        let of_hosts = self.controllers.values().filter(|one| !one.discovery && one.process.is_none());
        let ended: Vec<u16> = of_hosts.filter(|one| !stays(one)).map(|one| one.cntlid).collect();
        self.forget_channels(|host_nqn| before.agrees_on(host_nqn, &authentication));
        self.config.authentication = Some(authentication);
        ended.iter().for_each(|cntlid| self.end_controller(*cntlid, "its host's key is gone, or another"));
        self.discovery_changed();
        Ok(ended.len())
    }

    /// The addresses that hosts are told of from now on.
    pub fn change_addresses(&mut self, addresses: Vec<ListenAddress>) {
        if self.config.addresses != addresses {
            self.config.addresses = addresses;
            self.take_access();
            self.discovery_changed();
        }
    }

    /// The other discovery controllers that hosts are referred to from now on.
    pub fn change_referrals(&mut self, referrals: Vec<SocketAddr>) {
        if self.config.referrals != referrals {
            self.config.referrals = referrals;
            self.discovery_changed();
        }
    }

    fn discovery_changed(&mut self) {
        self.discovery_generation += 1;
        let of_discovery = self.controllers.values_mut().filter(|one| one.discovery);
        let told: Vec<u16> = of_discovery
            .filter(|one| one.features.async_events & event::CONFIGURE_DISCOVERY != 0)
            .map(|one| {
                one.discovery_pending = true;
                one.cntlid
            })
            .collect();
        told.into_iter().for_each(|cntlid| self.tell_events(cntlid));
    }
}
