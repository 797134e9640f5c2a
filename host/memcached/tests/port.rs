//! The engine and the server over a way to the device that says what the test wants: ends that a device has seldom.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use willow_memcached::engine::Engine;
use willow_memcached::port::{Completion, End, Operation, Port, PortError, SPUS_UNKNOWN};
use willow_memcached::{Server, ServerConfig};
use willow_wire::spec::kv::Key;

/// Answers sweeps as it was told, and has something to send for ever.
struct Scripted {
    spus: u16,
    answers: VecDeque<(End, u32)>,
    /// The processor and the bucket of each sweep.
    sweeps: Vec<(u16, u32)>,
    ended: Vec<Completion>,
    // A socket that takes what is written, and from which nothing comes.
    socket: UnixStream,
    _other: UnixStream,
    has_output: bool,
    woken: Arc<AtomicBool>,
}

impl Scripted {
    fn new(spus: u16, answers: &[(End, u32)]) -> Self {
        let (socket, other) = UnixStream::pair().expect("a pair of sockets");
        Scripted {
            spus,
            answers: answers.iter().copied().collect(),
            sweeps: Vec::new(),
            ended: Vec::new(),
            socket,
            _other: other,
            has_output: false,
            woken: Arc::default(),
        }
    }
}

impl Port for Scripted {
    fn spus(&self) -> u16 {
        self.spus
    }

    fn groups(&self) -> u16 {
        1
    }

    fn group_of(&self, _key: &Key) -> u16 {
        0
    }

    fn value_bytes_max(&self) -> usize {
        1 << 20
    }

    fn submit(&mut self, tag: u32, operation: &Operation, _now_s: u32, _value: &[&[u8]]) -> bool {
        let Operation::Sweep { spu, from } = *operation else { panic!("{operation:?}") };
        self.sweeps.push((spu, from));
        if let Some((end, result)) = self.answers.pop_front() {
            self.ended.push(Completion { result, ..Completion::of(tag, end) });
        }
        true
    }

    fn send(&mut self) {}

    fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), PortError> {
        into.append(&mut self.ended);
        Ok(())
    }

    fn value(&self, _value: u32, _at: usize, _bytes: usize, _into: &mut Vec<u8>) -> bool {
        false
    }

    fn give_back(&mut self, _value: u32) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wants_to_write(&self) -> bool {
        self.has_output
    }

    fn ask(&mut self) -> bool {
        false
    }

    fn woken(&mut self) -> Result<(), PortError> {
        self.woken.store(true, Ordering::SeqCst);
        self.has_output = false;
        Ok(())
    }
}

/// The sweeps that come of these answers, and of the time a second before the next round and that of the round.
fn sweeps(spus: u16, answers: &[(End, u32)]) -> (Vec<(u16, u32)>, usize) {
    let mut engine = Engine::new(Scripted::new(spus, answers), true, 1 << 20);
    let mut now = Instant::now() + Duration::from_secs(1);
    for _ in answers {
        engine.sweep(now);
        engine.pump(1).expect("the port is there");
        now += Duration::from_secs(1);
    }
    let count = engine.port().sweeps.len();
    engine.sweep(now + Duration::from_secs(57));
    let too_early = engine.port().sweeps.len() - count;
    engine.sweep(now + Duration::from_secs(60));
    (std::mem::take(&mut engine.port().sweeps), too_early)
}

/// A device without room for a sweep gets the same one again; a processor that fails does not keep those behind it from being swept.
#[test]
fn sweeps_go_on_where_they_were() {
    let answers = [
        (End::Done, 7),
        (End::Busy, 0),
        (End::Busy, 99),
        (End::Done, 0),
        (End::Failed, 5),
        (End::Busy, 0),
        (End::Done, 0),
    ];
    let expected = vec![(0, 0), (0, 7), (0, 7), (0, 7), (1, 0), (2, 0), (2, 0), (0, 0)];
    assert_eq!(sweeps(3, &answers), (expected, 0));
    // Where it is not told how many there are, the first that fails is none.
    let answers = [(End::Done, 7), (End::Busy, 0), (End::Done, 0), (End::Failed, 0)];
    let expected = vec![(0, 0), (0, 7), (0, 7), (1, 0), (0, 0)];
    assert_eq!(sweeps(SPUS_UNKNOWN, &answers), (expected, 0));
}

/// The thread is woken when the device takes more of what is to be sent, though nothing comes from it.
#[test]
fn what_the_device_did_not_take_goes_on_when_it_does() {
    let port = Scripted { has_output: true, ..Scripted::new(1, &[]) };
    let woken = Arc::clone(&port.woken);
    let mut port = Some(port);
    let mut server =
        Server::bind(ServerConfig::default(), move || port.take().ok_or(PortError("gone".to_owned()))).expect("serves");
    let stopper = server.stopper();
    std::thread::scope(|scope| {
        let running = scope.spawn(move || server.run());
        let started = Instant::now();
        while !woken.load(Ordering::SeqCst) && started.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stopper.stop();
        running.join().expect("does not panic").expect("ends cleanly");
    });
    assert!(woken.load(Ordering::SeqCst), "its descriptor was not polled for room");
}
