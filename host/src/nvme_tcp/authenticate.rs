//! The host's end of in-band authentication on one queue (NVMe Base 8.13.5), over [`Port`]: after a Connect that asks for it.
//!
//! What always holds: it has five messages at most, each within the port's time limit; a controller that cannot prove itself to a
//! host that has its secret is told, and the queue is not used.

use super::bringup::{Port, check};
use super::queue::Transfer;
use super::{NvmeError, Options};
use std::sync::Arc;
use willow_auth::{Credentials, Ends, Entropy, GeneratedKey, HostExchange, HostFailure};
use willow_wire::spec::authentication::{AuthenticationCommand, MESSAGE_BYTES_MAX};

async fn send<P: Port>(port: &mut P, message: Vec<u8>) -> Result<(), NvmeError> {
    let (what, entry) = ("Authentication Send", AuthenticationCommand::send(message.len() as u32));
    let done = port.execute(what, entry, Transfer::ToController(message)).await?;
    check(what, done).map(|_| ())
}

async fn receive<P: Port>(port: &mut P) -> Result<Vec<u8>, NvmeError> {
    let (what, entry) = ("Authentication Receive", AuthenticationCommand::receive(MESSAGE_BYTES_MAX as u32));
    let done = port.execute(what, entry, Transfer::FromController(vec![0; MESSAGE_BYTES_MAX])).await?;
    let mut done = check(what, done)?;
    done.buffer.truncate(done.received_bytes as usize);
    Ok(done.buffer)
}

/// Proves that this host has its secret, and has the controller prove that it has its own where the credentials hold that. `with_key`:
/// returns the key for TLS that both have generated.
pub async fn authenticate<P: Port>(
    port: &mut P,
    options: &Options,
    credentials: Arc<Credentials>,
    with_key: bool,
) -> Result<Option<GeneratedKey>, NvmeError> {
    let failed = |source| NvmeError::Authentication { address: options.address, source };
    let entropy = Entropy::system();
    let mut transaction = [0; 2];
    entropy.fill(&mut transaction).map_err(|error| NvmeError::Argument(error.to_string()))?;
    let ends = Ends { credentials, subsystem_nqn: options.subsystem_nqn.clone() };
    let exchange = HostExchange::new(ends, u16::from_le_bytes(transaction), entropy);
    let mut exchange = if with_key { exchange.with_key(false) } else { exchange };
    send(port, exchange.negotiate()).await?;
    let outcome = match exchange.reply(&receive(port).await?) {
        Ok(reply) => {
            send(port, reply).await?;
            exchange.finish(&receive(port).await?)
        }
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(last) => {
            if let Some(last) = last {
                send(port, last).await?;
            }
            Ok(exchange.take_generated())
        }
        Err(failure) => {
            if let Some(told) = HostFailure::to_message(failure, exchange.transaction()) {
                // It does not matter whether it listens.
                let _ = send(port, told).await;
            }
            Err(failed(failure))
        }
    }
}
