//! TPC-B's tables in pages of the host's memory: branches, their tellers and accounts, and the history that each transaction adds a row to.
//!
//! What always holds: a row lies within a page, and a page within a stripe; a change touches four rows: one of each table.

use crate::random::Random;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// A page: as long as a stripe of Base-IO (Willow 2.2).
pub const PAGE_BYTES: u64 = 8192;
/// Ours.
pub const BRANCHES: u64 = 100;
/// TPC-B 4.2.
pub const TELLERS_OF_BRANCH: u64 = 10;
const ACCOUNTS_OF_BRANCH: u64 = 100_000;
/// TPC-B 4.2.2: rows of at least 100 bytes, history's of at least 50.
const ROW_BYTES: usize = 100;
const HISTORY_BYTES: usize = 50;
const ROWS_OF_PAGE: u64 = PAGE_BYTES / ROW_BYTES as u64;
const HISTORY_OF_PAGE: u64 = PAGE_BYTES / HISTORY_BYTES as u64;
/// TPC-B 5.3.5: of 100 transactions 15 go to an account of another branch.
const OTHER_BRANCH_PERCENT: u64 = 15;
/// TPC-B 5.3.6: an amount is between this and its negative.
const AMOUNT_MAX: u64 = 999_999;
/// Pages of history that a thread has, and threads. Ours.
const HISTORY_PAGES_OF_THREAD: u64 = 16;
const THREADS_MAX: u64 = 16;

const TELLERS_PAGE: u64 = BRANCHES;
const ACCOUNTS_PAGE: u64 = 2 * BRANCHES;
const HISTORY_PAGE: u64 = ACCOUNTS_PAGE + (BRANCHES * ACCOUNTS_OF_BRANCH).div_ceil(ROWS_OF_PAGE);
const PAGES: u64 = HISTORY_PAGE + THREADS_MAX * HISTORY_PAGES_OF_THREAD;
/// What the tables take of the namespace.
pub const BYTES: u64 = PAGES * PAGE_BYTES;

/// What a transaction changes.
pub struct Choice {
    pub branch: u64,
    /// Numbered over all branches, as accounts are.
    pub teller: u64,
    pub account: u64,
    amount: i64,
}

impl Choice {
    pub fn draw(random: &mut Random) -> Self {
        let branch = random.below(BRANCHES);
        let home = random.below(100) >= OTHER_BRANCH_PERCENT;
        let of = if home { branch } else { (branch + 1 + random.below(BRANCHES - 1)) % BRANCHES };
        Choice {
            branch,
            teller: branch * TELLERS_OF_BRANCH + random.below(TELLERS_OF_BRANCH),
            account: of * ACCOUNTS_OF_BRANCH + random.below(ACCOUNTS_OF_BRANCH),
            amount: random.below(2 * AMOUNT_MAX + 1) as i64 - AMOUNT_MAX as i64,
        }
    }
}

/// A row that a transaction changed, and where in the namespace it lies.
pub struct Row {
    pub address: u64,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

struct Page {
    bytes: Vec<u8>,
    /// Of the last record of the log that is about it.
    lsn: u64,
    is_dirty: bool,
}

impl Default for Page {
    fn default() -> Self {
        Page { bytes: vec![0; PAGE_BYTES as usize], lsn: 0, is_dirty: false }
    }
}

/// The pages that were touched, by address. Others are zeroes: all balances are 0 at first.
#[derive(Default)]
pub struct Bank {
    pages: RefCell<BTreeMap<u64, Page>>,
    dirty: RefCell<VecDeque<u64>>,
}

fn address(page: u64, row: u64, row_bytes: usize) -> u64 {
    page * PAGE_BYTES + row * row_bytes as u64
}

fn balance(row: &[u8]) -> i64 {
    row.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

impl Bank {
    /// Does a transaction's changes in memory. `thread` and `count` say where its history goes.
    pub fn change(&self, choice: &Choice, thread: u64, count: u64) -> [Row; 4] {
        let account = address(ACCOUNTS_PAGE + choice.account / ROWS_OF_PAGE, choice.account % ROWS_OF_PAGE, ROW_BYTES);
        let teller = choice.teller;
        let teller = address(TELLERS_PAGE + teller / TELLERS_OF_BRANCH, teller % TELLERS_OF_BRANCH, ROW_BYTES);
        let branch = address(choice.branch, 0, ROW_BYTES);
        let page = HISTORY_PAGE + thread * HISTORY_PAGES_OF_THREAD + count / HISTORY_OF_PAGE;
        let history = address(page, count % HISTORY_OF_PAGE, HISTORY_BYTES);
        [(account, ROW_BYTES), (teller, ROW_BYTES), (branch, ROW_BYTES), (history, HISTORY_BYTES)].map(
            |(address, bytes)| {
                let mut pages = self.pages.borrow_mut();
                let page = pages.entry(address / PAGE_BYTES * PAGE_BYTES).or_default();
                let row = &mut page.bytes[(address % PAGE_BYTES) as usize..][..bytes];
                let before = row.to_vec();
                let balance = balance(row) + choice.amount;
                row[..8].copy_from_slice(&balance.to_le_bytes());
                // The rest of a row is written, too; a history row is never one of zeroes.
                row[8..].fill(count as u8 | 0x80);
                Row { address, before, after: row.to_vec() }
            },
        )
    }

    /// The page of a row was changed, by that record.
    pub fn dirty(&self, address: u64, lsn: u64) {
        let address = address / PAGE_BYTES * PAGE_BYTES;
        if let Some(page) = self.pages.borrow_mut().get_mut(&address) {
            page.lsn = page.lsn.max(lsn);
            if !std::mem::replace(&mut page.is_dirty, true) {
                self.dirty.borrow_mut().push_back(address);
            }
        }
    }

    /// The page that has been dirty longest, which is clean then: its address, its last record, its bytes.
    pub fn take_dirty(&self) -> Option<(u64, u64, Vec<u8>)> {
        let address = self.dirty.borrow_mut().pop_front()?;
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(&address)?;
        page.is_dirty = false;
        Some((address, page.lsn, page.bytes.clone()))
    }

    /// Addresses of the pages that were touched.
    pub fn addresses(&self) -> Vec<u64> {
        self.pages.borrow().keys().copied().collect()
    }

    /// Compares what is on a device with what the transactions did.
    pub fn check(&self, device: &BTreeMap<u64, Vec<u8>>, transactions: u64) -> Result<(), String> {
        let (mut sums, mut history) = ([0i64; 4], 0);
        for (address, page) in self.pages.borrow().iter() {
            let found = device.get(address).ok_or_else(|| format!("page at {address} is missing"))?;
            if *found != page.bytes {
                return Err(format!("page at {address} differs from what its transactions wrote"));
            }
            let number = address / PAGE_BYTES;
            let (table, row_bytes) = match number {
                HISTORY_PAGE.. => (3, HISTORY_BYTES),
                ACCOUNTS_PAGE.. => (0, ROW_BYTES),
                TELLERS_PAGE.. => (1, ROW_BYTES),
                _ => (2, ROW_BYTES),
            };
            for row in found.chunks_exact(row_bytes) {
                sums[table] += balance(row);
                history += u64::from(table == 3 && row[8] != 0);
            }
        }
        if history != transactions {
            return Err(format!("{history} rows of history after {transactions} transactions"));
        }
        match sums {
            [accounts, tellers, branches, all] if accounts == all && tellers == all && branches == all => Ok(()),
            sums => Err(format!("accounts, tellers, branches and history add up to {sums:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_that_miss_a_row_are_told() {
        let bank = Bank::default();
        let mut random = Random(7);
        for count in 0..200 {
            bank.change(&Choice::draw(&mut random), 1, count);
        }
        let mut device: BTreeMap<u64, Vec<u8>> =
            bank.pages.borrow().iter().map(|(address, page)| (*address, page.bytes.clone())).collect();
        bank.check(&device, 200).unwrap();
        assert!(bank.check(&device, 201).unwrap_err().contains("history"));
        // A torn transaction: the row of a branch is as it was.
        device.values_mut().next().unwrap()[..8].fill(0);
        assert!(bank.check(&device, 200).unwrap_err().contains("differs"));
    }
}
