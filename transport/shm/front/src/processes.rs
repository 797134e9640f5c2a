//! The processes that have connected: a number for each, which their endpoints' ids carry in their high-order bits.
//!
//! What always holds: two processes never have the same number at the same time; a process is told from another by what the
//! kernel says of it, so that one that takes over a dead one's process id gets nothing of it.

use std::collections::BTreeMap;
use willow_shm::socket::Peer;

/// Numbers that there are: 19 bits of an endpoint's id.
const NUMBERS: u32 = 1 << 19;

/// A process.
pub(crate) struct Process {
    /// In the ids of its endpoints.
    pub number: u32,
    /// Connections that it has.
    pub connections: usize,
    pub peer: Peer,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Processes {
    known: BTreeMap<(u64, u64), Process>,
    last: u32,
}

impl Processes {
    /// Counts a connection of a process in; true where the process is new.
    pub fn enter(&mut self, peer: Peer) -> ((u64, u64), bool) {
        let key = peer.identity();
        if let Some(process) = self.known.get_mut(&key) {
            process.connections += 1;
            return (key, false);
        }
        // Connections are far fewer than numbers.
        let mut number = self.last;
        loop {
            number = number % (NUMBERS - 1) + 1;
            if !self.known.values().any(|process| process.number == number) {
                break;
            }
        }
        self.last = number;
        self.known.insert(key, Process { number, connections: 1, peer });
        (key, true)
    }

    /// Counts a connection out; the process, where it was its last.
    pub fn leave(&mut self, key: (u64, u64)) -> Option<Process> {
        let process = self.known.get_mut(&key)?;
        process.connections -= 1;
        if process.connections == 0 { self.known.remove(&key) } else { None }
    }

    pub fn get(&self, key: (u64, u64)) -> Option<&Process> {
        self.known.get(&key)
    }

    /// The process of a number.
    pub fn of_number(&self, number: u32) -> Option<((u64, u64), &Process)> {
        self.known.iter().find(|(_, process)| process.number == number).map(|(key, process)| (*key, process))
    }

    /// The next ones of these users, at most so many, in the order of their numbers and beginning behind this one, going round: numbers and processes.
    pub fn next_of(&self, owner: u32, after: u32, most: usize) -> Vec<(u32, i32)> {
        let of_them = self.known.values().filter(|process| [0, owner].contains(&process.peer.uid));
        let mut all: Vec<(u32, i32)> = of_them.map(|process| (process.number, process.peer.pid)).collect();
        all.sort_unstable_by_key(|(number, _)| number.wrapping_sub(after + 1));
        all.truncate(most);
        all
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: i32) -> Peer {
        Peer { pid, uid: 0, gid: 0, process: None }
    }

    #[test]
    fn a_number_names_one_process_for_as_long_as_it_is_connected() {
        let mut processes = Processes::default();
        // Processes that do not exist: told apart by their ids alone.
        let (one, new) = processes.enter(peer(0x7fff_0001));
        assert!(new);
        let (again, new) = processes.enter(peer(0x7fff_0001));
        assert!(!new && again == one);
        let (other, _) = processes.enter(peer(0x7fff_0002));
        let numbers = |processes: &Processes| [one, other].map(|key| processes.get(key).map(|process| process.number));
        assert_eq!(numbers(&processes), [Some(1), Some(2)]);
        assert!(processes.leave(one).is_none());
        assert_eq!(processes.leave(one).map(|process| process.number), Some(1));
        assert_eq!(numbers(&processes), [None, Some(2)]);
        // All numbers are gone through before one is used again.
        processes.last = NUMBERS - 1;
        let (third, _) = processes.enter(peer(0x7fff_0003));
        assert_eq!(processes.get(third).map(|process| process.number), Some(1));
        let (fourth, _) = processes.enter(peer(0x7fff_0004));
        assert_eq!(processes.get(fourth).map(|process| process.number), Some(3), "2 is in use");
        assert_eq!(processes.of_number(3).map(|(key, _)| key), Some(fourth));
        assert_eq!(processes.len(), 3);
        let looked_at = |after, most| {
            processes.next_of(1000, after, most).into_iter().map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!([looked_at(0, 2), looked_at(2, 2), looked_at(3, 9)], [vec![1, 2], vec![3, 1], vec![1, 2, 3]]);
    }
}
