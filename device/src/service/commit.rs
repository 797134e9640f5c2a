//! Commits: changes of the metadata take effect by one save of all that are waiting.
//!
//! What always holds:
//! - `durable` is what the media hold for certain, and what the device works by: published in the same step in which the save
//!   has ended well.
//! - One save is under way at a time. Changes that come meanwhile are made on the next draft, so that each sees all before it.
//! - A save that failed may have happened all the same. Until another save has ended well the media are *in doubt*: what was
//!   there is saved again at once, and no module is removed meanwhile. So after a cut in between the device is the old or
//!   the new one, whole, and with all modules that it names.

use super::OpenError;
use super::change::{Change, Draft, Made, Refusal};
use super::core::Core;
use crate::media::store::StoreError;
use crate::region::RegionTable;
use crate::service::control::{ControlStatus, NamespaceRequest};
use crate::service::metadata::Metadata;
use crate::service::reservation::Notice;
use crate::spu::continuation::Continuation;
use crate::spu::os::error_of;
use crate::spu::published::Published;
use std::collections::VecDeque;
use std::sync::Arc;

/// State of commits.
pub(crate) struct Commits {
    pub durable: Metadata,
    /// Transactions whose change waits for the next save.
    queue: VecDeque<u32>,
    under_way: Option<Save>,
    in_doubt: bool,
    /// The last save failed with this.
    failed: Option<StoreError>,
}

/// A save that is under way.
struct Save {
    metadata: Metadata,
    regions: RegionTable,
    batch: Vec<(u32, Made)>,
    /// What hosts are to be told then.
    notices: Vec<Notice>,
}

impl Commits {
    pub fn new(durable: Metadata) -> Self {
        Commits { durable, queue: VecDeque::new(), under_way: None, in_doubt: false, failed: None }
    }

    /// True where the media hold what `durable` says and nothing else is on its way.
    pub fn is_settled(&self) -> bool {
        self.under_way.is_none() && self.queue.is_empty() && !self.in_doubt
    }
}

/// What a transaction is told when its change could not be saved.
fn unsaved(error: StoreError) -> Refusal {
    let text = format!("the change could not be saved, all is as before: {error}");
    Refusal { status: ControlStatus::MediaFailed, text, error: error_of(error) }
}

impl Core {
    /// Has a transaction's change saved; the transaction goes on at [`Core::committed`].
    pub(super) fn commit(&mut self, key: u32) {
        self.service.commits.queue.push_back(key);
        self.commit_next();
    }

    fn draft(&self) -> Result<Draft, String> {
        let bank_bytes = self.machine.media.store.bank_bytes();
        Draft::new(self.service.commits.durable.clone(), bank_bytes)
    }

    /// Begins a save for all changes that wait.
    fn commit_next(&mut self) {
        if self.service.commits.under_way.is_some() || self.service.commits.queue.is_empty() {
            return;
        }
        let keys = std::mem::take(&mut self.service.commits.queue);
        // The table was checked when it was read, and each change keeps it right.
        let mut draft = self.draft().expect("the durable region table is a valid one");
        let (mut batch, mut ended) = (Vec::new(), Vec::new());
        for key in keys {
            let Some(transaction) = self.service.transactions.get(&key) else { continue };
            match draft.apply(&transaction.change) {
                Ok(made) => batch.push((key, made)),
                Err(refusal) => ended.push((key, Err(refusal))),
            }
        }
        let forced = |(key, _): &(u32, Made)| {
            let transaction = self.service.transactions.get(key);
            transaction.is_some_and(|transaction| matches!(transaction.change, Change::Nothing))
        };
        if draft.changed || batch.iter().any(forced) {
            self.save(draft, batch);
        } else {
            ended.extend(batch.into_iter().map(|(key, made)| (key, Ok(made))));
        }
        for (key, result) in ended {
            self.committed(key, result);
        }
    }

    fn save(&mut self, mut draft: Draft, batch: Vec<(u32, Made)>) {
        let bytes = draft.encode();
        let notices = std::mem::take(&mut draft.notices);
        let (metadata, regions) = draft.into_parts();
        self.service.commits.under_way = Some(Save { metadata, regions, batch, notices });
        self.store_step(Continuation::Metadata, |store, ticket| store.save_metadata(ticket, bytes));
    }

    /// The save under way has ended.
    pub(super) fn metadata_saved(&mut self, result: Result<(), StoreError>) {
        let Some(save) = self.service.commits.under_way.take() else { return };
        let commits = &mut self.service.commits;
        commits.failed = result.err();
        let is_restoring = save.batch.is_empty();
        match result {
            Ok(()) => {
                commits.in_doubt = false;
                self.publish(save.metadata, save.regions, save.notices);
                for (key, made) in save.batch {
                    self.committed(key, Ok(made));
                }
                self.resume_erasures();
            }
            Err(error) => {
                tracing::error!("the device's metadata could not be saved: {error}");
                commits.in_doubt = true;
                for (key, _) in save.batch {
                    self.committed(key, Err(unsaved(error)));
                }
                if !is_restoring && self.service.commits.under_way.is_none() {
                    // The next generation of what there was, so that the change does not come back by itself.
                    self.restore();
                }
            }
        }
        self.commit_next();
        self.collect_garbage();
    }

    fn restore(&mut self) {
        let draft = self.draft().expect("the durable region table is a valid one");
        self.save(draft, Vec::new());
    }

    /// From now on the device works by these metadata.
    fn publish(&mut self, metadata: Metadata, regions: RegionTable, notices: Vec<Notice>) {
        let before = std::mem::replace(&mut self.service.commits.durable, metadata);
        let now = &self.service.commits.durable;
        let namespaces = match now.namespaces == before.namespaces {
            true => self.machine.published().namespaces.clone(),
            false => Arc::new(now.namespaces.clone()),
        };
        let intercalls = now.intercalls.iter().cloned().collect();
        if now.uncorrectable != before.uncorrectable {
            self.machine.media.marks = now.uncorrectable.clone();
        }
        self.machine.publish(Published { regions, namespaces, intercalls });
        if (&now.attachments, &now.reservations) != (&before.attachments, &before.reservations) {
            let mut tables = now.host_tables();
            tables.notices = self.host_tables.notices.and(notices);
            self.host_tables = Arc::new(tables);
        }
    }

    /// Gives a fresh device its namespaces and begins to save it for the first time.
    pub(crate) fn make_fresh(&mut self) -> Result<(), OpenError> {
        let config = self.machine.config.clone();
        let wanted = [
            (crate::CommandSet::Nvm, config.namespace_bytes, Some(config.block_bytes)),
            (crate::CommandSet::Kv, config.kv_namespace_bytes, None),
        ];
        let mut draft = self.draft().map_err(OpenError)?;
        for (csi, size_bytes, block_bytes) in wanted {
            if size_bytes > 0 && self.app_number(csi.app()).is_some() {
                let request = NamespaceRequest { block_bytes, ..NamespaceRequest::new(csi, size_bytes) };
                draft.apply(&Change::MakeNamespace(request)).map_err(|refusal| OpenError(refusal.text))?;
            }
        }
        self.save(draft, Vec::new());
        Ok(())
    }

    /// True while metadata are being saved.
    pub(crate) fn is_saving(&self) -> bool {
        self.service.commits.under_way.is_some()
    }

    /// How the first save has ended.
    pub(crate) fn made_fresh(&self) -> Result<(), OpenError> {
        match self.service.commits.failed {
            None => Ok(()),
            Some(error) => Err(OpenError(format!("the new device's metadata cannot be saved: {error}"))),
        }
    }
}
