//! The caretaker: closes namespaces in order while nobody changes them, so that a crash at such a time leaves nothing to recover.
//!
//! What always holds: there is at most one on an SPU, from the first change of a namespace until all are closed in order; it belongs to no request.
//!
//! Who may call it: [`crate::bank::Bank::unclean`] of the handlers. A host that calls it is refused.

use super::{Ports, State};
use crate::wire;
use willow_sdk::{Request, Response, SOURCE_HOST};

/// How long nothing must have been stored or deleted.
const QUIET_NS: u64 = 1_000_000_000;

pub(super) async fn caretaker(request: Request, state: &State) -> Response {
    if request.info().source == SOURCE_HOST {
        return Response::failure(wire::STATUS_MALFORMED);
    }
    if state.caring.replace(true) {
        return Response::default();
    }
    let ports = Ports::new(&request);
    while willow_sdk::sleep_ns(QUIET_NS).await.is_ok() && state.table.rest(&ports).await {}
    state.caring.set(false);
    Response::default()
}
