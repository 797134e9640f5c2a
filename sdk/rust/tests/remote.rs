//! NV memory of other SPUs on the mock device: the bytes are there, what is not the app's is refused, and a medium that fails says so.

use willow_sdk::testing::{Device, Options};
use willow_sdk::{Body, Error, Local, Reply, Request, SpuNv, region};

const REGION_BYTES: u64 = 65536;
const ARGUMENT_BYTES: u32 = 16;

/// Arguments: u32 SPU, u32 how, u64 offset in the region (from its first byte on, or behind it).
async fn target(request: &Request) -> Result<(SpuNv, u32), Error> {
    let base = region(1, REGION_BYTES).await?;
    let arguments: [u8; ARGUMENT_BYTES as usize] = request.receive_array()?;
    let word = |at: usize| u32::from_le_bytes(arguments[at..at + 4].try_into().expect("4 bytes"));
    let offset = u64::from(word(8)) | u64::from(word(12)) << 32;
    Ok((SpuNv { spu: word(0), address: base + offset }, word(4)))
}

/// Writes the body's rest there; by way of local memory where it is told so.
async fn write(request: Request, _: &()) -> Result<(), Error> {
    let (there, by_local) = target(&request).await?;
    let bytes = request.info().body_bytes - ARGUMENT_BYTES;
    if by_local == 0 {
        return request.write_spu(Body(ARGUMENT_BYTES), there, bytes).await;
    }
    let mut local = [0; 64];
    request.dma(Body(ARGUMENT_BYTES), Local(&mut local[..bytes as usize]), bytes).await?;
    request.write_spu(Local(&local[..bytes as usize]), there, bytes).await
}

/// Reads as much from there as the reply has room for.
async fn read(request: Request, _: &()) -> Result<(), Error> {
    let (there, _) = target(&request).await?;
    request.read_spu(there, Reply(0), request.info().reply_bytes).await
}

willow_sdk::app! {
    name: "there",
    version: "0.1.0",
    state: () = (),
    threads: 4,
    handlers: { 1 => write, 2 => read }
}

fn arguments(spu: u32, how: u32, offset: u64) -> Vec<u8> {
    [&spu.to_le_bytes()[..], &how.to_le_bytes(), &offset.to_le_bytes()].concat()
}

#[test]
fn bytes_come_to_other_spus_and_back() {
    for seed in 1..20 {
        let mut device = Device::new(native(), Options { spus: 3, seed, ..Options::default() });
        for (here, there) in [(0, 1), (1, 2), (2, 0), (1, 1)] {
            for how in 0..2 {
                let data: Vec<u8> = (0..40).map(|at| at as u8 ^ (seed as u8 + there as u8 * 16 + how as u8)).collect();
                let done = device.call(here, 1, &arguments(there, how, 512), &data, 0);
                assert_eq!(done.status, 0);
                // From the third one.
                let other = (here + 1) % 3;
                assert_eq!(device.call(other, 2, &arguments(there, 0, 512), &[], 40).reply, data);
            }
        }
    }
}

#[test]
fn what_is_not_the_apps_is_refused_there_too_and_media_that_fail_are_told() {
    let mut device = Device::new(native(), Options { spus: 2, ..Options::default() });
    let status = |error: Error| willow_sdk::Response::from(error).status;
    assert_eq!(device.call(0, 1, &arguments(1, 0, 0), &[7; 16], 0).status, 0);
    for offset in [REGION_BYTES - 15, REGION_BYTES, u64::MAX - 7] {
        assert_eq!(device.call(0, 1, &arguments(1, 0, offset), &[8; 16], 0).status, status(Error::Permission));
        assert_eq!(device.call(0, 2, &arguments(1, 0, offset), &[], 16).status, status(Error::Permission));
    }
    // An SPU that there is not.
    assert_eq!(device.call(0, 2, &arguments(2, 0, 0), &[], 16).status, status(Error::Argument));
    device.fail_media(1, 0..1 << 20);
    assert_eq!(device.call(0, 2, &arguments(1, 0, 0), &[], 16).status, status(Error::Media));
    assert_eq!(device.call(0, 1, &arguments(1, 1, 0), &[9; 16], 0).status, status(Error::Media));
    device.fail_media(1, 0..0);
    assert_eq!(device.call(0, 2, &arguments(1, 0, 0), &[], 16).reply, [7; 16]);
    // What was not flushed there is lost with the power, or not, and torn nowhere but between sectors.
    device.cut_power();
    let left = device.call(0, 2, &arguments(1, 0, 0), &[], 16).reply;
    assert!(left == [7; 16] || left == [0; 16], "{left:?}");
}
