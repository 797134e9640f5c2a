//! The file's bytes against a model: any offset, any length, several at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_fuse::Disk;
use willow_host::hre::{BlockCommand, BoxFuture, KvCommand, KvReply, Namespace, RpcCall, RpcReply, Upcall};
use willow_host::{BlockClient, Hre, HreError, InProcess};

const BYTES: u64 = 1 << 20;

async fn disk(block_bytes: u32) -> Disk {
    Disk::new(BlockClient::open(endpoint(block_bytes).await, 1).await.unwrap())
}

async fn endpoint(block_bytes: u32) -> Arc<dyn Hre> {
    let made = InProcess::start(move || {
        let config = DeviceConfig {
            spus: 2,
            namespace_bytes: BYTES,
            kv_namespace_bytes: 0,
            block_bytes,
            ..DeviceConfig::default()
        };
        let store = RamStore::new(2, 64 << 20).map_err(|error| willow_device::OpenError(error.to_string()))?;
        let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
        Device::open(config, Box::new(store), None, apps)
    });
    Arc::new(made.unwrap().endpoint(None).await.unwrap())
}

/// An endpoint of a device that has no place for so many commands.
struct Crowded {
    endpoint: Arc<dyn Hre>,
    refusals: AtomicU32,
}

impl Hre for Crowded {
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        self.endpoint.rpc(call)
    }
    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        self.endpoint.receive_upcall(wait)
    }
    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        self.endpoint.answer_upcall(id, status, result)
    }
    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>> {
        self.endpoint.namespaces()
    }
    fn transfer_bytes_max(&self) -> u64 {
        self.endpoint.transfer_bytes_max()
    }
    fn block(
        &self,
        nsid: u32,
        block_bytes: u32,
        command: BlockCommand,
        buffer: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, HreError>> {
        let less = |left: u32| left.checked_sub(1);
        match self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Box::pin(async { Err(HreError::Refused) }),
            Err(_) => self.endpoint.block(nsid, block_bytes, command, buffer),
        }
    }
    fn kv(&self, nsid: u32, command: KvCommand, buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>> {
        self.endpoint.kv(nsid, command, buffer)
    }
}

#[test]
fn what_the_device_has_no_place_for_is_sent_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let crowded = Arc::new(Crowded { endpoint: endpoint(4096).await, refusals: AtomicU32::new(0) });
        let disk = Disk::new(BlockClient::open(crowded.clone(), 1).await.unwrap());
        let refuse = || crowded.refusals.store(5, Ordering::SeqCst);
        refuse();
        disk.write(1000, &[7; 10_000], false).await.unwrap();
        refuse();
        assert_eq!(disk.read(1000, 10_000).await.unwrap(), [7; 10_000]);
        refuse();
        disk.zero(1000, 100, false).await.unwrap();
        refuse();
        disk.flush().await.unwrap();
        assert_eq!(crowded.refusals.load(Ordering::SeqCst), 0, "it refused less than it was to");
    });
}

struct Random(u64);
impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

#[test]
fn any_offset_and_length_is_as_in_the_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for block_bytes in [512, 4096] {
            let disk = disk(block_bytes).await;
            let mut model = vec![0u8; BYTES as usize];
            let mut random = Random(u64::from(block_bytes));
            for step in 0..1500 {
                let offset = random.below(BYTES);
                let bytes = (1 + random.below(if step % 7 == 0 { 300_000 } else { 9000 })).min(BYTES - offset);
                let range = offset as usize..(offset + bytes) as usize;
                match random.below(6) {
                    0..=1 => {
                        let data: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
                        model[range].copy_from_slice(&data);
                        disk.write(offset, &data, step % 2 == 0).await.unwrap();
                    }
                    2 => {
                        model[range].fill(0);
                        disk.zero(offset, bytes, step % 2 == 0).await.unwrap();
                    }
                    _ => assert!(disk.read(offset, bytes as usize).await.unwrap() == model[range], "step {step}"),
                }
            }
            disk.flush().await.unwrap();
            assert!(disk.read(0, BYTES as usize).await.unwrap() == model);
            // At and behind the end.
            assert_eq!(disk.read(BYTES - 3, 100).await.unwrap(), &model[BYTES as usize - 3..]);
            assert!(disk.read(BYTES, 1).await.unwrap().is_empty() && disk.read(u64::MAX, 1).await.unwrap().is_empty());
            assert!(matches!(disk.write(BYTES - 1, &[1, 2], false).await, Err(HreError::OutOfRange)));
            assert!(matches!(disk.write(u64::MAX, &[1, 2], false).await, Err(HreError::OutOfRange)));
            disk.zero(BYTES - 10, u64::MAX - BYTES, true).await.unwrap();
        }
    });
}

#[test]
fn parts_of_one_block_written_at_once_are_all_there() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        let disk = Arc::new(disk(4096).await);
        for round in 0..30u8 {
            let writes: Vec<_> = (0..8u64)
                .map(|part| {
                    let disk = disk.clone();
                    tokio::spawn(async move { disk.write(part * 512, &[round ^ part as u8; 512], false).await })
                })
                .collect();
            for write in writes {
                write.await.unwrap().unwrap();
            }
            let block = disk.read(0, 4096).await.unwrap();
            for part in 0..8 {
                assert!(block[part * 512..][..512].iter().all(|byte| *byte == round ^ part as u8), "round {round}");
            }
        }
    });
}
