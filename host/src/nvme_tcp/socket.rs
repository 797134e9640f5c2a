//! Socket options for a queue.

use std::os::fd::AsFd;

/// Sets what makes small messages fast; a system that refuses keeps its defaults.
pub fn tune(socket: &impl AsFd, loopback: bool) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
    if loopback {
        // Pacing congestion control halves large transfers within a machine, where there is no congestion to control.
        for name in ["cubic", "reno"] {
            if rustix::net::sockopt::set_tcp_congestion(socket, name).is_ok() {
                break;
            }
        }
    }
}

/// Sends slices. A peer that is gone is an error, never a signal: programs in C have not set that aside.
pub fn send_vectored(socket: &impl AsFd, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
    let mut nothing = rustix::net::SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, slices, &mut nothing, rustix::net::SendFlags::NOSIGNAL)?)
}
