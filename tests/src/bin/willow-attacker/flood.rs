//! A user with as many reads under way as one endpoint takes.

use super::World;
use std::fs::OpenOptions;
use std::io::{BufRead, Error, Read, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use willow_host::direct_io::{AgentClient, DirectFile};

/// Bytes of a read: less than flash maps as one.
const READ_BYTES: usize = 4096;
/// Reads that are all of the file.
const READS: u64 = 256;
/// From one read to the next.
const STRIDE: u64 = 9;
/// Time in which they are all on their way.
const BEGIN: Duration = Duration::from_millis(500);

/// Has so many reads of its file under way at every moment; waits for a line of its input before it begins,
/// says so when they are, and says what ends them.
pub fn floods(world: &World, agent: &Path, flights: u64) -> Result<()> {
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&world.path)?;
    file.write_all(&vec![7; READS as usize * READ_BYTES])?;
    file.sync_all()?;
    // The medium is slow, and the connection that the world has was idle meanwhile.
    let agent = AgentClient::connect(agent).map_err(Error::other)?;
    let direct = DirectFile::open(&agent, world.hre.clone(), file).map_err(Error::other)?;
    let direct = Arc::new(direct);
    println!("ready\t");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let ended = world.runtime.block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for flight in 0..flights {
            let direct = direct.clone();
            all.spawn(async move {
                let mut number = flight * STRIDE % READS;
                let mut into = [0; READ_BYTES];
                loop {
                    if let Err(error) = direct.read_at(&mut into, number * READ_BYTES as u64).await {
                        return error.to_string();
                    }
                    number = (number + flights * STRIDE) % READS;
                }
            });
        }
        tokio::time::sleep(BEGIN).await;
        println!("flooding\t{flights}");
        all.join_next().await
    });
    println!("ended\t{ended:?}");
    // Its file stays with it until it is told.
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}
