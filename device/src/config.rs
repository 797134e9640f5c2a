//! What a device is made of: counts, sizes and limits, from a preset or from flags, and the fixed ones that several rooms share.

use crate::region::REGION_ALIGNMENT_BYTES;
use std::path::PathBuf;
pub use willow_gate::meter::DMA_SLICE_BYTES;

/// Most SPUs of a device.
pub const SPUS_MAX: u16 = 64;
/// Most extents of a permission table.
pub const PERMISSION_ENTRIES_MAX: usize = 1 << 20;
/// Stripe of block namespaces over SPUs, where they are not made with another (Willow, section 2.2).
pub const STRIPE_BYTES: u32 = 8192;
/// Shortest stripe.
pub const STRIPE_BYTES_MIN: u32 = 4096;
/// Longest stripe: what one DMA of a request moves, and no more than a run may move before others have their turn.
pub const STRIPE_BYTES_MAX: u32 = DMA_SLICE_BYTES as u32;

/// Most requests in flight in the whole device.
pub const TRANSFERS_MAX: usize = 32768;
/// Of them from endpoints of users' processes, all together.
pub const USERS_TRANSFERS_MAX: usize = TRANSFERS_MAX / 4 * 3;
/// Of them from endpoints of the host kernel, all together.
pub const KERNEL_TRANSFERS_MAX: usize = TRANSFERS_MAX / 4 * 3;
/// Most RPCs of these requests that SPUs have.
pub const HOST_RPCS_MAX: usize = 48 << 10;
/// Of them from endpoints of users' processes, all together.
pub const USERS_RPCS_MAX: usize = HOST_RPCS_MAX / 4 * 3;
/// Of them from endpoints of the host kernel, all together.
pub const KERNEL_RPCS_MAX: usize = HOST_RPCS_MAX / 4 * 3;
/// Most processes at once.
pub const PROCESSES_MAX: usize = 4096;
/// Most apps that a device may be made for ([`DeviceConfig::apps_max`]).
pub const APPS_MAX: u16 = 1024;
/// Largest weight of a user, or of the kernel.
pub const WEIGHT_MAX: u16 = 1000;
/// Most messages being put together on all SPUs of a device that has up to 16.
pub const MESSAGES_MAX: usize = 4096;

/// Configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Number of SPUs, 1..=64; the store has as many banks.
    pub spus: u16,
    /// Size of block namespace 1, made in a fresh device; 0: none.
    pub namespace_bytes: u64,
    /// Its logical block size, 512 or 4096.
    pub block_bytes: u32,
    /// Size of the KV namespace made in a fresh device; 0: none.
    pub kv_namespace_bytes: u64,
    /// Most linear memory of an app's instance on one SPU (its data segment).
    pub app_data_bytes_max: u64,
    /// Most bytes of an app's code section (its instruction memory).
    pub app_code_bytes_max: u64,
    /// Data memory of an SPU: what the instances of all apps on it may grow to, together.
    pub spu_data_bytes_max: u64,
    /// Instruction memory of an SPU: the code of all apps, together.
    pub spu_code_bytes_max: u64,
    /// Most installed apps.
    pub apps_max: u16,
    /// Instructions that a handler may run between two waits.
    pub instruction_budget: u64,
    /// Most host requests in flight an endpoint.
    pub requests_per_hre_max: usize,
    /// Extents in an SPU's permission table.
    pub permission_entries: usize,
    /// Most apps that one user may install.
    pub apps_per_user_max: u16,
    /// Most NV memory of a user's apps, in every bank.
    pub user_region_bytes_max: u64,
    /// Instructions that a handler of a user's app may run between two waits.
    pub user_instruction_budget: u64,
    /// Most requests under way of one process, over all its endpoints.
    pub requests_per_process_max: usize,
    /// Most requests of one process' endpoints that have a handler on one SPU at once; more wait for one of them to end.
    pub handlers_per_process_max: u16,
    /// Bytes that a handler's DMAs may move between two waits.
    pub dma_budget_bytes: u64,
    /// The same for users' apps.
    pub user_dma_budget_bytes: u64,
    /// Most messages of one user's app on an SPU that it puts together there, or that are not answered.
    pub messages_per_user_app_max: u32,
    /// Weight of the host kernel's endpoints, all together, beside users' processes.
    pub kernel_weight: u16,
    /// Weights of users' processes, where they are not 1: a user's part of the processors, beside others'.
    pub user_weights: Vec<(u32, u16)>,
    /// Seed for all that is random in the device (namespace ids).
    pub seed: u64,
    /// Folder where compiled code of modules is kept from one start to the next ([`crate::KeptModules`]); `None`: nowhere.
    pub kept_modules: Option<PathBuf>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            spus: 8,
            namespace_bytes: 4 << 30,
            block_bytes: 4096,
            kv_namespace_bytes: 4 << 30,
            app_data_bytes_max: 1 << 20,
            app_code_bytes_max: 1 << 20,
            spu_data_bytes_max: 64 << 20,
            spu_code_bytes_max: 64 << 20,
            apps_max: 64,
            instruction_budget: 50_000_000,
            requests_per_hre_max: 4096,
            permission_entries: 65536,
            apps_per_user_max: 8,
            user_region_bytes_max: 64 << 20,
            user_instruction_budget: 400_000,
            requests_per_process_max: 4096,
            handlers_per_process_max: 32,
            dma_budget_bytes: 1 << 30,
            user_dma_budget_bytes: 64 << 20,
            messages_per_user_app_max: 128,
            kernel_weight: 8,
            user_weights: Vec::new(),
            seed: 1,
            kept_modules: None,
        }
    }
}

impl DeviceConfig {
    /// Checks the values; the error names the field and what it may be.
    pub fn validate(&self) -> Result<(), String> {
        if self.spus == 0 || self.spus > SPUS_MAX {
            return Err(format!("spus is {}, must be 1 to {SPUS_MAX}", self.spus));
        }
        if !matches!(self.block_bytes, 512 | 4096) {
            return Err(format!("block_bytes is {}, must be 512 or 4096", self.block_bytes));
        }
        if self.app_data_bytes_max < 65536 {
            return Err(format!("app_data_bytes_max is {}, must be at least 65536", self.app_data_bytes_max));
        }
        for (name, value, least) in [
            ("spu_data_bytes_max", self.spu_data_bytes_max, self.app_data_bytes_max),
            ("spu_code_bytes_max", self.spu_code_bytes_max, self.app_code_bytes_max),
        ] {
            if value < least {
                return Err(format!("{name} is {value}, must be at least {least}, what one app may have"));
            }
        }
        if self.instruction_budget < 1000 {
            return Err(format!("instruction_budget is {}, must be at least 1000", self.instruction_budget));
        }
        if self.apps_max < 2 || self.apps_max > APPS_MAX {
            return Err(format!("apps_max is {}, must be 2 to {APPS_MAX}", self.apps_max));
        }
        if self.requests_per_hre_max == 0 || self.requests_per_hre_max > 16384 {
            return Err(format!("requests_per_hre_max is {}, must be 1 to 16384", self.requests_per_hre_max));
        }
        if self.permission_entries == 0 || self.permission_entries > PERMISSION_ENTRIES_MAX {
            return Err(format!(
                "permission_entries is {}, must be 1 to {PERMISSION_ENTRIES_MAX}",
                self.permission_entries
            ));
        }
        if self.user_instruction_budget < 1000 {
            return Err(format!("user_instruction_budget is {}, must be at least 1000", self.user_instruction_budget));
        }
        for (name, value, most) in [
            ("requests_per_process_max", self.requests_per_process_max as u64, USERS_TRANSFERS_MAX as u64),
            ("handlers_per_process_max", self.handlers_per_process_max.into(), 4096),
            ("messages_per_user_app_max", self.messages_per_user_app_max.into(), MESSAGES_MAX as u64),
            ("kernel_weight", self.kernel_weight.into(), WEIGHT_MAX.into()),
        ] {
            if value == 0 || value > most {
                return Err(format!("{name} is {value}, must be 1 to {most}"));
            }
        }
        if self.user_dma_budget_bytes < DMA_SLICE_BYTES || self.dma_budget_bytes < DMA_SLICE_BYTES {
            return Err(format!(
                "a budget of DMA bytes is less than {DMA_SLICE_BYTES}, what one run may move in any case"
            ));
        }
        if let Some((user, weight)) = self.user_weights.iter().find(|(_, weight)| !(1..=WEIGHT_MAX).contains(weight)) {
            return Err(format!("the weight of user {user} is {weight}, must be 1 to {WEIGHT_MAX}"));
        }
        Ok(())
    }

    /// Bytes a bank that a namespace of `size_bytes` needs, with stripes of [`STRIPE_BYTES`]: whole ones, rounded up to the regions' alignment.
    pub fn bank_share_bytes(&self, size_bytes: u64) -> Option<u64> {
        bank_share_bytes(size_bytes, self.spus, STRIPE_BYTES)
    }
}

/// True for what stripes may be.
pub(crate) fn stripe_is_possible(bytes: u32) -> bool {
    bytes.is_power_of_two() && (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&bytes)
}

/// The same with that many banks and such stripes.
pub(crate) fn bank_share_bytes(size_bytes: u64, spus: u16, stripe_bytes: u32) -> Option<u64> {
    // The last stripes of all banks may be begun where the last bank's is not.
    let stripe = u64::from(stripe_bytes.max(1));
    let rows = size_bytes.div_ceil(stripe).div_ceil(u64::from(spus.max(1)));
    rows.checked_mul(stripe)?.checked_next_multiple_of(REGION_ALIGNMENT_BYTES)
}
