//! What is to be made of the device's answer to a request: one variant for each kind of command, held in the command's slot
//! while the device works on it.

use key_value_host::ListScan;
use willow_device::Rpc;

/// What a request was for.
#[derive(Debug)]
pub(crate) enum Work {
    /// Nothing is under way.
    Nothing,
    /// Base-IO; data that it read goes to the host.
    Block,
    /// Base-IO: the RPCs that are still to be sent, a step after the other.
    BlockSteps(Vec<Rpc>),
    /// Key-Value: only the status matters.
    Pair,
    /// Key-Value: the value goes to the host, its length is the result.
    Retrieve,
    /// Key-Value: a listing, one SPU after the other.
    List(Box<ListScan>),
    /// An RPC of the tunnel.
    Tunnel,
    /// The control service makes a namespace.
    NamespaceCreate,
    /// The control service deletes a namespace.
    NamespaceDelete,
    /// All is flushed before the controller says that it is shut down.
    Shutdown,
}
