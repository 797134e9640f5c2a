/* The flash port, for an app in C that serves the banks of a device with flash: an FTL (docs/abi.md, "The flash port"). It is installed by `willow ftl`.
 *
 * SPU-OS asks an FTL by the four handlers below, with an NVArguments_t as their arguments; the status of the response is one of NV_DONE, NV_FAILED and
 * NV_FULL. Requests on one unit (`unit_bytes` of the geometry) never overlap, so the FTL needs no locks for what hosts ask. An FTL waits for flash and
 * peers alone: NV memory, regions and RPCs to SPUs are out of its reach. Any other app gets WILLOW_ERROR_PERMISSION from all calls here.
 *
 * A call that is marked "waits" lets other handlers run meanwhile, as in willow.h. Memory that it is handed must stay until it ends; local variables do. */
#ifndef WILLOW_FLASH_H
#define WILLOW_FLASH_H

#include "willow.h"

/* Handlers of an FTL: bring a range of the bank to the peer; make it what the peer has; make it read as zeroes; make durable what was answered before. As
 * literals, since WILLOW_APP wants these: HANDLER(250, nv_read) HANDLER(251, nv_write) HANDLER(252, nv_zero) HANDLER(253, nv_flush). */
#define NV_READ 250
#define NV_WRITE 251
#define NV_ZERO 252
#define NV_FLUSH 253

/* Statuses of their responses: done; the flash cannot be read or written; too much of it has worn out. */
enum { NV_DONE = 0, NV_FAILED = 1, NV_FULL = 2 };

/* What they are asked. `peer` is the other end of the operation until the request is answered. */
typedef struct {
    uint32_t peer, reserved;
    uint64_t address, bytes;
} NVArguments_t;

/* How the flash of this SPU is arranged, and what the FTL is to make of it. Block b of a die is in plane b % planes_per_die. */
typedef struct {
    uint32_t channels, packages_per_channel, dies_per_package, planes_per_die, blocks_per_plane, pages_per_block;
    uint32_t page_bytes, spare_bytes;
    uint32_t cell_bits;            /* 1: SLC, 2: MLC, 3: TLC */
    uint32_t spare_accessible;     /* 0: firmware does not reach the spare area */
    uint32_t unit_bytes;           /* what the FTL is to map as one */
    uint32_t paired_distance;      /* from a lower page to its upper one, which may take it along in a power cut; 0: none does */
    uint64_t bank_bytes;           /* the bank that it is to offer */
    uint32_t collect_below_blocks; /* free blocks below which it is to collect; 0: as it thinks best */
    uint32_t policy;               /* 1: it is to find the block to collect by FlashMinimum, 2: it is to move pages by copyback */
} FlashGeometry_t;

/* What calls that wait return: a WILLOW_ERROR, or a number whose FlashStatus is one of these. */
enum {
    FLASH_DONE = 0,           /* FlashBits: how many bits the ECC corrected */
    FLASH_ERASED = 2,         /* the page was not programmed since its block was erased */
    FLASH_UNCORRECTABLE = 3,  /* it cannot be read */
    FLASH_PROGRAM_FAILED = 4, /* FlashBits: one for each page */
    FLASH_ERASE_FAILED = 5,   /* FlashBits: one for each block */
    FLASH_LATCHED = 6,        /* it is programmed with the last page of its word line */
    FLASH_MISUSE = 7          /* it breaks a rule of the flash, and nothing changed: the serial port says which */
};
static inline int32_t FlashStatus(int32_t result) { return result < 0 ? result : result & 0xff; }
static inline uint32_t FlashBits(int32_t result) { return (uint32_t)result >> 8; }

/* 0, or an error. */
int32_t FlashGeometry(FlashGeometry_t *to);
/* Writes the first `most` blocks of a die that are bad from the factory; how many there are, or an error. */
int32_t FlashBadBlocks(uint32_t die, uint32_t *to, uint32_t most);

/* Part of a page. */
typedef struct {
    uint32_t die, block, page, offset, bytes;
} FlashRange_t;
/* Reads part of a page to a peer, from `offset` of that on. Waits. */
int32_t FlashReadToPeer(FlashRange_t range, uint32_t peer, uint64_t offset);
/* Reads part of a page (of 0 bytes: none) to local memory, and the first bytes of its spare area to `spare`. Waits. */
int32_t FlashReadToLocal(FlashRange_t range, void *to, void *spare, uint32_t spare_bytes);

/* What a page to be programmed is made of: parts one after another. */
typedef struct {
    uint32_t kind, bytes;
    union {
        struct {
            uint64_t pointer, zero;
        } local;
        struct {
            uint32_t peer, zero;
            uint64_t offset;
        } peer;
        struct {
            uint32_t die, block, page, offset;
        } flash;
    };
} FlashPart_t;
#define FLASH_FROM_LOCAL(pointer_, bytes_)                                                                                  \
    ((FlashPart_t){.kind = 0, .bytes = (bytes_), .local = {(uint64_t)(uintptr_t)(pointer_), 0}})
#define FLASH_FROM_PEER(peer_, offset_, bytes_) ((FlashPart_t){.kind = 1, .bytes = (bytes_), .peer = {(peer_), 0, (offset_)}})
#define FLASH_FROM_FLASH(range_)                                                                                            \
    ((FlashPart_t){.kind = 2, .bytes = (range_).bytes, .flash = {(range_).die, (range_).block, (range_).page, (range_).offset}})
#define FLASH_FROM_ZEROES(bytes_) ((FlashPart_t){.kind = 3, .bytes = (bytes_), .local = {0, 0}})
/* The whole of a page of the same plane, within the chip: then each page of the program is one such part. */
#define FLASH_BY_COPYBACK(range_)                                                                                           \
    ((FlashPart_t){.kind = 4, .bytes = (range_).bytes, .flash = {(range_).die, (range_).block, (range_).page, 0}})

/* A page to be programmed. */
typedef struct {
    uint32_t block, page;
    uint64_t parts;  /* a pointer to FlashPart_t */
    uint32_t part_count, spare_bytes;
    uint64_t spare;  /* a pointer to the first bytes of its spare area */
} FlashPage_t;
#define FLASH_PAGE(block_, page_, parts_, part_count_, spare_, spare_bytes_)                                                \
    ((FlashPage_t){(block_), (page_), (uint64_t)(uintptr_t)(parts_), (part_count_), (spare_bytes_), (uint64_t)(uintptr_t)(spare_)})

/* Programs `count` pages of the same number on distinct planes of a die. Waits. */
int32_t FlashProgram(uint32_t die, const FlashPage_t *pages, uint32_t count);
/* Erases `count` blocks of distinct planes of a die. Waits. */
int32_t FlashErase(uint32_t die, const uint32_t *blocks, uint32_t count);
/* Makes part of a read's peer zeroes. 0, or an error. */
int32_t FlashZeroPeer(uint32_t peer, uint64_t offset, uint32_t bytes);
/* Makes way for others. Waits. */
int32_t FlashPause(void);
/* The accelerator for minima: the place of the first of the least of `count` numbers, or an error. */
int32_t FlashMinimum(const uint32_t *numbers, uint32_t count);
/* Where the units of a lane lie, for SPU-OS to read them without asking (docs/abi.md, "The read map"). */
typedef struct FlashLane {
    uint64_t entries; /* address of a uint32_t for each unit */
    uint64_t moved;   /* address of a byte for each row of blocks: not 0 where its units are to be asked for */
    uint32_t units;
    uint32_t rows;
    uint64_t zero;
} FlashLane_t;
/* Publishes it, or ends what was published (no lanes). What is published stays where it is while this instance is there. 0, or an error. */
int32_t FlashReadMap(const FlashLane_t *lanes, uint32_t count, uint32_t corrected_bits_max);
/* Tells hosts (SMART) how the bank does. 0, or an error. */
int32_t FlashHealth(uint32_t spare_percent, uint64_t media_errors, int is_read_only);

#endif
