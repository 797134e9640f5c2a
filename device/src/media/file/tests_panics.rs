//! Workers of the file store that panic: whoever waits for the work is told that it failed, all else goes on, and the panic is not lost.

use super::tests::*;
use super::*;
use crate::media::model::{COMPLETION_WAIT_MAX, wait_for};
use crate::media::store::MEDIA_FAILED;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::sync_channel;

/// More than there are threads of any kind.
const PANICS: u64 = READ_THREADS_MAX as u64 + 4;
const NOWHERE: u64 = u64::MAX;

/// The store's end, with the message of the panic that goes on there.
fn ends(store: FileStore) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(store))).expect_err("the panic goes on");
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap()
}

/// So many operations' ends, by ticket.
fn all(store: &mut FileStore, count: usize) -> BTreeMap<Ticket, Result<Vec<u8>, StoreError>> {
    let mut ended = BTreeMap::new();
    let (sender, news) = sync_channel(1);
    store.set_waker(Arc::new(move || {
        let _ = sender.try_send(());
    }));
    while ended.len() < count {
        match store.completed() {
            Some(StoreCompletion { ticket, result }) => {
                assert!(ended.insert(ticket, result).is_none(), "operation {ticket} has ended twice");
            }
            None => news.recv_timeout(COMPLETION_WAIT_MAX).expect("a completion is missing"),
        }
    }
    ended
}

#[test]
fn reads_and_zeroing_that_panic_fail_and_others_go_on() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    write(&mut store, 0, 0, &[1; 65536]).unwrap();
    flush(&mut store).unwrap();
    store.banks[0].file.panics_at.store(4096, Relaxed);
    for _ in 0..PANICS {
        let begun = |store: &mut FileStore, address| {
            wait_for(store, |store| {
                store.begin_read(5, 0, address, 4096);
                Ok(Progress::WouldBlock)
            })
        };
        assert_eq!(begun(&mut store, 4096), Err(MEDIA_FAILED));
        assert_eq!(begun(&mut store, 8192), Ok(vec![1; 4096]));
        assert_eq!(zero(&mut store, 0, 4096, 8192), Err(MEDIA_FAILED));
    }
    store.banks[0].file.panics_at.store(NOWHERE, Relaxed);
    zero(&mut store, 0, 4096, 4096).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(read(&mut store, 0, 0, 12288), Ok([[1; 4096], [0; 4096], [1; 4096]].concat()));
    assert_eq!(ends(store), "a planted panic at 4096");
}

#[test]
fn a_write_that_panics_takes_no_other_with_it() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    store.banks[0].file.panics_at.store(8 * 4096, Relaxed);
    for round in 0..PANICS {
        // Held at the bound on dirty pages, so that a worker is given many at once.
        store.dirty_pages_max = 0;
        for page in 0..32 {
            store.begin_write(page, 0, page * 4096, vec![(round + page) as u8; 4096]);
        }
        store.dirty_pages_max = u64::MAX;
        store.begin_write(32, 0, 32 * 4096, vec![0; 4096]);
        let ended = all(&mut store, 33);
        let failed: Vec<_> = ended.iter().filter(|(_, result)| result.is_err()).collect();
        assert_eq!(failed, [(&8, &Err(MEDIA_FAILED))]);
        for page in (0..32).filter(|page| *page != 8) {
            assert_eq!(read(&mut store, 0, page * 4096, 4096), Ok(vec![(round + page) as u8; 4096]));
        }
    }
    assert_eq!(store.write_jobs, 0);
    store.banks[0].file.panics_at.store(NOWHERE, Relaxed);
    write(&mut store, 0, 8 * 4096, &[8; 4096]).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(ends(store), "a planted panic at 32768");
}

#[test]
fn a_sync_that_panics_is_one_that_failed() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    flush(&mut store).unwrap();
    for round in 0..PANICS as u8 {
        write(&mut store, 0, 0, &[round; 4096]).unwrap();
        write(&mut store, 1, 0, &[round; 4096]).unwrap();
        store.banks[0].file.sync_error.store(i32::MIN, Relaxed);
        if round % 2 == 0 {
            assert_eq!(wait_for(&mut store, |store| store.flush(1, Some(0))), Err(MEDIA_FAILED));
        } else {
            store.write_out_pages = 1;
            store.write_out();
            while store.write_outs > 0 {
                store.take_news();
                std::thread::yield_now();
            }
            store.write_out_pages = u64::MAX;
        }
        store.banks[0].file.sync_error.store(0, Relaxed);
        // What it was to make durable may be lost.
        assert_eq!(read(&mut store, 0, 0, 4096), Err(MEDIA_FAILED));
        assert_eq!(wait_for(&mut store, |store| store.flush(1, Some(0))), Err(MEDIA_FAILED));
        // The other bank does not notice.
        assert!(wait_for(&mut store, |store| store.flush(2, Some(1))).is_ok());
        write(&mut store, 0, 0, &[round; 4096]).unwrap();
        flush(&mut store).unwrap();
    }
    assert_eq!(ends(store), "a planted panic of a sync");
}

#[test]
fn a_record_that_panics_is_one_that_failed() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    store.record(1, |_| panic!("a planted panic of the keeper"));
    store.record(2, |_| panic!("another one"));
    store.record(3, |keeper| keeper.save_metadata(b"kept"));
    let ended = all(&mut store, 3);
    assert_eq!(ended, [(1, Err(MEDIA_FAILED)), (2, Err(MEDIA_FAILED)), (3, Ok(vec![]))].into());
    assert_eq!(store.load_metadata(), Ok(Some(b"kept".to_vec())));
    assert_eq!(ends(store), "a planted panic of the keeper");
}
