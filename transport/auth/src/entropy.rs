//! Where random bytes come from: handed in, so that tests can repeat a run.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

/// There are no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoEntropy;

type Fill = dyn Fn(&mut [u8]) -> Result<(), NoEntropy> + Send + Sync;

/// A source of random bytes; clones are the same source.
#[derive(Clone)]
pub struct Entropy(Arc<Fill>);

impl Entropy {
    /// The operating system's.
    pub fn system() -> Self {
        Entropy(Arc::new(|bytes| {
            let opened = std::fs::File::open("/dev/urandom");
            opened.and_then(|mut source| source.read_exact(bytes)).map_err(|_| NoEntropy)
        }))
    }
    /// Any other: its bytes must be as hard to guess, but in tests.
    pub fn from_fn(fill: impl Fn(&mut [u8]) -> Result<(), NoEntropy> + Send + Sync + 'static) -> Self {
        Entropy(Arc::new(fill))
    }
    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) -> Result<(), NoEntropy> {
        (self.0)(bytes)
    }
}

impl Default for Entropy {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}
