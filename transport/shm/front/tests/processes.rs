//! Processes of this machine against a real device on a real server: honest ones get what they ask for, whatever others do
//! to their own memory, their sockets and themselves.

mod common;

use common::*;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use willow_host::control::{CommandSet, ControlClient, NamespaceRequest};
use willow_host::{BlockClient, Hre, HreError, KvClient, RpcCall, ShmHre, ShmOptions, StoreCondition};
use willow_shm::layout::{AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, Call, Command, Operation, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::{Kind, Opened, Response, encode};
use willow_shm::ring::{Endpoint, EndpointError};
use willow_shm::socket::{Channel, MESSAGE_BYTES_MAX, ReceiveError};

#[test]
fn blocks_pairs_and_calls_go_through_shared_memory() {
    let running = serve();
    let hre = endpoint(&running.path);
    assert!(hre.is_kernel(), "whoever runs the device is trusted by it");
    let blocks = wait(BlockClient::open(hre.clone(), 1)).unwrap();
    let mut random = Random(3);
    let mut model = vec![0u8; 4 << 20];
    for step in 0..300 {
        let first = random.below(1000) * BLOCK;
        let bytes =
            ((1 + random.below(if step % 10 == 0 { 1000 } else { 20 })) * BLOCK).min(model.len() as u64 - first);
        let range = first as usize..(first + bytes) as usize;
        match random.below(5) {
            0..=1 => {
                let data: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
                model[range].copy_from_slice(&data);
                wait(blocks.write(first, data, step % 2 == 0)).unwrap();
            }
            2 => {
                wait(blocks.deallocate(&[(first, bytes)])).unwrap();
                model[range].fill(0);
            }
            _ => assert!(wait(blocks.read(first, bytes as usize)).unwrap() == model[range], "step {step}"),
        }
    }
    wait(blocks.flush()).unwrap();
    let ranges: Vec<(u64, u64)> = (0..256).map(|index| (index * 2 * BLOCK, BLOCK)).collect();
    wait(blocks.deallocate(&ranges)).unwrap();
    ranges.iter().for_each(|(first, bytes)| model[*first as usize..(first + bytes) as usize].fill(0));
    assert!(wait(blocks.read(0, model.len())).unwrap() == model);
    assert!(matches!(wait(blocks.compare(0, vec![1; 4096])), Err(HreError::CompareFailed)));
    assert!(matches!(wait(blocks.read(64 << 20, 4096)), Err(HreError::OutOfRange)));
    let pairs = wait(KvClient::open(hre.clone(), 2)).unwrap();
    for key in 0..50u32 {
        wait(pairs.store(&key.to_be_bytes(), vec![key as u8; 1000 + key as usize], StoreCondition::Always)).unwrap();
    }
    assert_eq!(wait(pairs.retrieve(&7u32.to_be_bytes())).unwrap(), Some(vec![7; 1007]));
    assert_eq!(wait(pairs.retrieve(b"none")).unwrap(), None);
    let call = RpcCall { app: 77, handler: 1, spu: Some(0), ..RpcCall::default() };
    assert!(matches!(wait(hre.rpc(call)), Err(HreError::NoApp(77))));
    // Namespaces made meanwhile are seen, and one that was deleted is not written to.
    let control = ControlClient::new(hre.clone());
    let request = NamespaceRequest::new(CommandSet::Nvm, 1 << 20);
    let nsid = wait(control.create_namespace(&request)).unwrap();
    let third = wait(BlockClient::open(hre.clone(), nsid)).unwrap();
    wait(third.write(0, vec![1; 4096], false)).unwrap();
    wait(control.delete_namespace(nsid)).unwrap();
    assert!(matches!(wait(third.write(0, vec![1; 4096], false)), Err(HreError::Namespace { .. })));
}

#[test]
fn items_go_in_and_out_over_shared_memory() {
    let running = serve();
    wait(willow_host::testing::items::items_are_kept(endpoint(&running.path), 2, 4));
}

#[test]
fn many_at_once_and_after_pauses_are_all_answered() {
    let running = serve();
    let hre = Arc::new(
        ShmHre::open(&running.path, ShmOptions { entries: 16, data_bytes: 64 << 10, ..ShmOptions::default() }).unwrap(),
    );
    let honest = Arc::new(Honest::new(&hre, 1));
    // More tasks than the ring has places and the data area has room.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let tasks = (0..64u64).map(|task| {
            let honest = honest.clone();
            tokio::spawn(async move {
                for round in 0..20u64 {
                    let block = (task * 7 + round) % 64;
                    let came = honest.blocks.read(block * BLOCK, BLOCK as usize).await.unwrap();
                    assert!(came == honest.pattern(block));
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            tokio::time::timeout(PATIENCE, task).await.expect("in time").unwrap();
        }
    });
    // With pauses between them.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(honest.damaged(), 0);
    }
}

#[test]
fn a_device_that_has_fallen_asleep_is_rung_awake() {
    let running = serve();
    let mut host = Endpoint::open(&running.path, Kind::Any, 16, 4096).unwrap();
    for tag in 0..50 {
        let begun = Instant::now();
        while host.memory().half(AT_DEVICE_ASLEEP).load(Ordering::Acquire) == 0 {
            assert!(begun.elapsed() < PATIENCE, "{tag}: it does not fall asleep");
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(host.submit(&nothing(tag), &[]));
        host.ring();
        let completion = loop {
            match host.completion().unwrap() {
                Some(completion) => break completion,
                None => assert!(begun.elapsed() < 2 * PATIENCE, "{tag}: it sleeps on"),
            }
            host.sleep(Duration::from_secs(1)).unwrap();
        };
        assert_eq!(completion.tag, tag);
        host.show_head();
    }
}

/// A command that does nothing.
fn nothing(tag: u32) -> Command {
    let call = Call::new(0, 0, 0, &[]).unwrap();
    let (payload_offset, payload_bytes, reply_offset, reply_bytes) = (0, 0, 0, 0);
    let operation = Operation::Nothing;
    Command { tag, operation, more: 0, payload_offset, payload_bytes, reply_offset, reply_bytes, call }
}

#[test]
fn a_host_that_scribbles_over_its_memory_harms_itself_alone() {
    let running = serve();
    let hre = endpoint(&running.path);
    let honest = Honest::new(&hre, 2);
    let mut random = Random(11);
    for round in 0..40 {
        let Ok(mut hostile) = Endpoint::open(&running.path, Kind::User, 64, 64 << 10) else { panic!("round {round}") };
        let memory = hostile.memory().clone();
        let (layout, call) = (hostile.layout(), Call::new(1, 1, 0, &[0xff; 64]).unwrap());
        for _ in 0..200 {
            let operation =
                [Operation::Rpc, Operation::Abort, Operation::Receive, Operation::View][random.below(4) as usize];
            let number = |random: &mut Random| (random.below(1 << 31) as u32).wrapping_mul(2 + random.below(2) as u32);
            let command = Command {
                tag: random.below(9) as u32,
                operation,
                more: random.below(3) as u8,
                payload_offset: number(&mut random),
                payload_bytes: random.below(8192) as u32,
                reply_offset: random.below(65536) as u32,
                reply_bytes: number(&mut random) >> random.below(20),
                call,
            };
            let more = vec![call; usize::from(command.more)];
            if hostile.submit(&command, &more) {
                hostile.ring();
            }
            // Entries change after they were handed over, at any moment.
            for _ in 0..20 {
                let at = random.below(layout.data() as u64 / 8) as usize * 8;
                memory.word(at).store(random.below(u64::MAX >> 33) << 31 | random.below(1 << 31), Ordering::Relaxed);
            }
        }
        if round % 8 == 0 {
            assert_eq!(honest.damaged(), 0, "round {round}");
        }
    }
    assert_eq!(honest.damaged(), 0);
    settles(&hre, "endpoints", 1);
    // The planted twin: damage by one who may is seen by the same check.
    wait(honest.blocks.write(5 * BLOCK, vec![0; BLOCK as usize], false)).unwrap();
    assert_eq!(honest.damaged(), 1);
}

#[test]
fn one_that_claims_what_it_was_not_given_is_ended_with_the_reason() {
    let running = serve();
    let hre = endpoint(&running.path);
    let mut liar = Endpoint::open(&running.path, Kind::Any, 16, 4096).unwrap();
    let mut reason = None;
    for tag in 0..1000 {
        liar.memory().half(AT_COMPLETION_HEAD).store(1_000_000, Ordering::Release);
        liar.submit(&nothing(tag), &[]);
        liar.ring();
        // Taking completions shows the truth again: only after the device has had the time to see the lie.
        std::thread::sleep(Duration::from_millis(2));
        if let Err(error) = liar.drain() {
            reason = Some(error);
            break;
        }
        while let Ok(Some(_)) = liar.completion() {}
    }
    assert!(reason.is_some_and(|reason| reason.to_string().contains("claims completions")));
    settles(&hre, "violations", 1);
    settles(&hre, "endpoints", 1);
}

#[test]
fn senseless_commands_are_answered_as_such() {
    let running = serve();
    let mut endpoint = Endpoint::open(&running.path, Kind::Any, 64, 65536).unwrap();
    let call = Call::new(1, 1, 0, &[]).unwrap();
    let good = Command {
        tag: 1,
        operation: Operation::Nothing,
        more: 0,
        payload_offset: 0,
        payload_bytes: 0,
        reply_offset: 0,
        reply_bytes: 0,
        call,
    };
    let bad = [
        Command { payload_offset: 65536, payload_bytes: 1, ..good },
        Command { reply_offset: 1, reply_bytes: 65536, ..good },
        Command { reply_offset: u32::MAX, reply_bytes: u32::MAX, ..good },
        Command { payload_offset: u32::MAX, payload_bytes: u32::MAX, ..good },
    ];
    for (tag, command) in bad.into_iter().enumerate() {
        for (command, expected) in [(command, Outcome::Invalid), (good, Outcome::Answered)] {
            assert!(endpoint.submit(&Command { tag: tag as u32, ..command }, &[]));
            endpoint.ring();
            let begun = Instant::now();
            let completion = loop {
                if let Some(completion) = endpoint.completion().unwrap() {
                    break completion;
                }
                assert!(begun.elapsed() < PATIENCE);
                endpoint.sleep(Duration::from_secs(1)).unwrap();
            };
            assert_eq!((completion.tag, completion.outcome), (tag as u32, expected));
        }
    }
}

#[test]
fn forged_messages_are_refused_with_the_reason() {
    let running = serve();
    let hre = endpoint(&running.path);
    let long = vec![b'x'; MESSAGE_BYTES_MAX + 1];
    let open = |version: u32, entries: u32, data: u64| {
        format!(r#"{{"open":{{"version":{version},"kind":"any","entries":{entries},"data_bytes":{data}}}}}"#)
            .into_bytes()
    };
    for (message, expected) in [
        (b"!".to_vec(), "cannot be read"),
        (b"{\"hre\":1}".to_vec(), "cannot be read"),
        (br#"{"open":{"version":1,"kind":"any","entries":64,"data_bytes":4096,"uid":0}}"#.to_vec(), "uid"),
        (long, "longer than"),
        (open(2, 64, 4096), "version 2"),
        (open(1, 65, 4096), "cannot be"),
        (open(1, 64, 4097), "cannot be"),
        (open(1, 64, 1 << 40), "more than"),
    ] {
        let channel = Channel::connect(&running.path).unwrap();
        channel.send(&message, &[]).unwrap();
        let answer = channel.receive_within(PATIENCE).unwrap();
        let text = String::from_utf8(answer.bytes).unwrap();
        assert!(text.contains("refused") && text.contains(expected), "{expected}: {text}");
        assert!(matches!(channel.receive_within(PATIENCE), Err(ReceiveError::Closed)));
    }
    // An endpoint is asked for once.
    let twice = Channel::connect(&running.path).unwrap();
    for _ in 0..2 {
        twice.send(&open(1, 64, 4096), &[]).unwrap();
    }
    assert!(String::from_utf8(twice.receive_within(PATIENCE).unwrap().bytes).unwrap().contains("opened"));
    assert!(String::from_utf8(twice.receive_within(PATIENCE).unwrap().bytes).unwrap().contains("only doorbells"));
    drop(twice);
    settles(&hre, "endpoints", 1);
    assert_eq!(Honest::new(&hre, 9).damaged(), 0);
}

#[test]
fn endpoints_connections_and_memory_are_bounded() {
    let running = serve_with(|config| {
        config.endpoints_max = 6;
        config.memory_bytes_max = 64 << 20;
    });
    let hre = endpoint(&running.path);
    let open = || Endpoint::open(&running.path, Kind::User, 16, 4096);
    let mut held: Vec<Endpoint> = (0..5).map(|_| open().unwrap()).collect();
    let processes: Vec<u32> = held.iter().map(|endpoint| endpoint.opened.hre >> 12).collect();
    assert!(processes.iter().all(|process| *process == processes[0]), "one process, one number");
    assert!(held.iter().all(|endpoint| endpoint.opened.hre >> 31 == 1), "asked for as a user's");
    assert!(open().err().unwrap().to_string().contains("all 6 endpoints are in use"));
    held.pop();
    settles(&hre, "endpoints", 5);
    let large = Endpoint::open(&running.path, Kind::User, 16, 60 << 20).err().unwrap();
    assert!(large.to_string().contains("used up"), "{large}");
    held.push(open().unwrap());
    // Connections that ask for nothing.
    let idle: Vec<Channel> = (0..40).map(|_| Channel::connect(&running.path).unwrap()).collect();
    let refused = idle.iter().filter(|channel| channel.receive_within(Duration::from_millis(200)).is_ok()).count();
    assert_eq!(refused, 40 - 16);
    drop((idle, held));
    settles(&hre, "endpoints", 1);
    assert!(open().is_ok());
}

/// Longer than a process may take to ask for its endpoint: the time that the device slept is not counted against it.
#[test]
fn who_connects_after_a_long_silence_is_let_in() {
    let running = serve();
    let pause = willow_shm_front::OPEN_LIMIT + Duration::from_secs(1);
    for _ in 0..2 {
        std::thread::sleep(pause);
        assert!(wait(BlockClient::open(endpoint(&running.path), 1)).is_ok());
    }
}

#[test]
fn a_device_that_ends_is_an_error_and_no_hang() {
    let running = serve();
    let hre = endpoint(&running.path);
    let honest = Arc::new(Honest::new(&hre, 3));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let errors = runtime.block_on(async {
        // One command is on the device all the time, and others come and go.
        let waiting = hre.clone();
        let mut tasks = vec![tokio::spawn(async move { waiting.receive_upcall(10 * PATIENCE).await.unwrap_err() })];
        let (read, mut reads) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..8 {
            let (honest, read) = (honest.clone(), read.clone());
            tasks.push(tokio::spawn(async move {
                loop {
                    match honest.blocks.read(0, BLOCK as usize).await {
                        Ok(_) => drop(read.send(())),
                        Err(error) => return error,
                    }
                }
            }));
        }
        // The ring is taken in its order: with so many reads, the receive is there.
        for _ in 0..100 {
            tokio::time::timeout(PATIENCE, reads.recv()).await.expect("it serves").expect("tasks run");
        }
        let ended = tokio::task::spawn_blocking(|| drop(running));
        let mut errors = Vec::new();
        for task in tasks {
            errors.push(tokio::time::timeout(PATIENCE, task).await.expect("it does not hang").unwrap().to_string());
        }
        ended.await.unwrap();
        errors
    });
    assert!(errors.len() == 9 && errors.iter().all(|error| error.contains("ended")), "{errors:?}");
    // And what comes later.
    let error = wait(honest.blocks.read(0, 4096)).unwrap_err().to_string();
    assert!(error.contains("ended"), "{error}");
}

#[test]
fn memory_that_is_not_sealed_is_refused_by_the_host() {
    let (host, device) = Channel::pair().unwrap();
    let fake = std::thread::spawn(move || {
        device.receive_within(PATIENCE).unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&memory, 1 << 20).unwrap();
        assert!(Mapping::open(&memory, 1 << 20).is_err());
        let opened =
            Opened { hre: 1, entries: 16, data_bytes: 4096, depth: 8, transfer_bytes_max: 4096, spin_ns: 0, start: 0 };
        device.send(&encode(&Response::Opened(opened)), &[std::os::fd::AsFd::as_fd(&memory)]).unwrap();
    });
    let refused = Endpoint::open_on(host, Kind::Any, 16, 4096).err().unwrap();
    assert!(matches!(refused, EndpointError::Memory(_)), "{refused}");
    fake.join().unwrap();
}

/// Not a test by itself: what the processes do that are killed.
#[test]
fn child_that_is_killed() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let mut random = Random(u64::from(std::process::id()));
    // Blocks 1000 and up are its own, by agreement of this test.
    loop {
        let Ok(hre) = ShmHre::open(&path, ShmOptions::default()) else { continue };
        let hre: Arc<dyn Hre> = Arc::new(hre);
        let blocks = wait(BlockClient::open(hre, 1)).unwrap();
        for _ in 0..random.below(40) {
            let first = (1000 + random.below(1000)) * BLOCK;
            let data = vec![0xee; ((1 + random.below(64)) * BLOCK) as usize];
            let _ = wait(blocks.write(first, data, false));
        }
        if random.below(3) == 0 {
            let mut raw = Endpoint::open(&path, Kind::Any, 1024, 1 << 20).unwrap();
            let call = Call::new(1, 1, 0, &[]).unwrap();
            for tag in 0..300 {
                let (payload_offset, payload_bytes, reply_offset, reply_bytes) = (0, 65536, 0, 65536);
                let operation = Operation::Rpc;
                raw.submit(
                    &Command {
                        tag,
                        operation,
                        more: 0,
                        payload_offset,
                        payload_bytes,
                        reply_offset,
                        reply_bytes,
                        call,
                    },
                    &[],
                );
                raw.ring();
            }
        }
    }
}

#[test]
fn processes_killed_at_random_moments_leave_nothing_behind() {
    /// Processes at least, and commands of theirs.
    const ROUNDS: usize = 60;
    const ROUNDS_MAX: usize = 2000;
    const COMMANDS_MIN: u64 = 500;
    let running = serve();
    let hre = endpoint(&running.path);
    let honest = Honest::new(&hre, 4);
    let mut random = Random(5);
    let mut children: Vec<(Child, Instant)> = Vec::new();
    // What the killed did: on a slow machine they are killed before they have done anything, and so there are more of them.
    let (before, mut own) = (counter(&hre, "commands"), 0);
    for round in 0..ROUNDS_MAX {
        let started = child("child_that_is_killed", &running.path).spawn().unwrap();
        children.push((started, Instant::now() + Duration::from_micros(2000 + random.below(60_000))));
        let due = children.len() >= 3;
        children.retain_mut(|(child, until)| {
            if !due && Instant::now() < *until {
                return true;
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            child.kill().unwrap();
            child.wait().unwrap();
            false
        });
        if round % 10 == 0 {
            assert_eq!(honest.damaged(), 0, "round {round}");
            own += 64 + 10;
            if round >= ROUNDS && counter(&hre, "commands") > before + own + COMMANDS_MIN {
                break;
            }
        }
    }
    children.into_iter().for_each(|(mut child, _)| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
    assert!(counter(&hre, "commands") > before + own + COMMANDS_MIN, "the killed did something");
    settles(&hre, "endpoints", 1);
    settles(&hre, "processes", 1);
    assert_eq!(honest.damaged(), 0);
    // The planted twin: one that lives is counted by the same check.
    let alive = Endpoint::open(&running.path, Kind::Any, 16, 4096).unwrap();
    settles(&hre, "endpoints", 2);
    drop(alive);
}

/// Not a test by itself: what a process of another user may do.
#[test]
fn child_of_another_user() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let refused = Endpoint::open(&path, Kind::Kernel, 16, 4096).err().unwrap().to_string();
    assert!(refused.contains("root"), "{refused}");
    let hre = Arc::new(ShmHre::open(&path, ShmOptions::default()).unwrap());
    assert!(!hre.is_kernel());
    // Neither the control service nor blocks that nobody has granted.
    assert!(wait(ControlClient::new(hre.clone()).statistics()).is_err());
    let blocks = wait(BlockClient::open(hre, 1)).unwrap();
    assert!(matches!(wait(blocks.read(0, 4096)), Err(HreError::NotPermitted)));
    assert!(matches!(wait(blocks.write(0, vec![0; 4096], false)), Err(HreError::NotPermitted)));
}

/// This program where other users can run it too; removed in the end.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let copy = std::env::temp_dir().join(format!("willow-shm-{name}-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        Copy(copy)
    }

    /// One of the functions here that are no tests, as a process of a user.
    fn child(&self, name: &str, user: u32, path: &Path) -> Process {
        let mut command = Process::new(&self.0);
        command.args(["--exact", name, "--nocapture"]).env(CHILD, path).uid(user).gid(user).current_dir("/");
        command
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// It has ended well, and did something.
fn ended_well(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn another_user_gets_an_endpoint_of_his_own_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        let why = "only root can run a process as another user";
        return willow_skip::skip("another_user_gets_an_endpoint_of_his_own_and_no_more", why);
    }
    let running = serve();
    let hre = endpoint(&running.path);
    let honest = Honest::new(&hre, 6);
    let copy = Copy::new("child");
    ended_well(&copy.child("child_of_another_user", 65534, &running.path).output().unwrap());
    assert_eq!(honest.damaged(), 0);
}

/// Bytes of data of an endpoint of those who share memory below.
const SHARE_BYTES: u64 = 4 << 20;

/// Not a test by itself: takes as much memory as it gets, and keeps it until it is told to end.
#[test]
fn child_that_hoards() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let mut held = Vec::new();
    let refused = loop {
        match Endpoint::open(&path, Kind::User, 16, SHARE_BYTES) {
            Ok(endpoint) => held.push(endpoint),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refused.contains("memory") && held.len() > 2, "{} endpoints: {refused}", held.len());
    println!("\nholds {}", held.len());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Not a test by itself: wants one endpoint.
#[test]
fn child_that_wants_one() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let opened = Endpoint::open(&path, Kind::User, 16, SHARE_BYTES);
    assert!(opened.is_ok(), "{}", opened.err().unwrap());
}

#[test]
fn one_users_memory_leaves_others_theirs() {
    if !rustix::process::geteuid().is_root() {
        let why = "only root can run a process as another user";
        return willow_skip::skip("one_users_memory_leaves_others_theirs", why);
    }
    let running = serve_with(|config| config.memory_bytes_max = 64 << 20);
    let copy = Copy::new("hoarder");
    let mut hoarder = copy.child("child_that_hoards", 65534, &running.path);
    let mut hoarder = hoarder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(hoarder.stdout.take().unwrap()).lines();
    let holds = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("holds")));
    let held = holds.expect("it holds some").unwrap();
    for user in [65533, 65532] {
        let other = copy.child("child_that_wants_one", user, &running.path).output().unwrap();
        assert!(other.status.success(), "{held}: {}", String::from_utf8_lossy(&other.stderr));
        ended_well(&other);
    }
    drop(hoarder.stdin.take());
    assert!(hoarder.wait().unwrap().success());
}
