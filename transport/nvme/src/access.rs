//! Asymmetric namespace access (NVMe Base 8.1, ANA): how good the path is that a host has chosen by connecting to an address.
//!
//! What always holds:
//! - all namespaces are in one group ([`GROUP`]), whose state is that of the address which the controller's host reached; an address that
//!   is no longer listened on leaves its controllers the state that they had last;
//! - where a path is inaccessible no command on a namespace begins, and each ends with the status that has hosts try another path;
//!   what was begun before ends as if nothing had happened;
//! - hosts that have asked for it are told of a change by an event, once until they read the log.

use std::net::SocketAddr;

use crate::backend::Backend;
use crate::bytes::Put;
use crate::config::ListenAddress;
use crate::subsystem::Subsystem;

/// The one group of namespaces (ANAGRPID).
pub const GROUP: u32 = 1;
/// ANATT: seconds that a change takes at most. No state of change is ever told; hosts want a number other than 0.
pub const TRANSITION_SECONDS: u8 = 10;
/// ANACAP: optimized, non-optimized and inaccessible are told; a namespace does not change its group (bit 6).
pub const CAPABILITIES: u8 = 1 << 6 | 1 << 2 | 1 << 1 | 1;
/// Log specific parameter, bit 0: groups without their namespaces (RGO).
const GROUPS_ONLY: u8 = 1;

/// State of the namespaces by one path (NVMe Base 8.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// As good as any.
    #[default]
    Optimized,
    /// Works; hosts use it where no optimized one is left.
    NonOptimized,
    /// Commands on namespaces are refused; management and discovery go on.
    Inaccessible,
}

impl Access {
    /// As the log page has it.
    pub fn number(self) -> u8 {
        match self {
            Access::Optimized => 1,
            Access::NonOptimized => 2,
            Access::Inaccessible => 3,
        }
    }
}

impl std::str::FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "optimized" => Ok(Access::Optimized),
            "non-optimized" => Ok(Access::NonOptimized),
            "inaccessible" => Ok(Access::Inaccessible),
            _ => Err(format!("\"{text}\" is no state of a path: write optimized, non-optimized or inaccessible")),
        }
    }
}

/// State of the path by `local`, the address that a host reached; `None`: nothing is listened on there.
pub(crate) fn of_address(addresses: &[ListenAddress], local: SocketAddr) -> Option<Access> {
    let exact = addresses.iter().find(|one| one.address == local);
    // One that means "any" serves the rest of its port: that of the same family before one of both.
    let any = |one: &&ListenAddress| one.address.ip().is_unspecified() && one.address.port() == local.port();
    let of_family = || addresses.iter().filter(any).find(|one| one.address.is_ipv4() == local.is_ipv4());
    exact.or_else(of_family).or_else(|| addresses.iter().find(any)).map(|one| one.access)
}

/// LID 0Ch, Asymmetric Namespace Access (NVMe Base 5.16.1.13): one group with the namespaces that are active for the controller.
pub(crate) fn page(changes: u64, access: Access, specific: u8, namespaces: impl Iterator<Item = u32>) -> Vec<u8> {
    let namespaces: Vec<u32> = if specific & GROUPS_ONLY != 0 { Vec::new() } else { namespaces.collect() };
    let mut out = vec![0; 16 + 32 + namespaces.len() * 4];
    out.put64(0, changes);
    out.put16(8, 1);
    out.put32(16, GROUP);
    out.put32(20, namespaces.len() as u32);
    out.put64(24, changes);
    out[32] = access.number();
    for (place, nsid) in namespaces.into_iter().enumerate() {
        out.put32(48 + place * 4, nsid);
    }
    out
}

impl<B: Backend> Subsystem<B> {
    /// The state of the path by which a connection came.
    pub(crate) fn access_by(&self, index: u16) -> Access {
        let local = self.queues[usize::from(index)].as_ref().and_then(|queue| queue.local);
        local.and_then(|local| of_address(&self.config.addresses, local)).unwrap_or_default()
    }

    /// The addresses that are listened on may have other states than before: controllers take them over, and their hosts are told.
    pub(crate) fn take_access(&mut self) {
        let of_hosts = self.controllers.values().filter(|one| !one.discovery);
        let changed: Vec<(u16, Access)> = of_hosts
            .filter_map(|one| {
                let local = self.queues[usize::from(one.admin)].as_ref()?.local?;
                let access = of_address(&self.config.addresses, local)?;
                (access != one.access.state).then_some((one.cntlid, access))
            })
            .collect();
        for (cntlid, access) in changed {
            let Some(controller) = self.controllers.get_mut(&cntlid) else { continue };
            tracing::info!(controller = cntlid, host = %controller.host_nqn, ?access, "the state of its path changed");
            controller.note_access(access);
            self.tell_events(cntlid);
        }
    }
}

/// A controller's path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub state: Access,
    /// How often it changed (CHGCNT).
    pub changes: u64,
    /// An event of it is to be told; and was, and the log not read since.
    pub pending: bool,
    pub told: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_own_state_before_that_of_any() {
        let at =
            |text: &str, access| ListenAddress { access, ..ListenAddress::from(text.parse::<SocketAddr>().unwrap()) };
        let addresses = [
            at("0.0.0.0:4420", Access::NonOptimized),
            at("10.0.0.1:4420", Access::Inaccessible),
            at("10.0.0.1:4421", Access::Optimized),
        ];
        let of = |text: &str| of_address(&addresses, text.parse().unwrap());
        assert_eq!(of("10.0.0.1:4420"), Some(Access::Inaccessible));
        assert_eq!(of("10.0.0.2:4420"), Some(Access::NonOptimized));
        assert_eq!(of("10.0.0.1:4421"), Some(Access::Optimized));
        assert_eq!(of("10.0.0.2:4421"), None);
    }

    #[test]
    fn the_page_stands_as_linux_reads_it() {
        let whole = page(3, Access::NonOptimized, 0, [1, 2, 7].into_iter());
        assert_eq!(
            (whole.len(), whole[0], whole[8], whole[16], whole[20], whole[24], whole[32]),
            (60, 3, 1, 1, 3, 3, 2)
        );
        assert_eq!(&whole[48..], &[1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0]);
        let groups = page(3, Access::Inaccessible, 1, [1, 2, 7].into_iter());
        assert_eq!((groups.len(), groups[20], groups[32]), (48, 0, 3));
    }
}
