/* Flash for the device of willow_test.c, which includes this once and at its end: no header for others.
 *
 * An operation takes effect when it is asked for and may be told later. No page fails, no bit is wrong and no block is bad; what breaks a rule of flash ends
 * as FLASH_MISUSE, as on a device. */

#define PEERS_MAX 256u

/* The other end of what the bank's FTL is asked; at place n is peer n + 1. */
static struct Peer {
    uint32_t token;
    int used, is_read;
    uint8_t *buffer;
    uint64_t bytes;
} peers[PEERS_MAX];
static FlashGeometry_t flash;
static uint8_t *flash_data, *flash_spare;
static uint32_t *flash_next_page; /* by block of each die */
static uint32_t flash_dies, flash_die_blocks;
static struct WillowTestHealth flash_health;

void WillowTestFlash(const FlashGeometry_t *geometry) {
    flash = *geometry;
    flash_dies = flash.channels * flash.packages_per_channel * flash.dies_per_package;
    flash_die_blocks = flash.planes_per_die * flash.blocks_per_plane;
    size_t blocks = (size_t)flash_dies * flash_die_blocks, pages = blocks * flash.pages_per_block;
    flash_data = allocate(pages * flash.page_bytes);
    flash_spare = allocate(pages * flash.spare_bytes);
    flash_next_page = allocate(blocks * sizeof flash_next_page[0]);
}

struct WillowTestHealth WillowTestHealth(void) { return flash_health; }

uint32_t WillowTestSubmitNV(uint8_t handler, uint64_t address, void *buffer, uint64_t bytes) {
    for (uint32_t place = 0; place < PEERS_MAX; place++) {
        struct Peer *peer = &peers[place];
        if (!peer->used || !requests[peer->token].used || requests[peer->token].answered) {
            NVArguments_t arguments = {.peer = place + 1, .address = address, .bytes = bytes};
            uint32_t request = WillowTestSubmit(handler, &arguments, sizeof arguments, NULL, 0, NULL, 0);
            *peer = (struct Peer){.token = request, .used = 1, .is_read = handler == NV_READ, .buffer = buffer, .bytes = bytes};
            return request;
        }
    }
    fail("too many requests to the FTL");
}

uint32_t WillowTestCallNV(uint8_t handler, uint64_t address, void *buffer, uint64_t bytes) {
    RPCResp_t response;
    uint32_t request = WillowTestSubmitNV(handler, address, buffer, bytes);
    WillowTestRun();
    if (!WillowTestOutcome(request, &response)) {
        fail("all is quiet, but the FTL has not answered: it waits for ever");
    }
    return response.status;
}

/* The bytes of a peer; NULL: it has ended, is of the other kind, or ends before. */
static uint8_t *peer_bytes(uint32_t number, int is_read, uint64_t offset, uint64_t bytes) {
    if (number == 0 || number > PEERS_MAX) {
        return NULL;
    }
    const struct Peer *peer = &peers[number - 1];
    int is_open = peer->used && requests[peer->token].used && !requests[peer->token].answered;
    int fits = offset <= peer->bytes && bytes <= peer->bytes - offset;
    return is_open && peer->is_read == is_read && fits ? peer->buffer + offset : NULL;
}

/* The number of a page among all; 0 and FLASH_MISUSE where there is none. */
static int find_page(uint32_t die, uint32_t block, uint32_t page, size_t *found) {
    if (die >= flash_dies || block >= flash_die_blocks || page >= flash.pages_per_block) {
        return 0;
    }
    *found = ((size_t)die * flash_die_blocks + block) * flash.pages_per_block + page;
    return 1;
}

static int is_programmed(size_t page) { return page % flash.pages_per_block < flash_next_page[page / flash.pages_per_block]; }

/* What changes flash is told by a completion, unless all is told at once. */
static int32_t told(int32_t status, uint32_t wait) {
    if (status < 0 || random_state == 0) {
        return status;
    }
    complete_later(wait, status);
    return PENDING;
}

int32_t willow_import_flash_geometry(void *to) {
    if (flash_dies == 0) {
        return WILLOW_ERROR_PERMISSION;
    }
    memcpy(to, &flash, sizeof flash);
    return WILLOW_OK;
}

int32_t willow_import_flash_bad_blocks(uint32_t die, void *to, uint32_t most) {
    (void)to;
    (void)most;
    return flash_dies == 0 ? WILLOW_ERROR_PERMISSION : die < flash_dies ? 0 : WILLOW_ERROR_RANGE;
}

int32_t willow_import_flash_read(uint32_t die, uint32_t block, uint32_t page, uint32_t offset, uint32_t bytes, uint32_t peer,
                                 uint64_t to, void *spare, uint32_t spare_bytes, uint32_t wait) {
    if (flash_dies == 0) {
        return WILLOW_ERROR_PERMISSION;
    }
    size_t found;
    if (bytes > flash.page_bytes || spare_bytes > flash.spare_bytes) {
        return WILLOW_ERROR_RANGE;
    }
    uint8_t *into = peer == 0 ? (uint8_t *)(uintptr_t)to : peer_bytes(peer, 1, to, bytes);
    if (into == NULL && bytes > 0) {
        return WILLOW_ERROR_ENDED;
    }
    if (!find_page(die, block, page, &found) || offset > flash.page_bytes - bytes) {
        return told(FLASH_MISUSE, wait);
    }
    int is_there = is_programmed(found);
    if (bytes > 0) {
        memcpy(into, flash_data + found * flash.page_bytes + offset, bytes);
    }
    if (spare_bytes > 0) {
        memcpy(spare, flash_spare + found * flash.spare_bytes, spare_bytes);
    }
    if (!is_there) {
        memset(bytes > 0 ? into : (uint8_t *)spare, 0xff, bytes > 0 ? bytes : spare_bytes);
    }
    return told(is_there ? FLASH_DONE : FLASH_ERASED, wait);
}

/* Puts together a page of `parts`: a status. */
static int32_t gather(uint32_t die, const FlashPage_t *page, uint8_t *into) {
    const FlashPart_t *parts = (const FlashPart_t *)(uintptr_t)page->parts;
    uint64_t at = 0;
    for (uint32_t index = 0; index < page->part_count; index++) {
        const FlashPart_t *part = &parts[index];
        size_t found;
        const uint8_t *from = NULL;
        if (part->bytes > flash.page_bytes - at) {
            return WILLOW_ERROR_RANGE;
        }
        switch (part->kind) {
        case 0:
            from = (const uint8_t *)(uintptr_t)part->local.pointer;
            break;
        case 1:
            from = peer_bytes(part->peer.peer, 0, part->peer.offset, part->bytes);
            if (from == NULL) {
                return WILLOW_ERROR_ENDED;
            }
            break;
        case 2:
        case 4:
            if (!find_page(part->flash.die, part->flash.block, part->flash.page, &found) ||
                part->flash.offset > flash.page_bytes - part->bytes || (part->kind == 4 && part->flash.die != die)) {
                return FLASH_MISUSE;
            }
            if (!is_programmed(found)) {
                return FLASH_ERASED;
            }
            from = flash_data + found * flash.page_bytes + part->flash.offset;
            break;
        case 3:
            break;
        default:
            return WILLOW_ERROR_ARGUMENT;
        }
        if (from != NULL) {
            memcpy(into + at, from, part->bytes);
        }
        at += part->bytes;
    }
    return FLASH_DONE;
}

int32_t willow_import_flash_program(uint32_t die, const void *described, uint32_t count, uint32_t wait) {
    const FlashPage_t *pages = described;
    if (flash_dies == 0) {
        return WILLOW_ERROR_PERMISSION;
    }
    if (count == 0 || count > flash.planes_per_die) {
        return WILLOW_ERROR_ARGUMENT;
    }
    uint8_t *made = allocate((size_t)count * flash.page_bytes);
    int32_t status = FLASH_DONE;
    for (uint32_t index = 0, planes = 0; index < count && status == FLASH_DONE; index++) {
        const FlashPage_t *page = &pages[index];
        size_t found;
        if (page->spare_bytes > flash.spare_bytes) {
            status = WILLOW_ERROR_RANGE;
        } else if (!find_page(die, page->block, page->page, &found) || page->page != pages[0].page ||
                   (planes >> page->block % flash.planes_per_die & 1) != 0 ||
                   flash_next_page[found / flash.pages_per_block] != page->page) {
            status = FLASH_MISUSE;
        } else {
            planes |= 1u << page->block % flash.planes_per_die;
            status = gather(die, page, made + (size_t)index * flash.page_bytes);
        }
    }
    for (uint32_t index = 0; index < count && status == FLASH_DONE; index++) {
        const FlashPage_t *page = &pages[index];
        size_t found;
        find_page(die, page->block, page->page, &found);
        memcpy(flash_data + found * flash.page_bytes, made + (size_t)index * flash.page_bytes, flash.page_bytes);
        memset(flash_spare + found * flash.spare_bytes, 0, flash.spare_bytes);
        memcpy(flash_spare + found * flash.spare_bytes, (const void *)(uintptr_t)page->spare, page->spare_bytes);
        flash_next_page[found / flash.pages_per_block]++;
    }
    free(made);
    return told(status, wait);
}

int32_t willow_import_flash_erase(uint32_t die, const void *described, uint32_t count, uint32_t wait) {
    const uint32_t *blocks = described;
    if (flash_dies == 0) {
        return WILLOW_ERROR_PERMISSION;
    }
    if (count == 0 || count > flash.planes_per_die) {
        return WILLOW_ERROR_ARGUMENT;
    }
    for (uint32_t index = 0, planes = 0; index < count; index++) {
        uint32_t plane = blocks[index] % flash.planes_per_die;
        if (die >= flash_dies || blocks[index] >= flash_die_blocks || (planes >> plane & 1) != 0) {
            return told(FLASH_MISUSE, wait);
        }
        planes |= 1u << plane;
    }
    for (uint32_t index = 0; index < count; index++) {
        flash_next_page[(size_t)die * flash_die_blocks + blocks[index]] = 0;
    }
    return told(FLASH_DONE, wait);
}

int32_t willow_import_flash_zero_peer(uint32_t peer, uint64_t offset, uint32_t bytes) {
    uint8_t *into = peer_bytes(peer, 1, offset, bytes);
    if (into == NULL) {
        return WILLOW_ERROR_ENDED;
    }
    memset(into, 0, bytes);
    return WILLOW_OK;
}

int32_t willow_import_flash_pause(uint32_t wait) {
    if (flash_dies == 0) {
        return WILLOW_ERROR_PERMISSION;
    }
    complete_later(wait, FLASH_DONE);
    return PENDING;
}

int32_t willow_import_flash_minimum(const void *numbers, uint32_t count) {
    const uint32_t *number = numbers;
    uint32_t least = 0;
    if (count == 0) {
        return WILLOW_ERROR_ARGUMENT;
    }
    for (uint32_t index = 1; index < count; index++) {
        least = number[index] < number[least] ? index : least;
    }
    return (int32_t)least;
}

int32_t willow_import_flash_read_map(const void *lanes, uint32_t count, uint32_t corrected_bits_max) {
    (void)lanes;
    (void)corrected_bits_max;
    /* Natively each read is asked for. */
    return count > 4096 ? WILLOW_ERROR_ARGUMENT : WILLOW_OK;
}

int32_t willow_import_flash_health(uint32_t spare_percent, uint64_t media_errors, uint32_t read_only) {
    if (spare_percent > 100 || read_only > 1) {
        return WILLOW_ERROR_ARGUMENT;
    }
    flash_health = (struct WillowTestHealth){spare_percent, media_errors, (int)read_only};
    return WILLOW_OK;
}
