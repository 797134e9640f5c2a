/* all.c on the mock device. */
#include "willow_test.h"

#include <string.h>

static RPCResp_t answer_upcall(uint32_t handler, const uint8_t *body, uint32_t bytes) {
    WILLOW_CHECK(handler == 3 && bytes == 2 && memcmp(body, "up", 2) == 0);
    return (RPCResp_t){1, 2};
}

int main(void) {
    uint8_t reply[16];
    uint32_t cancelled = 0;
    WillowTestStart(1 << 20, 0);
    for (uint64_t seed = 0; seed < 50; seed++) {
        WillowTestSeed(seed);
        uint64_t offset = 100;
        RPCResp_t response = WillowTestCall(1, &offset, 8, "some bytes", 10, NULL, 0);
        WILLOW_CHECK(response.status == 0 && response.result == 10);
        response = WillowTestCall(2, &offset, 8, NULL, 0, reply, 10);
        WILLOW_CHECK(response.status == 0 && memcmp(reply, "some bytes", 10) == 0);
        WILLOW_CHECK(WillowTestCall(1, &offset, 7, NULL, 0, NULL, 0).status == (uint32_t)WILLOW_ERROR_RANGE);
        response = WillowTestCall(3, NULL, 0, "123456789", 9, reply, 4);
        WILLOW_CHECK(response.status == 0 && response.result == 0xe3069283u && memcmp(reply, "1256", 4) == 0);
        uint32_t spu = 0, depth = 10;
        response = WillowTestCall(4, &spu, 4, NULL, 0, reply, 6);
        WILLOW_CHECK(response.status == 17 && response.result == 0 && memcmp(reply, "abcdNV", 6) == 0);
        /* 1000, and 4 times the numbers from 1 to 10. */
        WILLOW_CHECK(WillowTestCall(6, &depth, 4, NULL, 0, NULL, 0).result == 1000 + 4 * 55);
        /* More requests than threads; each sends RPCs itself, so that one thread is left for these. */
        uint32_t requests[WILLOW_THREADS - 1], most = 0;
        for (uint32_t index = 0; index < WILLOW_THREADS - 1; index++) {
            requests[index] = WillowTestSubmit(7, &index, 4, NULL, 0, NULL, 0);
        }
        WillowTestRun();
        for (uint32_t index = 0; index < WILLOW_THREADS - 1; index++) {
            WILLOW_CHECK(WillowTestOutcome(requests[index], &response) && response.status == 0);
            most = response.result > most ? response.result : most;
        }
        WILLOW_CHECK(most == WILLOW_THREADS - 1);
        WILLOW_CHECK(WillowTestCall(11, NULL, 0, NULL, 0, NULL, 0).status == (uint32_t)WILLOW_ERROR_ENDED);
        WILLOW_CHECK(WillowTestCall(20, NULL, 0, NULL, 0, NULL, 0).status == (uint32_t)WILLOW_ERROR_REFUSED);
        uint64_t ms = 1000000, long_ns = 1000000000, three = 3;
        WILLOW_CHECK(WillowTestCall(12, &ms, 8, NULL, 0, NULL, 0).status == 0);
        WILLOW_CHECK(WillowTestCall(13, NULL, 0, NULL, 0, NULL, 0).result == 1);
        uint32_t naps = WillowTestSubmit(12, &long_ns, 8, NULL, 0, NULL, 0);
        uint32_t wakes = WillowTestSubmit(13, NULL, 0, NULL, 0, NULL, 0);
        RPCResp_t woken;
        WillowTestRun();
        WILLOW_CHECK(WillowTestOutcome(naps, &response) && WillowTestOutcome(wakes, &woken) && woken.status == 0);
        /* The nap was over before, or it was cancelled. */
        WILLOW_CHECK(response.status == (woken.result == 0 ? (uint32_t)WILLOW_ERROR_CANCELLED : 0u));
        cancelled += woken.result == 0;
        WILLOW_CHECK(WillowTestCall(14, &three, 8, NULL, 0, NULL, 0).status == 0);
        WillowTestRun();
        WILLOW_CHECK(WillowTestCall(16, NULL, 0, NULL, 0, NULL, 0).result == 3 * (seed + 1));
        WillowTestOnUpcall(NULL);
        WILLOW_CHECK(WillowTestCall(8, NULL, 0, NULL, 0, NULL, 0).status == (uint32_t)WILLOW_ERROR_REFUSED);
        WillowTestOnUpcall(answer_upcall);
        response = WillowTestCall(8, NULL, 0, NULL, 0, NULL, 0);
        WILLOW_CHECK(response.status == 1 && response.result == 2);
    }
    WILLOW_CHECK(cancelled > 0 && cancelled < 50);
    WILLOW_CHECK(WillowTestCall(9, NULL, 0, NULL, 0, NULL, 0).status == 0);
    WILLOW_CHECK(strcmp(WillowTestSerial(), "spu 0 of 1\n") == 0 && WillowTestCounter(3) == 2);
    puts("all tests passed");
    return 0;
}
