//! The initiator against somebody else's target: `WILLOW_FOREIGN_TARGET=ADDRESS,NQN` names it, and a block namespace 1 on
//! which anything may be overwritten. Runs where it is asked for: `cargo test --test foreign_target -- --ignored`.

use std::sync::Arc;
use willow_host::nvme_tcp::polled::PolledController;
use willow_host::nvme_tcp::{Transfer, discover};
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_wire::spec::{SubmissionEntry, opcode};

fn target() -> Options {
    let named = std::env::var("WILLOW_FOREIGN_TARGET").expect("WILLOW_FOREIGN_TARGET=ADDRESS,NQN names a target");
    let (address, nqn) = named.split_once(',').expect("WILLOW_FOREIGN_TARGET is an address, a comma and a name");
    Options::new(address.parse().expect("an address with its port"), nqn)
}

fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 11) as u8).collect()
}

#[test]
#[ignore = "WILLOW_FOREIGN_TARGET names the target"]
fn block_commands() {
    let options = target();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = Options { header_digest, data_digest, queues: 2, ..options.clone() };
        runtime.block_on(async {
            let found = discover(&options).await.expect("discovers");
            assert!(found.iter().any(|entry| entry.subsystem_nqn == options.subsystem_nqn), "{found:?}");
            let controller = Controller::connect(options).await.expect("connects");
            println!("{:?}", controller.ready().await.expect("is up"));
            let hre = Arc::new(NvmeHre::new(controller.clone(), 1).await.expect("an endpoint"));
            let block = BlockClient::open(hre, 1).await.expect("namespace 1");
            let size = block.block_bytes() as usize;
            for (index, blocks) in [1, 2, 8, 9, 17, 33, 256, 300, 1000].into_iter().enumerate() {
                let data = pattern(blocks * size, index as u32);
                let offset = (index * size) as u64;
                block.write(offset, data.clone(), index % 2 == 0).await.expect("writes");
                assert_eq!(block.read(offset, data.len()).await.expect("reads"), data, "{blocks} blocks");
            }
            block.flush().await.expect("flushes");
            controller.shut_down().await.expect("shuts down");
        });
    }
}

#[test]
#[ignore = "WILLOW_FOREIGN_TARGET names the target"]
fn polled_queue() {
    let options = target();
    let mut controller = PolledController::connect(&Options { depth: 64, ..options }).expect("connects");
    let mut queue = controller.open_queue().expect("a queue");
    let depth = queue.depth() as u64;
    let mut done = Vec::new();
    let mut ended = 0;
    let begin = |queue: &mut willow_host::nvme_tcp::polled::PolledQueue, tag: u64, buffer: Vec<u8>| {
        let entry = SubmissionEntry::new(opcode::nvm::READ).with_nsid(1).with_lba(tag * 8).with_cdw(12, 7);
        queue.submit(tag, entry, Transfer::FromController(buffer)).expect("has room");
    };
    let block_bytes = match controller.namespaces().expect("lists")[0].kind {
        willow_host::nvme_tcp::NamespaceKind::Block { block_bytes, .. } => block_bytes as usize,
        other => panic!("{other:?} is no block namespace"),
    };
    for tag in 0..depth {
        begin(&mut queue, tag, vec![0; 8 * block_bytes]);
    }
    while queue.in_flight() > 0 {
        queue.wait(&mut done, std::time::Duration::from_secs(120)).expect("goes on");
        for completed in done.drain(..) {
            assert!(completed.entry.status.is_success(), "{}", completed.entry.status);
            ended += 1;
            if ended + depth <= 50_000 {
                begin(&mut queue, completed.tag, completed.buffer);
            }
        }
    }
    assert_eq!(ended, 50_000);
    controller.shut_down().expect("shuts down");
}
