/* The thesis' FGREP-8 (XSSD, algorithm 3.6.2) by the names of its table 3.1; xssd_test.c runs it natively, sdk/tool/tests/c_sdk.rs in a device. */
#define WILLOW_XSSD_NAMES
#include "willow.h"

#define HANDLERS(HANDLER) HANDLER(1, fgrep8) HANDLER(2, relay) HANDLER(3, fill) HANDLER(4, crowd)
WILLOW_APP("xssd", "1", HANDLERS)

/* What is searched: a range of the app's region. */
typedef struct {
    uint64_t offset;
    uint64_t size;
    uint64_t key;
} GrepCmd_t;

#define REGION_BYTES 65536u
#define CHUNK 64u

static void respond(Msg_t *header, RPC_Status status, uint32_t result) {
    MsgResp_t response;
    CreateResponse(header, &response, status);
    response.result = result;
    SendResponse(response);
}

/* How often the key is there. */
static void fgrep8(Msg_t *header) {
    GrepCmd_t cmd;
    uint64_t buf[CHUNK];
    uint32_t match_count = 0;
    if (ReceiveBytes(&cmd, sizeof cmd) < sizeof cmd) {
        respond(header, 1, 0);
        return;
    }
    Address_t base = (Address_t)NVRegion(1, REGION_BYTES);
    for (uint64_t i = 0; i < cmd.size; i += sizeof buf) {
        uint32_t bytes = cmd.size - i < sizeof buf ? (uint32_t)(cmd.size - i) : (uint32_t)sizeof buf;
        if (DMATransfer(bytes, NV_MEMORY_PORT, base + cmd.offset + i, LOCAL_MEMORY_PORT, buf) != WILLOW_OK) {
            respond(header, 2, 0);
            return;
        }
        for (uint32_t j = 0; j < bytes / 8; j++) {
            match_count += buf[j] == cmd.key;
        }
    }
    respond(header, RPC_SUCCESS, match_count);
}

/* The same by a message to this SPU, in three pieces, one of which comes from NV memory where the key was put. */
static void relay(Msg_t *header) {
    uint64_t range[2];
    uint64_t key;
    ReceiveBytes(range, sizeof range);
    ReceiveBytes(&key, sizeof key);
    Address_t base = (Address_t)NVRegion(1, REGION_BYTES);
    DMATransfer(sizeof key, LOCAL_MEMORY_PORT, &key, NV_MEMORY_PORT, base + REGION_BYTES - 8);
    BuildMsgHeader((CPUIID_t)SPUId(), 1);
    AppendMsgBody(LOCAL_MEMORY_PORT, 8, &range[0]);
    AppendMsgBody(LOCAL_MEMORY_PORT, 8, &range[1]);
    int32_t code = AppendMsgBodyAndFlush(NV_MEMORY_PORT, 8, base + REGION_BYTES - 8);
    respond(header, code == WILLOW_OK ? RPCGetResponse().status : (uint32_t)code, RPCGetResponse().result);
}

/* The body to the region's begin. */
static void fill(Msg_t *header) {
    Address_t base = (Address_t)NVRegion(1, REGION_BYTES);
    respond(header, (RPC_Status)DMATransfer(header->size, NETWORK_PORT, 0, NV_MEMORY_PORT, base), 0);
}

/* More pieces than a message has. */
static void crowd(Msg_t *header) {
    uint64_t piece = 7;
    int32_t code = WILLOW_OK;
    BuildMsgHeader((CPUIID_t)SPUId(), 1);
    for (uint32_t index = 0; index < XSSD_PIECES_MAX; index++) {
        code |= AppendMsgBody(LOCAL_MEMORY_PORT, 8, &piece);
    }
    respond(header, (RPC_Status)AppendMsgBodyAndFlush(LOCAL_MEMORY_PORT, 8, &piece), (uint32_t)code);
}
