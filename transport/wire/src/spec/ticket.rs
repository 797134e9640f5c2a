//! Endpoints of users over fabrics: vendor admin commands by which the trusted part of a host (a controller that acts as kernel) asks for
//! a ticket, a name and a secret by which one process of a user connects once (and a key for TLS, where it has to connect by that), and
//! takes it back.

use crate::bytes::{c_string, put_c_string};
use crate::spec::SubmissionEntry;

/// Issue Ticket, data controller to host: CDW10 = process, CDW11 = milliseconds until it has to be used, CDW12 = most I/O
/// queues of who comes by it (0: as many as the subsystem gives).
pub const ISSUE: u8 = 0xc2;
/// Withdraw Tickets, no data: CDW10 = process, whose tickets and connections end.
pub const WITHDRAW: u8 = 0xc0;
/// Bytes of a ticket.
pub const TICKET_BYTES: usize = 512;
/// Longest time until a ticket has to be used.
pub const TICKET_MS_MAX: u32 = 600_000;

const SECRET_AT: usize = 256;
const SECRET_WIDTH: usize = 128;
const PSK_AT: usize = SECRET_AT + SECRET_WIDTH;
const PSK_WIDTH: usize = TICKET_BYTES - PSK_AT;

/// Issue Ticket as a command.
pub fn issue(process: u32, milliseconds: u32, queues_max: u16) -> SubmissionEntry {
    SubmissionEntry::new(ISSUE).with_cdw(10, process).with_cdw(11, milliseconds).with_cdw(12, queues_max.into())
}

/// Withdraw Tickets as a command.
pub fn withdraw(process: u32) -> SubmissionEntry {
    SubmissionEntry::new(WITHDRAW).with_cdw(10, process)
}

/// Name, secret (DHHC-1) and key for TLS (NVMeTLSkey-1; empty: it connects without) as bytes.
pub fn to_bytes(host_nqn: &str, secret: &str, psk: &str) -> Vec<u8> {
    let mut bytes = vec![0; TICKET_BYTES];
    put_c_string(&mut bytes, 0, SECRET_AT, host_nqn);
    put_c_string(&mut bytes, SECRET_AT, SECRET_WIDTH, secret);
    put_c_string(&mut bytes, PSK_AT, PSK_WIDTH, psk);
    bytes
}

/// (name, secret, key for TLS or nothing) of a ticket; `None` where they are none.
pub fn from_bytes(bytes: &[u8]) -> Option<(&str, &str, Option<&str>)> {
    let bytes = bytes.get(..TICKET_BYTES)?;
    let psk = c_string(&bytes[PSK_AT..])?;
    let psk = (!psk.is_empty()).then_some(psk);
    Some((c_string(&bytes[..SECRET_AT])?, c_string(&bytes[SECRET_AT..PSK_AT])?, psk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_a_name_and_a_secret() {
        let (name, secret, psk) = ("nqn.2025-01.org.example:one", "DHHC-1:00:text:", "NVMeTLSkey-1:01:text:");
        let bytes = to_bytes(name, secret, psk);
        assert_eq!(bytes.len(), TICKET_BYTES);
        assert_eq!(from_bytes(&bytes), Some((name, secret, Some(psk))));
        assert_eq!(from_bytes(&to_bytes(name, secret, "")), Some((name, secret, None)));
        assert_eq!(from_bytes(&bytes[1..]), None);
        assert_eq!(from_bytes(&[b'x'; TICKET_BYTES]), None);
    }
}
