//! Gets by chain length: the Key-Value app walks chains of that many records in the device, the host version reads as many elements.
//!
//! The app takes the hash from the host, so that chains are made as long as they are wanted: pairs whose hashes differ in their lowest bits
//! alone share a bucket, in the order of their hashes. Each get is of the last of its chain.

use super::{Costs, Measured, OPERATIONS, VALUE_BYTES};
use crate::experiments::{ExperimentError, Laboratory};
use crate::operation::key_of;
use crate::random::Random;
use crate::simulation::{Simulation, SimulationOptions};
use crate::thread::HostThread;
use key_value_host::wire::{PairArguments, handler, spu_of};
use std::sync::Arc;
use willow_host::hre::{Hre, RpcCall};
use willow_host::{AppClient, HreError, KvClient};

/// Chains, spread over all SPUs.
const CHAINS: u64 = 256;

/// The app and the namespace that the pairs are in.
struct Pairs {
    hre: Arc<dyn Hre>,
    app: u16,
    nsid: u32,
    spus: u16,
}

impl Pairs {
    async fn open(thread: &HostThread, spus: u16) -> Result<Self, HreError> {
        let hre: Arc<dyn Hre> = thread.endpoint().clone();
        let nsid = KvClient::open_only(hre.clone()).await?.nsid();
        let app = AppClient::find(hre.clone(), key_value_host::APP_NAME).await?.number();
        Ok(Pairs { hre, app, nsid, spus })
    }

    /// A put, or a get, of the pair at that place of a chain.
    async fn call(&self, chain: u64, place: u64, put: bool) -> Result<(), HreError> {
        let hash = (u64::MAX / CHAINS * chain) & !0xffff | place;
        let key = key_of(chain * 1000 + place);
        let arguments = PairArguments {
            nsid: self.nsid,
            flags: 0,
            hash,
            key: key.as_bytes().try_into().unwrap_or_default(),
            key_bytes: key.as_bytes().len() as u32,
            word: if put { VALUE_BYTES } else { 0 },
            reply_offset: 0,
        };
        let call = RpcCall {
            app: self.app,
            handler: if put { handler::PUT } else { handler::GET },
            spu: Some(spu_of(hash, self.spus)),
            arguments: arguments.encode().to_vec(),
            payload: if put { vec![7; VALUE_BYTES as usize] } else { Vec::new() },
            reply_bytes_max: if put { 0 } else { VALUE_BYTES },
        };
        match self.hre.rpc(call).await? {
            reply if reply.status == 0 => Ok(()),
            reply => Err(HreError::Argument(format!("the app answered with status {}", reply.status))),
        }
    }
}

async fn load(thread: HostThread, spus: u16, length: u64) -> Result<(), HreError> {
    let pairs = Pairs::open(&thread, spus).await?;
    for chain in 0..CHAINS {
        for place in 0..length {
            pairs.call(chain, place, true).await?;
        }
    }
    Ok(())
}

async fn client(thread: HostThread, spus: u16, length: u64, costs: Costs, mut random: Random) -> Result<(), HreError> {
    let pairs = Pairs::open(&thread, spus).await?;
    for _ in 0..OPERATIONS {
        thread.compute(costs.request_ns, "MemcacheDB").await;
        let get = pairs.call(random.below(CHAINS), length - 1, false);
        thread.rpc(0, VALUE_BYTES.into(), get).await?;
    }
    Ok(())
}

/// Gets by the app in the device, where the chains have that length.
pub(in crate::experiments) fn measure(
    laboratory: &Laboratory,
    costs: Costs,
    length: u64,
    threads: u64,
) -> Result<Measured, ExperimentError> {
    let spus = laboratory.preset.device.spus;
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: 0,
        kv_namespace_bytes: 64 << 20,
        ..laboratory.options()
    })?;
    let mut outputs = vec![simulation.host_thread("load", move |thread| load(thread, spus, length))?];
    simulation.run()?;
    let random = Random(laboratory.seed);
    for number in 0..threads {
        let random = random.part(number);
        let body = move |thread| client(thread, spus, length, costs, random);
        outputs.push(simulation.host_thread(&format!("client {number}"), body)?);
    }
    let report = simulation.run()?;
    for output in outputs {
        let ended = output.take().unwrap_or(Ok(()));
        ended.map_err(|error| ExperimentError::Other(format!("a client failed: {error}")))?;
    }
    Ok(Measured::of(&report, threads * OPERATIONS))
}
