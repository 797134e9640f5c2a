//! One account: whose it is, what it has under way, and what it was used for.
//!
//! What always holds: its rate is that of its weight. What is counted here is counted by [`super::Accounts`] alone.

use crate::config::WEIGHT_MAX;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Units of the queue for each of cost at weight 1.
const SCALE_BITS: u32 = 20;

/// What an account was used for since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountCounters {
    /// Requests taken.
    pub requests: u64,
    /// Requests handed back since all places were taken.
    pub refused: u64,
    /// Requests that waited since their process had as many handlers on an SPU as it may.
    pub stalls: u64,
    /// Instructions of apps on its behalf.
    pub instructions: u64,
    /// What SPU-OS did for these apps, in the same unit.
    #[serde(default)]
    pub host_work: u64,
    /// Bytes of DMAs on its behalf.
    pub dma_bytes: u64,
}

/// A process' line in the statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatistics {
    /// `kernel`, the process' number, or `events`: what a user's apps do for nobody; without a user, of those that no account was left for.
    pub name: String,
    /// Its user.
    pub user: Option<u32>,
    /// Its weight.
    pub weight: u16,
    /// Requests under way.
    pub under_way: u32,
    /// Counters.
    #[serde(flatten)]
    pub counters: AccountCounters,
}

/// One account.
#[derive(Default)]
pub(super) struct Account {
    /// Its number as in ids; 0: no process'.
    pub process: u32,
    /// Place of its user.
    pub user: Option<u16>,
    pub weight: u16,
    /// Units for each of cost: one over the weight.
    rate: u64,
    pub under_way: u32,
    /// Activities that belong to no request: events, and work in the background.
    pub own: u32,
    /// RPCs of these requests.
    pub rpcs: u32,
    /// Handlers begun for its hosts' requests, by SPU; empty until one is.
    pub begun: Vec<u16>,
    /// Requests that wait for one of them to end, by SPU.
    pub stalled: BTreeMap<u16, VecDeque<u32>>,
    pub closed: bool,
    pub counters: AccountCounters,
}

impl Account {
    /// A process' account, which has no user yet.
    pub fn of_process(process: u32) -> Account {
        Account { process, ..Account::default() }
    }

    /// Gives it a weight.
    pub fn weigh(&mut self, weight: u16) {
        self.weight = weight.clamp(1, WEIGHT_MAX);
        self.rate = (1 << SCALE_BITS) / u64::from(self.weight);
    }

    /// True while something of it is under way.
    pub fn is_busy(&self) -> bool {
        self.under_way > 0 || self.own > 0
    }

    /// What a cost is to the queue, where so many accounts of its user are busy.
    #[inline(always)]
    pub fn units(&self, busy: u64, cost: u64) -> u64 {
        cost.saturating_mul(busy * self.rate) >> SCALE_BITS
    }
}
