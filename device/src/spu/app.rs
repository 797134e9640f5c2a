//! An installed app, as far as SPU-OS knows it.

use super::abi;
use super::activity::Admission;
use super::counters::AppCounters;
use super::dead::Dead;
use super::module::Footprint;
use super::os::Machine;
use super::pace::Pace;
use super::protection::Calls;
use crate::interconnect::Key;
use crate::request::AppNumber;
use std::collections::{BTreeMap, VecDeque};

/// Most bytes kept of an app's virtual serial port.
pub const LOG_BYTES_MAX: usize = 65536;

/// An installed app, as far as SPU-OS knows it.
pub(crate) struct AppState {
    pub name: String,
    pub version: String,
    pub module_bytes: u64,
    pub handlers: Vec<(u8, String)>,
    pub has_handler: [bool; 256],
    /// The last that an instance of it was given: each has another.
    pub incarnation: u32,
    /// What it takes of each SPU's memories.
    pub footprint: Footprint,
    /// User whose app it is; `None`: the kernel's, trusted.
    pub owner: Option<u32>,
    /// Who may call it.
    pub calls: Calls,
    /// It carries out writes after it has answered: it is waited for at the device's start and at revocations.
    pub settles: bool,
    /// It asks for long runs.
    pub long: bool,
    /// What its runs were seen to take.
    pub pace: Pace,
    /// The instance that trapped last, for a core.
    pub dead: Option<Box<Dead>>,
    /// Instances that were kept so, ever.
    pub dead_count: u32,
    /// Why it ended; `None` while it runs.
    pub ended: Option<String>,
    /// It did not come up with the device: `ended` says why.
    pub failed: bool,
    /// What reaches it.
    pub admission: Admission,
    /// Requests that do not, in the order in which they came.
    pub held: Vec<Key>,
    /// What it was seen to have begun when somebody waited for the end of all of it.
    pub at_work: Option<Key>,
    pub counters: AppCounters,
    pub user_counters: [i64; abi::COUNTERS],
    pub log: VecDeque<String>,
    pub log_bytes: usize,
    /// Bytes that ever came to the log, of all versions: where its end is, for those who follow it.
    pub log_end: u64,
    pub partial_lines: BTreeMap<u16, Vec<u8>>,
    /// Most bytes that its DMAs may move between two waits.
    pub dma_budget_bytes: u64,
}

impl AppState {
    pub fn new(name: &str, version: &str, handlers: Vec<(u8, String)>, module_bytes: u64, incarnation: u32) -> Self {
        let mut has_handler = [false; 256];
        for (number, _) in &handlers {
            has_handler[*number as usize] = true;
        }
        AppState {
            name: name.to_owned(),
            version: version.to_owned(),
            module_bytes,
            handlers,
            has_handler,
            incarnation,
            footprint: Footprint::default(),
            owner: None,
            calls: Calls::default(),
            settles: false,
            long: false,
            pace: Pace::default(),
            dead: None,
            dead_count: 0,
            ended: None,
            failed: false,
            admission: Admission::Open,
            held: Vec::new(),
            at_work: None,
            counters: AppCounters::default(),
            user_counters: [0; abi::COUNTERS],
            log: VecDeque::new(),
            log_bytes: 0,
            log_end: 0,
            partial_lines: BTreeMap::new(),
            dma_budget_bytes: u64::MAX,
        }
    }

    /// Whether it is the FTL of that name: the kernel's, since a user's app has another name.
    pub fn is_ftl(&self, ftl: &str) -> bool {
        self.owner.is_none() && self.name == ftl
    }

    /// Appends a line to the virtual serial port's buffer; the oldest lines go.
    pub fn push_line(&mut self, line: String) {
        self.log_bytes += line.len() + 1;
        self.log_end += line.len() as u64 + 1;
        self.log.push_back(line);
        self.trim_log();
    }

    /// The log from a place on, as far as it is kept: where the text begins, and `most` bytes of it. A place that the log never had
    /// (an app of before had it) is the beginning.
    pub fn log_from(&self, position: u64, most: usize) -> (u64, Vec<u8>) {
        let begin = self.log_end - self.log_bytes as u64;
        let from = if (begin..=self.log_end).contains(&position) { position } else { begin };
        let mut skip = (from - begin) as usize;
        let mut text = Vec::with_capacity(most.min(self.log_bytes - skip));
        for line in &self.log {
            if skip > line.len() {
                skip -= line.len() + 1;
                continue;
            }
            text.extend_from_slice(&line.as_bytes()[skip..]);
            text.push(b'\n');
            skip = 0;
            if text.len() >= most {
                break;
            }
        }
        text.truncate(most);
        (from, text)
    }

    /// Forgets the oldest lines where there are too many.
    pub fn trim_log(&mut self) {
        while self.log_bytes > LOG_BYTES_MAX {
            let Some(oldest) = self.log.pop_front() else { break };
            self.log_bytes -= oldest.len() + 1;
        }
    }
}

/// Apps, for the control service.
impl Machine {
    /// An app.
    pub fn app_at(&self, number: AppNumber) -> Option<&AppState> {
        self.apps.get(number as usize)?.as_ref()
    }

    /// How often it has trapped.
    pub fn traps_of(&self, number: AppNumber) -> u64 {
        self.app_at(number).map_or(0, |app| app.counters.traps)
    }

    /// True where it is there and has not ended.
    pub fn is_running(&self, number: AppNumber) -> bool {
        self.app_at(number).is_some_and(|app| app.ended.is_none())
    }

    /// All apps, with their numbers.
    pub fn apps(&self) -> impl Iterator<Item = (AppNumber, &AppState)> {
        let apps = self.apps.iter().enumerate();
        apps.filter_map(|(number, app)| Some((number as AppNumber, app.as_ref()?)))
    }

    /// An app gets a number, or goes; what was there before.
    pub fn set_app(&mut self, number: AppNumber, app: Option<AppState>) -> Option<AppState> {
        let is_ftl = |ftl| app.as_ref().is_some_and(|app| app.is_ftl(ftl));
        if self.media.store.served_by().is_some_and(is_ftl) {
            self.ftl.number = Some(number);
        } else if self.ftl.number == Some(number) {
            self.ftl.number = None;
        }
        let owner = |app: &Option<AppState>| app.as_ref().and_then(|app| app.owner);
        let comes = owner(&app);
        let before = std::mem::replace(&mut self.apps[number as usize], app);
        if let Some(user) = comes {
            self.bridge.accounts.open_app(user);
        }
        if let Some(user) = owner(&before) {
            self.bridge.accounts.close_app(user);
        }
        before
    }

    /// A version of an app is made ready: what it prints is kept with it.
    pub fn begin_staging(&mut self, app: AppState) {
        self.staging = Some(Box::new(app));
    }

    /// An instance of it was made, which was nobody's run.
    pub fn staged_one(&mut self, spu: u16) {
        self.spus[usize::from(spu)].meter.take();
    }

    /// It is ready, or not.
    pub fn end_staging(&mut self) -> Option<AppState> {
        self.staging.take().map(|app| *app)
    }

    /// Ends of operations that an app has been promised and not been told of.
    pub fn waits_of(&self, number: AppNumber) -> u64 {
        self.spus.iter().map(|spu| spu.waits.of(number)).sum()
    }

    /// Messages that an app puts together, and RPCs and upcalls of its that are not answered.
    pub fn messages_of(&self, number: AppNumber) -> u32 {
        self.spus.iter().map(|spu| spu.residents[usize::from(number)].messages).sum()
    }
}
