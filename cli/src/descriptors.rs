//! The bound on this process' open descriptors: one goes with each connection, each process that is watched, each file that is open directly.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than what a device and an agent have bounds for.
const WANTED: u64 = 65_536;

/// Raises the bound as far as is wanted and allowed. Where it stays low, what is too much is refused when it comes.
pub fn raise() {
    let now = getrlimit(Resource::Nofile);
    let allowed = now.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    if now.current.is_some_and(|current| current < allowed)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), ..now })
    {
        tracing::debug!("the bound on open descriptors stays: {error}");
    }
}
