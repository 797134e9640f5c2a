//! The trees that are open on an SPU, and what changes them.
//!
//! What always holds:
//! - one SPU alone changes a tree (its owner), one change after the other; a change is visible, to anybody, once it is durable;
//! - a search that saw the same root before and after has read nothing that was given up meanwhile;
//! - a tree that is removed has no request under way on any SPU, so that nobody uses what another tree has instead;
//! - after a failure that leaves in doubt which root is durable, the tree is opened anew before anything is written.

use crate::change::Change;
use crate::format::{
    FIRST_PAGE, NONE, PAGE_BYTES, PAGES_MAX, PUBLISHED_BYTES, PUBLISHED_OFFSET, Root, SUPERBLOCK_BYTES, Spare,
    Superblock, decode_published, encode_published,
};
use crate::planted::{Planted, planted};
use crate::ports::{BUSY, DAMAGED, Failure, Geometry, Ports};
use crate::search::survey;
use crate::space::Space;
use crate::wire::{self, Create, LAYOUT_STRIPED, NAME_BYTES_MAX};
use core::cell::Cell;
use willow_sdk::sync::Mutex;
use willow_sdk::{
    App, Destination, Request, Response, SpuNv, region, region_bytes, region_free, sleep_ns, spu_count, spu_id, time_ns,
};

/// Trees that are open on an SPU at a time; the one that was not used longest makes way.
pub const TREES_MAX: usize = 8;
/// Least pages of a tree in a bank.
const BANK_PAGES_MIN: u64 = 64;

/// Trees that are being removed, on an SPU at a time.
const CLOSED_MAX: usize = 4;
/// How long requests of a tree that is removed have to end, and between two looks at that.
const CLOSE_NS: u64 = 2_000_000_000;
const CLOSE_LOOK_NS: u64 = 100_000;
/// How long the removal of a tree takes at most, but for its last step, which is the device's.
const REMOVE_NS: u64 = 10_000_000_000;
/// How long an SPU keeps a tree closed that nobody has told it to open again.
const CLOSED_NS: u64 = 60_000_000_000;
/// How often an SPU is told so.
const REOPEN_TRIES: u32 = 100;

/// A tree that is open.
#[derive(Clone, Copy)]
struct Open {
    geometry: Geometry,
    /// With the root that it was opened with.
    superblock: Superblock,
}

/// A place for a tree.
pub struct Slot {
    tree: Cell<u32>,
    open: Cell<Option<Open>>,
    root: Cell<Root>,
    /// Requests that use it.
    users: Cell<u32>,
    /// When it was used last.
    used: Cell<u64>,
    /// Held by who opens or changes it; what is free in it, once that is known.
    writer: Mutex<Option<Space>>,
}

const EMPTY: Root = Root { revision: 0, page: NONE, height: 0, pairs: 0 };

impl Slot {
    const fn new() -> Slot {
        Slot {
            tree: Cell::new(0),
            open: Cell::new(None),
            root: Cell::new(EMPTY),
            users: Cell::new(0),
            used: Cell::new(0),
            writer: Mutex::new(None),
        }
    }
}

/// All that an instance knows.
pub struct State {
    slots: [Slot; TREES_MAX],
    clock: Cell<u64>,
    /// Trees that are being removed, and until when they stay closed; 0: none.
    closed: [Cell<(u32, u64)>; CLOSED_MAX],
    /// Nodes that are not used just now.
    pub spare: Spare,
    /// Requests of hosts that are handled, and of other SPUs that open a tree.
    pub places: [Cell<u32>; 2],
}

/// A place among the requests that are handled.
pub struct Place<'a>(&'a Cell<u32>);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A tree, as a request uses it.
pub struct Tree<'a> {
    slot: &'a Slot,
    /// Its pages.
    pub ports: Ports<'a>,
    superblock: Superblock,
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        self.slot.users.set(self.slot.users.get() - 1);
    }
}

/// The SPU that changes a striped tree.
fn striped_owner(tree: u32) -> u32 {
    tree % spu_count()
}

impl State {
    /// Nothing is open.
    pub const fn new() -> State {
        State {
            slots: [const { Slot::new() }; TREES_MAX],
            clock: Cell::new(0),
            closed: [const { Cell::new((0, 0)) }; CLOSED_MAX],
            spare: Spare::new(),
            places: [const { Cell::new(0) }; 2],
        }
    }

    /// A place among so many; other requests than these must always find one.
    pub fn place(&self, kind: usize, most: u32) -> Result<Place<'_>, Failure> {
        let place = &self.places[kind];
        if place.get() == most {
            return Err(BUSY);
        }
        place.set(place.get() + 1);
        Ok(Place(place))
    }

    /// A slot for a tree, with one user more.
    fn slot(&self, tree: u32) -> Result<&Slot, Failure> {
        if self.is_closed(tree) {
            return Err(BUSY);
        }
        let found = self.slots.iter().find(|slot| slot.used.get() > 0 && slot.tree.get() == tree);
        let slot = match found {
            Some(slot) => slot,
            None => {
                let unused = self.slots.iter().filter(|slot| slot.users.get() == 0).min_by_key(|slot| slot.used.get());
                let slot = unused.ok_or(BUSY)?;
                *slot.writer.try_lock().ok_or(BUSY)? = None;
                slot.open.set(None);
                slot.tree.set(tree);
                slot
            }
        };
        self.clock.set(self.clock.get() + 1);
        slot.used.set(self.clock.get());
        slot.users.set(slot.users.get() + 1);
        Ok(slot)
    }

    /// A tree, opened where it is not.
    pub async fn enter<'a>(&'a self, request: &'a Request, tree: u32) -> Result<Tree<'a>, Failure> {
        let slot = self.slot(tree)?;
        let users = Users(Some(slot));
        let open = match slot.open.get() {
            Some(open) => open,
            None => {
                let mut space = slot.writer.lock().await;
                match slot.open.get() {
                    Some(open) => open,
                    None => {
                        *space = None;
                        let (open, root) = open(request, tree).await?;
                        slot.root.set(root);
                        slot.open.set(Some(open));
                        open
                    }
                }
            }
        };
        users.keep();
        Ok(Tree { slot, ports: Ports { request, geometry: open.geometry }, superblock: open.superblock })
    }

    fn is_closed(&self, tree: u32) -> bool {
        let mut closed = self.closed.iter().map(Cell::get).filter(|(of, _)| *of != 0);
        closed.any(|(of, until_ns)| of == tree && until_ns > time_ns())
    }

    /// Lets no more requests of a tree begin, until it is opened again, and waits for those that have.
    pub async fn close(&self, tree: u32) -> Result<(), Failure> {
        if tree == 0 || self.is_closed(tree) {
            return Err(BUSY);
        }
        let now_ns = time_ns();
        let place = self.closed.iter().find(|place| place.get().0 == 0 || place.get().1 <= now_ns).ok_or(BUSY)?;
        place.set((tree, now_ns + CLOSED_NS));
        let slot = || self.slots.iter().find(|slot| slot.used.get() > 0 && slot.tree.get() == tree);
        while let Some(slot) = slot() {
            if slot.users.get() == 0 {
                // Nobody uses it, so nobody has it locked.
                if let Some(mut space) = slot.writer.try_lock() {
                    *space = None;
                }
                slot.open.set(None);
                slot.used.set(0);
                return Ok(());
            }
            if time_ns() >= now_ns + CLOSE_NS {
                self.reopen(tree);
                return Err(BUSY);
            }
            if let Err(error) = sleep_ns(CLOSE_LOOK_NS).await {
                self.reopen(tree);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Requests of a tree may begin again.
    pub fn reopen(&self, tree: u32) {
        let place = self.closed.iter().find(|place| place.get().0 == tree);
        place.into_iter().for_each(|place| place.set((0, 0)));
    }

    /// Removes a tree, if its name is this one: on all SPUs its requests end and no more begin, and then its region goes, which is done as a whole or not at all.
    pub async fn remove(&self, request: &Request, tree: u32, name: &[u8]) -> Result<(), Failure> {
        if striped_owner(tree) != spu_id() {
            return Err(Failure(wire::STATUS_ELSEWHERE));
        }
        let base = region(tree, 0).await?;
        let begun_ns = time_ns();
        self.close(tree).await?;
        let mut told = 0;
        let removed = async {
            // What lies there may be no tree, or none of this device's: then its name is not asked for.
            if superblock(request, base).await?.is_some_and(|found| found.name() != name) {
                return Err(Failure(wire::STATUS_OTHER_NAME));
            }
            for spu in (0..spu_count()).filter(|spu| *spu != spu_id()) {
                told = spu + 1;
                let body = wire::encode_change(tree, 1);
                let asked = request.rpc(Destination::Spu(spu), App::Own, wire::handler::CLOSE);
                match asked.append(&body).send().await?.status {
                    0 if time_ns() < begun_ns + REMOVE_NS => {}
                    0 => return Err(BUSY),
                    status => return Err(Failure(status)),
                }
            }
            Ok(region_free(tree).await?)
        }
        .await;
        for spu in (0..told).filter(|spu| *spu != spu_id()) {
            self.have_reopened(request, tree, spu).await;
        }
        self.reopen(tree);
        removed
    }

    /// Has another SPU let requests of a tree begin again. One that cannot be told does so by itself, later.
    async fn have_reopened(&self, request: &Request, tree: u32, spu: u32) {
        for _ in 0..REOPEN_TRIES {
            let body = wire::encode_change(tree, 0);
            let asked = request.rpc(Destination::Spu(spu), App::Own, wire::handler::CLOSE);
            if asked.append(&body).send().await.is_ok_and(|response| response.status == 0) {
                return;
            }
            // Where nothing is had to wait for, it is tried again at once.
            let _ = sleep_ns(CLOSE_LOOK_NS).await;
        }
    }

    /// Makes a tree on this SPU. Where there is one, its layout is told as the result.
    pub async fn create(&self, request: &Request, create: &Create, name: &[u8]) -> Result<(), Response> {
        let failed = |status| Err(Response::failure(status));
        let slot = self.slot(create.tree).map_err(Response::from)?;
        let _users = Users(Some(slot));
        let _writer = slot.writer.lock().await;
        let is_striped = create.layout == LAYOUT_STRIPED;
        let pages = match create.bank_bytes / PAGE_BYTES {
            pages if pages < BANK_PAGES_MIN => return failed(wire::STATUS_MALFORMED),
            pages => (pages - FIRST_PAGE).saturating_mul(if is_striped { spu_count().into() } else { 1 }),
        };
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len());
        if create.layout > LAYOUT_STRIPED || pages > u64::from(PAGES_MAX) || create.tree == 0 || !is_name {
            return failed(wire::STATUS_MALFORMED);
        }
        if is_striped && striped_owner(create.tree) != spu_id() {
            return failed(wire::STATUS_ELSEWHERE);
        }
        let base =
            region(create.tree, create.bank_bytes).await.map_err(|error| Response::from(Failure::from(error)))?;
        if let Some(found) = superblock(request, base).await.map_err(Response::from)? {
            let status = if found.name() == name { wire::STATUS_EXISTS } else { wire::STATUS_OTHER_NAME };
            return Err(Response { status, result: found.layout });
        }
        // The region may be there since an earlier request, with another size.
        let bytes = region_bytes(create.tree).map_err(|error| Response::from(Failure::from(error)))?;
        if bytes < create.bank_bytes {
            return failed(wire::STATUS_OTHER_NAME);
        }
        let mut kept = [0; NAME_BYTES_MAX];
        kept[..name.len()].copy_from_slice(name);
        let made = Superblock {
            tree: create.tree,
            layout: create.layout,
            spu: spu_id(),
            spus: spu_count(),
            pages: pages as u32,
            root: EMPTY,
            name_bytes: name.len() as u32,
            name: kept,
        };
        slot.open.set(None);
        let written = async {
            request.write(base, &made.encode()).await?;
            willow_sdk::flush().await
        };
        written.await.map_err(|error| Response::from(Failure::from(error)))
    }
}

/// Takes a user from a slot, unless it is kept.
struct Users<'a>(Option<&'a Slot>);

impl Users<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Users<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.users.set(slot.users.get() - 1);
        }
    }
}

/// The newer of the two superblocks.
async fn superblock(request: &Request, base: u64) -> Result<Option<Superblock>, Failure> {
    let mut newest: Option<Superblock> = None;
    for copy in 0..2 {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        request.read(base + copy * PAGE_BYTES, &mut bytes).await?;
        let found = Superblock::decode(&bytes);
        let revision = |it: Option<Superblock>| it.map(|it| it.root.revision);
        if revision(found) > revision(newest) {
            newest = found;
        }
    }
    Ok(newest)
}

/// Opens a tree: its root is durable.
async fn open(request: &Request, tree: u32) -> Result<(Open, Root), Failure> {
    let base = region(tree, 0).await?;
    let bank_pages = (region_bytes(tree)? / PAGE_BYTES).saturating_sub(FIRST_PAGE);
    // What is read may not be durable, where the one before failed in its midst.
    if !planted(Planted::TrustsDoubt) {
        willow_sdk::flush().await?;
    }
    let found = superblock(request, base).await?;
    let superblock = match found {
        Some(found) => found,
        None => ask_owner(request, tree).await?,
    };
    let is_striped = superblock.layout == LAYOUT_STRIPED;
    let owner = if is_striped { striped_owner(tree) } else { spu_id() };
    let most = bank_pages.saturating_mul(if is_striped { spu_count().into() } else { 1 });
    let is_sound = superblock.tree == tree
        && superblock.spus == spu_count()
        && superblock.spu == owner
        && u64::from(superblock.pages) <= most;
    if !is_sound {
        return Err(DAMAGED);
    }
    let geometry = Geometry { base, tree, is_striped, spus: spu_count(), owner, pages: superblock.pages };
    let open = Open { geometry, superblock };
    if owner == spu_id() {
        publish(&Ports { request, geometry }, &superblock.root).await?;
    }
    Ok((open, superblock.root))
}

/// Has the owner open a striped tree; its superblock.
async fn ask_owner(request: &Request, tree: u32) -> Result<Superblock, Failure> {
    const NO_TREE: Failure = Failure(wire::STATUS_NO_TREE);
    if striped_owner(tree) == spu_id() {
        return Err(NO_TREE);
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let number = tree.to_le_bytes();
    let asked = request.rpc(Destination::Spu(striped_owner(tree)), App::Own, wire::handler::OPEN);
    let Response { status, .. } = asked.append(&number).reply(&mut bytes).send().await?;
    if status != 0 {
        return Err(Failure(status));
    }
    let superblock = Superblock::decode(&bytes).ok_or(DAMAGED)?;
    if superblock.layout == LAYOUT_STRIPED { Ok(superblock) } else { Err(NO_TREE) }
}

/// Where readers on other SPUs look for the root.
fn published(geometry: &Geometry) -> SpuNv {
    SpuNv { spu: geometry.owner, address: geometry.base + PUBLISHED_OFFSET }
}

/// Tells readers on other SPUs of a root that is durable.
async fn publish(ports: &Ports<'_>, root: &Root) -> Result<(), Failure> {
    if !ports.geometry.is_striped {
        return Ok(());
    }
    ports.write(&encode_published(ports.geometry.tree, root), published(&ports.geometry)).await
}

/// How often a search is tried while the tree changes, before it keeps changes off, or is to be tried again.
const TRIES: u32 = 3;

impl Tree<'_> {
    fn is_owner(&self) -> bool {
        self.ports.geometry.owner == spu_id()
    }

    /// What it is made of.
    pub fn superblock(&self) -> Superblock {
        Superblock { root: self.slot.root.get(), ..self.superblock }
    }

    /// The root as it is now.
    async fn root(&self) -> Result<Root, Failure> {
        if self.is_owner() {
            return Ok(self.slot.root.get());
        }
        let mut bytes = [0; PUBLISHED_BYTES];
        let geometry = &self.ports.geometry;
        self.ports.read(published(geometry), &mut bytes).await?;
        decode_published(&bytes, geometry.tree, geometry.pages).ok_or(BUSY)
    }

    /// Searches until the tree was the same before and after.
    pub async fn search<T>(&self, mut with: impl AsyncFnMut(&Root) -> Result<T, Failure>) -> Result<T, Failure> {
        for attempt in 0..=TRIES {
            // Its owner can keep changes off.
            let keeps_off = attempt == TRIES && self.is_owner();
            let _writer = if keeps_off { Some(self.slot.writer.lock().await) } else { None };
            let root = self.root().await?;
            let found = with(&root).await;
            if self.root().await?.revision == root.revision || planted(Planted::NeverLooksBack) {
                return found;
            }
        }
        Err(BUSY)
    }

    /// Makes a change, all of it or nothing; what `with` gives is told once that is durable.
    pub async fn change<T>(
        &self,
        state: &State,
        mut with: impl AsyncFnMut(&mut Change<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if !self.is_owner() {
            return Err(Failure(wire::STATUS_ELSEWHERE));
        }
        let mut writer = self.slot.writer.lock().await;
        // It may be in doubt since this request came.
        if self.slot.open.get().is_none() {
            return Err(BUSY);
        }
        let root = self.slot.root.get();
        let space = match &mut *writer {
            Some(space) => space,
            None => writer.insert(survey(&self.ports, &root).await?),
        };
        let mut change = Change::new(&self.ports, space, root, [state.spare.take(), state.spare.take()]);
        let (nodes, outcome) = match with(&mut change).await {
            Err(failure) => (change.aborted(), Err(failure)),
            Ok(made) if change.is_empty() => (change.aborted(), Ok(made)),
            Ok(made) => match self.commit(&change).await {
                Ok(()) => (change.committed(), Ok(made)),
                Err(Doubt::None(failure)) => (change.aborted(), Err(failure)),
                Err(Doubt::Root(failure)) => {
                    let nodes = change.aborted();
                    if !planted(Planted::TrustsDoubt) {
                        *writer = None;
                        self.slot.open.set(None);
                    }
                    (nodes, Err(failure))
                }
            },
        };
        nodes.into_iter().for_each(|node| state.spare.give(node));
        outcome
    }

    /// Makes a change durable, then visible.
    async fn commit(&self, change: &Change<'_>) -> Result<(), Doubt> {
        if !planted(Planted::RootTooEarly) {
            self.ports.sync(change.touched).await.map_err(Doubt::None)?;
        }
        let geometry = &self.ports.geometry;
        let superblock = Superblock { root: change.root, ..self.superblock };
        let address = geometry.base + (change.root.revision & 1) * PAGE_BYTES;
        let written = async {
            self.ports.write(&superblock.encode(), SpuNv { spu: geometry.owner, address }).await?;
            if !planted(Planted::AnswersTooEarly) {
                self.ports.sync(1 << geometry.owner).await?;
            }
            publish(&self.ports, &change.root).await
        };
        // Not to be tried again as if nothing had been done.
        let in_doubt = |failure| Doubt::Root(if failure == BUSY { Failure(wire::STATUS_MEDIA) } else { failure });
        written.await.map_err(in_doubt)?;
        self.slot.root.set(change.root);
        Ok(())
    }
}

/// Whether a change that failed may have become durable.
enum Doubt {
    /// It has not.
    None(Failure),
    /// It may have.
    Root(Failure),
}
