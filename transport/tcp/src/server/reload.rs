//! Works by other settings without a restart: addresses that are listened on, hosts that may connect.
//!
//! What always holds: what cannot be is found out before anything changes; listeners that stay lose no connection that waits to be accepted,
//! and connections stay when the address that they came by is given up.

use super::{Listeners, Server, accept};
use crate::channel::Tls;
use crate::config::ServerConfig;
use crate::handle::{Reload, ServeError};
use willow_nvme::Backend;
use willow_nvme::config::ListenAddress;

impl<B: Backend> Server<B> {
    /// Does what another thread has asked for.
    pub(super) fn answer_reload(&mut self) {
        let asked = self.shared.reload.lock().ok().and_then(|mut asked| asked.take());
        if let Some((reload, answer)) = asked {
            let result = self.reload(reload);
            let _ = answer.try_send(result);
        }
    }

    fn reload(&mut self, reload: Reload) -> Result<Vec<ListenAddress>, ServeError> {
        let Reload { listen, referrals, authentication } = reload;
        if authentication.is_none() && self.config.subsystem.authentication.is_some() {
            return Err(ServeError::Config(
                "there would be no host with a key, and the device open to whoever reaches it: restart it for that"
                    .into(),
            ));
        }
        let mut config = ServerConfig { listen, ..self.config.clone() };
        config.subsystem.authentication = authentication.clone();
        config.subsystem.referrals = referrals.clone();
        config.validate().map_err(ServeError::Config)?;
        // Those that are there already, by their place; the others are bound before anything else is done.
        let mut left: Vec<Option<usize>> = (0..self.listeners.len()).map(Some).collect();
        let kept: Vec<Option<usize>> = config
            .listen
            .iter()
            .map(|wanted| {
                let is_it = |place: &Option<usize>| {
                    place.is_some_and(|place| {
                        [self.config.listen[place].address, self.addresses[place].address].contains(&wanted.address)
                    })
                };
                left.iter_mut().find(|place| is_it(place)).and_then(Option::take)
            })
            .collect();
        let fresh: Vec<ListenAddress> =
            config.listen.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(wanted, _)| *wanted).collect();
        let bound = Listeners::bind(&ServerConfig { listen: fresh, ..config.clone() })?;
        let tls = match &self.tls {
            Some(_) => None,
            None => Tls::new(&config, self.subsystem.keys()).map_err(|error| ServeError::Config(error.to_string()))?,
        };
        if let Some(authentication) = authentication {
            let required = authentication.tls_required;
            let ended = self.subsystem.change_hosts(authentication).map_err(ServeError::Config)?;
            tracing::info!(ended, "hosts' keys were read again");
            self.local_users = None;
            self.tls.iter_mut().for_each(|tls| tls.require(required));
            // They may be about to prove what holds no longer.
            for index in 0..self.connections.len() {
                let id = self.connections[index].as_ref().map(|one| one.id);
                if id.is_some_and(|id| !self.subsystem.is_connected(id)) {
                    self.close(index, "the hosts' keys were read again");
                }
            }
        }
        self.tls = self.tls.take().or(tls);
        let before: Vec<_> =
            std::mem::take(&mut self.listeners).into_iter().zip(std::mem::take(&mut self.addresses)).collect();
        for (listener, _) in &before {
            if let Err(error) = rustix::event::epoll::delete(&self.poll, listener) {
                tracing::error!(%error, "cannot stop polling an address");
            }
        }
        let mut before: Vec<_> = before.into_iter().map(Some).collect();
        let mut bound = bound.listeners.into_iter().zip(bound.addresses);
        for (wanted, kept) in config.listen.iter().zip(kept) {
            let found = match kept {
                Some(place) => before[place].take(),
                None => bound.next(),
            };
            if let Some((listener, at)) = found {
                self.listeners.push(listener);
                self.addresses.push(ListenAddress { address: at.address, ..*wanted });
            }
        }
        accept::add_listeners(&self.poll, &self.listeners)?;
        self.subsystem.change_addresses(self.addresses.clone());
        self.subsystem.change_referrals(referrals);
        self.config = config;
        tracing::info!(addresses = self.addresses.len(), "the configuration was read again");
        Ok(self.addresses.clone())
    }
}
