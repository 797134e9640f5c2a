/* An FTL in C that uses all of willow_flash.h: a log of pages on one die, a map in memory, greedy collection, recovery by looking at every page. ftl_test.c runs
 * it natively, apps/tests/ftl_in_c.rs in a device. For flash of one plane without pairs whose page is the unit.
 *
 * What always holds: a unit's newest page has the highest sequence among its pages; a copy keeps its sequence, and both have the same bytes. A block is
 * erased only when nothing in it counts and nobody reads it or writes to it. */
#include "willow_flash.h"

#define UNITS_MAX 1024u
#define BLOCKS_MAX 64u
#define PAGES_MAX 64u
#define NOWHERE UINT32_MAX
#define MAGIC 0x46544c43u
/* Blocks that hosts' writes leave to collection. */
#define RESERVE 2u

#define HANDLERS(HANDLER)                                                                                                   \
    HANDLER(1, fail_next) HANDLER(250, nv_read) HANDLER(251, nv_write) HANDLER(252, nv_zero) HANDLER(253, nv_flush)
static void on_event(RPCHdr_t *request, Event_t event, uint32_t nsid);
WILLOW_APP_WITH_EVENTS("tiny", "1", HANDLERS, on_event)

/* The first bytes of a page's spare area. */
struct Header {
    uint32_t magic, unit;
    uint64_t sequence;
};

static FlashGeometry_t geometry;
static uint32_t units;
static uint32_t map[UNITS_MAX];                  /* by unit: its page */
static uint64_t sequences[UNITS_MAX];            /* by unit: of what the map says */
static uint32_t owner[BLOCKS_MAX * PAGES_MAX];   /* by page: the unit that was written there */
static uint32_t valid[BLOCKS_MAX];               /* pages that count; NOWHERE: not to be collected */
static uint32_t used[BLOCKS_MAX];                /* pages that were given out */
static uint32_t busy[BLOCKS_MAX];                /* reads and writes under way */
static uint32_t open_block, collecting, started, is_full;
static uint64_t next_sequence = 1;

static FlashRange_t range_of(uint32_t page, uint32_t bytes) {
    return (FlashRange_t){0, page / geometry.pages_per_block, page % geometry.pages_per_block, 0, bytes};
}

static void answer(const RPCHdr_t *request, uint32_t status) {
    RPCResp_t response;
    RPCCreateResponse(request, &response, status);
    RPCSendResponse(response);
}

static uint32_t free_blocks(void) {
    uint32_t count = 0;
    for (uint32_t block = 0; block < geometry.blocks_per_plane; block++) {
        count += used[block] == 0;
    }
    return count;
}

/* A place for a page, where as many blocks stay free: its block is busy until the page is programmed. */
static uint32_t take_place(uint32_t reserve) {
    int needs_block = used[open_block] == geometry.pages_per_block || used[open_block] == NOWHERE;
    if (free_blocks() < reserve + (uint32_t)needs_block) {
        return NOWHERE;
    }
    if (needs_block) {
        for (open_block = 0; used[open_block] != 0; open_block++) {
        }
    }
    busy[open_block]++;
    return open_block * geometry.pages_per_block + used[open_block]++;
}

/* The map of a unit becomes that page, unless it says something newer by now. */
static void commit(uint32_t unit, uint32_t page, uint64_t sequence) {
    if (map[unit] != NOWHERE && sequences[unit] > sequence) {
        return;
    }
    if (map[unit] != NOWHERE) {
        valid[map[unit] / geometry.pages_per_block]--;
    }
    map[unit] = page;
    sequences[unit] = sequence;
    valid[page / geometry.pages_per_block]++;
}

/* Programs a page of a unit at a place that was taken. */
static int32_t program(uint32_t unit, uint32_t place, uint64_t sequence, FlashPart_t part) {
    struct Header header = {MAGIC, unit, sequence};
    uint32_t pages = geometry.pages_per_block;
    FlashPage_t page = FLASH_PAGE(place / pages, place % pages, &part, 1, &header, sizeof header);
    int32_t result = FlashProgram(0, &page, 1);
    busy[place / pages]--;
    if (FlashStatus(result) == FLASH_DONE) {
        owner[place] = unit;
        commit(unit, place, sequence);
    }
    return result;
}

/* Moves what counts in the block that has the least, and erases it. 0: there was nothing to gain. */
static int collect_one(void) {
    uint32_t victims[BLOCKS_MAX], pages = geometry.pages_per_block, under_way = 0;
    for (uint32_t block = 0; block < geometry.blocks_per_plane; block++) {
        int is_closed = used[block] == pages && block != open_block && busy[block] == 0;
        victims[block] = is_closed ? valid[block] : NOWHERE;
        under_way += busy[block];
    }
    int32_t victim = FlashMinimum(victims, geometry.blocks_per_plane);
    if (victim < 0 || victims[victim] >= pages) {
        /* What is under way may leave something to gain. */
        FlashPause();
        return under_way > 0;
    }
    for (uint32_t page = 0; page < pages; page++) {
        uint32_t from = (uint32_t)victim * pages + page, unit = owner[from];
        if (unit == NOWHERE || map[unit] != from) {
            continue;
        }
        uint32_t place = take_place(0);
        if (place == NOWHERE) {
            return 0;
        }
        uint64_t sequence = sequences[unit];
        busy[victim]++;
        int32_t result = program(unit, place, sequence, FLASH_FROM_FLASH(range_of(from, geometry.page_bytes)));
        busy[victim]--;
        if (FlashStatus(result) != FLASH_DONE) {
            return 0;
        }
    }
    while (busy[victim] > 0) {
        FlashPause();
    }
    uint32_t block = (uint32_t)victim;
    if (valid[block] != 0 || FlashStatus(FlashErase(0, &block, 1)) != FLASH_DONE) {
        used[block] = NOWHERE;
        return 0;
    }
    for (uint32_t page = 0; page < pages; page++) {
        owner[block * pages + page] = NOWHERE;
    }
    used[block] = 0;
    CounterAdd(0, 1);
    return 1;
}

/* A place for what a host writes; collects where blocks run out. */
static uint32_t place_for_host(void) {
    for (;;) {
        uint32_t place = take_place(RESERVE);
        if (place != NOWHERE || is_full) {
            return place;
        }
        if (collecting) {
            FlashPause();
            continue;
        }
        collecting = 1;
        if (!collect_one()) {
            is_full = 1;
            FlashHealth(0, 0, 1);
        }
        collecting = 0;
    }
}

/* Reads what an FTL is asked; 0 where that cannot be. */
static int arguments(NVArguments_t *asked) {
    while (!started) {
        FlashPause();
    }
    return RPCReceiveBytes(asked, sizeof *asked) == sizeof *asked && asked->address % geometry.page_bytes == 0 &&
           asked->bytes % geometry.page_bytes == 0 && (asked->address + asked->bytes) / geometry.page_bytes <= units;
}

static void nv_read(RPCHdr_t *request) {
    NVArguments_t asked;
    if (!arguments(&asked)) {
        return answer(request, NV_FAILED);
    }
    for (uint64_t offset = 0; offset < asked.bytes; offset += geometry.page_bytes) {
        uint32_t page = map[(asked.address + offset) / geometry.page_bytes];
        int32_t result = FLASH_DONE;
        if (page == NOWHERE) {
            result = FlashZeroPeer(asked.peer, offset, geometry.page_bytes);
        } else {
            busy[page / geometry.pages_per_block]++;
            result = FlashReadToPeer(range_of(page, geometry.page_bytes), asked.peer, offset);
            busy[page / geometry.pages_per_block]--;
        }
        if (FlashStatus(result) != FLASH_DONE) {
            return answer(request, NV_FAILED);
        }
    }
    answer(request, NV_DONE);
}

static void write_all(RPCHdr_t *request, int has_data) {
    NVArguments_t asked;
    if (!arguments(&asked)) {
        return answer(request, NV_FAILED);
    }
    for (uint64_t offset = 0; offset < asked.bytes; offset += geometry.page_bytes) {
        uint32_t place = place_for_host(), unit = (uint32_t)((asked.address + offset) / geometry.page_bytes);
        if (place == NOWHERE) {
            return answer(request, NV_FULL);
        }
        FlashPart_t part =
            has_data ? FLASH_FROM_PEER(asked.peer, offset, geometry.page_bytes) : FLASH_FROM_ZEROES(geometry.page_bytes);
        if (FlashStatus(program(unit, place, next_sequence++, part)) != FLASH_DONE) {
            return answer(request, NV_FAILED);
        }
    }
    answer(request, NV_DONE);
}

static void nv_write(RPCHdr_t *request) { write_all(request, 1); }

static void nv_zero(RPCHdr_t *request) { write_all(request, 0); }

/* A page that is programmed is durable. */
static void nv_flush(RPCHdr_t *request) { answer(request, NV_DONE); }

/* A program that breaks a rule of the flash: its status as the flash port tells it. */
static void fail_next(RPCHdr_t *request) {
    FlashPart_t part = FLASH_FROM_ZEROES(geometry.page_bytes);
    FlashPage_t page = FLASH_PAGE(open_block, (used[open_block] + 1) % geometry.pages_per_block, &part, 1, NULL, 0);
    answer(request, (uint32_t)FlashStatus(FlashProgram(0, &page, 1)));
}

static int32_t recover(void) {
    int32_t code = FlashGeometry(&geometry);
    if (code != 0) {
        return code;
    }
    uint32_t pages = geometry.pages_per_block, bad[1];
    units = (uint32_t)(geometry.bank_bytes / geometry.page_bytes);
    if (units > UNITS_MAX || geometry.blocks_per_plane > BLOCKS_MAX || pages > PAGES_MAX || geometry.planes_per_die != 1 ||
        geometry.unit_bytes != geometry.page_bytes || FlashBadBlocks(0, bad, 1) != 0) {
        SerialPrint("this flash is not for it\n");
        return WILLOW_ERROR_ARGUMENT;
    }
    for (uint32_t unit = 0; unit < UNITS_MAX; unit++) {
        map[unit] = NOWHERE;
    }
    for (uint32_t page = 0; page < geometry.blocks_per_plane * pages; page++) {
        struct Header header;
        int32_t result = FlashReadToLocal(range_of(page, 0), NULL, &header, sizeof header);
        owner[page] = NOWHERE;
        if (FlashStatus(result) == FLASH_ERASED) {
            continue;
        }
        /* A block that holds anything takes no more. */
        used[page / pages] = pages;
        if (FlashStatus(result) == FLASH_DONE && header.magic == MAGIC && header.unit < units) {
            owner[page] = header.unit;
            commit(header.unit, page, header.sequence);
            next_sequence = header.sequence >= next_sequence ? header.sequence + 1 : next_sequence;
        }
    }
    return FlashHealth(100, 0, 0);
}

static void on_event(RPCHdr_t *request, Event_t event, uint32_t nsid) {
    (void)nsid;
    if (event == DEVICE_STARTED) {
        int32_t code = recover();
        started = 1;
        answer(request, code == 0 ? RPC_SUCCESS : (uint32_t)code);
    }
}
