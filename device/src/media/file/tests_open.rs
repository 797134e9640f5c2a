//! Tests of creating and opening data folders: what is accepted, what is refused, and what is said.

use super::record::{Kind, Record};
use super::tests::{SHAPE, TestFolder, create};
use super::*;
use crate::media::model::wait_for;
use std::os::unix::fs::FileExt;

/// The message of a refusal to open.
fn refusal(path: &Path) -> String {
    match FileStore::open(path) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// A folder with some data and metadata in it.
fn used_folder() -> TestFolder {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    for bank in 0..2 {
        wait_for(&mut store, |store| {
            store.begin_write(1, bank, 0, vec![bank as u8 + 1; 4096]);
            Ok(Progress::WouldBlock)
        })
        .unwrap();
    }
    wait_for(&mut store, |store| store.flush(1, None)).unwrap();
    for number in 1..4 {
        wait_for(&mut store, |store| store.save_metadata(1, vec![number; 100])).unwrap();
    }
    wait_for(&mut store, |store| store.save_blob(1, "app", vec![5; 100])).unwrap();
    folder
}

#[test]
fn a_used_folder_opens_as_it_was_left() {
    let folder = used_folder();
    let mut store = FileStore::open_or_create(&folder.data(), FileShape { banks: 7, bank_bytes: 4096 }).unwrap();
    assert_eq!((store.banks(), store.bank_bytes()), (2, 1 << 20));
    assert!(store.volatile_write_cache());
    assert_eq!(store.load_metadata(), Ok(Some(vec![3; 100])));
    assert_eq!(store.load_blob("app"), Ok(Some(vec![5; 100])));
    let uuid = store.uuid();
    drop(store);
    assert_eq!(FileStore::open(&folder.data()).unwrap().uuid(), uuid);
}

#[test]
fn only_one_process_may_have_it_open() {
    let folder = used_folder();
    let store = FileStore::open(&folder.data()).unwrap();
    assert_says(&refusal(&folder.data()), &["in use by process", &std::process::id().to_string(), "stop"]);
    drop(store);
    FileStore::open(&folder.data()).unwrap();
}

#[test]
fn folders_that_are_none_are_refused_and_left_alone() {
    let folder = TestFolder::new();
    assert_says(&refusal(&folder.data()), &["no such folder"]);
    assert_says(&refusal(&folder.0), &["not a Willow data folder"]);
    std::fs::write(folder.0.join("letter.txt"), "dear").unwrap();
    let error = FileStore::open_or_create(&folder.0, SHAPE).err().unwrap().to_string();
    assert_says(&error, &["letter.txt", "empty folder"]);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    assert_says(&refusal(&folder.0.join("letter.txt")), &["not a Willow data folder"]);
    let used = used_folder();
    assert!(matches!(FileStore::create(&used.data(), SHAPE), Err(OpenError::NotEmpty { .. })));
    for shape in [(0, 4096), (65, 4096), (1, 0), (1, 5000), (1, u64::MAX)] {
        let shape = FileShape { banks: shape.0, bank_bytes: shape.1 };
        assert!(matches!(FileStore::create(&folder.data(), shape), Err(OpenError::Shape { .. })));
    }
}

#[test]
fn truncated_files_are_refused() {
    let folder = used_folder();
    let bank = folder.data().join("bank-001");
    let good = std::fs::read(&bank).unwrap();
    for length in [0, 7, 63, 100, 4096, 8192, good.len() - 1] {
        std::fs::write(&bank, &good[..length]).unwrap();
        assert_says(&refusal(&folder.data()), &["bank-001", "truncated", "restore"]);
    }
    std::fs::remove_file(&bank).unwrap();
    assert_says(&refusal(&folder.data()), &["bank-001", "missing"]);
    std::fs::write(&bank, &good).unwrap();
    FileStore::open(&folder.data()).unwrap();
}

#[test]
fn foreign_swapped_newer_and_damaged_bank_files_are_refused() {
    let folder = used_folder();
    let data = folder.data();
    let (first, second) = (data.join("bank-000"), data.join("bank-001"));
    let swap = || {
        std::fs::rename(&first, data.join("aside")).unwrap();
        std::fs::rename(&second, &first).unwrap();
        std::fs::rename(data.join("aside"), &second).unwrap();
    };
    swap();
    assert_says(&refusal(&data), &["bank-000", "holds bank 1, not bank 0", "rename"]);
    swap();
    let good = std::fs::read(&first).unwrap();
    let other = used_folder();
    std::fs::copy(other.data().join("bank-000"), &first).unwrap();
    assert_says(&refusal(&data), &["bank-000", "another data folder"]);
    std::fs::write(&first, vec![b'x'; good.len()]).unwrap();
    assert_says(&refusal(&data), &["bank-000", "wrong magic"]);
    std::fs::write(&first, &good).unwrap();
    patch(&first, 8, &[2]);
    assert_says(&refusal(&data), &["bank-000", "version 2", "newer Willow"]);
    std::fs::write(&first, &good).unwrap();
    patch(&first, 64, &[0xFF]);
    assert_says(&refusal(&data), &["bank-000", "damaged"]);
    std::fs::write(&first, &good).unwrap();
    patch(&first, 3000, &[1]);
    assert_says(&refusal(&data), &["bank-000", "damaged"]);
    std::fs::copy(data.join("metadata-a"), &first).unwrap();
    assert_says(&refusal(&data), &["bank-000", "it holds device metadata, not a bank"]);
    std::fs::write(&first, &good).unwrap();
    FileStore::open(&data).unwrap();
}

#[test]
fn superblock_and_metadata_survive_one_torn_copy_and_not_two() {
    for stem in ["superblock", "metadata"] {
        let folder = used_folder();
        let data = folder.data();
        let copies = [format!("{stem}-a"), format!("{stem}-b")];
        for name in &copies {
            let path = data.join(name);
            let good = std::fs::read(&path).unwrap();
            patch(&path, 70, &[0xFF; 4]);
            drop(FileStore::open(&data).unwrap());
            std::fs::write(&path, &good[..30]).unwrap();
            drop(FileStore::open(&data).unwrap());
            std::fs::write(&path, &good).unwrap();
            // What no interruption does.
            patch(&path, 8, &[3]);
            assert_says(&refusal(&data), &[name, "version 3", "newer Willow"]);
            std::fs::write(
                &path,
                Record::decode(kind(stem), &good)
                    .map(|mut record| {
                        record.uuid = [1; 16];
                        record.encode(kind(stem))
                    })
                    .unwrap(),
            )
            .unwrap();
            assert_says(&refusal(&data), &[&format!("{stem}-"), "another data folder"]);
            std::fs::remove_file(&path).unwrap();
            assert_says(&refusal(&data), &[name, "missing"]);
            std::fs::write(&path, &good).unwrap();
        }
        for name in &copies {
            patch(&data.join(name), 20, &[0xFF; 4]);
        }
        assert_says(&refusal(&data), &[stem, "damaged", "restore"]);
    }
}

fn kind(stem: &str) -> Kind {
    if stem == "superblock" { Kind::Superblock } else { Kind::Metadata }
}

#[test]
fn an_interrupted_creation_can_be_done_again_and_data_is_never_overwritten() {
    let folder = TestFolder::new();
    drop(create(&folder, SHAPE));
    let data = folder.data();
    std::fs::remove_file(data.join("superblock-a")).unwrap();
    assert_says(&refusal(&data), &["interrupted", "create it again"]);
    for rest in ["superblock-b", "metadata-b", "metadata-a", "bank-001", "bank-000"] {
        std::fs::remove_file(data.join(rest)).unwrap();
        drop(FileStore::open_or_create(&data, SHAPE).unwrap());
        std::fs::remove_file(data.join("superblock-a")).unwrap();
    }
    // With fewer banks than the creation that was interrupted.
    drop(FileStore::open_or_create(&data, FileShape { banks: 1, ..SHAPE }).unwrap());
    assert!(!data.join("bank-001").exists());

    let folder = used_folder();
    std::fs::remove_file(folder.data().join("superblock-a")).unwrap();
    assert_says(&refusal(&folder.data()), &["superblock-a", "missing"]);
    assert!(FileStore::open_or_create(&folder.data(), SHAPE).is_err());
    std::fs::remove_file(folder.data().join("superblock-b")).unwrap();
    assert_says(&FileStore::create(&folder.data(), SHAPE).err().unwrap().to_string(), &["bank-00"]);
}

#[test]
fn blobs_are_checked_and_unplaced_ones_removed() {
    let folder = used_folder();
    let blobs = folder.data().join("blobs");
    std::fs::write(blobs.join("late.new"), "half").unwrap();
    std::fs::copy(blobs.join("app"), blobs.join("other")).unwrap();
    let mut store = FileStore::open(&folder.data()).unwrap();
    assert!(!blobs.join("late.new").exists());
    assert!(matches!(store.load_blob("other"), Err(StoreError::Failed(_))));
    assert!(store.load_blob("app").unwrap().is_some());
    patch(&blobs.join("app"), 150, &[0]);
    assert!(matches!(store.load_blob("app"), Err(StoreError::Failed(_))));
    wait_for(&mut store, |store| store.save_blob(1, "app", vec![6; 10])).unwrap();
    assert_eq!(store.load_blob("app"), Ok(Some(vec![6; 10])));
}
