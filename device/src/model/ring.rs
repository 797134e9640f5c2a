//! The token ring (Willow, section 3; XSSD, 6.2): one station sends at a time, and the token goes round to the next that
//! has something to send.
//!
//! Invariants: no two messages are on the ring at once; a station with a message gets the token after every other station has
//! had it once at most (round-robin); a station's messages go in the order in which it offered them; what goes to one station
//! arrives in the order in which it was sent. On a ring at rest, who asks first is served first, when the token has come by.

use super::parameters::RingParameters;
use super::resource::{BySize, Divisor, Fifo, Rate};
use super::statistics::ResourceStatistics;
use std::collections::VecDeque;

/// A message that waits for the token.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since_ns: u64,
    to: u16,
    bytes: u64,
    id: u32,
}

/// A message that has the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub id: u32,
    /// Receiving station.
    pub to: u16,
    /// When its station took the token.
    pub begin_ns: u64,
    /// When the token is free again.
    pub end_ns: u64,
    /// When its last bit has arrived.
    pub arrival_ns: u64,
    /// Time from the first bit's arrival to the last one's.
    pub transmission_ns: u64,
}

/// The ring.
#[derive(Debug)]
pub struct Ring {
    width_bytes: Divisor,
    cycles: Rate,
    transmissions_ns: BySize<u64>,
    round_trip_ns: Divisor,
    /// Time over so many places.
    hops_ns: Vec<u64>,
    queues: Vec<VecDeque<Waiting>>,
    waiting: usize,
    /// Station that had the token last.
    holder: usize,
    /// What was carried, and when the token is or will be free.
    carried: Fifo,
}

impl Ring {
    /// A ring of so many stations; the token starts at station 0.
    pub fn new(parameters: &RingParameters, stations: usize) -> Self {
        assert!(stations > 0);
        Ring {
            width_bytes: Divisor::new(u64::from(parameters.width_bits / 8)),
            cycles: Rate::per_s(parameters.clock_hz),
            transmissions_ns: BySize::new(),
            round_trip_ns: Divisor::new(parameters.round_trip_ns),
            hops_ns: (0..=stations as u64).map(|hops| hops * parameters.round_trip_ns / stations as u64).collect(),
            queues: (0..stations).map(|_| VecDeque::new()).collect(),
            waiting: 0,
            holder: 0,
            carried: Fifo::default(),
        }
    }

    /// Time of `bytes` on the ring.
    #[inline(always)]
    pub fn transmission_ns(&mut self, bytes: u64) -> u64 {
        self.transmissions_ns.of(bytes, |bytes| self.cycles.duration_ns(self.width_bytes.div_ceil(bytes)))
    }

    /// Places from one station to another, 1 to all of them (the own one).
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        let places = self.queues.len();
        let way = to + places - from;
        if way > places { way - places } else { way }
    }

    /// A station has a message to send, now. Where the ring is at rest it is sent at once; else it waits, and
    /// [`Ring::next`] is to be called at [`Ring::free_ns`].
    #[inline]
    pub fn offer(&mut self, now_ns: u64, from: u16, to: u16, bytes: u64, id: u32) -> Option<Sent> {
        let waiting = Waiting { since_ns: now_ns, to, bytes, id };
        if self.waiting > 0 || now_ns < self.carried.free_ns {
            self.enqueue(from, waiting);
            return None;
        }
        Some(self.send(now_ns, from as usize, waiting))
    }

    #[inline(never)]
    fn enqueue(&mut self, from: u16, waiting: Waiting) {
        self.queues[from as usize].push_back(waiting);
        self.waiting += 1;
    }

    /// The token is free: the next message, if one waits.
    #[inline(never)]
    pub fn next(&mut self, now_ns: u64) -> Option<Sent> {
        if self.waiting == 0 || now_ns < self.carried.free_ns {
            return None;
        }
        let places = self.queues.len();
        let mut station = self.holder;
        for _ in 0..places {
            station = if station + 1 >= places { 0 } else { station + 1 };
            if let Some(waiting) = self.queues[station].pop_front() {
                self.waiting -= 1;
                return Some(self.send(now_ns, station, waiting));
            }
        }
        None
    }

    /// When the token is free, or has been since.
    #[inline]
    pub fn free_ns(&self) -> u64 {
        self.carried.free_ns
    }

    /// Messages that wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    #[inline(always)]
    fn send(&mut self, now_ns: u64, station: usize, message: Waiting) -> Sent {
        // The token travels on and on while nobody takes it: it passes the station once a round.
        let mut begin_ns = self.carried.free_ns + self.hops_ns[self.distance(self.holder, station)];
        if begin_ns < now_ns {
            begin_ns = match self.round_trip_ns.get() {
                0 => now_ns,
                round_ns => begin_ns + self.round_trip_ns.div_ceil(now_ns - begin_ns) * round_ns,
            };
        }
        let transmission_ns = self.transmission_ns(message.bytes);
        let end_ns = begin_ns + transmission_ns;
        let arrival_ns = end_ns + self.hops_ns[self.distance(station, message.to as usize)];
        self.holder = station;
        self.carried.count((message.since_ns, begin_ns, end_ns), transmission_ns, message.bytes);
        Sent { id: message.id, to: message.to, begin_ns, end_ns, arrival_ns, transmission_ns }
    }

    /// Time that it has carried messages until `now_ns`.
    pub fn busy_ns(&self, now_ns: u64) -> u64 {
        self.carried.busy_ns(now_ns)
    }

    /// Its line in the statistics.
    pub fn statistics(&self, name: String, now_ns: u64) -> ResourceStatistics {
        self.carried.statistics(name, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;

    /// The prototype's ring: 128 bits at 250 MHz, 88 ns around; 9 stations.
    fn bee3() -> Ring {
        Ring::new(&RingParameters { width_bits: 128, clock_hz: 250_000_000, round_trip_ns: 88 }, 9)
    }

    #[test]
    fn a_lone_message_waits_for_the_token_and_travels() {
        let mut ring = bee3();
        let sent = ring.offer(0, 0, 4, 32, 7).unwrap();
        // The token has just left station 0: once around, two cycles of 4 ns, then 4 of 9 hops.
        assert_eq!((sent.begin_ns, sent.end_ns, sent.arrival_ns), (88, 96, 96 + 39));
        let sent = ring.offer(1000, 4, 0, 16, 8).unwrap();
        assert!(sent.begin_ns >= 1000 && sent.begin_ns < 1000 + 88);
        assert_eq!((sent.begin_ns - (96 + 39)) % 88, 0, "the token passes once a round");
    }

    #[test]
    fn a_saturated_ring_is_shared_equally_and_moves_what_its_width_and_clock_say() {
        let mut ring = bee3();
        let mut sent_by = [0u64; 9];
        let offer = |ring: &mut Ring, now_ns, station: u16| ring.offer(now_ns, station, 0, 4096, station.into());
        let mut current = offer(&mut ring, 0, 0).unwrap();
        for station in (0..9).chain(0..9) {
            assert!(offer(&mut ring, 0, station).is_none());
        }
        const ROUNDS: u64 = 200;
        let begun_ns = current.begin_ns;
        for _ in 0..9 * ROUNDS {
            let now_ns = current.end_ns;
            current = ring.next(now_ns).unwrap();
            assert!(current.begin_ns >= now_ns);
            sent_by[current.id as usize] += 1;
            assert!(offer(&mut ring, now_ns, current.id as u16).is_none());
        }
        assert_eq!(sent_by, [ROUNDS; 9]);
        // A round: nine messages of 4096 bytes at 16 bytes in 4 ns, and the token's way around, its hops rounded down.
        let round_ns = (current.end_ns - begun_ns) as f64 / (ROUNDS as f64 + 1.0 / 9.0);
        let expected_ns = 9.0 * 4096.0 / 16.0 * 4.0 + 88.0;
        assert!((round_ns - expected_ns).abs() < 9.0, "{round_ns} ns, expected {expected_ns}");
        let utilization = ring.busy_ns(current.end_ns) as f64 / current.end_ns as f64;
        assert!((utilization - (expected_ns - 88.0) / expected_ns).abs() < 0.01, "{utilization}");
    }

    /// Random offers: no overlap, order kept by sender and by receiver, nobody is passed over twice.
    #[test]
    fn random_traffic_keeps_the_rules() {
        for seed in 0..30 {
            let mut random = Random::new(seed);
            let mut ring = bee3();
            let (mut now_ns, mut next_id, mut last_end_ns) = (0, 0u32, 0);
            let mut senders = Vec::new();
            let mut arrived: Vec<u64> = vec![0; 9];
            let mut last_of_sender: Vec<i64> = vec![-1; 9];
            let mut passed = [0; 9];
            let mut done = 0;
            while done < 2000 {
                let mut sent = None;
                if random.below(2) == 0 || ring.waiting() == 0 {
                    now_ns += random.below(if seed % 2 == 0 { 40 } else { 400 });
                    let (from, to) = (random.below(9) as u16, random.below(9) as u16);
                    if ring.waiting() > 0 && now_ns >= ring.free_ns() {
                        now_ns = ring.free_ns();
                        sent = ring.next(now_ns);
                    } else {
                        senders.push(from);
                        sent = ring.offer(now_ns, from, to, 1 + random.below(5000), next_id).or(sent);
                        next_id += 1;
                    }
                } else {
                    now_ns = now_ns.max(ring.free_ns());
                    sent = ring.next(now_ns);
                }
                let Some(sent) = sent else { continue };
                done += 1;
                assert!(sent.begin_ns >= last_end_ns && sent.begin_ns >= now_ns, "one sender at a time");
                last_end_ns = sent.end_ns;
                let from = senders[sent.id as usize] as usize;
                assert!(last_of_sender[from] < i64::from(sent.id), "a station's messages keep their order");
                last_of_sender[from] = sent.id.into();
                assert!(arrived[sent.to as usize] <= sent.arrival_ns, "and so do those to a station");
                arrived[sent.to as usize] = sent.arrival_ns;
                for (station, queue) in ring.queues.iter().enumerate() {
                    passed[station] = if station == from || queue.is_empty() { 0 } else { passed[station] + 1 };
                    assert!(passed[station] <= 9, "station {station} was passed over");
                }
            }
        }
    }
}
