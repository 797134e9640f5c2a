//! Whose a connection of this machine is: the kernel tells the user that made the socket at its other end (sock_diag(7)).
//!
//! What always holds: an answer is about the socket with exactly these two addresses, and only while it is established. What closes,
//! or listens, is nobody's: of such sockets the kernel names root.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Bytes of `struct nlmsghdr` (linux/netlink.h).
const HEAD_BYTES: usize = 16;
/// Bytes of `struct inet_diag_req_v2` (linux/inet_diag.h).
const REQUEST_BYTES: usize = 56;
/// Of the answer, `struct inet_diag_msg`: where the state, the identity and the user are, and how long it is at least.
const STATE_AT: usize = HEAD_BYTES + 1;
const IDENTITY_AT: usize = HEAD_BYTES + 4;
const USER_AT: usize = HEAD_BYTES + 64;
const ANSWER_BYTES: usize = HEAD_BYTES + 72;
/// Of the identity (`struct inet_diag_sockid`) the ports and addresses.
const PLACES_BYTES: usize = 36;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;

/// Asks the kernel.
pub(crate) struct LocalUsers {
    socket: OwnedFd,
}

impl LocalUsers {
    pub fn new() -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
        Ok(LocalUsers { socket })
    }

    /// The user of the socket of this machine that is bound to `own` and connected to `other`; `None`: there is none.
    pub fn user_of(&self, own: SocketAddr, other: SocketAddr) -> rustix::io::Result<Option<u32>> {
        let (own, other) = (plain(own), plain(other));
        let request = request(own, other);
        let mut answer = [0; 512];
        // An answer that an error left behind is of no use any more.
        while rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty()).is_ok() {}
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        // The kernel has answered when it has taken the request.
        let (count, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        read_answer(&answer[..count], &request)
    }
}

/// Whether an address is this machine's: it can be bound. Where any address can (`ip_nonlocal_bind`), only loopback is known to be.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let nobodys = match address {
        // Of documentation (RFC 5737, RFC 3849).
        IpAddr::V4(_) => IpAddr::from([192, 0, 2, 1]),
        IpAddr::V6(_) => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    };
    let can_bind = |address: IpAddr| std::net::UdpSocket::bind((address, 0)).is_ok();
    address.is_loopback() || can_bind(address) && !can_bind(nobodys)
}

/// An IPv4 address in IPv6's clothes is IPv4: the other end's socket is of that family.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn request(own: SocketAddr, other: SocketAddr) -> [u8; HEAD_BYTES + REQUEST_BYTES] {
    let mut out = [0; HEAD_BYTES + REQUEST_BYTES];
    out[..4].copy_from_slice(&((HEAD_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    out[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let body = &mut out[HEAD_BYTES..];
    body[0] = family.as_raw() as u8;
    body[1] = TCP;
    // All states; which it is the answer says.
    body[4..8].fill(0xff);
    let identity = &mut body[8..];
    identity[..2].copy_from_slice(&own.port().to_be_bytes());
    identity[2..4].copy_from_slice(&other.port().to_be_bytes());
    put(&mut identity[4..20], own.ip());
    put(&mut identity[20..36], other.ip());
    // INET_DIAG_NOCOOKIE, after the interface.
    identity[40..48].fill(0xff);
    out
}

fn put(out: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => out[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => out.copy_from_slice(&address.octets()),
    }
}

fn read_answer(answer: &[u8], request: &[u8]) -> rustix::io::Result<Option<u32>> {
    let word = |at: usize| answer.get(at..at + 4).and_then(|word| Some(u32::from_ne_bytes(word.try_into().ok()?)));
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match kind {
        Some(ERROR) => match word(HEAD_BYTES).map(|error| Errno::from_raw_os_error((error as i32).wrapping_neg())) {
            Some(Errno::NOENT) => Ok(None),
            Some(error) => Err(error),
            None => Err(Errno::PROTO),
        },
        Some(BY_FAMILY) if answer.len() >= ANSWER_BYTES => {
            let is_it = answer[IDENTITY_AT..IDENTITY_AT + PLACES_BYTES]
                == request[HEAD_BYTES + 8..HEAD_BYTES + 8 + PLACES_BYTES];
            let user = word(USER_AT).filter(|_| is_it && answer[STATE_AT] == ESTABLISHED);
            Ok(user)
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};

    #[test]
    fn the_kernel_names_the_user_of_an_established_socket_alone() {
        let users = LocalUsers::new().unwrap();
        let own_user = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let at = listener.local_addr().unwrap();
            // Over a listener of both families the host comes by IPv4.
            let host = TcpStream::connect(if at.ip().is_unspecified() {
                SocketAddr::from(([127, 0, 0, 1], at.port()))
            } else {
                at
            });
            let host = host.unwrap();
            let (taken, peer) = listener.accept().unwrap();
            let here = taken.local_addr().unwrap();
            assert_eq!(users.user_of(peer, here), Ok(Some(own_user)), "{address}");
            let mut elsewhere = peer;
            elsewhere.set_port(1);
            assert_eq!(users.user_of(elsewhere, here), Ok(None), "a port that nobody has");
            // Where no socket is connected so the kernel tells of the one that listens there.
            assert_eq!(users.user_of(here, elsewhere), Ok(None), "a socket that listens is not meant");
            host.shutdown(Shutdown::Write).unwrap();
            assert_eq!(users.user_of(peer, here), Ok(None), "what closes is nobody's");
            drop(host);
            assert_eq!(users.user_of(peer, here), Ok(None));
        }
    }

    #[test]
    fn own_addresses_are_known() {
        assert!(is_own([127, 0, 0, 7].into()) && is_own("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_own([192, 0, 2, 9].into()), "of documentation");
        // No packet goes anywhere: the kernel chooses the address that it would send from.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.9:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(is_own(own), "{own}");
        }
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let here = SocketAddr::from(([127, 0, 0, 1], 9));
        let request = request(here, here);
        assert_eq!(read_answer(&[], &request), Err(Errno::PROTO));
        let mut answer = vec![0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        assert_eq!(read_answer(&answer[..ANSWER_BYTES - 1], &request), Err(Errno::PROTO));
        answer[STATE_AT] = ESTABLISHED;
        assert_eq!(read_answer(&answer, &request), Ok(None), "another socket");
        answer[IDENTITY_AT..IDENTITY_AT + PLACES_BYTES].copy_from_slice(&request[24..24 + PLACES_BYTES]);
        answer[USER_AT..USER_AT + 4].copy_from_slice(&1000u32.to_ne_bytes());
        assert_eq!(read_answer(&answer, &request), Ok(Some(1000)));
        answer[STATE_AT] = 5;
        assert_eq!(read_answer(&answer, &request), Ok(None));
        answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        answer[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&(-93i32).to_ne_bytes());
        assert_eq!(read_answer(&answer, &request), Err(Errno::from_raw_os_error(93)));
    }
}
