//! Delegation: an operation on a bank that an app serves, the FTL, becomes a request to that app on the bank's SPU (design of flash).
//!
//! Invariants:
//! - Permissions were checked before: an FTL is asked for what is allowed. It knows neither who asked nor on whose behalf.
//! - What an FTL does for an operation is the work of the account that asked.
//! - Each operation is answered once: by the FTL, or, where that has ended, with a failure of the media.

use super::abi;
use super::activity::{Activity, Origin, State};
use super::os::Machine;
use crate::bridge::accounts::KERNEL;
use crate::hre::HreId;
use crate::interconnect::Endpoint;
use crate::media::delegate::{Delegated, DelegatingStore, Kind};
use crate::media::store::{MEDIA_FAILED, StoreError};
use crate::request::{AppNumber, Arguments, RpcOutcome};

impl Machine {
    /// The app that serves the banks, where one does.
    pub fn ftl(&self) -> Option<AppNumber> {
        let ftl = self.media.store.served_by()?;
        self.apps().find(|(_, app)| app.is_ftl(ftl)).map(|(number, _)| number)
    }

    /// Asks the FTLs for all that waits for them, as far as there is room for requests.
    pub fn ask_ftls(&mut self) {
        if !self.media.store.has_news() {
            return;
        }
        let Some(app) = self.ftl() else { return };
        while let Some(delegated) = self.media.store.delegating().and_then(DelegatingStore::take_next) {
            let peer = delegated.peer;
            if !self.ask_ftl(app, &delegated) {
                if let Some(store) = self.media.store.delegating() {
                    store.put_back(peer);
                }
                return;
            }
        }
    }

    fn ask_ftl(&mut self, app: AppNumber, delegated: &Delegated) -> bool {
        let &Delegated { peer, ticket, bank, kind, address, bytes } = delegated;
        let handler = match kind {
            Kind::Read => abi::NV_READ_HANDLER,
            Kind::Write => abi::NV_WRITE_HANDLER,
            Kind::Zero => abi::NV_ZERO_HANDLER,
            Kind::Flush => abi::NV_FLUSH_HANDLER,
        };
        let mut words = [0; 24];
        words[0..4].copy_from_slice(&peer.to_le_bytes());
        words[8..16].copy_from_slice(&address.to_le_bytes());
        words[16..24].copy_from_slice(&bytes.to_le_bytes());
        let Some(arguments) = Arguments::new(&words) else { return false };
        let account =
            self.media.waiting(ticket).and_then(|pending| self.account_of_operation(pending)).unwrap_or(KERNEL);
        let activity = || Activity {
            app,
            spu: bank as u16,
            handler,
            state: State::Arrived,
            originating: HreId::DEVICE,
            account,
            arguments,
            cursor: 0,
            pending_dmas: 0,
            replied_bytes: 0,
            origin: Origin::Bank { peer },
        };
        self.send(account, bank as u16, activity, Endpoint::Bridge).is_some()
    }

    /// An operation on a bank has ended.
    pub fn bank_answered(&mut self, peer: u32, outcome: RpcOutcome) {
        let result = match outcome {
            RpcOutcome::Answered { status: abi::NV_DONE } => Ok(()),
            RpcOutcome::Answered { status: abi::NV_FULL } => Err(StoreError::Full),
            _ => Err(MEDIA_FAILED),
        };
        if let Some(store) = self.media.store.delegating() {
            let answered = store.answered(peer, result);
            debug_assert!(answered, "an FTL's request is answered once");
        }
    }
}
