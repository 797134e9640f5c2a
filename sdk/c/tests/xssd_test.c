/* xssd.c on the mock device. */
#include "willow_test.h"

int main(void) {
    static uint64_t words[512];
    uint32_t wanted = 0;
    for (uint32_t index = 0; index < 512; index++) {
        words[index] = index % 7;
        wanted += index % 7 == 3 && index >= 8;
    }
    WillowTestStart(1 << 20, 0);
    for (uint64_t seed = 0; seed < 5; seed++) {
        WillowTestSeed(seed);
        WILLOW_CHECK(WillowTestCall(3, NULL, 0, words, sizeof words, NULL, 0).status == RPC_SUCCESS);
        uint64_t cmd[3] = {64, sizeof words - 64, 3};
        for (uint32_t handler = 1; handler <= 2; handler++) {
            RPCResp_t response = WillowTestCall(handler, cmd, sizeof cmd, NULL, 0, NULL, 0);
            WILLOW_CHECK(response.status == RPC_SUCCESS && response.result == wanted);
        }
        WILLOW_CHECK(WillowTestCall(1, cmd, 16, NULL, 0, NULL, 0).status == 1);
        RPCResp_t response = WillowTestCall(4, NULL, 0, NULL, 0, NULL, 0);
        WILLOW_CHECK(response.status == (uint32_t)WILLOW_ERROR_FULL && response.result == 0);
    }
    return 0;
}
