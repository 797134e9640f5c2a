//! Gets, puts and deletes by chain length: the Key-Value app walks chains of that many records in the device, the host version reads as many elements, and writes one
//! where it changes something: the pair, or the pointer to the one behind it.
//!
//! The app takes the hash from the host, so that chains are made as long as they are wanted: pairs whose hashes differ in their lowest bits
//! alone share a bucket, in the order of their hashes. Each operation is on the last of its chain; each chain has one pair deleted at most.

use super::{Costs, ELEMENT_BYTES, Measured, OPERATIONS, VALUE_BYTES};
use crate::experiments::{ExperimentError, Laboratory};
use crate::host::Path;
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

/// What is done with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) enum Operation {
    /// Its value is read.
    Get,
    /// It is stored again.
    Put,
    /// It is deleted.
    Delete,
}

impl Operation {
    /// How many of them each thread does.
    fn of_a_thread(self, threads: u64) -> u64 {
        match self {
            Operation::Get | Operation::Put => OPERATIONS,
            Operation::Delete => CHAINS / threads,
        }
    }
}

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

    /// An operation on the pair at that place of a chain.
    async fn call(&self, chain: u64, place: u64, operation: Operation) -> Result<(), HreError> {
        let put = operation == Operation::Put;
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
            handler: match operation {
                Operation::Get => handler::GET,
                Operation::Put => handler::PUT,
                Operation::Delete => handler::DELETE,
            },
            spu: Some(spu_of(hash, self.spus)),
            arguments: arguments.encode().to_vec(),
            payload: if put { vec![7; VALUE_BYTES as usize] } else { Vec::new() },
            reply_bytes_max: if operation == Operation::Get { VALUE_BYTES } else { 0 },
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
            pairs.call(chain, place, Operation::Put).await?;
        }
    }
    Ok(())
}

/// Who does it, and how much of it: number and threads.
type Share = (u64, u64);

async fn client(
    thread: HostThread,
    (spus, length): (u16, u64),
    (operation, share): (Operation, Share),
    costs: Costs,
    mut random: Random,
) -> Result<(), HreError> {
    let pairs = Pairs::open(&thread, spus).await?;
    for at in 0..operation.of_a_thread(share.1) {
        thread.compute(costs.request_ns, "MemcacheDB").await;
        let chain = match operation {
            Operation::Get | Operation::Put => random.below(CHAINS),
            Operation::Delete => at * share.1 + share.0,
        };
        let call = pairs.call(chain, length - 1, operation);
        let bytes = u64::from(VALUE_BYTES);
        let (out, back) = match operation {
            Operation::Get => (0, bytes),
            Operation::Put => (bytes, 0),
            Operation::Delete => (0, 0),
        };
        thread.rpc(out, back, call).await?;
    }
    Ok(())
}

/// BerkeleyDB by Direct-IO's way.
async fn by_host(
    thread: HostThread,
    length: u64,
    (operation, share): (Operation, Share),
    costs: Costs,
    mut random: Random,
) -> Result<(), HreError> {
    let elements = thread.block_bytes() / u64::from(ELEMENT_BYTES);
    for _ in 0..operation.of_a_thread(share.1) {
        thread.compute(costs.request_ns, "MemcacheDB").await;
        for _ in 0..length {
            thread.read(Path::User, random.below(elements) * u64::from(ELEMENT_BYTES), ELEMENT_BYTES).await?;
        }
        if operation != Operation::Get {
            thread.compute(costs.put_ns, "BerkeleyDB").await;
            let element = vec![7; ELEMENT_BYTES as usize];
            thread.write(Path::User, random.below(elements) * u64::from(ELEMENT_BYTES), element).await?;
        }
    }
    Ok(())
}

/// Operations where the chains have that length, by the app in the device or by the host.
pub(in crate::experiments) fn measure(
    laboratory: &Laboratory,
    (in_device, operation): (bool, Operation),
    length: u64,
    threads: u64,
) -> Result<Measured, ExperimentError> {
    let (spus, costs) = (laboratory.preset.device.spus, Costs::of(laboratory)?);
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: if in_device { 0 } else { 64 << 20 },
        kv_namespace_bytes: if in_device { 64 << 20 } else { 0 },
        ..laboratory.options()
    })?;
    let mut outputs = Vec::new();
    if in_device {
        outputs.push(simulation.host_thread("load", move |thread| load(thread, spus, length))?);
        simulation.run()?;
    }
    let random = Random(laboratory.seed);
    for number in 0..threads {
        let (random, what) = (random.part(number), (operation, (number, threads)));
        let name = format!("client {number}");
        outputs.push(match in_device {
            true => simulation.host_thread(&name, move |thread| client(thread, (spus, length), what, costs, random))?,
            false => simulation.host_thread(&name, move |thread| by_host(thread, length, what, costs, random))?,
        });
    }
    let report = simulation.run()?;
    for output in outputs {
        let ended = output.take().unwrap_or(Ok(()));
        ended.map_err(|error| ExperimentError::Other(format!("a client failed: {error}")))?;
    }
    Ok(Measured::of(&report, threads * operation.of_a_thread(threads)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn changes_are_done_on_chains_of_each_length_and_longer_ones_take_longer() {
        let laboratory = Laboratory::new(Preset::load("bee3").unwrap(), 1);
        for of in [(true, Operation::Put), (true, Operation::Delete), (false, Operation::Delete)] {
            let rate = |length| measure(&laboratory, of, length, 16).unwrap().rate;
            assert!(rate(1) > rate(16), "{of:?}");
        }
    }
}
