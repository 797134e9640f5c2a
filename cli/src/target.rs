//! Which device a command speaks to.

use crate::failure::{Outcome, fail};
use crate::key;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use willow_auth::HostKey;

/// `--target`.
#[derive(Clone, Debug, clap::Args)]
pub struct TargetOption {
    /// The device: ADDRESS:PORT of its NVMe/TCP listener, or PATH of its socket on this machine (with a /)
    #[arg(long, value_name = "ADDR|PATH", default_value = crate::config::LISTEN_DEFAULT)]
    pub target: String,
    /// Key file of this host, for a device that wants hosts to prove themselves (willow key new) [default: $WILLOW_KEY]
    #[arg(id = "key_file", long = "key", value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Its NVMe/TCP listener.
    Address(SocketAddr),
    /// Its socket on this machine.
    Socket(PathBuf),
}

impl TargetOption {
    /// What is meant: with a slash it is a path.
    pub fn resolve(&self) -> Outcome<Target> {
        if self.target.contains('/') {
            if self.key.is_some() {
                fail!("a key is for NVMe/TCP, {} is a path: leave --key out", self.target);
            }
            return Ok(Target::Socket(PathBuf::from(&self.target)));
        }
        self.address().map(Target::Address)
    }

    /// Whose host this is, where a key was given.
    pub fn host_key(&self) -> Outcome<Option<HostKey>> {
        let named = std::env::var_os(key::KEY_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.key.clone().or(named).map(|path| key::load(&path)).transpose()
    }

    /// The address; names are looked up.
    pub fn address(&self) -> Outcome<SocketAddr> {
        let target = &self.target;
        if target.contains('/') {
            fail!("{target} is a path, and this goes by NVMe/TCP only: use --target ADDRESS:PORT");
        }
        let with_port = if target.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_ipv6()) {
            format!("[{target}]:4420")
        } else if target.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            target.clone()
        } else {
            format!("{target}:4420")
        };
        match with_port.to_socket_addrs() {
            Ok(mut found) => match found.next() {
                Some(address) => Ok(address),
                None => fail!("{target} has no address: use --target ADDRESS:PORT"),
            },
            Err(error) => fail!("{target} is no address ({error}): use --target ADDRESS:PORT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_may_be_left_out() {
        let address = |target: &str| TargetOption { target: target.into(), key: None }.address();
        assert_eq!(address("127.0.0.1:5").unwrap(), "127.0.0.1:5".parse().unwrap());
        assert_eq!(address("127.0.0.1").unwrap(), "127.0.0.1:4420".parse().unwrap());
        assert_eq!(address("::1").unwrap(), "[::1]:4420".parse().unwrap());
        assert_eq!(address("[::1]:7").unwrap(), "[::1]:7".parse().unwrap());
        assert!(address("/run/willow.sock").unwrap_err().to_string().contains("NVMe/TCP only"));
        assert!(address("127.0.0.1:99999").is_err());
        let resolve = |target: &str| TargetOption { target: target.into(), key: None }.resolve();
        assert_eq!(resolve("./w.sock").unwrap(), Target::Socket("./w.sock".into()));
        assert_eq!(resolve("127.0.0.1").unwrap(), Target::Address("127.0.0.1:4420".parse().unwrap()));
    }
}
