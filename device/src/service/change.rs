//! Changes of the device's metadata as values, and the draft that they are made on: what the device will be when the draft has
//! been saved.
//!
//! Invariants: a change applies whole or not at all; nothing here touches what the device works by, which follows when the
//! draft is durable ([`super::commit`]).

use super::uncorrectable::MarkRequest;
use crate::bridge::accounts::WEIGHTS_MAX;
use crate::config::{STRIPE_BYTES, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, stripe_is_possible};
use crate::namespace::{CommandSet, Namespace};
use crate::region::{REGION_ALIGNMENT_BYTES, REGIONS_MAX, RegionError, RegionTable};
use crate::service::control::{AttachRequest, ControlStatus, IntercallChange, NamespaceRequest};
use crate::service::metadata::{Attachment, InstalledApp, Metadata, identity};
use crate::service::reservation::{
    Notice, REGISTRANTS_MAX, Reservation, ReservationAction, ReservationError, ReserveRequest,
};
use crate::spu::abi;
use crate::spu::protection::INTERCALLS_MAX;
use std::collections::BTreeSet;

/// Most namespaces.
pub const NAMESPACES_MAX: usize = 1024;
/// Least bytes of a namespace.
const NAMESPACE_BYTES_MIN: u64 = 1 << 20;
/// Bytes that blocks may have.
const BLOCK_BYTES: [u32; 2] = [512, 4096];
/// Most hosts that a namespace is attached to.
pub const ATTACHED_HOSTS_MAX: usize = 64;
/// Most bytes of a host's NQN (NVM Express Base Specification, section 4.7).
pub const NQN_BYTES_MAX: usize = 223;

/// What may change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Nothing: what is there is saved again.
    Nothing,
    /// An app is installed, or takes the place of the one with its number.
    Install(InstalledApp),
    /// An app goes, and its regions with it.
    RemoveApp { name: String },
    /// An app gets a region, unless it has one of that number. `share`: the prefix of its user's apps, and the most bytes a bank
    /// that they may have together.
    MakeRegion { app: String, id: u32, bank_bytes: u64, share: Option<(String, u64)> },
    /// A region is given up: nobody reaches it any more, and its range is to be zeroed.
    FreeRegion { app: String, id: u32 },
    /// An app's regions are given up, but for those that are namespaces.
    GiveUpRegions { app: String },
    /// A region that was given up is zeroed: its range is free.
    ForgetRegion { base: u64 },
    /// A namespace and its region.
    MakeNamespace(NamespaceRequest),
    /// A namespace goes, and its region is given up.
    DeleteNamespace { nsid: u32 },
    /// A namespace gets another size; what its region loses is given up.
    ResizeNamespace { nsid: u32, size_bytes: u64 },
    /// A block namespace is empty, with blocks of this size: it has another region, and its old one is given up.
    FormatNamespace { nsid: u32, block_bytes: u32 },
    /// Rules of the intercall table.
    Intercalls(IntercallChange),
    /// A user's weight; `None`: the default.
    Weight { user: u32, weight: Option<u16> },
    /// Which hosts a namespace is attached to.
    Attach(AttachRequest),
    /// A host's action on the reservation of a namespace.
    Reserve(ReserveRequest),
    /// Reads of blocks fail from now on.
    MarkUncorrectable(MarkRequest),
    /// A range of a bank was written: its marks go.
    Mend { spu: u16, start: u64, bytes: u64 },
}

/// What a change has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Nothing,
    /// A region begins here, in every bank.
    Region(u64),
    /// A namespace of this number.
    Namespace(u32),
    /// Ranges of regions that were given up: first byte and bytes, the same in every bank.
    GivenUp(Vec<(u64, u64)>),
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: ControlStatus,
    pub text: String,
    /// What an import tells its app.
    pub error: i32,
}

pub(super) fn refuse<T>(status: ControlStatus, text: impl Into<String>) -> Result<T, Refusal> {
    let error = match status {
        ControlStatus::NotFound => abi::ERROR_NOT_FOUND,
        ControlStatus::NoRoom => abi::ERROR_FULL,
        ControlStatus::Busy => abi::ERROR_PERMISSION,
        ControlStatus::MediaFailed => abi::ERROR_MEDIA,
        _ => abi::ERROR_ARGUMENT,
    };
    Err(Refusal { status, text: text.into(), error })
}

/// The metadata as they shall be.
pub(crate) struct Draft {
    pub(super) metadata: Metadata,
    regions: RegionTable,
    bank_bytes: u64,
    /// Something differs from what is saved.
    pub changed: bool,
    /// What hosts are to be told when it is durable.
    pub notices: Vec<Notice>,
}

impl Draft {
    /// Of the metadata as they are; the error says which region cannot be.
    pub fn new(metadata: Metadata, bank_bytes: u64) -> Result<Draft, String> {
        let regions = RegionTable::new(bank_bytes, metadata.regions.clone())?;
        Ok(Draft { metadata, regions, bank_bytes, changed: false, notices: Vec::new() })
    }

    /// The new metadata and their region table.
    pub fn into_parts(mut self) -> (Metadata, RegionTable) {
        self.metadata.regions = self.regions.all().to_vec();
        (self.metadata, self.regions)
    }

    /// The bytes to be saved.
    pub fn encode(&mut self) -> Vec<u8> {
        self.metadata.regions = self.regions.all().to_vec();
        self.metadata.encode()
    }

    /// Makes a change; one that is refused has changed nothing.
    pub fn apply(&mut self, change: &Change) -> Result<Made, Refusal> {
        let made = match change {
            Change::Nothing => return Ok(Made::Nothing),
            // These may change nothing.
            Change::MarkUncorrectable(request) => return self.mark_uncorrectable(request),
            Change::Mend { spu, start, bytes } => return Ok(self.mend(*spu, *start, *bytes)),
            Change::Install(app) => self.install(app),
            Change::RemoveApp { name } => self.remove_app(name)?,
            Change::MakeRegion { app, id, bank_bytes, share } => {
                // Another SPU's instance may have asked before: the region is there then.
                if let Some(region) = self.regions.find(app, *id) {
                    return Ok(Made::Region(region.base));
                }
                self.make_region(app, *id, *bank_bytes, share.as_ref())?
            }
            Change::FreeRegion { app, id } => self.free_region(app, *id)?,
            Change::GiveUpRegions { app } => self.give_up_regions(app),
            Change::ForgetRegion { base } => {
                self.regions.end_delete(*base);
                Made::Nothing
            }
            Change::MakeNamespace(request) => self.make_namespace(request)?,
            Change::DeleteNamespace { nsid } => self.delete_namespace(*nsid)?,
            Change::ResizeNamespace { nsid, size_bytes } => self.resize_namespace(*nsid, *size_bytes)?,
            Change::FormatNamespace { nsid, block_bytes } => self.format_namespace(*nsid, *block_bytes)?,
            Change::Intercalls(change) => self.intercalls(change)?,
            Change::Weight { user, weight } => self.weight(*user, *weight)?,
            Change::Attach(request) => self.attach(request)?,
            Change::Reserve(request) => self.reserve(request)?,
        };
        self.changed = true;
        Ok(made)
    }

    fn install(&mut self, app: &InstalledApp) -> Made {
        self.metadata.apps.retain(|other| other.number != app.number && other.name != app.name);
        self.metadata.apps.push(app.clone());
        self.metadata.apps.sort_by_key(|app| app.number);
        Made::Nothing
    }

    fn remove_app(&mut self, name: &str) -> Result<Made, Refusal> {
        if !self.metadata.apps.iter().any(|app| app.name == name) {
            return refuse(ControlStatus::NotFound, format!("no app {name} is installed"));
        }
        if self.metadata.namespaces.iter().any(|namespace| namespace.app == name) {
            return refuse(ControlStatus::Busy, format!("app {name} serves namespaces: delete them first"));
        }
        self.metadata.apps.retain(|app| app.name != name);
        Ok(self.give_up_regions(name))
    }

    fn give_up_regions(&mut self, app: &str) -> Made {
        let is_namespace = |base| self.metadata.namespaces.iter().any(|namespace| namespace.base == base);
        let own = self.regions.all().iter().filter(|region| region.app == app && !is_namespace(region.base));
        let ids: Vec<u32> = own.map(|region| region.id).collect();
        Made::GivenUp(ids.into_iter().filter_map(|id| self.regions.begin_delete(app, id)).collect())
    }

    fn make_region(
        &mut self,
        app: &str,
        id: u32,
        bank_bytes: u64,
        share: Option<&(String, u64)>,
    ) -> Result<Made, Refusal> {
        if !self.metadata.apps.iter().any(|installed| installed.name == app) {
            return refuse(ControlStatus::NotFound, format!("app {app} was removed"));
        }
        if let Some((prefix, bank_bytes_max)) = share {
            let of_user = self.regions.all().iter().filter(|region| region.app.starts_with(prefix));
            let (own, taken) = of_user.fold((0, 0), |(own, taken), region| (own + 1, taken + region.bank_bytes));
            if own >= REGIONS_MAX - self.regions.all().len() {
                let text = format!("this user's apps have {own} regions, as many as are left for others");
                return refuse(ControlStatus::NoRoom, text);
            }
            let wanted = bank_bytes.checked_next_multiple_of(REGION_ALIGNMENT_BYTES);
            let fits = wanted.and_then(|wanted| wanted.checked_add(taken)).is_some_and(|all| all <= *bank_bytes_max);
            if !fits {
                let text = format!("the regions of this user's apps have {taken} bytes a bank of {bank_bytes_max}");
                return refuse(ControlStatus::NoRoom, text);
            }
        }
        match self.regions.create(app, id, bank_bytes, false) {
            Ok(region) => Ok(Made::Region(region.base)),
            Err(RegionError::Full) => refuse(ControlStatus::NoRoom, "no gap in the banks is long enough"),
            Err(RegionError::Size) => refuse(ControlStatus::Malformed, "the size makes no sense"),
        }
    }

    fn free_region(&mut self, app: &str, id: u32) -> Result<Made, Refusal> {
        let Some(region) = self.regions.find(app, id) else {
            return refuse(ControlStatus::NotFound, format!("app {app} has no region {id}"));
        };
        if self.metadata.namespaces.iter().any(|namespace| namespace.base == region.base) {
            return refuse(ControlStatus::Busy, format!("region {id} of app {app} is a namespace"));
        }
        Ok(Made::GivenUp(self.regions.begin_delete(app, id).into_iter().collect()))
    }

    fn make_namespace(&mut self, request: &NamespaceRequest) -> Result<Made, Refusal> {
        let app = request.app.as_deref().unwrap_or(request.csi.app());
        match self.metadata.apps.iter().find(|installed| installed.name == app) {
            None => {
                let text = format!("app {app}, which is to serve the namespace, is not installed");
                return refuse(ControlStatus::NotFound, text);
            }
            // It is called on behalf of the kernel, with what that may reach.
            Some(InstalledApp { owner: Some(user), .. }) => {
                let text = format!("app {app} is user {user}'s: namespaces are served by the kernel's apps");
                return refuse(ControlStatus::Malformed, text);
            }
            Some(_) => {}
        }
        let stripe_bytes = stripe(request)?;
        let block_bytes = match (request.csi, request.block_bytes) {
            (CommandSet::Kv, None) => 1,
            (CommandSet::Nvm, None) => 4096,
            (CommandSet::Nvm, Some(bytes)) if BLOCK_BYTES.contains(&bytes) => bytes,
            (_, Some(bytes)) => {
                let text = format!("block_bytes {bytes} is not possible: 512 or 4096 for nvm, none for kv");
                return refuse(ControlStatus::Malformed, text);
            }
        };
        if self.metadata.namespaces.len() >= NAMESPACES_MAX {
            return refuse(ControlStatus::NoRoom, format!("there are {NAMESPACES_MAX} namespaces already"));
        }
        if request.size_bytes < NAMESPACE_BYTES_MIN {
            return refuse(ControlStatus::Malformed, "a namespace has at least 1 MiB");
        }
        let banks = u64::from(self.metadata.spus);
        let share = crate::config::bank_share_bytes(request.size_bytes, self.metadata.spus, stripe_bytes);
        let Some(share) = share else { return refuse(ControlStatus::Malformed, "the size is too large") };
        let taken = self.metadata.namespaces.iter().map(|namespace| namespace.nsid);
        let given_up = self.regions.all().iter().filter(|region| region.deleting).map(|region| region.id);
        let taken: BTreeSet<u32> = taken.chain(given_up).collect();
        let Some(nsid) = (1..=NAMESPACES_MAX as u32 * 2).find(|nsid| !taken.contains(nsid)) else {
            return refuse(ControlStatus::NoRoom, "no namespace id is free");
        };
        let attachment = attachment(nsid, request.hosts.as_deref(), request.private)?;
        let shared = request.csi == CommandSet::Nvm;
        let region = match self.regions.create(app, nsid, share, shared) {
            Ok(region) => region.clone(),
            Err(RegionError::Size) => return refuse(ControlStatus::Malformed, "the size makes no sense"),
            Err(RegionError::Full) => {
                let left = self.bank_bytes.saturating_sub(self.regions.used_bank_bytes()).saturating_mul(banks);
                let size_bytes = request.size_bytes;
                let text = format!("a namespace of {size_bytes} bytes does not fit, {left} are left in the media");
                return refuse(ControlStatus::NoRoom, text);
            }
        };
        let size_bytes = match request.csi {
            CommandSet::Nvm => request.size_bytes.next_multiple_of(u64::from(block_bytes)),
            CommandSet::Kv => request.size_bytes,
        };
        let seed = u64::from_le_bytes(*self.metadata.uuid.first_chunk().unwrap_or(&[0; 8]));
        let nguid = identity(seed, self.metadata.identities);
        self.metadata.identities += 1;
        self.metadata.namespaces.push(Namespace {
            nsid,
            csi: request.csi,
            size_bytes,
            block_bytes,
            base: region.base,
            bank_bytes: region.bank_bytes,
            nguid,
            app: app.to_owned(),
            stripe_bytes,
        });
        self.metadata.namespaces.sort_by_key(|namespace| namespace.nsid);
        self.set_attachment(nsid, attachment);
        Ok(Made::Namespace(nsid))
    }

    fn delete_namespace(&mut self, nsid: u32) -> Result<Made, Refusal> {
        let Some(at) = self.metadata.namespaces.iter().position(|namespace| namespace.nsid == nsid) else {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"));
        };
        let namespace = self.metadata.namespaces.remove(at);
        self.metadata.attachments.retain(|attachment| attachment.nsid != nsid);
        self.metadata.reservations.retain(|one| one.nsid != nsid);
        let range = self.regions.begin_delete(&namespace.app, nsid);
        self.forget_marks(range);
        Ok(Made::GivenUp(range.into_iter().collect()))
    }

    /// The size is rounded up to whole stripes and units of regions in all banks, so that what a namespace loses is a range of its own.
    fn resize_namespace(&mut self, nsid: u32, size_bytes: u64) -> Result<Made, Refusal> {
        let banks = u64::from(self.metadata.spus);
        let Some(namespace) = self.metadata.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid) else {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"));
        };
        if namespace.csi != CommandSet::Nvm {
            return refuse(ControlStatus::Malformed, "a kv namespace keeps its size: make another, and move the pairs");
        }
        if size_bytes < NAMESPACE_BYTES_MIN {
            return refuse(ControlStatus::Malformed, "a namespace has at least 1 MiB");
        }
        let share_unit_bytes = REGION_ALIGNMENT_BYTES.max(namespace.stripe_bytes.into());
        let whole = size_bytes.checked_next_multiple_of(share_unit_bytes * banks);
        let Some(whole_bytes) = whole else { return refuse(ControlStatus::Malformed, "the size is too large") };
        let share = whole_bytes / banks;
        match self.regions.resize(&namespace.app, nsid, share) {
            Ok(lost) => {
                (namespace.size_bytes, namespace.bank_bytes) = (whole_bytes, share);
                self.forget_marks(lost);
                Ok(Made::GivenUp(lost.into_iter().collect()))
            }
            Err(RegionError::Size) => refuse(ControlStatus::Malformed, "the size makes no sense"),
            Err(RegionError::Full) => {
                let longest = self.regions.longest(&namespace.app, nsid).unwrap_or(0);
                let most_bytes = (longest / share_unit_bytes * share_unit_bytes).saturating_mul(banks);
                let text = format!(
                    "namespace {nsid} can have {most_bytes} bytes at most: what lies behind it in the media is taken, or there is no more"
                );
                refuse(ControlStatus::NoRoom, text)
            }
        }
    }

    fn format_namespace(&mut self, nsid: u32, block_bytes: u32) -> Result<Made, Refusal> {
        let Some(namespace) = self.metadata.namespaces.iter_mut().find(|namespace| namespace.nsid == nsid) else {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"));
        };
        if namespace.csi != CommandSet::Nvm || !BLOCK_BYTES.contains(&block_bytes) {
            let text =
                format!("a block namespace has blocks of 512 or 4096 bytes, not {block_bytes}; others have none");
            return refuse(ControlStatus::Malformed, text);
        }
        // The new region is all zeroes from the start, so that nobody waits for the old one to be zeroed.
        let region = match self.regions.create(&namespace.app, nsid, namespace.bank_bytes, true) {
            Ok(region) => region.clone(),
            Err(_) => {
                let text = format!("namespace {nsid} cannot be formatted: there is no room for one more of its size");
                return refuse(ControlStatus::NoRoom, text);
            }
        };
        let lost = self.regions.begin_delete_at(namespace.base);
        (namespace.base, namespace.block_bytes) = (region.base, block_bytes);
        // Blocks of 512 bytes may have left a part of a longer one at the end.
        namespace.size_bytes = namespace.size_bytes / u64::from(block_bytes) * u64::from(block_bytes);
        self.forget_marks(lost);
        Ok(Made::GivenUp(lost.into_iter().collect()))
    }

    fn intercalls(&mut self, change: &IntercallChange) -> Result<Made, Refusal> {
        let mut table: BTreeSet<_> = self.metadata.intercalls.iter().cloned().collect();
        for rule in &change.remove {
            table.remove(rule);
        }
        table.extend(change.add.iter().cloned());
        if table.len() > INTERCALLS_MAX {
            let text = format!("the intercall table would have {} rules, at most {INTERCALLS_MAX} fit", table.len());
            return refuse(ControlStatus::NoRoom, text);
        }
        self.metadata.intercalls = table.into_iter().collect();
        Ok(Made::Nothing)
    }

    fn weight(&mut self, user: u32, weight: Option<u16>) -> Result<Made, Refusal> {
        let weights = &mut self.metadata.weights;
        let others = weights.iter().filter(|(of, _)| *of != user).count();
        if weight.is_some() && others >= WEIGHTS_MAX {
            return refuse(ControlStatus::NoRoom, format!("{WEIGHTS_MAX} users have weights, which is the most"));
        }
        weights.retain(|(of, _)| *of != user);
        weights.extend(weight.map(|weight| (user, weight)));
        weights.sort_unstable();
        Ok(Made::Nothing)
    }

    fn attach(&mut self, request: &AttachRequest) -> Result<Made, Refusal> {
        let AttachRequest { nsid, hosts, attach, detach } = request;
        let nsid = *nsid;
        if !self.metadata.namespaces.iter().any(|namespace| namespace.nsid == nsid) {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"));
        }
        let before = self.metadata.attachments.iter().find(|attachment| attachment.nsid == nsid);
        let private = before.is_some_and(|attachment| attachment.private);
        let is_whole = attach.is_empty() && detach.is_empty();
        let hosts = match (is_whole, before.map(|attachment| &attachment.hosts).or(hosts.as_ref())) {
            (true, _) => hosts.clone(),
            (false, None) => {
                return refuse(
                    ControlStatus::Malformed,
                    format!("namespace {nsid} is open to every host: say which hosts it is attached to instead"),
                );
            }
            (false, Some(before)) => {
                let kept = before.iter().filter(|host| !detach.contains(host));
                let mut hosts: Vec<String> = kept.chain(attach).cloned().collect();
                hosts.sort();
                hosts.dedup();
                Some(hosts)
            }
        };
        let attachment = attachment(nsid, hosts.as_deref(), private)?;
        self.set_attachment(nsid, attachment);
        Ok(Made::Nothing)
    }

    fn reserve(&mut self, request: &ReserveRequest) -> Result<Made, Refusal> {
        if !request.others.is_empty() && request.action != ReservationAction::Persist {
            return refuse(ControlStatus::Malformed, "an action on a reservation is for one namespace");
        }
        let all = || [request.nsid].into_iter().chain(request.others.iter().copied());
        let is_there = |nsid: &u32| self.metadata.namespaces.iter().any(|namespace| namespace.nsid == *nsid);
        if let Some(nsid) = all().find(|nsid| !is_there(nsid)) {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"));
        }
        for nsid in all() {
            self.reserve_one(nsid, request)?;
        }
        self.metadata.reservations.sort_by_key(|one| one.nsid);
        Ok(Made::Nothing)
    }

    fn reserve_one(&mut self, nsid: u32, request: &ReserveRequest) -> Result<(), Refusal> {
        let reservations = &mut self.metadata.reservations;
        let place = reservations.iter().position(|one| one.nsid == nsid);
        let mut next = match place {
            Some(place) => reservations[place].clone(),
            None => Reservation { nsid, ..Reservation::default() },
        };
        match next.apply(request) {
            Ok(notices) => self.notices.extend(notices),
            Err(ReservationError::Conflict) => {
                return refuse(ControlStatus::Busy, format!("namespace {nsid}: the reservation of it is in conflict"));
            }
            Err(ReservationError::Malformed) => {
                return refuse(ControlStatus::Malformed, "key and type of the reservation do not go together");
            }
            Err(ReservationError::Full) => {
                let text = format!("namespace {nsid} has {REGISTRANTS_MAX} registered hosts already");
                return refuse(ControlStatus::NoRoom, text);
            }
        }
        match place {
            Some(place) => reservations[place] = next,
            None => reservations.push(next),
        }
        Ok(())
    }

    fn set_attachment(&mut self, nsid: u32, attachment: Option<Attachment>) {
        let attachments = &mut self.metadata.attachments;
        attachments.retain(|attachment| attachment.nsid != nsid);
        attachments.extend(attachment);
        attachments.sort_by_key(|attachment| attachment.nsid);
    }
}

/// Bytes of a stripe that a namespace is to have.
fn stripe(request: &NamespaceRequest) -> Result<u32, Refusal> {
    match (request.csi, request.stripe_bytes) {
        (_, None) => Ok(STRIPE_BYTES),
        (CommandSet::Nvm, Some(bytes)) if stripe_is_possible(bytes) => Ok(bytes),
        (CommandSet::Nvm, Some(bytes)) => {
            let most = STRIPE_BYTES_MAX;
            let text =
                format!("a stripe of {bytes} bytes is not possible: a power of two from {STRIPE_BYTES_MIN} to {most}");
            refuse(ControlStatus::Malformed, text)
        }
        (CommandSet::Kv, Some(_)) => refuse(ControlStatus::Malformed, "a kv namespace has no stripes"),
    }
}

/// Which hosts a namespace is to be attached to; `None`: all.
fn attachment(nsid: u32, hosts: Option<&[String]>, private: bool) -> Result<Option<Attachment>, Refusal> {
    if private && hosts.is_none_or(|hosts| hosts.len() > 1) {
        let text = format!("namespace {nsid} is private: it is attached to one host at most");
        return refuse(ControlStatus::Busy, text);
    }
    let Some(hosts) = hosts else { return Ok(None) };
    if hosts.len() > ATTACHED_HOSTS_MAX {
        let text = format!("a namespace is attached to at most {ATTACHED_HOSTS_MAX} hosts, not {}", hosts.len());
        return refuse(ControlStatus::NoRoom, text);
    }
    if hosts.iter().any(|host| host.is_empty() || host.len() > NQN_BYTES_MAX) {
        return refuse(ControlStatus::Malformed, format!("a host's NQN has 1 to {NQN_BYTES_MAX} bytes"));
    }
    Ok(Some(Attachment { nsid, hosts: hosts.to_vec(), private }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_regions_leave_others_as_many() {
        let text = r#"{"version":1,"uuid":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"spus":1,"stripe_bytes":8192,"identities":1,"regions":[],
            "namespaces":[],"apps":[{"number":1,"name":"base-io","built_in":true},{"number":2,"name":"u6666-many","built_in":false,"owner":6666},
            {"number":3,"name":"u1000-few","built_in":false,"owner":1000}]}"#;
        let metadata = Metadata::decode(text.as_bytes()).expect("metadata");
        let mut draft = Draft::new(metadata, 1 << 40).expect("no regions");
        let mut make = |app: &str, id: u32, user: Option<&str>| {
            let share = user.map(|prefix| (prefix.to_owned(), 1 << 40));
            let change = Change::MakeRegion { app: app.to_owned(), id, bank_bytes: REGION_ALIGNMENT_BYTES, share };
            draft.apply(&change).is_ok()
        };
        let made = (0..REGIONS_MAX as u32).take_while(|id| make("u6666-many", *id, Some("u6666-"))).count();
        assert_eq!(made, REGIONS_MAX / 2);
        for id in 0..100 {
            assert!(make("u1000-few", id, Some("u1000-")) && make("base-io", id, None), "{id}");
        }
    }

    #[test]
    fn one_users_regions_have_so_many_bytes_in_all() {
        let text = r#"{"version":1,"uuid":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"spus":1,"stripe_bytes":8192,"identities":1,"regions":[],
            "namespaces":[],"apps":[{"number":1,"name":"u6666-one","built_in":false,"owner":6666},
            {"number":2,"name":"u6666-two","built_in":false,"owner":6666},{"number":3,"name":"u1000-few","built_in":false,"owner":1000}]}"#;
        let metadata = Metadata::decode(text.as_bytes()).expect("metadata");
        let mut draft = Draft::new(metadata, 1 << 40).expect("no regions");
        let mut make = |app: &str, id: u32, user: &str| {
            let share = Some((user.to_owned(), 3 * REGION_ALIGNMENT_BYTES));
            let change = Change::MakeRegion { app: app.to_owned(), id, bank_bytes: REGION_ALIGNMENT_BYTES, share };
            draft.apply(&change).is_ok()
        };
        assert!(make("u6666-one", 1, "u6666-") && make("u6666-two", 1, "u6666-") && make("u6666-one", 2, "u6666-"));
        assert!(!make("u6666-one", 3, "u6666-") && !make("u6666-two", 2, "u6666-"), "by whatever app");
        assert!((1..=3).all(|id| make("u1000-few", id, "u1000-")) && !make("u1000-few", 4, "u1000-"));
    }
}
