//! Identify: CNS values and the offsets of fields in its data (NVMe Base 5.1.13, NVM Command Set 4.1.5, KV 4.1.5).

/// Bytes of Identify data.
pub const BYTES: usize = 4096;

/// CSI of the NVM command set.
pub const CSI_NVM: u8 = 0;
/// CSI of the key value command set.
pub const CSI_KV: u8 = 1;
/// CSI of subsystem local memory.
pub const CSI_LOCAL_MEMORY: u8 = 3;
/// CSI of computational programs.
pub const CSI_COMPUTATIONAL: u8 = 4;

/// NSID that means all namespaces.
pub const NSID_ALL: u32 = 0xffff_ffff;

/// CNS: controller or namespace structure, CDW10 bits 7:0.
pub mod cns {
    /// Namespace, NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces with an NSID above CDW1's.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// NVM set list.
    pub const NVM_SETS: u8 = 0x04;
    /// Namespace of a command set (CSI in CDW11 bits 31:24).
    pub const CSI_NAMESPACE: u8 = 0x05;
    /// Controller of a command set.
    pub const CSI_CONTROLLER: u8 = 0x06;
    /// Active namespaces of a command set.
    pub const CSI_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Namespace, independent of its command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// User data format of the NVM namespace.
    pub const NAMESPACE_FORMAT: u8 = 0x09;
    /// User data format of a command set's namespace.
    pub const CSI_NAMESPACE_FORMAT: u8 = 0x0a;
    /// Allocated namespaces.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers attached to a namespace.
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
    /// Primary controller capabilities.
    pub const PRIMARY_CONTROLLER: u8 = 0x14;
    /// Namespace granularity.
    pub const GRANULARITY: u8 = 0x16;
    /// Allocated namespaces of a command set.
    pub const CSI_ALLOCATED_NAMESPACES: u8 = 0x1a;
    /// Allocated namespace of a command set.
    pub const CSI_ALLOCATED_NAMESPACE: u8 = 0x1b;
    /// I/O command sets of a controller.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Namespace identification descriptor types (CNS 03h): type, length, two reserved bytes, value.
pub mod descriptor {
    /// EUI-64, 8 bytes.
    pub const EUI64: u8 = 1;
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// CSI, 1 byte.
    pub const CSI: u8 = 4;
}

/// Offsets in the Identify Controller data (CNS 01h).
pub mod controller {
    /// PCI vendor (u16).
    pub const VID: usize = 0;
    /// PCI subsystem vendor (u16).
    pub const SSVID: usize = 2;
    /// Serial number (20 ASCII).
    pub const SN: usize = 4;
    /// Model number (40 ASCII).
    pub const MN: usize = 24;
    /// Firmware revision (8 ASCII).
    pub const FR: usize = 64;
    /// Recommended arbitration burst (u8).
    pub const RAB: usize = 72;
    /// IEEE OUI (3).
    pub const IEEE: usize = 73;
    /// Multi-path I/O and namespace sharing (u8).
    pub const CMIC: usize = 76;
    /// Maximum data transfer size (u8): 2^n pages of CAP.MPSMIN, 0 for no limit.
    pub const MDTS: usize = 77;
    /// Controller id (u16).
    pub const CNTLID: usize = 78;
    /// Version (u32).
    pub const VER: usize = 80;
    /// Optional asynchronous events (u32).
    pub const OAES: usize = 92;
    /// Controller attributes (u32).
    pub const CTRATT: usize = 96;
    /// Controller type (u8): 1 I/O, 2 discovery, 3 administrative.
    pub const CNTRLTYPE: usize = 111;
    /// FRU globally unique id (16).
    pub const FGUID: usize = 112;
    /// Command retry delays 1 to 3 (u16 each).
    pub const CRDT1: usize = 128;
    /// Optional admin commands (u16).
    pub const OACS: usize = 256;
    /// Abort command limit, zero based (u8).
    pub const ACL: usize = 258;
    /// Asynchronous event request limit, zero based (u8).
    pub const AERL: usize = 259;
    /// Firmware updates (u8).
    pub const FRMW: usize = 260;
    /// Log page attributes (u8).
    pub const LPA: usize = 261;
    /// Error log entries, zero based (u8).
    pub const ELPE: usize = 262;
    /// Power states, zero based (u8).
    pub const NPSS: usize = 263;
    /// Admin vendor command configuration (u8).
    pub const AVSCC: usize = 264;
    /// Warning composite temperature (u16).
    pub const WCTEMP: usize = 266;
    /// Critical composite temperature (u16).
    pub const CCTEMP: usize = 268;
    /// Total NVM capacity (u128).
    pub const TNVMCAP: usize = 280;
    /// Unallocated NVM capacity (u128).
    pub const UNVMCAP: usize = 296;
    /// Keep alive granularity in 100 ms (u16).
    pub const KAS: usize = 320;
    /// Sanitize capabilities (u32).
    pub const SANICAP: usize = 328;
    /// ANA transition time (u8).
    pub const ANATT: usize = 342;
    /// ANA capabilities (u8).
    pub const ANACAP: usize = 343;
    /// Largest ANA group id (u32).
    pub const ANAGRPMAX: usize = 344;
    /// ANA groups (u32).
    pub const NANAGRPID: usize = 348;
    /// Submission entry sizes (u8): 66h.
    pub const SQES: usize = 512;
    /// Completion entry sizes (u8): 44h.
    pub const CQES: usize = 513;
    /// Most outstanding commands (u16).
    pub const MAXCMD: usize = 514;
    /// Number of namespaces: largest NSID (u32).
    pub const NN: usize = 516;
    /// Optional NVM commands (u16).
    pub const ONCS: usize = 520;
    /// Fused operations (u16).
    pub const FUSES: usize = 522;
    /// Format NVM attributes (u8).
    pub const FNA: usize = 524;
    /// Volatile write cache (u8).
    pub const VWC: usize = 525;
    /// Vendor specific, of Willow's controllers (u64): which start of a device it is that loses with its process what it answered and did not flush, a number
    /// that no other start has; 0: the device loses nothing by that.
    pub const START: usize = 3072;
    /// How the model number (MN) of Willow's controllers begins.
    pub const WILLOW: &str = "Willow";
    /// Atomic write unit normal, zero based blocks (u16).
    pub const AWUN: usize = 526;
    /// Atomic write unit power fail (u16).
    pub const AWUPF: usize = 528;
    /// I/O command set vendor command configuration (u8).
    pub const ICSVSCC: usize = 530;
    /// Namespace write protection (u8).
    pub const NWPC: usize = 531;
    /// Atomic compare and write unit (u16).
    pub const ACWU: usize = 532;
    /// Copy descriptor formats (u16).
    pub const CDFS: usize = 534;
    /// SGL support (u32).
    pub const SGLS: usize = 536;
    /// Most allowed namespaces (u32).
    pub const MNAN: usize = 540;
    /// Subsystem NQN (256, NUL-terminated).
    pub const SUBNQN: usize = 768;
    /// I/O queue command capsule size in 16 bytes (u32).
    pub const IOCCSZ: usize = 1792;
    /// I/O queue response capsule size in 16 bytes (u32).
    pub const IORCSZ: usize = 1796;
    /// In-capsule data offset in 16 bytes (u16).
    pub const ICDOFF: usize = 1800;
    /// Fabrics controller attributes (u8): bit 0 dynamic controller model is 0.
    pub const FCATT: usize = 1802;
    /// Most SGL data block descriptors (u8).
    pub const MSDBD: usize = 1803;
    /// Optional fabrics commands (u16): bit 0 Disconnect.
    pub const OFCS: usize = 1804;
    /// Power state 0 (32 bytes).
    pub const PSD0: usize = 2048;

    /// CNTRLTYPE: I/O controller.
    pub const TYPE_IO: u8 = 1;
    /// CNTRLTYPE: discovery controller.
    pub const TYPE_DISCOVERY: u8 = 2;
    /// ONCS: Compare.
    pub const ONCS_COMPARE: u16 = 1;
    /// ONCS: Write Uncorrectable.
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// ONCS: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// ONCS: Write Zeroes.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// ONCS: save field in Set Features.
    pub const ONCS_SAVE: u16 = 1 << 4;
    /// ONCS: reservations.
    pub const ONCS_RESERVATIONS: u16 = 1 << 5;
    /// ONCS: timestamp.
    pub const ONCS_TIMESTAMP: u16 = 1 << 6;
    /// ONCS: Verify.
    pub const ONCS_VERIFY: u16 = 1 << 7;
    /// CMIC: more than one controller.
    pub const CMIC_CONTROLLERS: u8 = 1 << 1;
    /// CTRATT: 128-bit host identifier.
    pub const CTRATT_HOST_ID_128: u32 = 1;
    /// CTRATT: traffic based keep alive.
    pub const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// LPA: SMART per namespace.
    pub const LPA_SMART_NAMESPACE: u8 = 1;
    /// LPA: commands supported and effects.
    pub const LPA_EFFECTS: u8 = 1 << 1;
    /// LPA: extended data (offsets) in Get Log Page.
    pub const LPA_EXTENDED: u8 = 1 << 2;
    /// OACS: namespace management.
    pub const OACS_NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// SGLS: SGLs supported without alignment.
    pub const SGLS_SUPPORTED: u32 = 1;
    /// SGLS: SGL offset in the capsule supported.
    pub const SGLS_CAPSULE_OFFSET: u32 = 1 << 20;
    /// SGLS: transport SGL data block supported.
    pub const SGLS_TRANSPORT: u32 = 1 << 21;
}

/// Offsets in the Identify Namespace data of the NVM command set (CNS 00h).
pub mod namespace {
    /// Size in blocks (u64).
    pub const NSZE: usize = 0;
    /// Capacity in blocks (u64).
    pub const NCAP: usize = 8;
    /// Utilization in blocks (u64).
    pub const NUSE: usize = 16;
    /// Features (u8).
    pub const NSFEAT: usize = 24;
    /// LBA formats, zero based (u8).
    pub const NLBAF: usize = 25;
    /// Formatted LBA size (u8).
    pub const FLBAS: usize = 26;
    /// Metadata capabilities (u8).
    pub const MC: usize = 27;
    /// Data protection capabilities (u8).
    pub const DPC: usize = 28;
    /// Data protection settings (u8).
    pub const DPS: usize = 29;
    /// Multi-path and sharing (u8): bit 0 shared.
    pub const NMIC: usize = 30;
    /// Reservation capabilities (u8).
    pub const RESCAP: usize = 31;
    /// Format progress (u8).
    pub const FPI: usize = 32;
    /// Deallocate features (u8): bits 2:0 001b reads as zeroes, bit 3 write zeroes deallocates.
    pub const DLFEAT: usize = 33;
    /// Atomic write unit normal (u16).
    pub const NAWUN: usize = 34;
    /// Atomic write unit power fail (u16).
    pub const NAWUPF: usize = 36;
    /// Optimal I/O boundary (u16).
    pub const NOIOB: usize = 46;
    /// NVM capacity in bytes (u128).
    pub const NVMCAP: usize = 48;
    /// Preferred write granularity, zero based (u16).
    pub const NPWG: usize = 64;
    /// Preferred write alignment (u16).
    pub const NPWA: usize = 66;
    /// Preferred deallocate granularity (u16).
    pub const NPDG: usize = 68;
    /// Preferred deallocate alignment (u16).
    pub const NPDA: usize = 70;
    /// Optimal write size (u16).
    pub const NOWS: usize = 72;
    /// ANA group (u32).
    pub const ANAGRPID: usize = 92;
    /// Attributes (u8).
    pub const NSATTR: usize = 99;
    /// NGUID (16, big endian).
    pub const NGUID: usize = 104;
    /// EUI-64 (8, big endian).
    pub const EUI64: usize = 120;
    /// First LBA format: u16 metadata bytes, u8 data size as a power of two, u8 relative performance.
    pub const LBAF0: usize = 128;
}

/// Offsets in the I/O Command Set Independent Identify Namespace data (CNS 08h).
pub mod independent {
    /// Features (u8).
    pub const NSFEAT: usize = 0;
    /// Multi-path and sharing (u8).
    pub const NMIC: usize = 1;
    /// Reservation capabilities (u8).
    pub const RESCAP: usize = 2;
    /// Format progress (u8).
    pub const FPI: usize = 3;
    /// ANA group (u32).
    pub const ANAGRPID: usize = 4;
    /// Attributes (u8).
    pub const NSATTR: usize = 8;
    /// NVM set (u16).
    pub const NVMSETID: usize = 10;
    /// Endurance group (u16).
    pub const ENDGID: usize = 12;
    /// Status (u8): bit 0 ready.
    pub const NSTAT: usize = 14;
}

/// Offsets in the Identify Namespace data of the key value command set (CNS 05h, CSI 1; KV 4.1.5.1).
pub mod kv_namespace {
    /// Size in bytes (u64).
    pub const NSZE: usize = 0;
    /// Utilization in bytes (u64).
    pub const NUSE: usize = 16;
    /// Features (u8).
    pub const NSFEAT: usize = 24;
    /// KV formats, zero based (u8).
    pub const NKVF: usize = 25;
    /// Multi-path and sharing (u8).
    pub const NMIC: usize = 26;
    /// Reservation capabilities (u8).
    pub const RESCAP: usize = 27;
    /// Format progress (u8).
    pub const FPI: usize = 28;
    /// Optimal value granularity (u32).
    pub const NOVG: usize = 32;
    /// ANA group (u32).
    pub const ANAGRPID: usize = 36;
    /// Attributes (u8).
    pub const NSATTR: usize = 43;
    /// NVM set (u16).
    pub const NVMSETID: usize = 44;
    /// Endurance group (u16).
    pub const ENDGID: usize = 46;
    /// NGUID (16).
    pub const NGUID: usize = 48;
    /// EUI-64 (8).
    pub const EUI64: usize = 64;
    /// First KV format (16 bytes): u16 key bytes max, u8 reserved, u8 additional (relative performance), u32 value
    /// bytes max, u32 keys max.
    pub const KVF0: usize = 72;
    /// Bytes of a KV format.
    pub const KVF_BYTES: usize = 16;
    /// In a format: largest key (u16).
    pub const KVF_KEY_BYTES_MAX: usize = 0;
    /// In a format: largest value (u32).
    pub const KVF_VALUE_BYTES_MAX: usize = 4;
    /// In a format: most keys, 0 for no limit given (u32).
    pub const KVF_KEYS_MAX: usize = 8;
}

/// Offsets in the Identify Controller data of the NVM command set (CNS 06h, CSI 0): limits as powers of two in units
/// of the smallest page, 0 for no limit other than MDTS.
pub mod nvm_controller {
    /// Verify size limit (u8).
    pub const VSL: usize = 0;
    /// Write Zeroes size limit (u8).
    pub const WZSL: usize = 1;
    /// Write Uncorrectable size limit (u8).
    pub const WUSL: usize = 2;
    /// Dataset Management ranges limit (u8).
    pub const DMRL: usize = 3;
    /// Dataset Management range size limit in blocks (u32).
    pub const DMRSL: usize = 4;
    /// Dataset Management size limit in blocks (u64).
    pub const DMSL: usize = 8;
}
