//! The calls by which a program asks the kernel's generic code, ext4 and xfs for something about a file: every label of the kernel's own
//! switches, so that none is overlooked. docs/direct-ways.md says of each which way it is, or why it is none.
//!
//! Read in Linux 6.12.117 (fs/ioctl.c, fs/ext4/ioctl.c, fs/xfs/xfs_ioctl.c, fs/open.c, fs/quota/quota.c), with what 6.13 to 6.18 have added.
//! Those for 32-bit programs are the same calls.

/// `do_vfs_ioctl`, `file_ioctl`.
pub const GENERIC: [&str; 25] = [
    "FIBMAP",
    "FICLONE",
    "FICLONERANGE",
    "FIDEDUPERANGE",
    "FIFREEZE",
    "FIGETBSZ",
    "FIOASYNC",
    "FIOCLEX",
    "FIONBIO",
    "FIONCLEX",
    "FIONREAD",
    "FIOQSIZE",
    "FITHAW",
    "FS_IOC_FIEMAP",
    "FS_IOC_FSGETXATTR",
    "FS_IOC_FSSETXATTR",
    "FS_IOC_GETFLAGS",
    "FS_IOC_GETFSSYSFSPATH",
    "FS_IOC_GETFSUUID",
    "FS_IOC_RESVSP",
    "FS_IOC_RESVSP64",
    "FS_IOC_SETFLAGS",
    "FS_IOC_UNRESVSP",
    "FS_IOC_UNRESVSP64",
    "FS_IOC_ZERO_RANGE",
];

/// `__ext4_ioctl`.
pub const EXT4: [&str; 39] = [
    "EXT4_IOC_ALLOC_DA_BLKS",
    "EXT4_IOC_CHECKPOINT",
    "EXT4_IOC_CLEAR_ES_CACHE",
    "EXT4_IOC_GETFSUUID",
    "EXT4_IOC_GETSTATE",
    "EXT4_IOC_GETVERSION",
    "EXT4_IOC_GETVERSION_OLD",
    "EXT4_IOC_GET_ES_CACHE",
    // 6.18.
    "EXT4_IOC_GET_TUNE_SB_PARAM",
    "EXT4_IOC_GROUP_ADD",
    "EXT4_IOC_GROUP_EXTEND",
    "EXT4_IOC_MIGRATE",
    "EXT4_IOC_MOVE_EXT",
    "EXT4_IOC_PRECACHE_EXTENTS",
    "EXT4_IOC_RESIZE_FS",
    "EXT4_IOC_SETFSUUID",
    "EXT4_IOC_SETVERSION",
    "EXT4_IOC_SETVERSION_OLD",
    // 6.18.
    "EXT4_IOC_SET_TUNE_SB_PARAM",
    "EXT4_IOC_SHUTDOWN",
    "EXT4_IOC_SWAP_BOOT",
    "FITRIM",
    "FS_IOC_ADD_ENCRYPTION_KEY",
    "FS_IOC_ENABLE_VERITY",
    "FS_IOC_GETFSLABEL",
    "FS_IOC_GETFSMAP",
    "FS_IOC_GET_ENCRYPTION_KEY_STATUS",
    "FS_IOC_GET_ENCRYPTION_NONCE",
    "FS_IOC_GET_ENCRYPTION_POLICY",
    "FS_IOC_GET_ENCRYPTION_POLICY_EX",
    "FS_IOC_GET_ENCRYPTION_PWSALT",
    "FS_IOC_MEASURE_VERITY",
    "FS_IOC_READ_VERITY_METADATA",
    "FS_IOC_REMOVE_ENCRYPTION_KEY",
    "FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS",
    "FS_IOC_SETFSLABEL",
    "FS_IOC_SET_ENCRYPTION_POLICY",
    // Known by the names of others' as well.
    "FS_IOC_GETVERSION",
    "FS_IOC_SETVERSION",
];

/// `xfs_file_ioctl`.
pub const XFS: [&str; 45] = [
    "XFS_IOC_AG_GEOMETRY",
    "XFS_IOC_ALLOCSP",
    "XFS_IOC_ALLOCSP64",
    "XFS_IOC_ATTRLIST_BY_HANDLE",
    "XFS_IOC_ATTRMULTI_BY_HANDLE",
    "XFS_IOC_BULKSTAT",
    "XFS_IOC_COMMIT_RANGE",
    "XFS_IOC_DIOINFO",
    "XFS_IOC_ERROR_CLEARALL",
    "XFS_IOC_ERROR_INJECTION",
    "XFS_IOC_EXCHANGE_RANGE",
    "XFS_IOC_FD_TO_HANDLE",
    "XFS_IOC_FREESP",
    "XFS_IOC_FREESP64",
    "XFS_IOC_FREE_EOFBLOCKS",
    "XFS_IOC_FSBULKSTAT",
    "XFS_IOC_FSBULKSTAT_SINGLE",
    "XFS_IOC_FSCOUNTS",
    "XFS_IOC_FSGEOMETRY",
    "XFS_IOC_FSGEOMETRY_V1",
    "XFS_IOC_FSGEOMETRY_V4",
    "XFS_IOC_FSGETXATTRA",
    "XFS_IOC_FSGROWFSDATA",
    "XFS_IOC_FSGROWFSLOG",
    "XFS_IOC_FSGROWFSRT",
    "XFS_IOC_FSINUMBERS",
    "XFS_IOC_GETBMAP",
    "XFS_IOC_GETBMAPA",
    "XFS_IOC_GETBMAPX",
    "XFS_IOC_GETPARENTS",
    "XFS_IOC_GETPARENTS_BY_HANDLE",
    "XFS_IOC_GETVERSION",
    "XFS_IOC_GET_RESBLKS",
    "XFS_IOC_GOINGDOWN",
    "XFS_IOC_INUMBERS",
    "XFS_IOC_OPEN_BY_HANDLE",
    "XFS_IOC_PATH_TO_FSHANDLE",
    "XFS_IOC_PATH_TO_HANDLE",
    "XFS_IOC_READLINK_BY_HANDLE",
    // 6.13.
    "XFS_IOC_RTGROUP_GEOMETRY",
    "XFS_IOC_SCRUBV_METADATA",
    "XFS_IOC_SCRUB_METADATA",
    "XFS_IOC_SET_RESBLKS",
    "XFS_IOC_START_COMMIT",
    "XFS_IOC_SWAPEXT",
];

/// Modes of `vfs_fallocate`.
pub const FALLOCATE: [&str; 8] = [
    "FALLOC_FL_ALLOCATE_RANGE",
    "FALLOC_FL_COLLAPSE_RANGE",
    "FALLOC_FL_INSERT_RANGE",
    "FALLOC_FL_KEEP_SIZE",
    "FALLOC_FL_PUNCH_HOLE",
    "FALLOC_FL_UNSHARE_RANGE",
    // 6.17.
    "FALLOC_FL_WRITE_ZEROES",
    "FALLOC_FL_ZERO_RANGE",
];

/// `do_quotactl`.
pub const QUOTA: [&str; 18] = [
    "Q_GETFMT",
    "Q_GETINFO",
    "Q_GETNEXTQUOTA",
    "Q_GETQUOTA",
    "Q_QUOTAOFF",
    "Q_QUOTAON",
    "Q_SETINFO",
    "Q_SETQUOTA",
    "Q_SYNC",
    "Q_XGETNEXTQUOTA",
    "Q_XGETQSTAT",
    "Q_XGETQSTATV",
    "Q_XGETQUOTA",
    "Q_XQUOTAOFF",
    "Q_XQUOTAON",
    "Q_XQUOTARM",
    "Q_XQUOTASYNC",
    "Q_XSETQLIM",
];

/// All of them.
pub fn all() -> impl Iterator<Item = &'static str> {
    let each: [&[&str]; 5] = [&GENERIC, &EXT4, &XFS, &FALLOCATE, &QUOTA];
    each.into_iter().flatten().copied()
}
