//! What a user can have the kernel wait with, done by a thread of its own: who asks for it waits for a moment, and not for as long as the
//! user likes.
//!
//! What always holds:
//! - a thread is left behind only for something that the kernel keeps for longer than [`PATIENCE`]: there are no more of them than files
//!   that are kept so;
//! - where it panics, that is no less heard than if nobody had left it: by the caller, or by who looks after the thread.

use std::io::Result;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the caller waits.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

/// Does this; `Some` where it goes on when the patience is over: the caller has somebody look after that thread. An error: no thread, and it is
/// not done.
pub(super) fn apart(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Option<JoinHandle<()>>> {
    let (goes_on, end) = channel::<()>();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _goes_on = goes_on;
        work();
    })?;
    match end.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Disconnected) => {
            hear(thread);
            Ok(None)
        }
        _ => Ok(Some(thread)),
    }
}

/// Waits for a thread, and panics where that did.
pub(super) fn hear(thread: JoinHandle<()>) {
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_left_and_what_panics_is_heard() {
        assert!(apart("quick", || {}).unwrap().is_none());
        let (go_on, waits) = channel::<()>();
        let left = apart("waits", move || {
            let _ = waits.recv();
        })
        .unwrap()
        .expect("it waits");
        assert!(!left.is_finished());
        drop(go_on);
        hear(left);
        // By the caller, or by who looks after it, where telling of it takes long.
        let heard = std::panic::catch_unwind(|| apart("panics", || panic!("planted")).unwrap().map(hear));
        assert_eq!(heard.err().and_then(|panic| panic.downcast_ref::<&str>().copied()), Some("planted"));
    }
}
