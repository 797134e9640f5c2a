//! Accounts: how much of the target's memory, and of the device's places, each host holds. Everything that waits for room waits here.
//!
//! What always holds:
//! - connections whose host has proved nothing, and those of discovery controllers, share one account of their own
//!   ([`UNPROVED`]), which is bounded for each connection and in all, and takes nothing of what hosts share;
//! - a host may hold as much as is left for others; so one alone gets half, two get a third each, and there is always something
//!   left. Of what it holds, a part only may wait for data that it is to send: the rest moves on without it;
//! - who comes by a ticket has an account too, and all that come by one host's tickets are together like one more host: each of them leaves
//!   as much to the others, and all of them as much as they hold to hosts;
//! - a host that holds nothing gets a small buffer at once, however much others hold;
//! - commands of a host wait in order; hosts take turns.
//!
//! Who may call it: the subsystem, which says what was taken and given back.

use std::collections::VecDeque;

use willow_device::{HostRequest, HreId};

use crate::config::*;
use crate::subsystem::ConnectionId;

/// The account of connections that proved nothing, and of discovery controllers.
pub(crate) const UNPROVED: u16 = 0;
/// The part of the budget that is kept for small buffers of hosts that hold nothing: one over this.
const RESERVE_PART: usize = 8;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Data that the host is to send: how long that takes is the host's affair.
    Fetch,
    /// Data that the device brings, or that are here already.
    Answer,
}

/// A command that waits for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub connection: ConnectionId,
    pub place: u16,
    /// Data bytes of the buffer.
    pub bytes: u32,
    pub used_for: Use,
}

/// A request that waits for a place in the device.
pub(crate) struct Ready {
    pub connection: ConnectionId,
    pub place: u16,
    pub hre: HreId,
    pub request: HostRequest,
    pub since_ns: u64,
}

/// What those hold together that came by tickets of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByTickets {
    connections: u32,
    taken_bytes: usize,
    /// Requests in the device, past the [`TICKET_PLACES_MIN`] of each.
    in_device: u32,
}

/// What one host holds.
#[derive(Default)]
pub(crate) struct Account {
    /// The host's name; empty where the account is nobody's.
    pub name: String,
    pub connections: u32,
    pub taken_bytes: usize,
    /// The account of the host that asked for its ticket, where it came by one.
    pub issuer: Option<u16>,
    /// What those hold together that came by tickets of this host.
    by_tickets: ByTickets,
    /// Bytes that it has sent, data of transfers left out, in the turn of this number.
    sent: (u64, usize),
    /// Requests in the device.
    pub in_device: u32,
    pub waiting: VecDeque<Waiting>,
    pub ready: VecDeque<Ready>,
    /// Commands that had to wait, for a buffer or for a place in the device, since the account is this host's.
    pub waited: u64,
    /// Connects that found no place, and commands that waited in vain. Of [`UNPROVED`]: all Connects that were refused.
    pub refused: u64,
}

/// All of them.
pub(crate) struct Accounts {
    budget_bytes: usize,
    /// By all hosts, without [`UNPROVED`].
    taken_bytes: usize,
    /// Hosts with connections.
    present: u32,
    /// Counts turns.
    turn: u64,
    in_device: u32,
    /// Those of them that take of [`DEVICE_PLACES`]: all but the first [`TICKET_PLACES_MIN`] of who came by a ticket.
    of_places: u32,
    all: Vec<Account>,
    /// Accounts with commands that wait for a buffer, in turn.
    pub waiting: VecDeque<u16>,
    /// Accounts with requests that wait for a place in the device, in turn.
    pub ready: VecDeque<u16>,
    /// Counts whatever makes room for somebody.
    pub releases: u64,
}

impl Accounts {
    /// Hosts together hold at most `budget_bytes` of buffers.
    pub fn new(budget_bytes: usize) -> Self {
        Accounts {
            budget_bytes,
            taken_bytes: 0,
            present: 0,
            turn: 1,
            in_device: 0,
            of_places: 0,
            all: vec![Account::default()],
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            releases: 0,
        }
    }

    pub fn of(&self, account: u16) -> &Account {
        &self.all[usize::from(account)]
    }

    /// A connection is an account's from now on.
    pub fn connected(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.connections += 1;
        self.present += u32::from(account != UNPROVED && of.connections == 1);
        if let Some(issuer) = of.issuer {
            self.all[usize::from(issuer)].by_tickets.connections += 1;
        }
    }

    /// A connection is an account's no more.
    pub fn disconnected(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        debug_assert!(of.connections > 0);
        of.connections = of.connections.saturating_sub(1);
        self.present -= u32::from(account != UNPROVED && of.connections == 0);
        if let Some(issuer) = of.issuer {
            self.all[usize::from(issuer)].by_tickets.connections -= 1;
        }
    }

    /// The device runs: everybody's turn begins anew.
    #[inline]
    pub fn next_turn(&mut self) {
        self.turn += 1;
    }

    #[inline]
    pub fn has_sent(&mut self, account: u16, bytes: usize) {
        let turn = self.turn;
        let sent = &mut self.all[usize::from(account)].sent;
        *sent = if sent.0 == turn { (turn, sent.1 + bytes) } else { (turn, bytes) };
    }

    #[inline]
    pub fn has_had_its_turn(&self, account: u16) -> bool {
        let (turn, bytes) = self.all[usize::from(account)].sent;
        turn == self.turn && bytes >= SENT_A_TURN_BYTES_MAX
    }

    /// Whether hosts have to share: more than one has connections.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.present > 1
    }

    /// All that belong to somebody, [`UNPROVED`] first.
    pub fn all(&self) -> impl Iterator<Item = (u16, &Account)> {
        (0..).zip(&self.all).filter(|(number, one)| *number == UNPROVED || !one.name.is_empty())
    }

    pub fn of_mut(&mut self, account: u16) -> &mut Account {
        &mut self.all[usize::from(account)]
    }

    /// Connections of hosts, without [`UNPROVED`].
    pub fn host_connections(&self) -> usize {
        self.all[1..].iter().map(|one| one.connections as usize).sum()
    }

    /// Connections of a host, with those that came by its tickets.
    pub fn connections_of(&self, name: &str) -> usize {
        let of = self.find(name).map(|account| self.of(account));
        of.map_or(0, |of| of.connections as usize + of.by_tickets.connections as usize)
    }

    /// Bytes that all accounts hold.
    pub fn held_bytes(&self) -> usize {
        self.taken_bytes + self.all[usize::from(UNPROVED)].taken_bytes
    }

    /// The account of the host of this name.
    pub fn find(&self, name: &str) -> Option<u16> {
        self.all.iter().position(|one| !one.name.is_empty() && one.name == name).map(|place| place as u16)
    }

    /// The account of a host, made where there is none. `issuer`: the account of the host by whose ticket it came. There are never more of
    /// them than connections that hold something.
    pub fn open(&mut self, name: &str, issuer: Option<u16>) -> u16 {
        let idle = |one: &Account| {
            let own = one.connections == 0 && one.taken_bytes == 0 && one.in_device == 0;
            own && one.by_tickets == ByTickets::default()
        };
        if let Some(known) = self.find(name) {
            let of = &mut self.all[usize::from(known)];
            if idle(of) {
                of.issuer = issuer;
            }
            return known;
        }
        let free = self.all.iter().skip(1).position(idle).map(|place| place + 1);
        let place = free.unwrap_or_else(|| {
            self.all.push(Account::default());
            self.all.len() - 1
        });
        debug_assert!(self.all[place].waiting.is_empty() && self.all[place].ready.is_empty());
        self.all[place] = Account { name: name.to_owned(), issuer, ..Account::default() };
        place as u16
    }

    /// Whether a buffer that is `bytes` long in all may be taken by a host.
    #[inline]
    pub fn admits(&self, account: u16, bytes: usize, used_for: Use) -> bool {
        let Some(left) = self.budget_bytes.saturating_sub(self.taken_bytes).checked_sub(bytes) else { return false };
        let of = &self.all[usize::from(account)];
        let taken = of.taken_bytes;
        let held = match used_for {
            Use::Fetch => (taken + bytes).saturating_mul(2),
            Use::Answer => taken + bytes,
        };
        match of.issuer {
            None if taken > 0 => held <= left,
            None => bytes <= SMALL_BUFFER_BYTES || left >= self.budget_bytes / RESERVE_PART,
            Some(issuer) => {
                let together = self.all[usize::from(issuer)].by_tickets.taken_bytes + bytes;
                match taken {
                    0 => bytes <= SMALL_BUFFER_BYTES || together <= left,
                    _ => held <= left.saturating_sub(together) / 2,
                }
            }
        }
    }

    /// Whether a connection that proved nothing, and holds `held` bytes, may take `bytes` more.
    pub fn admits_unproved(&self, held: usize, bytes: usize) -> bool {
        let all = self.all[usize::from(UNPROVED)].taken_bytes;
        let first = held == 0 && bytes <= SMALL_BUFFER_BYTES;
        held + bytes <= UNPROVED_CONNECTION_BYTES_MAX && (first || all + bytes <= UNPROVED_BYTES_MAX)
    }

    /// So much was taken.
    #[inline]
    pub fn take(&mut self, account: u16, bytes: usize) {
        let of = &mut self.all[usize::from(account)];
        of.taken_bytes += bytes;
        if let Some(issuer) = of.issuer {
            self.all[usize::from(issuer)].by_tickets.taken_bytes += bytes;
        }
        if account != UNPROVED {
            self.taken_bytes += bytes;
        }
    }

    /// So much was given back.
    #[inline]
    pub fn give(&mut self, account: u16, bytes: usize) {
        let of = &mut self.all[usize::from(account)];
        debug_assert!(of.taken_bytes >= bytes, "{bytes} bytes are given back of {}", of.taken_bytes);
        of.taken_bytes = of.taken_bytes.saturating_sub(bytes);
        if let Some(issuer) = of.issuer {
            let together = &mut self.all[usize::from(issuer)].by_tickets.taken_bytes;
            *together = together.saturating_sub(bytes);
        }
        if account != UNPROVED {
            self.taken_bytes = self.taken_bytes.saturating_sub(bytes);
        }
        self.releases += 1;
    }

    /// Whether a host may have one more request in the device. Those that wait go first.
    #[inline]
    pub fn has_place(&self, account: u16) -> bool {
        let of = &self.all[usize::from(account)];
        let left = DEVICE_PLACES.saturating_sub(self.of_places);
        if let Some(issuer) = of.issuer {
            let left = left.saturating_sub(self.all[usize::from(issuer)].by_tickets.in_device) / 2;
            return of.in_device < TICKET_PLACES_MIN + left.min(DEVICE_PLACES_BESIDE_OTHERS - TICKET_PLACES_MIN);
        }
        let most = if self.is_shared() { left.min(DEVICE_PLACES_BESIDE_OTHERS) } else { left };
        of.in_device < DEVICE_PLACES_MIN || of.in_device < most
    }

    /// A request went into the device.
    #[inline]
    pub fn entered_device(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.in_device += 1;
        self.in_device += 1;
        match of.issuer {
            None => self.of_places += 1,
            Some(issuer) if of.in_device > TICKET_PLACES_MIN => {
                self.of_places += 1;
                self.all[usize::from(issuer)].by_tickets.in_device += 1;
            }
            Some(_) => {}
        }
    }

    /// A request came out of the device.
    #[inline]
    pub fn left_device(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        debug_assert!(of.in_device > 0);
        of.in_device = of.in_device.saturating_sub(1);
        self.in_device = self.in_device.saturating_sub(1);
        match of.issuer {
            None => self.of_places -= 1,
            Some(issuer) if of.in_device >= TICKET_PLACES_MIN => {
                self.of_places -= 1;
                self.all[usize::from(issuer)].by_tickets.in_device -= 1;
            }
            Some(_) => {}
        }
    }

    /// Requests of all hosts that are in the device.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Lets a command wait for a buffer.
    pub fn wait(&mut self, account: u16, waiting: Waiting) {
        let of = &mut self.all[usize::from(account)];
        of.waited += 1;
        of.waiting.push_back(waiting);
        if of.waiting.len() == 1 {
            self.waiting.push_back(account);
        }
    }

    /// Lets a request wait for a place in the device.
    pub fn hold(&mut self, account: u16, ready: Ready) {
        let of = &mut self.all[usize::from(account)];
        of.waited += 1;
        of.ready.push_back(ready);
        if of.ready.len() == 1 {
            self.ready.push_back(account);
        }
    }

    /// Forgets what waits for a connection, or for one command of it; the requests come back.
    pub fn forget(&mut self, account: u16, connection: ConnectionId, place: Option<u16>) -> Vec<Ready> {
        let is_it = |of: ConnectionId, at: u16| of == connection && place.is_none_or(|place| place == at);
        let of = &mut self.all[usize::from(account)];
        let (waited, held) = (!of.waiting.is_empty(), !of.ready.is_empty());
        of.waiting.retain(|one| !is_it(one.connection, one.place));
        let mut out = Vec::new();
        if of.ready.iter().any(|one| is_it(one.connection, one.place)) {
            let (gone, kept) = of.ready.drain(..).partition::<Vec<_>, _>(|one| is_it(one.connection, one.place));
            (out, of.ready) = (gone, kept.into());
        }
        if waited && of.waiting.is_empty() {
            self.waiting.retain(|one| *one != account);
        }
        if held && of.ready.is_empty() {
            self.ready.retain(|one| *one != account);
        }
        self.releases += 1;
        out
    }

    /// Requests that wait for a place in the device.
    pub fn held_requests(&self) -> usize {
        self.ready.iter().map(|account| self.of(*account).ready.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A host with a connection.
    fn host(accounts: &mut Accounts, name: &str) -> u16 {
        let account = accounts.open(name, None);
        accounts.connected(account);
        account
    }

    #[test]
    fn who_holds_most_leaves_as_much_for_others() {
        let mut accounts = Accounts::new(512 * MIB);
        let greedy = host(&mut accounts, "greedy");
        while accounts.admits(greedy, 4 * MIB, Use::Fetch) {
            accounts.take(greedy, 4 * MIB);
        }
        assert_eq!(accounts.of(greedy).taken_bytes / MIB, 168, "a third waits for data");
        while accounts.admits(greedy, 4 * MIB, Use::Answer) {
            accounts.take(greedy, 4 * MIB);
        }
        assert_eq!(accounts.of(greedy).taken_bytes / MIB, 256);
        let other = host(&mut accounts, "other");
        assert!(accounts.admits(other, 4 * MIB, Use::Fetch));
        // However many are greedy, one that holds nothing gets a small buffer.
        for number in 0..1000 {
            let one = host(&mut accounts, &format!("greedy {number}"));
            while accounts.admits(one, 65536, Use::Answer) {
                accounts.take(one, 65536);
            }
        }
        assert!(!accounts.admits(other, 4 * MIB, Use::Answer));
        assert!(accounts.admits(other, SMALL_BUFFER_BYTES, Use::Fetch));
        assert!(accounts.held_bytes() <= 512 * MIB);
    }

    #[test]
    fn strangers_are_bounded_each_and_together() {
        let mut accounts = Accounts::new(512 * MIB);
        let mut held = Vec::new();
        for _ in 0..UNPROVED_CONNECTIONS_MAX {
            let mut own = 0;
            while accounts.admits_unproved(own, 8192) {
                accounts.take(UNPROVED, 8192);
                own += 8192;
            }
            assert!((8192..=UNPROVED_CONNECTION_BYTES_MAX).contains(&own));
            held.push(own);
        }
        let all: usize = held.iter().sum();
        assert!(all <= UNPROVED_BYTES_MAX + UNPROVED_CONNECTIONS_MAX * SMALL_BUFFER_BYTES, "{all}");
        let host = accounts.open("host", None);
        assert!(accounts.admits(host, 4 * MIB, Use::Fetch), "hosts have what is theirs");
    }

    #[test]
    fn places_in_the_device_are_shared_the_same_way() {
        let mut accounts = Accounts::new(512 * MIB);
        let one = host(&mut accounts, "one");
        let fill = |accounts: &mut Accounts, account| {
            while accounts.has_place(account) {
                accounts.entered_device(account);
            }
            accounts.of(account).in_device
        };
        assert_eq!(fill(&mut accounts, one), DEVICE_PLACES / 2, "alone");
        // Beside others nobody has more in front of them than this of each.
        let other = host(&mut accounts, "other");
        assert_eq!(fill(&mut accounts, other), DEVICE_PLACES_BESIDE_OTHERS);
        (0..DEVICE_PLACES / 2 - DEVICE_PLACES_BESIDE_OTHERS).for_each(|_| accounts.left_device(one));
        assert!(!accounts.has_place(one));
        accounts.left_device(one);
        assert!(accounts.has_place(one));
        for number in 0..100 {
            let another = host(&mut accounts, &format!("another {number}"));
            assert!(fill(&mut accounts, another) >= DEVICE_PLACES_MIN);
        }
        assert!(accounts.in_device() <= DEVICE_PLACES + 100 * DEVICE_PLACES_MIN);
        accounts.disconnected(other);
    }

    /// Somebody who came by a ticket of a host.
    fn by_ticket(accounts: &mut Accounts, number: usize, issuer: u16) -> u16 {
        let account = accounts.open(&format!("ticket {number}"), Some(issuer));
        accounts.connected(account);
        account
    }

    #[test]
    fn all_who_come_by_one_hosts_tickets_leave_others_as_much() {
        let mut accounts = Accounts::new(512 * MIB);
        let (issuer, other) = (host(&mut accounts, "issuer"), host(&mut accounts, "other"));
        let mut tickets = Vec::new();
        for number in 0..1000 {
            let one = by_ticket(&mut accounts, number, issuer);
            while accounts.has_place(one) {
                accounts.entered_device(one);
            }
            for (bytes, used_for) in [(4 * MIB, Use::Fetch), (4 * MIB, Use::Answer), (65536, Use::Answer)] {
                while accounts.admits(one, bytes, used_for) {
                    accounts.take(one, bytes);
                }
            }
            tickets.push(one);
        }
        let first = accounts.of(tickets[0]);
        assert_eq!((first.taken_bytes / MIB, first.in_device), (128, DEVICE_PLACES_BESIDE_OTHERS), "a quarter for one");
        assert!((200 * MIB..=256 * MIB).contains(&accounts.held_bytes()), "{}", accounts.held_bytes());
        // Both hosts find what they find beside one other host.
        for host in [other, issuer] {
            assert!(accounts.admits(host, 4 * MIB, Use::Fetch));
            (0..64).for_each(|_| accounts.take(host, MIB));
            assert!(accounts.admits(host, 4 * MIB, Use::Answer));
            (0..DEVICE_PLACES_BESIDE_OTHERS).for_each(|_| {
                assert!(accounts.has_place(host));
                accounts.entered_device(host);
            });
        }
        // One who comes by one more ticket goes on, too.
        let late = by_ticket(&mut accounts, 1000, issuer);
        assert!(accounts.admits(late, SMALL_BUFFER_BYTES, Use::Fetch) && accounts.has_place(late));
        assert_eq!((accounts.connections_of("issuer"), accounts.connections_of("other")), (1002, 1));
        // All comes back.
        for one in tickets.into_iter().chain([late]) {
            let (bytes, requests) = (accounts.of(one).taken_bytes, accounts.of(one).in_device);
            accounts.give(one, bytes);
            (0..requests).for_each(|_| accounts.left_device(one));
            accounts.disconnected(one);
        }
        assert_eq!(accounts.of(issuer).by_tickets, ByTickets::default());
        assert_eq!(accounts.of_places, 2 * DEVICE_PLACES_BESIDE_OTHERS);
    }

    #[test]
    fn an_account_is_given_again_when_it_holds_nothing() {
        let mut accounts = Accounts::new(512 * MIB);
        let one = accounts.open("one", None);
        accounts.take(one, 100);
        let other = accounts.open("other", None);
        assert_ne!(one, other);
        assert_eq!((accounts.open("one", None), accounts.find("nobody")), (one, None));
        accounts.give(one, 100);
        assert_eq!(accounts.open("third", None), one);
        assert_eq!(accounts.find("one"), None);
        // Not while somebody is there who came by its ticket.
        let ticket = by_ticket(&mut accounts, 0, other);
        let fourth = host(&mut accounts, "fourth");
        assert!(![other, ticket].contains(&fourth));
        accounts.disconnected(ticket);
        assert_eq!((host(&mut accounts, "fifth"), accounts.open("sixth", None)), (ticket, other));
    }
}
