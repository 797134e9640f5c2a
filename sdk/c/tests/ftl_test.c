/* ftl.c on the mock device. */
#include "willow_test.h"

#include <string.h>

#define PAGE_BYTES 512u
#define UNITS 96u
#define WRITES 4000u
#define AT_ONCE 5u

static uint8_t model[UNITS][PAGE_BYTES];

/* So many requests to distinct units at the same time: writes, zeroes and reads, which find what the model has. */
static void round_of(uint64_t *state, uint64_t number) {
    static uint8_t buffers[AT_ONCE][PAGE_BYTES];
    uint32_t requests[AT_ONCE], units[AT_ONCE];
    uint8_t kinds[AT_ONCE];
    for (uint32_t index = 0; index < AT_ONCE; index++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        units[index] = (uint32_t)(*state >> 33) % (UNITS / AT_ONCE) * AT_ONCE + index;
        uint32_t draw = (uint32_t)(*state >> 20) % 10;
        kinds[index] = draw < 6 ? NV_WRITE : draw < 7 ? NV_ZERO : NV_READ;
        memset(buffers[index], (int)(number * AT_ONCE + index + 1), PAGE_BYTES);
        requests[index] = WillowTestSubmitNV(kinds[index], (uint64_t)units[index] * PAGE_BYTES, buffers[index], PAGE_BYTES);
    }
    WillowTestRun();
    for (uint32_t index = 0; index < AT_ONCE; index++) {
        RPCResp_t response;
        WILLOW_CHECK(WillowTestOutcome(requests[index], &response) && response.status == NV_DONE);
        uint8_t *known = model[units[index]];
        if (kinds[index] == NV_READ) {
            WILLOW_CHECK(memcmp(buffers[index], known, PAGE_BYTES) == 0);
        } else if (kinds[index] == NV_WRITE) {
            memcpy(known, buffers[index], PAGE_BYTES);
        } else {
            memset(known, 0, PAGE_BYTES);
        }
    }
}

int main(void) {
    static uint8_t found[PAGE_BYTES * 4];
    FlashGeometry_t geometry = {.channels = 1,
                                .packages_per_channel = 1,
                                .dies_per_package = 1,
                                .planes_per_die = 1,
                                .blocks_per_plane = 16,
                                .pages_per_block = 8,
                                .page_bytes = PAGE_BYTES,
                                .spare_bytes = 16,
                                .cell_bits = 1,
                                .spare_accessible = 1,
                                .unit_bytes = PAGE_BYTES,
                                .bank_bytes = UNITS * PAGE_BYTES};
    WillowTestFlash(&geometry);
    WillowTestStart(65536, 3);
    WILLOW_CHECK(WillowTestHealth().spare_percent == 100 && !WillowTestHealth().is_read_only);
    uint64_t state = 1;
    for (uint64_t number = 0; number < WRITES / AT_ONCE; number++) {
        WillowTestSeed(number % 7);
        round_of(&state, number);
    }
    WILLOW_CHECK(WillowTestCounter(0) > 100);
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        WILLOW_CHECK(WillowTestCallNV(NV_READ, unit * PAGE_BYTES, found, PAGE_BYTES) == NV_DONE);
        WILLOW_CHECK(memcmp(found, model[unit], PAGE_BYTES) == 0);
    }
    WILLOW_CHECK(WillowTestCallNV(NV_READ, 0, found, sizeof found) == NV_DONE && memcmp(found, model, sizeof found) == 0);
    WILLOW_CHECK(WillowTestCallNV(NV_READ, UNITS * PAGE_BYTES, found, PAGE_BYTES) == NV_FAILED);
    WILLOW_CHECK(WillowTestCallNV(NV_FLUSH, 0, NULL, 0) == NV_DONE);
    WILLOW_CHECK(WillowTestCall(1, NULL, 0, NULL, 0, NULL, 0).status == FLASH_MISUSE);
    printf("%d blocks were collected\n", (int)WillowTestCounter(0));
    return 0;
}
