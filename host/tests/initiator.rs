//! The initiator against a scripted target: data of all sizes by all ways, and what it does about each fault.

use std::sync::Arc;
use std::time::Duration;
use willow_host::hre::{BlockCommand, Hre};
use willow_host::nvme_tcp::polled::PolledController;
use willow_host::nvme_tcp::{Transfer, Via};
use willow_host::testing::{BLOCK_BYTES, BLOCKS, Behaviour, Fault, SUBSYSTEM_NQN, ScriptedTarget};
use willow_host::{AppClient, BlockClient, Controller, HreError, NvmeError, NvmeHre, Options, Retry};
use willow_wire::pdu::FatalStatus;
use willow_wire::spec::{Status, SubmissionEntry, opcode};

fn options(target: &ScriptedTarget) -> Options {
    let mut options = Options::new(target.address(), SUBSYSTEM_NQN);
    options.reconnect_delay = Duration::from_millis(5);
    options
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(180), future).await.expect("no hang") })
}

fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

async fn block(options: Options) -> (Controller, BlockClient) {
    let controller = Controller::connect(options).await.expect("connects");
    let hre = Arc::new(NvmeHre::new(controller.clone(), 0).await.expect("an endpoint"));
    let block = BlockClient::open(hre, 1).await.expect("namespace 1");
    (controller, block)
}

/// Sizes around every limit: a block, the capsule, MAXH2CDATA, R2T, MDTS.
const SIZES: [usize; 9] = [512, 4096, 4608, 8192, 16384, 16896, 65536, 131_072, 400_384];

async fn round_trips(options: Options) {
    let (controller, block) = block(options).await;
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let data = pattern(bytes, index as u32);
        let offset = index as u64 * 512;
        let back = block.write(offset, data.clone(), index % 2 == 0).await.expect("writes");
        assert_eq!(back, data, "the buffer comes back as it was");
        assert_eq!(block.read(offset, bytes).await.expect("reads"), data, "{bytes} bytes");
        block.compare(offset, data.clone()).await.expect("is equal");
        let mut other = data;
        other[bytes - 1] ^= 1;
        assert!(matches!(block.compare(offset, other).await, Err(HreError::CompareFailed)));
    }
    controller.shut_down().await.expect("shuts down");
}

#[test]
fn data_survive_all_ways_of_transfer() {
    let small = Behaviour {
        capsule_data_bytes: 0,
        host_data_bytes_max: 4096,
        transfer_bytes_max: 5000,
        data_bytes_max: 3000,
        alignment: 17,
        success_flag: false,
        ..Behaviour::default()
    };
    let trickle = Behaviour { write_bytes_max: 37, mdts: 1, capsule_data_bytes: 512, ..Behaviour::default() };
    for behaviour in [Behaviour::default(), small, trickle] {
        for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
            let target = ScriptedTarget::start(behaviour.clone()).expect("a target");
            let options = Options { header_digest, data_digest, ..options(&target) };
            run(round_trips(options));
            assert_eq!(target.terminations(), [], "{behaviour:?}");
        }
    }
}

#[test]
fn many_commands_on_many_queues() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let options = Options { queues: 3, depth: 16, ..options(&target) };
    run(async {
        let controller = Controller::connect(options).await.expect("connects");
        assert_eq!(controller.queues().await.expect("is up"), 3);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..100_u64 {
            let controller = controller.clone();
            tasks.spawn(async move {
                let hre = Arc::new(NvmeHre::new(controller, task as usize).await.expect("an endpoint"));
                let block = BlockClient::open(hre, 1).await.expect("namespace 1");
                for round in 0..20 {
                    let data = pattern(2048, (task * 100 + round) as u32);
                    block.write(task * 2048, data.clone(), false).await.expect("writes");
                    assert_eq!(block.read(task * 2048, 2048).await.expect("reads"), data);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        controller.shut_down().await.expect("shuts down");
    });
    assert_eq!(target.terminations(), []);
}

#[test]
fn everything_else_of_a_block_namespace() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    run(async {
        let (_controller, block) = block(options(&target)).await;
        assert_eq!((block.block_bytes(), block.blocks()), (BLOCK_BYTES, BLOCKS));
        block.write(0, pattern(4096, 1), false).await.expect("writes");
        block.deallocate(&[(512, 1024), (2048, 512)]).await.expect("deallocates");
        let data = block.read(0, 4096).await.expect("reads");
        assert_eq!(data[512..1536], [0; 1024]);
        assert_eq!(data[1536..2048], pattern(4096, 1)[1536..2048]);
        block.flush().await.expect("flushes");
        block.verify(0, 1 << 20).await.expect("verifies");
        block.write_zeroes(0, 1 << 20, true).await.expect("zeroes");
        assert!(matches!(block.read(1, 512).await, Err(HreError::Argument(_))));
        assert!(matches!(block.read(block.bytes(), 512).await, Err(HreError::OutOfRange)));
        assert!(matches!(block.read(u64::MAX - 511, 512).await, Err(HreError::OutOfRange)));
    });
}

#[test]
fn rpcs_go_through_the_tunnel() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    run(async {
        let controller = Controller::connect(options(&target)).await.expect("connects");
        let hre = Arc::new(NvmeHre::new(controller, 0).await.expect("an endpoint"));
        let app = AppClient::new(hre.clone(), 5);
        let reply = app.send(3, None, pattern(10_000, 1)).await.expect("sends");
        assert_eq!((reply.status, reply.result), (7, 10_000));
        let reply = app.call(3, Some(1), b"abc", 48).await.expect("calls");
        assert_eq!(reply.data[..4], *b"abc\0");
        assert_eq!(reply.data[24..28], *b"abc\0");
        assert!(matches!(app.call(3, None, &[0; 25], 8).await, Err(HreError::Argument(_))));
        let call = willow_host::RpcCall { payload: vec![1], reply_bytes_max: 4, ..Default::default() };
        assert!(matches!(hre.rpc(call).await, Err(HreError::Argument(_))));
        assert_eq!(hre.receive_upcall(Duration::from_millis(1)).await.expect("receives"), None);
        for (status, expected) in
            [(1, "no app number 5"), (2, "no handler 3"), (4, "no room"), (5, "ended"), (6, "not permitted")]
        {
            target.fault(Fault::Status(Status::new(7, status)));
            let error = app.send(3, None, vec![]).await.expect_err("is refused");
            assert!(error.to_string().contains(expected), "{error}");
        }
    });
}

/// A read or write that meets a fault, without retries.
fn meets(fault: Fault, digests: bool, write: bool) -> (HreError, ScriptedTarget) {
    let behaviour = Behaviour { capsule_data_bytes: 0, ..Behaviour::default() };
    let target = ScriptedTarget::start(behaviour).expect("a target");
    let options = Options {
        header_digest: digests,
        data_digest: digests,
        // Soon, where it is to be seen: what is answered is not to be late on a busy machine.
        command_timeout: match fault {
            Fault::Stall | Fault::StallForGood => Duration::from_millis(500),
            _ => Duration::from_secs(60),
        },
        ..options(&target)
    };
    let error = run(async {
        let (_controller, block) = block(options).await;
        target.fault(fault);
        let outcome = match write {
            true => block.write(0, pattern(4096, 1), false).await.map(|_| ()),
            false => block.read(0, 4096).await.map(|_| ()),
        };
        let error = outcome.expect_err("meets the fault");
        // Whatever it was: the next command works, on the same connection or a new one.
        let data = pattern(4096, 2);
        let mut written = block.write(0, data.clone(), false).await;
        for _ in 0..5000 {
            if written.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            written = block.write(0, data.clone(), false).await;
        }
        written.expect("works again");
        assert_eq!(block.read(0, 4096).await.expect("works again"), data);
        error
    });
    (error, target)
}

#[test]
fn a_broken_connection_is_an_error_and_is_made_anew() {
    for fault in [Fault::Disconnect, Fault::DisconnectInHeader] {
        let (error, target) = meets(fault, false, false);
        assert!(matches!(error, HreError::Nvme(NvmeError::ConnectionLost { queue: 1, .. })), "{fault:?}: {error}");
        assert_eq!(target.connections(), 4, "admin and I/O queue, twice");
    }
}

#[test]
fn protocol_violations_end_the_connection_with_the_right_termination() {
    use FatalStatus::*;
    let cases = [
        (Fault::WrongCid, false, false, InvalidHeaderField as u16, 20),
        (Fault::DataPastEnd, false, false, DataOutOfRange as u16, 16),
        (Fault::DataPastEnd, false, true, DataOutOfRange as u16, 16),
        (Fault::TransferPastEnd, false, true, DataOutOfRange as u16, 16),
        (Fault::TransferPastEnd, false, false, DataOutOfRange as u16, 16),
        (Fault::BadType, false, false, InvalidHeaderField as u16, 0),
    ];
    for (fault, digests, write, status, information) in cases {
        let (error, target) = meets(fault, digests, write);
        assert!(matches!(error, HreError::Nvme(NvmeError::Protocol { .. })), "{fault:?}: {error}");
        let got = target.terminations();
        assert_eq!(got.len(), 1, "{fault:?}");
        assert_eq!((got[0].status, got[0].information), (status, information), "{fault:?}");
    }
    let (error, target) = meets(Fault::CorruptHeaderDigest, true, false);
    assert!(matches!(error, HreError::Nvme(NvmeError::Protocol { .. })), "{error}");
    assert_eq!(target.terminations()[0].status, HeaderDigestError as u16);
    let (error, _target) = meets(Fault::Terminate, false, false);
    assert!(error.to_string().contains("fatal error status 2"), "{error}");
}

#[test]
fn a_second_answer_ends_the_connection_and_no_other_command() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    run(async {
        let (_controller, block) = block(Options { retry: Retry::Idempotent, ..options(&target) }).await;
        let data = pattern(4096, 5);
        block.write(0, data.clone(), false).await.expect("writes");
        target.fault(Fault::Twice);
        // The scripted answer comes before the data, so that these are the second answer to a command that has ended.
        assert!(block.read(0, 4096).await.is_err(), "an answer without data is no read");
        assert_eq!(block.read(0, 4096).await.expect("reads on a new connection"), data);
    });
    let got = target.terminations();
    assert_eq!((got.len(), got[0].status), (1, FatalStatus::InvalidHeaderField as u16));
}

#[test]
fn a_corrupt_data_digest_fails_the_command_alone() {
    let (error, target) = meets(Fault::CorruptDataDigest, true, false);
    let status = match &error {
        HreError::Nvme(error) => error.status(),
        _ => None,
    };
    assert!(status.is_some_and(|status| status.is(Status::TRANSIENT_TRANSPORT_ERROR)), "{error}");
    assert_eq!(target.connections(), 2, "no reconnection");
}

#[test]
fn a_stalled_command_is_aborted_and_then_the_connection_is_given_up() {
    let (error, target) = meets(Fault::Stall, false, false);
    assert!(matches!(error, HreError::Nvme(NvmeError::TimedOut { what: "Read", .. })), "{error}");
    assert_eq!((target.aborts(), target.connections()), (1, 2));
    let (error, target) = meets(Fault::StallForGood, false, false);
    assert!(matches!(error, HreError::Nvme(NvmeError::TimedOut { what: "Read", .. })), "{error}");
    assert_eq!((target.aborts(), target.connections()), (1, 4));
}

#[test]
fn idempotent_commands_are_sent_again_where_that_is_wished() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let options = Options { retry: Retry::Idempotent, ..options(&target) };
    run(async {
        let (_controller, block) = block(options).await;
        let data = pattern(20_000 / 512 * 512, 3);
        for fault in [Fault::Disconnect, Fault::DisconnectInHeader, Fault::WrongCid, Fault::Terminate] {
            target.fault(fault);
            block.write(0, data.clone(), false).await.expect("is sent again");
            assert!(!target.fault_is_pending());
            target.fault(fault);
            assert_eq!(block.read(0, data.len()).await.expect("is sent again"), data);
        }
    });
}

#[test]
fn reconnection_waits_for_the_target_and_gives_up_in_time() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let options = Options {
        reconnect_for: Duration::from_secs(3),
        reconnect_delay_max: Duration::from_millis(20),
        command_timeout: Duration::from_secs(60),
        retry: Retry::Idempotent,
        ..options(&target)
    };
    run(async {
        let (controller, block) = block(options.clone()).await;
        let changes = controller.namespaces_changed();
        let before = *changes.borrow();
        target.behave(|behaviour| behaviour.refuse = true);
        target.fault(Fault::Disconnect);
        let reading = tokio::spawn({
            let block = block.clone();
            async move { block.read(0, 512).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        target.behave(|behaviour| behaviour.refuse = false);
        reading.await.expect("no panic").expect("is sent again when the target is back");
        assert_ne!(*changes.borrow(), before, "namespaces may have changed meanwhile");
        target.behave(|behaviour| behaviour.refuse = true);
        target.fault(Fault::Disconnect);
        block.read(0, 512).await.expect_err("the target does not come back");
        assert!(block.read(0, 512).await.is_err(), "nothing is tried any more");
    });
}

#[test]
fn a_device_that_has_begun_anew_is_gone_on_with_where_all_was_flushed_and_not_where_it_may_have_forgotten() {
    let target = ScriptedTarget::start(Behaviour { start: 1, ..Behaviour::default() }).expect("a target");
    let options = Options { retry: Retry::Idempotent, ..options(&target) };
    run(async {
        let (_controller, block) = block(options.clone()).await;
        let data = pattern(4096, 5);
        // The connection alone is lost: the device has all that it answered.
        block.write(0, data.clone(), false).await.expect("writes");
        target.fault(Fault::Disconnect);
        assert_eq!(block.read(0, data.len()).await.expect("is sent again"), data);
        block.flush().await.expect("flushes");
        let begins_anew = |start| {
            target.behave(|behaviour| behaviour.start = start);
            target.fault(Fault::Disconnect);
        };
        // All was flushed, or durable by itself.
        block.write(0, data.clone(), true).await.expect("writes");
        begins_anew(2);
        assert_eq!(block.read(0, data.len()).await.expect("is sent again"), data);
        // A change that was not.
        block.write(0, data.clone(), false).await.expect("writes");
        begins_anew(3);
        let read = block.read(0, data.len()).await;
        let error = read.map(|bytes| bytes.len()).expect_err("it may have lost what it answered");
        assert!(error.to_string().contains("has begun anew"), "{error}");
        let error = block.flush().await.expect_err("nobody is told that it is durable");
        assert!(error.to_string().contains("has begun anew"), "{error}");
    });
    // One that forgets nothing is gone on with.
    target.behave(|behaviour| behaviour.start = 0);
    run(async {
        let (_controller, block) = block(options).await;
        block.write(0, pattern(4096, 6), false).await.expect("writes");
        target.fault(Fault::Disconnect);
        block.flush().await.expect("is sent again");
    });
}

#[test]
fn dropped_futures_do_not_disturb_others() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let options = Options { depth: 4, command_timeout: Duration::from_secs(20), ..options(&target) };
    run(async {
        let (_controller, block) = block(options).await;
        let data = pattern(4096, 9);
        block.write(0, data.clone(), false).await.expect("writes");
        for round in 0..50 {
            let mut reading = Box::pin(block.read(0, 4096));
            // Polled zero, one or a few times, then dropped.
            for _ in 0..round % 4 {
                let once = std::future::poll_fn(|context| std::task::Poll::Ready(reading.as_mut().poll(context)));
                if once.await.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(reading);
            assert_eq!(block.read(0, 4096).await.expect("reads"), data);
        }
    });
}

#[test]
fn events_are_told_and_taken_again() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    run(async {
        let controller = Controller::connect(options(&target)).await.expect("connects");
        let mut changes = controller.namespaces_changed();
        for _ in 0..3 {
            changes.mark_unchanged();
            target.namespace_event();
            changes.changed().await.expect("is told");
        }
    });
}

#[test]
fn impossible_options_and_targets_are_named() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let error = |change: fn(&mut Options)| {
        let mut options = options(&target);
        change(&mut options);
        run(Controller::connect(options)).expect_err("must be refused").to_string()
    };
    assert!(error(|options| options.depth = 0).contains("depth is 0"));
    assert!(error(|options| options.queues = 1000).contains("queues is 1000"));
    assert!(error(|options| options.subsystem_nqn = "x".into()).contains("subsystem_nqn `x`"));
    drop(target);
    // A port that is given to nobody who asks for any.
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let error = run(Controller::connect(Options::new(nobody, SUBSYSTEM_NQN))).expect_err("nobody listens");
    assert!(matches!(error, NvmeError::Connect { .. }), "{error}");
    // Somebody who accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut options = Options::new(silent.local_addr().expect("an address"), SUBSYSTEM_NQN);
    options.connect_timeout = Duration::from_millis(100);
    let error = run(Controller::connect(options)).expect_err("says nothing");
    assert!(matches!(error, NvmeError::TimedOut { .. }), "{error}");
}

#[test]
fn polled_queues() {
    for (header_digest, data_digest, capsule) in [(false, false, 4096), (true, true, 0)] {
        let behaviour = Behaviour { capsule_data_bytes: capsule, ..Behaviour::default() };
        let target = ScriptedTarget::start(behaviour).expect("a target");
        let options = Options { depth: 32, header_digest, data_digest, ..options(&target) };
        let mut controller = PolledController::connect(&options).expect("connects");
        assert_eq!(controller.namespaces().expect("lists").len(), 1);
        let mut queue = controller.open_queue().expect("a queue");
        assert_eq!(queue.depth(), 32);
        let mut done = Vec::new();
        let limit = Duration::from_secs(120);
        for (opcode, round) in [(opcode::nvm::WRITE, 0), (opcode::nvm::READ, 1)] {
            for at in 0..32_u64 {
                let (lba, blocks) = (at * 64, if at % 4 == 0 { 64 } else { 8 });
                let entry = SubmissionEntry::new(opcode).with_nsid(1).with_lba(lba).with_cdw(12, blocks - 1);
                let data = pattern(blocks as usize * 512, at as u32);
                let transfer = match round {
                    0 => Transfer::ToController(data),
                    _ => Transfer::FromController(vec![0; data.len()]),
                };
                queue.submit(at, entry, transfer).expect("has room");
            }
            let full = queue.submit(99, SubmissionEntry::new(opcode::nvm::FLUSH), Transfer::None);
            assert!(full.is_err());
            let mut seen = [false; 32];
            while queue.in_flight() > 0 {
                queue.wait(&mut done, limit).expect("goes on");
            }
            for completed in done.drain(..) {
                assert!(completed.entry.status.is_success());
                assert!(!std::mem::replace(&mut seen[completed.tag as usize], true), "once each");
                assert_eq!(completed.buffer, pattern(completed.buffer.len(), completed.tag as u32));
            }
            assert_eq!(seen, [true; 32]);
        }
        target.fault(Fault::Disconnect);
        queue.submit(7, SubmissionEntry::new(opcode::nvm::FLUSH).with_nsid(1), Transfer::None).expect("has room");
        let error = queue.wait(&mut done, limit).expect_err("is cut");
        assert!(matches!(error, NvmeError::ConnectionLost { .. }), "{error}");
        assert_eq!(done.len(), 1, "the command comes back");
        assert!(done[0].entry.status.is(Status::HOST_PATH_ERROR));
        controller.shut_down().expect("shuts down");
    }
}

#[test]
fn raw_commands_by_every_way() {
    let target = ScriptedTarget::start(Behaviour::default()).expect("a target");
    let options = Options { queues: 2, ..options(&target) };
    run(async {
        let controller = Controller::connect(options).await.expect("connects");
        for via in [Via::Admin, Via::Queue(0), Via::Queue(7), Via::Any] {
            let entry = SubmissionEntry::new(0xc0);
            let done = controller.execute(via, "vendor command", entry, Transfer::None, false).await.expect("ends");
            assert!(done.entry.status.is(Status::INVALID_OPCODE) && done.entry.status.do_not_retry());
        }
        let hre = NvmeHre::new(controller, 0).await.expect("an endpoint");
        let error =
            hre.block(1, 512, BlockCommand::Read { lba: BLOCKS }, vec![0; 512]).await.expect_err("past the end");
        assert!(matches!(error, HreError::OutOfRange));
    });
}
