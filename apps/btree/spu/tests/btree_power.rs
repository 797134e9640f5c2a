//! Trees on media that lose power: at every operation of the media of small workloads, with every outcome or a choice of them, and at random
//! moments of random ones. After each a tree has what was answered, and what was under way as a whole or not at all. The last tests plant bugs:
//! what cannot catch those tests nothing.

mod world;

use btree_host::Layout;
use btree_spu::planted::{Planted, plant};
use willow_device::media::fault::{FaultMedia, Random};
use world::drive::{each_cut, each_outcome};
use world::{Client, Model, Rig, Step, key, options_with_stragglers, random_clients, run, start, start_on, value};

const LAYOUTS: [Layout; 2] = [Layout::Striped, Layout::Partitioned];

/// Opens what a cut has left, and goes on from there: what is changed then takes the place of nothing that is there.
fn check(media: &FaultMedia, layout: Layout, model: &Model, what: &str) -> Result<(), String> {
    let mut rig = Rig::open(Box::new(media.store()), layout).map_err(|why| format!("{what}: {why}"))?;
    model.check(&mut rig).map_err(|why| format!("{what}: {why}"))?;
    let pairs: Vec<_> = (0..6).map(|at| key(8, at)).map(|key| (key, value(&key, 77, 300))).collect();
    if let Some(status) = rig.put_pairs(&pairs).into_iter().find(|status| *status != 0) {
        return if status == btree_host::wire::STATUS_FULL {
            Ok(())
        } else {
            Err(format!("{what}: a put after it ends with status {status}"))
        };
    }
    let mut model = model.clone();
    model.clients.insert(8, Client { pairs: pairs.into_iter().collect(), ..Client::default() });
    model.check(&mut rig).map_err(|why| format!("{what}, and a put: {why}"))
}

fn check_outcomes(
    media: &FaultMedia,
    layout: Layout,
    model: &Model,
    most: usize,
    seed: u64,
    what: &str,
) -> Result<u64, String> {
    each_outcome(media, most, seed, |left, number| check(left, layout, model, &format!("{what}, outcome {number}")))
}

/// The power goes at each operation of the media in turn.
fn cut_everywhere(layout: Layout, others: u32, clients: &[Vec<Step>], seed: u64, most: usize) -> Result<u64, String> {
    each_cut(|cut| {
        let what = format!("{layout:?}, seed {seed}, cut {cut}");
        let (media, mut rig, mut model) = start(seed, layout, others);
        media.cut_after(media.operations() + cut);
        run(&mut rig, &media, clients, &mut model).map_err(|why| format!("{what}: {why}"))?;
        Ok((check_outcomes(&media, layout, &model, most, seed ^ cut, &what)?, media.is_cut()))
    })
}

/// Others' pairs, and what clients do.
fn small_workloads() -> Vec<(u32, Vec<Vec<Step>>)> {
    use Step::{Delete, Get, Put};
    vec![
        // The first pair, and the last one goes.
        (0, vec![vec![Put(vec![1], 700), Put(vec![1], 2000), Delete(vec![1])]]),
        // A full leaf is split, a node that has become empty goes, and so does the root above.
        (169, vec![vec![Put(vec![1], 9), Delete(vec![1])]]),
        (200, vec![vec![Put((0..5).collect(), 1500), Delete(vec![0, 4]), Put(vec![2, 3], 100)]]),
        // Beside each other.
        (3, vec![vec![Put(vec![1, 2], 600), Get(1)], vec![Put(vec![1], 4096), Put(vec![1], 0)]]),
    ]
}

fn cut_small_workloads(seeds: std::ops::Range<u64>, most: usize) -> Result<u64, String> {
    let workloads = small_workloads();
    let mut looked_at = 0;
    for seed in seeds {
        for layout in LAYOUTS {
            for (others, clients) in &workloads {
                looked_at += cut_everywhere(layout, *others, clients, seed, most)?;
            }
        }
    }
    Ok(looked_at)
}

fn cut_at_random(seed: u64, most: usize) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let layout = LAYOUTS[(seed % 2) as usize];
    let (media, mut rig, mut model) = start(seed, layout, random.below(300) as u32);
    media.cut_after(media.operations() + 1 + random.below(400));
    let what = format!("{layout:?}, seed {seed}");
    run(&mut rig, &media, &random_clients(&mut random), &mut model).map_err(|why| format!("{what}: {why}"))?;
    check_outcomes(&media, layout, &model, most, seed, &what)
}

#[test]
fn trees_are_whole_after_every_cut_of_small_workloads() {
    let looked_at = cut_small_workloads(0..1, 4).unwrap();
    assert!(looked_at > 200, "only {looked_at} outcomes");
}

#[test]
fn trees_of_many_clients_are_whole_after_cuts() {
    let looked_at: u64 = (0..60).map(|seed| cut_at_random(seed, 2).unwrap()).sum();
    assert!(looked_at > 60, "only {looked_at} outcomes");
}

/// A superblock may be durable or not, since its flush failed; what is put then takes nothing from either tree, whose power goes.
fn doubt_is_settled(seed: u64, layout: Layout) -> Result<u64, String> {
    each_cut(|cut| {
        let (media, mut rig, mut model) = start(seed, layout, 40);
        let keys: Vec<_> = (0..40).map(|at| key(0, at)).filter(|it| rig.tree.spu_of(it) == rig.tree.owner()).collect();
        // The value and the nodes are durable; the superblock is in doubt.
        media.fail_flushes_after(if layout == Layout::Striped { touched_banks() } else { 1 }, 1);
        let first = value(&keys[0], 1, 100);
        let refusal = rig.put_pairs(&[(keys[0], first.clone())]);
        if refusal != [btree_host::wire::STATUS_MEDIA] {
            return Err(format!("what is not durable is answered with status {refusal:?}"));
        }
        media.heal();
        media.cut_after(media.operations() + cut);
        let second = value(&keys[1], 2, 3000);
        let call = rig.tree.put(rig.tree.owner(), &[(keys[1], &second)]);
        let tag = rig.submit(&call, 0);
        rig.drive.settle_or_cut(&media);
        let is_answered = rig.drive.done.remove(&tag).is_some_and(|done| world::status(&done) == 0);
        // The first one is there or not, and so is the second one where it was not answered.
        let what = format!("{layout:?}, seed {seed}, cut {cut}");
        let looked_at = each_outcome(&media, 16, seed, |left, number| {
            let mut rig = Rig::open(Box::new(left.store()), layout)?;
            let found = [rig.get(&keys[0]), rig.get(&keys[1])];
            let is = |at: usize, value: &Vec<u8>| match &found[at] {
                (0, found) => Ok(found == value),
                (btree_host::wire::STATUS_NOT_FOUND, _) => Ok(false),
                (status, _) => Err(format!("{what}, outcome {number}: status {status}")),
            };
            let (is_first, is_second) = (is(0, &first)?, is(1, &second)?);
            if found[0].0 == 0 && !is_first || found[1].0 == 0 && !is_second || is_answered && !is_second {
                return Err(format!("{what}, outcome {number}: a value is not what was put, or is gone"));
            }
            let mut pairs = world::Pairs::new();
            let both = [(is_first, keys[0], &first), (is_second, keys[1], &second)];
            pairs.extend(both.into_iter().filter(|it| it.0).map(|(_, key, value)| (key, value.clone())));
            model.clients.insert(0, Client { pairs, ..Client::default() });
            model.check(&mut rig).map_err(|why| format!("{what}, outcome {number}: {why}"))
        })?;
        Ok((looked_at, media.is_cut()))
    })
}

/// The power goes at each operation of the media while a tree is removed, beside a put and a search: it is whole then, or there is none on any SPU.
fn removals_are_whole(layout: Layout, seed: u64, most: usize) -> Result<u64, String> {
    each_cut(|cut| {
        let (media, mut rig, mut model) = start(seed, layout, 30);
        let (tree, own) = (rig.tree, key(1, 0));
        // It is open everywhere.
        assert!((0..30).all(|at| rig.get(&key(world::OTHERS, at)).0 == 0));
        media.cut_after(media.operations() + cut);
        let first = value(&own, 1, 500);
        let put = rig.submit(&tree.put(tree.spu_of(&own), &[(own, &first)]), 0);
        let searched = key(world::OTHERS, 3);
        let get = rig.submit(&tree.get(&searched), btree_host::wire::VALUE_BYTES_MAX as usize);
        let removal = rig.submit(&tree.remove(world::NAME), 0);
        rig.drive.settle_or_cut(&media);
        let mut ended = |tag| rig.drive.done.remove(&tag);
        let (put, get, removal) = (ended(put), ended(get), ended(removal));
        let (put, removal) = (put.map(|done| world::status(&done)), removal.map(|done| world::status(&done)));
        let what = format!("{layout:?}, seed {seed}, cut {cut}");
        if !media.is_cut() && removal != Some(0) {
            return Err(format!("{what}: the removal ends with {removal:?}"));
        }
        if let Some(done) = get.filter(|done| world::status(done) == 0)
            && done.buffer[..done.result as usize] != value(&searched, 0, 5)
        {
            return Err(format!("{what}: a search finds what was not there"));
        }
        let with = [(own, first)].into_iter().collect();
        let (pairs, or) = if put == Some(0) { (with, None) } else { (world::Pairs::new(), Some(with)) };
        model.clients.insert(1, Client { pairs, or, ..Client::default() });
        let looked_at = each_outcome(&media, most, seed, |left, number| {
            let what = format!("{what}, outcome {number}");
            let mut rig = Rig::open(Box::new(left.store()), layout)?;
            if rig.statistics(tree.owner()).is_ok() {
                let answered =
                    if removal == Some(0) { Err(format!("{what}: it was removed, and is there")) } else { Ok(()) };
                return answered.and_then(|()| model.check(&mut rig).map_err(|why| format!("{what}: {why}")));
            }
            let none = Some(btree_host::wire::STATUS_NO_TREE);
            if !(0..world::SPUS).all(|spu| rig.statistics(spu).err() == none) {
                return Err(format!("{what}: a part of it is left"));
            }
            // Another one of its name has nothing of it.
            if rig.create(world::BANK_BYTES).iter().any(|done| *done != (0, 0)) {
                return Err(format!("{what}: it cannot be made again"));
            }
            world::Model::default().check(&mut rig).map_err(|why| format!("{what}, made again: {why}"))
        })?;
        Ok((looked_at, media.is_cut()))
    })
}

#[test]
fn a_removal_that_is_cut_leaves_the_tree_or_nothing_of_it() {
    for layout in LAYOUTS {
        let looked_at = removals_are_whole(layout, 1, 2).unwrap();
        assert!(looked_at > 4, "only {looked_at} outcomes");
    }
}

/// Banks that the put of [`doubt_is_settled`] writes to in a striped tree: their flushes go well.
fn touched_banks() -> u64 {
    2
}

#[test]
fn what_a_failed_superblock_may_have_left_is_settled_before_the_next_change() {
    let looked_at = |layout| (0..3).map(|seed| doubt_is_settled(seed, layout).unwrap()).sum::<u64>();
    assert!(looked_at(Layout::Partitioned) > 20);
}

/// Pairs without values of a client, in the order in which they are put; what is kept of them is spread over all. Checks the tree at the end, and puts values
/// of a page each until it is full: how many there was room for.
fn room_after_deletions(
    layout: Layout,
    keys: &[u32],
    is_kept: impl Fn(u32) -> bool,
    bank_pages: u64,
) -> Result<u32, String> {
    let (_, mut rig, mut model) = start_on(world::options(0), layout, 0, bank_pages * 4096);
    let mut pairs: world::Pairs = keys.iter().map(|at| (key(1, *at), Vec::new())).collect();
    let all: Vec<_> = keys.iter().map(|at| (key(1, *at), Vec::new())).collect();
    if rig.put_pairs(&all).iter().any(|status| *status != 0) {
        return Err("a put fails".to_owned());
    }
    let height = rig.statistics(rig.tree.owner()).map_err(|status| format!("stat ends with {status}"))?.height;
    let gone: Vec<_> = keys.iter().filter(|at| !is_kept(**at)).map(|at| key(1, *at)).collect();
    for part in rig.tree.parts() {
        let own: Vec<_> =
            gone.iter().filter(|key| layout == Layout::Striped || rig.tree.spu_of(key) == part).copied().collect();
        for some in own.chunks(64) {
            let call = rig.tree.delete(part, some);
            let (status, deleted, _) = rig.call(&call, 0);
            if (status, deleted as usize) != (0, some.len()) {
                return Err(format!("{deleted} of {} are deleted, with status {status}", some.len()));
            }
        }
    }
    gone.iter().for_each(|key| drop(pairs.remove(key)));
    model.clients.insert(1, Client { pairs: pairs.clone(), ..Client::default() });
    model.check(&mut rig)?;
    let lower = rig.statistics(rig.tree.owner()).map_err(|status| format!("stat ends with {status}"))?.height;
    if lower >= height && height > 2 {
        return Err(format!("{lower} levels of {height} are left"));
    }
    let mut fitted = 0;
    for at in 0..10_000 {
        let (key, page) = (key(2, at), value(&key(2, at), 1, 4096));
        match rig.put_pairs(&[(key, page.clone())])[..] {
            [0] => fitted += 1,
            [btree_host::wire::STATUS_FULL] => break,
            ref other => return Err(format!("a put ends with {other:?}")),
        }
        let client = model.clients.entry(2).or_default();
        client.pairs.insert(key, page);
    }
    model.check(&mut rig)?;
    Ok(fitted)
}

#[test]
fn deletions_give_nodes_back_and_what_is_left_is_as_it_was() {
    let rising: Vec<u32> = (0..9000).collect();
    // Halves of nodes are left behind: three levels, with nodes beside each other above the leaves too.
    let falling: Vec<u32> = (0..15_000).rev().collect();
    let partitioned = || room_after_deletions(Layout::Partitioned, &rising, |at| at.is_multiple_of(20), 64);
    let striped = || room_after_deletions(Layout::Striped, &falling, |at| at.is_multiple_of(200), 96);
    let room = (partitioned().expect("no failure"), striped().expect("no failure"));
    plant(Some(Planted::NeverMerges));
    let without = (partitioned(), striped());
    plant(None);
    // Each bank had 18 leaves of its own, and has a few. It ends when the first bank is full.
    let before = without.0.expect("its tree has two levels either way");
    assert!(room.0 >= before + 15, "{} and {before}", room.0);
    // 96 pages in each of three banks, less superblocks and what is left to deletions.
    assert!(room.1 > 220, "{}", room.1);
    let is_caught = without.1.as_ref().is_err_and(|why| why.contains("levels"));
    assert!(is_caught || without.1.as_ref().is_ok_and(|room| *room < 200), "{:?}", without.1);
}

/// What the tests say where that bug is planted.
fn said(bug: Planted, run: impl Fn() -> Result<u64, String>) -> Option<String> {
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    plant(None);
    outcome.expect("no panic: what is wrong is said").err()
}

/// The bug is caught, and for its own reason.
fn is_caught_anywhere(bug: Planted, why: &[&str]) {
    let at_random = || (0..60).map(|seed| cut_at_random(seed, 4)).sum::<Result<u64, String>>();
    let said = said(bug, || cut_small_workloads(0..1, 8)).or_else(|| said(bug, at_random));
    let said = said.expect("it is caught");
    assert!(why.iter().any(|why| said.contains(why)), "{said}");
}

#[test]
fn planted_root_before_its_nodes_is_caught() {
    is_caught_anywhere(Planted::RootTooEarly, &["ends with status 9", "are not as they were answered"]);
}

#[test]
fn planted_answer_before_the_root_is_durable_is_caught() {
    is_caught_anywhere(Planted::AnswersTooEarly, &["are not as they were answered"]);
}

#[test]
fn planted_change_in_place_is_caught() {
    is_caught_anywhere(
        Planted::ChangesInPlace,
        &["ends with status 9", "are not as they were answered", "and it says"],
    );
}

#[test]
fn planted_use_of_what_the_same_change_gave_up_is_caught() {
    is_caught_anywhere(Planted::ReusesAtOnce, &["ends with status 9", "are not as they were answered", "did not put"]);
}

#[test]
fn planted_banks_that_are_not_flushed_are_caught() {
    is_caught_anywhere(Planted::ForgetsOthers, &["ends with status 9", "are not as they were answered"]);
}

#[test]
fn planted_trust_in_a_root_in_doubt_is_caught() {
    let said = (0..12).find_map(|seed| said(Planted::TrustsDoubt, || doubt_is_settled(seed, Layout::Partitioned)));
    assert!(said.is_some_and(|said| said.contains("status 9") || said.contains("value") || said.contains("pairs")));
}

#[test]
fn planted_search_that_never_looks_back_is_caught() {
    let at_random = || (0..100).map(searches_beside_changes).sum::<Result<u64, String>>();
    let said = said(Planted::NeverLooksBack, at_random).expect("it is caught");
    assert!(said.contains("did not put") || said.contains("sees in a range") || said.contains("status 9"), "{said}");
}

/// One client looks, and another one's changes give its nodes up meanwhile.
fn searches_beside_changes(seed: u64) -> Result<u64, String> {
    // Others' nodes are above each other in a striped tree alone.
    let layout = LAYOUTS[usize::from(seed % 4 == 3)];
    // Little is free, so that what a change gives up is used again soon.
    let others = if layout == Layout::Striped { 600 } else { 430 } + seed as u32 % 40;
    let (media, mut rig, mut model) = start_on(options_with_stragglers(seed), layout, others, 64 * 4096);
    let looks = [vec![Step::Put(vec![3], 600)], vec![Step::Get(3); 40], vec![Step::Range(0); 10]].concat();
    let changes: Vec<Step> = (0..60).map(|at| Step::Put(vec![at % 5], 2000)).collect();
    run(&mut rig, &media, &[looks, changes.clone(), changes], &mut model)
        .map_err(|why| format!("seed {seed}: {why}"))?;
    model.check(&mut rig)?;
    Ok(model.clients.len() as u64)
}

#[test]
fn searches_see_whole_trees_while_these_change() {
    let done: u64 = (0..20).map(|seed| searches_beside_changes(seed).unwrap()).sum();
    assert!(done >= 60);
}
