/* An app that uses all of willow.h; all_test.c runs it natively, sdk/tool/tests/c_sdk.rs in a device. */
#include "willow.h"

#define REGION 7
#define REGION_BYTES 65536u

#define HANDLERS(HANDLER)                                                                                                   \
    HANDLER(1, put) HANDLER(2, get) HANDLER(3, ports) HANDLER(4, relay) HANDLER(5, echo) HANDLER(6, deep) HANDLER(7, turns)  \
    HANDLER(8, upcall) HANDLER(9, talk) HANDLER(10, overflow) HANDLER(11, silent)               \
    HANDLER(12, nap) HANDLER(13, wake) HANDLER(14, begin) HANDLER(15, work) HANDLER(16, rounds) HANDLER(255, last)
static void on_event(RPCHdr_t *request, Event_t event, uint32_t nsid);
WILLOW_APP_WITH_EVENTS("all-of-c", "1.2.3", HANDLERS, on_event)

static uint64_t base;
static uint32_t events, running, running_max, steps;

static void answer(const RPCHdr_t *request, int64_t code, uint32_t result) {
    RPCResp_t response;
    RPCCreateResponse(request, &response, (uint32_t)code);
    response.result = result;
    RPCSendResponse(response);
}

/* Requests come while DEVICE_STARTED still waits: whoever needs the region opens it. */
static int32_t open_region(void) {
    int64_t region = NVRegion(REGION, REGION_BYTES);
    if (region < 0) {
        return (int32_t)region;
    }
    base = (uint64_t)region;
    return WILLOW_OK;
}

static void on_event(RPCHdr_t *request, Event_t event, uint32_t nsid) {
    (void)nsid;
    events |= 1u << event;
    if (event == DEVICE_STARTED) {
        answer(request, open_region(), 0);
    }
}

/* Writes the body behind an offset (64 bits) by way of local memory. */
static void put(RPCHdr_t *request) {
    uint64_t offset;
    uint8_t buffer[256];
    uint32_t received = RPCReceiveBytes(&offset, sizeof offset);
    uint32_t bytes = RPCReceiveBytes(buffer, sizeof buffer);
    int32_t code = received < sizeof offset ? WILLOW_ERROR_RANGE : open_region();
    if (code == WILLOW_OK) {
        code = DMATransfer(LOCAL_MEMORY_PORT, buffer, NV_MEMORY_PORT, base + offset, bytes);
    }
    answer(request, code == WILLOW_OK ? NVFlush() : code, bytes);
}

static void get(RPCHdr_t *request) {
    uint64_t offset = 0;
    RPCReceiveBytes(&offset, sizeof offset);
    answer(request, DMATransfer(NV_MEMORY_PORT, base + offset, NETWORK_PORT, 0, request->reply_bytes), 0);
}

/* Every other pair of bytes of the body to the reply; result: the body's checksum. The status is the line that went wrong. */
static void ports(RPCHdr_t *request) {
#define EXPECT(condition)                                                                                                   \
    if (!(condition)) {                                                                                                     \
        answer(request, __LINE__, 0);                                                                                       \
        return;                                                                                                             \
    }
    uint32_t bytes = request->size;
    Strides_t strides = {.segment_bytes = 2, .segments = bytes / 4, .source_stride = 4, .destination_stride = 2};
    EXPECT(DMATransfer(NETWORK_PORT, 0, NV_MEMORY_PORT, base, bytes) == WILLOW_OK);
    EXPECT(NVCompare(base, 0, bytes) == 0);
    EXPECT(DMATransferStrided(NV_MEMORY_PORT, base, NETWORK_PORT, 0, &strides) == WILLOW_OK);
    int64_t sum = Checksum(NV_MEMORY_PORT, base + 4, bytes - 4, (uint32_t)Checksum(NV_MEMORY_PORT, base, 4, 0));
    EXPECT(sum >= 0);
    static const uint8_t literals[] = {6, 0, 0, 0, 'n', 'e', 'e', 'd', 'l', 'e', 7, 0, 0, 0, 'n', 'e', 'e', 'd', 'l', 'e', 's'};
    struct {
        Found_t head;
        Match_t matches[2];
    } found = {.head = {0, 0, 0}};
    int32_t set = LiteralsLoad(literals, sizeof literals, LITERALS_IGNORE_CASE);
    EXPECT(set > 0 && LiteralsLoad(literals, 9, 0) == WILLOW_ERROR_ARGUMENT);
    EXPECT(DMATransfer(LOCAL_MEMORY_PORT, "hay NEEDLE hay needles", NV_MEMORY_PORT, base + 64, 22) == WILLOW_OK);
    EXPECT(LiteralsFind(set, NV_MEMORY_PORT, base + 64, 22, &found.head, 2) == WILLOW_OK);
    EXPECT(found.head.found == 2 && found.head.state == 0 && found.matches[0].begin == 4 && found.matches[0].end == 10);
    EXPECT(found.matches[0].literal == 0 && found.matches[1].begin == 15 && found.matches[1].literal == 1);
    EXPECT(LiteralsFind(set, LOCAL_MEMORY_PORT, "needle", 6, &found.head, 0) == WILLOW_OK && found.head.found == 1);
    float x[2] = {1.5f, -2}, y[2] = {0.25f, 8};
    EXPECT(MultiplyAdd(WILLOW_SINGLE, 2, x, y, 2) == 0 && y[0] == 3.25f && y[1] == 4);
    EXPECT(MultiplyAdd(WILLOW_SINGLE, 2, x, x, 2) == WILLOW_ERROR_ARGUMENT);
    double wave[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    EXPECT(FourierTransform(WILLOW_DOUBLE, 0, wave, 4, 1) == 0 && wave[2] == 1 && wave[6] == 1);
    EXPECT(FourierTransform(WILLOW_DOUBLE, 1, wave, 4, 1) == 0 && wave[0] == 1);
    double three[6] = {1, 0, 1, 0, 1, 0};
    EXPECT(FourierTransform(WILLOW_DOUBLE, 0, three, 3, 1) == 0 && three[0] > 2.999 && three[2] < 0.001 && three[2] > -0.001);
    EXPECT(FourierTransform(WILLOW_DOUBLE, 0, wave, 0, 1) == WILLOW_ERROR_ARGUMENT);
    /* A literal, three bytes of it once more, then all of it again and again. */
    static const uint8_t block[] = {19, 4 << 2, 'a', 'b', 'c', 'd', 'e', 2 << 2 | 2, 5, 0, 10 << 2 | 2, 5, 0};
    char plain[32];
    Decompression_t state = {.left = 19};
    EXPECT(Decompress(block, 4, plain, sizeof plain, &state) == 0 && state.used == 4 && state.kept == 2);
    EXPECT(Decompress(block + 4, sizeof block - 4, plain, sizeof plain, &state) == 0 && state.left + state.count == 0);
    EXPECT(state.kept == 19 && plain[5] == 'a' && plain[8] == 'd' && plain[18] == 'd');
    Decompression_t far_back = {.left = UINT32_MAX};
    EXPECT(Decompress("\x07\x00z\x12\x03\x00", 6, plain, sizeof plain, &far_back) == 0 && far_back.phase == WILLOW_DECOMPRESS_TOO_FAR);
    EXPECT(Decompress(block, 4, plain, sizeof plain, &far_back) == WILLOW_ERROR_ARGUMENT);
    Keys_t keys = {.key_bytes = 2, .stride_bytes = 3, .count = 4, .in_order = 1};
    int equal = 0;
    EXPECT(DMATransfer(LOCAL_MEMORY_PORT, "ab-cd-ef-gh-", NV_MEMORY_PORT, base + 128, 12) == WILLOW_OK);
    EXPECT(KeysFind(NV_MEMORY_PORT, base + 128, &keys, "cd", &equal) == 1 && equal);
    EXPECT(KeysFind(NV_MEMORY_PORT, base + 128, &keys, "zz", &equal) == 4 && !equal);
    keys.in_order = 0;
    EXPECT(KeysFind(LOCAL_MEMORY_PORT, "gh-ef-cd-ab-", &keys, "ab", &equal) == 3 && equal);
    keys.stride_bytes = 1;
    EXPECT(KeysFind(NV_MEMORY_PORT, base, &keys, "ab", &equal) == WILLOW_ERROR_ARGUMENT);
    EXPECT(LiteralsFree(set) == WILLOW_OK && LiteralsFree(set) == WILLOW_ERROR_ARGUMENT);
    EXPECT(DMATransfer(ZEROES_PORT, 0, NV_MEMORY_PORT, base, 1) == WILLOW_OK);
    EXPECT(NVCompare(base, 0, bytes) == 1);
    EXPECT(DMATransfer(NV_MEMORY_PORT, base + REGION_BYTES, NETWORK_PORT, 0, 1) == WILLOW_ERROR_PERMISSION);
    EXPECT(DMATransfer(NV_MEMORY_PORT, base, NETWORK_PORT, request->reply_bytes, 1) == WILLOW_ERROR_RANGE);
    EXPECT(DMATransfer(NV_MEMORY_PORT, base, ZEROES_PORT, 0, 1) == WILLOW_ERROR_ARGUMENT);
    /* NV memory by its SPU's number, the own too. */
    for (uint32_t spu = 0; spu < SPUCount(); spu++) {
        char word[2];
        Port_t there = SPU_NV_MEMORY_PORT(spu);
        EXPECT(DMATransfer(LOCAL_MEMORY_PORT, "NV", there, base + 128, 2) == WILLOW_OK);
        EXPECT(DMATransfer(there, base + 128, LOCAL_MEMORY_PORT, word, 2) == WILLOW_OK);
        EXPECT(word[0] == 'N' && word[1] == 'V');
        EXPECT(DMATransfer(ZEROES_PORT, 0, there, base + 129, 1) == WILLOW_OK);
        EXPECT(DMATransfer(there, base + REGION_BYTES, LOCAL_MEMORY_PORT, word, 1) == WILLOW_ERROR_PERMISSION);
        EXPECT(DMATransfer(there, base, there, base, 1) == WILLOW_ERROR_ARGUMENT);
        EXPECT(DMATransfer(there, base, PARKED_NV_MEMORY_PORT, base, 1) == WILLOW_ERROR_ARGUMENT);
    }
    EXPECT(DMATransfer(SPU_NV_MEMORY_PORT(SPUCount()), base, NETWORK_PORT, 0, 1) == WILLOW_ERROR_ARGUMENT);
    EXPECT(DMATransfer(ZEROES_PORT, 0, SPU_NV_MEMORY_PORT(SPUCount()), base, 1) == WILLOW_ERROR_ARGUMENT);
    EXPECT(NVRegionBytes(REGION) == REGION_BYTES && NVRegionBytes(99) == WILLOW_ERROR_NOT_FOUND);
    EXPECT(NVRegion(99, 0) == WILLOW_ERROR_NOT_FOUND);
    int64_t other = NVRegion(8, 1);
    EXPECT(other >= 0 && (uint64_t)other != base && NVRegionBytes(8) == 65536);
    EXPECT(NVRegionFree(8) == WILLOW_OK && NVRegionFree(8) == WILLOW_ERROR_NOT_FOUND);
    answer(request, RPC_SUCCESS, (uint32_t)sum);
}

/* Sends "abcd" and two bytes of NV memory to an SPU's echo (argument), and its reply on. */
static void relay(RPCHdr_t *request) {
    uint32_t spu = 0;
    uint8_t reply[6];
    RPCReceiveBytes(&spu, sizeof spu);
    EXPECT(DMATransfer(LOCAL_MEMORY_PORT, "NV", NV_MEMORY_PORT, base, 2) == WILLOW_OK);
    EXPECT(RPCAppendRequest(LOCAL_MEMORY_PORT, 4, "abcd") == WILLOW_ERROR_ARGUMENT);
    EXPECT(RPCFinishRequest() == WILLOW_ERROR_ARGUMENT);
    EXPECT(RPCStartRequestTo((CPUID_t)SPUCount(), -1, 0, 5, NULL, 0) == WILLOW_ERROR_REFUSED);
    EXPECT(RPCFinishRequest() == WILLOW_ERROR_REFUSED);
    EXPECT(RPCStartRequestTo((CPUID_t)spu, AppNumber("all-of-c"), 6, 5, reply, sizeof reply) == WILLOW_OK);
    EXPECT(RPCAppendRequest(LOCAL_MEMORY_PORT, 4, "abcd") == WILLOW_OK);
    EXPECT(RPCAppendRequest(NV_MEMORY_PORT, 2, base) == WILLOW_OK);
    EXPECT(RPCFinishRequest() == WILLOW_OK);
    EXPECT(DMATransfer(LOCAL_MEMORY_PORT, reply, NETWORK_PORT, 0, sizeof reply) == WILLOW_OK);
    RPCSendResponse(RPCGetResponse());
}

static void echo(RPCHdr_t *request) {
    uint8_t body[6];
    RPCReceiveBytes(body, sizeof body);
    DMATransfer(LOCAL_MEMORY_PORT, body, NETWORK_PORT, 0, sizeof body);
    answer(request, 17, (uint32_t)request->src);
}

/* Waits at the bottom of a recursion, where every level has a local variable in memory and one in a register. */
static uint32_t dive(uint32_t depth, uint32_t seed) {
    volatile uint32_t in_memory = seed * 3;
    if (depth == 0) {
        uint8_t byte = (uint8_t)seed;
        DMATransfer(LOCAL_MEMORY_PORT, &byte, NV_MEMORY_PORT, base + 100, 1);
        RPCStartRequest((CPUID_t)SPUId(), 0, 255);
        RPCFinishRequest();
        return RPCGetResponse().result;
    }
    uint32_t below = dive(depth - 1, seed + 1);
    return below + in_memory + seed;
}

static void deep(RPCHdr_t *request) {
    uint32_t depth = 0;
    RPCReceiveBytes(&depth, sizeof depth);
    answer(request, RPC_SUCCESS, dive(depth, 1));
}

/* Threads take turns while they wait, and each keeps its own stack. Result: most that were in here at the same time. */
static void turns(RPCHdr_t *request) {
    uint32_t number = 0, copy;
    RPCReceiveBytes(&number, sizeof number);
    copy = number;
    running++;
    running_max = running > running_max ? running : running_max;
    for (uint32_t turn = 0; turn < 5; turn++) {
        DMATransfer(LOCAL_MEMORY_PORT, &copy, NV_MEMORY_PORT, base + 256 + 8 * (uint64_t)number, sizeof copy);
        RPCStartRequest((CPUID_t)SPUId(), 0, 255);
        EXPECT(RPCFinishRequest() == WILLOW_OK);
        steps++;
        EXPECT(copy == number);
    }
    running--;
    answer(request, RPC_SUCCESS, running_max);
}

static void upcall(RPCHdr_t *request) {
    RPCStartRequest(HOST_CPU, 2, 3);
    RPCAppendRequest(LOCAL_MEMORY_PORT, 2, "up");
    int32_t code = RPCFinishRequest();
    if (code != WILLOW_OK) {
        answer(request, code, 0);
    } else {
        RPCSendResponse(RPCGetResponse());
    }
}

static void talk(RPCHdr_t *request) {
    SerialPrint("spu ");
    SerialPrintNumber(SPUId());
    SerialPrint(" of ");
    SerialPrintNumber(SPUCount());
    SerialPrint("\n");
    CounterAdd(3, 2);
    Namespace_t namespace;
    EXPECT(NVNamespace(4000000000u, &namespace) == WILLOW_ERROR_NOT_FOUND);
    EXPECT(AppNumber("nobody") == WILLOW_ERROR_NOT_FOUND);
    EXPECT((events & 1u << DEVICE_STARTED) != 0);
    answer(request, RPC_SUCCESS, events);
}

static void overflow(RPCHdr_t *request) {
    uint32_t depth = 1000;
    answer(request, RPC_SUCCESS, dive(depth, 1));
}

static void silent(RPCHdr_t *request) { (void)request; }

static uint32_t napping, worked;

/* Sleeps as many ns as the argument says; the status is the error, the result how many ms it took. */
static void nap(RPCHdr_t *request) {
    uint64_t duration_ns = 0, before_ns = TimeNs();
    RPCReceiveBytes(&duration_ns, sizeof duration_ns);
    napping = ThreadId();
    int32_t code = SleepNs(duration_ns);
    answer(request, code, (uint32_t)((TimeNs() - before_ns) / 1000000));
}

/* Cancels what the last nap waits for. */
static void wake(RPCHdr_t *request) {
    EXPECT(Yield() == WILLOW_OK);
    answer(request, RPC_SUCCESS, (uint32_t)CancelThread(napping));
}

static void begin(RPCHdr_t *request) {
    uint64_t rounds = 0;
    RPCReceiveBytes(&rounds, sizeof rounds);
    answer(request, BackgroundStart(15, rounds), 0);
}

static void work(RPCHdr_t *request) {
    uint64_t rounds = 0;
    EXPECT(request->originating_hre == 0 && request->src == (CPUID_t)SPUId());
    RPCReceiveBytes(&rounds, sizeof rounds);
    for (; rounds > 0; rounds--) {
        SleepNs(1000);
        worked++;
    }
}

static void rounds(RPCHdr_t *request) { answer(request, RPC_SUCCESS, worked); }

static void last(RPCHdr_t *request) { answer(request, RPC_SUCCESS, 1000); }
