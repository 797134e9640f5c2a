//! This process' way to the device and its agent: one session, as the agent's grants are the process'.

use std::sync::{Arc, Mutex, PoisonError};
use willow_host::direct_io::{AtomicWriter, Session, SessionOptions, forks};

/// The session, and what writes as a whole by it.
#[derive(Clone)]
pub struct Way {
    pub session: Arc<Session>,
    pub writer: Arc<AtomicWriter>,
}

static WAY: Mutex<Option<(u32, Way)>> = Mutex::new(None);

/// By the agent that `WILLOW_AGENT` names, and the device's socket in `WILLOW_DEVICE`, where that is set; the error says what is wrong.
pub fn way() -> Result<Way, String> {
    let mut known = WAY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, way)) = &*known
        && *of == forks()
    {
        return Ok(way.clone());
    }
    let agent = std::env::var_os("WILLOW_AGENT").ok_or("WILLOW_AGENT does not name the agent's socket")?;
    let options = match std::env::var_os("WILLOW_DEVICE") {
        Some(device) => SessionOptions::new(device, agent),
        None => SessionOptions::by_agent(agent),
    };
    // A base that had to grow is direct again at once.
    let options = SessionOptions { kernel_operations_max: 0, ..options };
    let session = Session::open(options).map_err(|error| error.to_string())?;
    let writer = AtomicWriter::new(&session);
    writer.open().map_err(|error| error.to_string())?;
    let way = Way { session, writer: Arc::new(writer) };
    if let Some((of, old)) = known.replace((forks(), way.clone()))
        && of != forks()
    {
        // The parent's: its threads are not here.
        std::mem::forget(old);
    }
    Ok(way)
}
