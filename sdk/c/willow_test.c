/* The imports of docs/abi.md for native tests; see willow_test.h. One file on purpose: a test is built by naming it. */
#include "willow_test.h"
#include "willow_imports.h"

#include <string.h>

#define PENDING 1
#define DIFFERENT 2
#define REQUESTS_MAX 1024
#define OPERATIONS_MAX 1024
#define REGIONS_MAX 64
#define SEGMENTS_MAX 64
#define RPCS_MAX 64
#define SERIAL_BYTES_MAX 65536
#define REGION_ALIGNMENT_BYTES 65536u
#define RPC_BODY_BYTES_MAX 65536u

struct Request {
    int used, answered;
    uint32_t handler, argument_bytes, body_bytes, received, reply_bytes;
    CPUID_t source;
    uint8_t *body, *reply;
    uint32_t operations;  /* that are pending for it */
    int responded;        /* the handler is through; it is answered once nothing is pending */
    RPCResp_t response;
    int of_handler;       /* sent by a handler: `wait` is completed by the answer */
    uint32_t wait;
};

enum Kind { MOVES, COMPARE, CHECKSUM, VALUE };

struct Operation {
    enum Kind kind;
    uint32_t token, wait;
    uint32_t source_port, destination_port, bytes, segments, seed;
    uint64_t source, destination;
    int64_t source_stride, destination_stride, value;
};

struct Region {
    int used, is_namespace;
    uint32_t id, block_bytes;
    uint64_t base, bytes;
};

struct Rpc {
    int used;
    uint32_t token, handler, body_bytes, gathered, reply_bytes;
    int32_t destination;
    uint8_t *reply;
    struct {
        uint32_t port, bytes;
        uint64_t address;
    } segments[SEGMENTS_MAX];
    uint32_t segment_count;
};

static uint8_t *bank;
static uint64_t bank_bytes, random_state, time_ns;
static struct Request requests[REQUESTS_MAX];
static uint32_t waiting[REQUESTS_MAX], waiting_count; /* to be started, oldest first */
static struct Operation operations[OPERATIONS_MAX];
static uint32_t operation_count;
static struct Region regions[REGIONS_MAX];
static struct Rpc rpcs[RPCS_MAX];
static char serial[SERIAL_BYTES_MAX];
static uint32_t serial_bytes, checksum_value;
static int64_t counters[16];
static RPCResp_t (*answer_upcall)(uint32_t, const uint8_t *, uint32_t);

_Noreturn static void fail(const char *why) {
    fprintf(stderr, "willow_test: %s\n", why);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = calloc(bytes > 0 ? bytes : 1, 1);
    if (memory == NULL) {
        fail("no memory");
    }
    return memory;
}

static uint64_t next_random(uint64_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % below;
}

static int completes_later(void) { return random_state != 0 && next_random(2) == 0; }

static struct Request *request_of(uint32_t token) {
    if (token >= REQUESTS_MAX || !requests[token].used || requests[token].answered) {
        fail("an operation for a request that is over");
    }
    return &requests[token];
}

/* ---- Operations ---- */

static int32_t check(uint32_t token, uint32_t port, uint64_t address, uint64_t bytes, int is_destination) {
    port = port == PARKED_NV_MEMORY_PORT ? NV_MEMORY_PORT : port;
    const struct Request *request = request_of(token);
    uint64_t end = address + bytes;
    if (end < address) {
        return WILLOW_ERROR_RANGE;
    }
    switch (port) {
    case LOCAL_MEMORY_PORT:
        return WILLOW_OK;
    case ZEROES_PORT:
        return is_destination ? WILLOW_ERROR_ARGUMENT : WILLOW_OK;
    case NETWORK_PORT:
        return end <= (is_destination ? request->reply_bytes : request->body_bytes) ? WILLOW_OK : WILLOW_ERROR_RANGE;
    case NV_MEMORY_PORT:
        if (end > bank_bytes) {
            return WILLOW_ERROR_RANGE;
        }
        for (uint32_t index = 0; index < REGIONS_MAX; index++) {
            const struct Region *region = &regions[index];
            if (region->used && address >= region->base && end <= region->base + region->bytes) {
                return WILLOW_OK;
            }
        }
        return WILLOW_ERROR_PERMISSION;
    default:
        return WILLOW_ERROR_ARGUMENT;
    }
}

static uint8_t *place(uint32_t token, uint32_t port, uint64_t address, int is_destination) {
    switch (port) {
    case LOCAL_MEMORY_PORT:
        return (uint8_t *)(uintptr_t)address;
    case NV_MEMORY_PORT:
    case PARKED_NV_MEMORY_PORT:
        return bank + address;
    default:
        return (is_destination ? request_of(token)->reply : request_of(token)->body) + address;
    }
}

static uint32_t crc32c(uint32_t seed, const uint8_t *bytes, uint32_t count) {
    uint32_t sum = ~seed;
    for (uint32_t index = 0; index < count; index++) {
        sum ^= bytes[index];
        for (int bit = 0; bit < 8; bit++) {
            sum = (sum >> 1) ^ (0x82f63b78u & (0u - (sum & 1)));
        }
    }
    return ~sum;
}

static int64_t carry_out(const struct Operation *operation) {
    const struct Operation *o = operation;
    switch (o->kind) {
    case MOVES:
        for (uint32_t segment = 0; segment < o->segments; segment++) {
            uint64_t from = o->source + (uint64_t)(o->source_stride * (int64_t)segment);
            uint64_t to = o->destination + (uint64_t)(o->destination_stride * (int64_t)segment);
            uint8_t *destination = place(o->token, o->destination_port, to, 1);
            if (o->source_port == ZEROES_PORT) {
                memset(destination, 0, o->bytes);
            } else if (o->bytes > 0) {
                memmove(destination, place(o->token, o->source_port, from, 0), o->bytes);
            }
        }
        return 0;
    case COMPARE:
        return memcmp(bank + o->source, request_of(o->token)->body + o->destination, o->bytes) != 0;
    case CHECKSUM:
        return crc32c(o->seed, place(o->token, o->source_port, o->source, 0), o->bytes);
    default:
        return o->value;
    }
}

/* Keeps an operation for later: 1; or carries it out. */
static int issue(struct Operation operation, int64_t *result) {
    if (!completes_later()) {
        *result = carry_out(&operation);
        return 0;
    }
    if (operation_count == OPERATIONS_MAX) {
        fail("too many operations are pending");
    }
    if (operation.kind != VALUE) {
        request_of(operation.token)->operations++;
    }
    operations[operation_count++] = operation;
    return 1;
}

static void complete_later(uint32_t wait, int64_t value) {
    if (operation_count == OPERATIONS_MAX) {
        fail("too many operations are pending");
    }
    operations[operation_count++] = (struct Operation){.kind = VALUE, .wait = wait, .value = value};
}

static void answer_if_through(struct Request *request) {
    if (!request->responded || request->operations > 0 || request->answered) {
        return;
    }
    request->answered = 1;
    free(request->body);
    request->body = NULL;
    if (request->of_handler) {
        complete_later(request->wait, (int64_t)((uint64_t)request->response.status << 32 | request->response.result));
        request->used = 0;
    }
}

/* ---- The device ---- */

static uint32_t submit(uint32_t handler, CPUID_t source, uint8_t *body, uint32_t argument_bytes, uint32_t body_bytes,
                       void *reply, uint32_t reply_bytes) {
    for (uint32_t token = 0; token < REQUESTS_MAX; token++) {
        if (!requests[token].used) {
            requests[token] = (struct Request){.used = 1,
                                               .handler = handler,
                                               .source = source,
                                               .body = body,
                                               .argument_bytes = argument_bytes,
                                               .body_bytes = body_bytes,
                                               .reply = reply,
                                               .reply_bytes = reply_bytes};
            waiting[waiting_count++] = token;
            return token;
        }
    }
    fail("too many requests: ask for the outcomes of old ones");
}

uint32_t WillowTestSubmit(uint32_t handler, const void *arguments, uint32_t argument_bytes, const void *payload,
                          uint32_t payload_bytes, void *reply, uint32_t reply_bytes) {
    if (argument_bytes > 64) {
        fail("at most 64 bytes of a request are inline arguments");
    }
    uint8_t *body = allocate((size_t)argument_bytes + payload_bytes);
    if (argument_bytes > 0) {
        memcpy(body, arguments, argument_bytes);
    }
    if (payload_bytes > 0) {
        memcpy(body + argument_bytes, payload, payload_bytes);
    }
    return submit(handler, HOST_CPU, body, argument_bytes, argument_bytes + payload_bytes, reply, reply_bytes);
}

void WillowTestRun(void) {
    for (;;) {
        time_ns += 1000;
        /* A request is tried before each completion, and again after it. */
        if (waiting_count > 0) {
            uint32_t token = waiting[0];
            if (willow_start(token, requests[token].handler) == 0) {
                waiting_count--;
                memmove(waiting, waiting + 1, waiting_count * sizeof waiting[0]);
                continue;
            }
        }
        if (operation_count == 0) {
            return;
        }
        uint32_t index = random_state == 0 ? 0 : (uint32_t)next_random(operation_count);
        struct Operation operation = operations[index];
        operations[index] = operations[--operation_count];
        int64_t result = carry_out(&operation);
        if (operation.kind != VALUE) {
            requests[operation.token].operations--;
        }
        willow_complete(operation.wait, result);
        if (operation.kind != VALUE) {
            answer_if_through(&requests[operation.token]);
        }
    }
}

int WillowTestOutcome(uint32_t request, RPCResp_t *response) {
    if (request >= REQUESTS_MAX || !requests[request].used) {
        fail("the outcome of a request is there once");
    }
    if (!requests[request].answered) {
        return 0;
    }
    *response = requests[request].response;
    requests[request].used = 0;
    return 1;
}

RPCResp_t WillowTestCall(uint32_t handler, const void *arguments, uint32_t argument_bytes, const void *payload,
                         uint32_t payload_bytes, void *reply, uint32_t reply_bytes) {
    RPCResp_t response;
    uint32_t request =
        WillowTestSubmit(handler, arguments, argument_bytes, payload, payload_bytes, reply, reply_bytes);
    WillowTestRun();
    if (!WillowTestOutcome(request, &response)) {
        fail("all is quiet, but the request is not answered: its handler waits for ever");
    }
    return response;
}

static void event(Event_t number, uint32_t nsid) {
    uint32_t words[2] = {number, nsid};
    WillowTestCall(0, words, sizeof words, NULL, 0, NULL, 0);
}

void WillowTestStart(uint64_t bytes, uint64_t seed) {
    bank_bytes = bytes;
    bank = allocate(bytes);
    WillowTestSeed(seed);
    event(DEVICE_STARTED, 0);
}

void WillowTestSeed(uint64_t seed) { random_state = seed == 0 ? 0 : (seed * 0x9e3779b97f4a7c15u) | 1; }

static struct Region *make_region(uint64_t bytes) {
    if (bytes > bank_bytes) {
        return NULL;
    }
    bytes = (bytes + REGION_ALIGNMENT_BYTES - 1) / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES;
    uint64_t base = 0;
    struct Region *free_place = NULL;
    /* First fit: moves past every region that is in the way until none is. */
    for (uint32_t index = 0; index < REGIONS_MAX; index++) {
        struct Region *region = &regions[index];
        if (!region->used) {
            free_place = region;
        } else if (base < region->base + region->bytes && region->base < base + bytes) {
            base = region->base + region->bytes;
            index = UINT32_MAX;
        }
    }
    if (free_place == NULL || base + bytes > bank_bytes) {
        return NULL;
    }
    *free_place = (struct Region){.used = 1, .base = base, .bytes = bytes};
    return free_place;
}

static struct Region *find_region(uint32_t id, int is_namespace) {
    for (uint32_t index = 0; index < REGIONS_MAX; index++) {
        if (regions[index].used && regions[index].id == id && regions[index].is_namespace == is_namespace) {
            return &regions[index];
        }
    }
    return NULL;
}

uint64_t WillowTestNamespace(uint32_t nsid, uint32_t block_bytes, uint64_t bytes) {
    struct Region *region = make_region(bytes);
    if (region == NULL || block_bytes == 0) {
        fail("no room for the namespace");
    }
    region->is_namespace = 1;
    region->id = nsid;
    region->block_bytes = block_bytes;
    event(NAMESPACE_CREATED, nsid);
    return region->base;
}

uint8_t *WillowTestBank(void) { return bank; }

const char *WillowTestSerial(void) { return serial; }

int64_t WillowTestCounter(uint32_t counter) { return counter < 16 ? counters[counter] : 0; }

void WillowTestOnUpcall(RPCResp_t (*answer)(uint32_t, const uint8_t *, uint32_t)) { answer_upcall = answer; }

/* ---- Imports ---- */

void willow_import_request_info(uint32_t token, void *to) {
    const struct Request *request = request_of(token);
    uint32_t words[8] = {0x80000001u,      (uint32_t)request->source, request->body_bytes, request->reply_bytes,
                         request->handler, request->argument_bytes,   0,                   0};
    if (request->handler == 0) {
        words[0] = 0;
    }
    memcpy(to, words, sizeof words);
}

uint32_t willow_import_receive_bytes(uint32_t token, void *to, uint32_t bytes) {
    struct Request *request = request_of(token);
    uint32_t left = request->body_bytes - request->received;
    uint32_t count = bytes < left ? bytes : left;
    if (count > 0) {
        memcpy(to, request->body + request->received, count);
    }
    request->received += count;
    return count;
}

void willow_import_respond(uint32_t token, uint32_t status, uint32_t result) {
    struct Request *request = request_of(token);
    if (request->responded) {
        fail("a request was answered twice");
    }
    request->responded = 1;
    request->response = (RPCResp_t){status, result};
    answer_if_through(request);
}

int32_t willow_import_dma_strided(uint32_t token, uint32_t source_port, uint64_t source_address, int64_t source_stride,
                                  uint32_t destination_port, uint64_t destination_address, int64_t destination_stride,
                                  uint32_t segment_bytes, uint32_t segments, uint32_t wait) {
    int64_t result;
    for (uint32_t segment = 0; segment < segments; segment++) {
        uint64_t from = source_address + (uint64_t)(source_stride * (int64_t)segment);
        uint64_t to = destination_address + (uint64_t)(destination_stride * (int64_t)segment);
        int32_t code = check(token, source_port, from, segment_bytes, 0);
        if (code == WILLOW_OK) {
            code = check(token, destination_port, to, segment_bytes, 1);
        }
        if (code != WILLOW_OK) {
            return code;
        }
    }
    return issue((struct Operation){.kind = MOVES,
                                    .token = token,
                                    .wait = wait,
                                    .source_port = source_port,
                                    .source = source_address,
                                    .source_stride = source_stride,
                                    .destination_port = destination_port,
                                    .destination = destination_address,
                                    .destination_stride = destination_stride,
                                    .bytes = segment_bytes,
                                    .segments = segments},
                 &result)
               ? PENDING
               : WILLOW_OK;
}

int32_t willow_import_dma(uint32_t token, uint32_t source_port, uint64_t source_address, uint32_t destination_port,
                          uint64_t destination_address, uint32_t bytes, uint32_t wait) {
    return willow_import_dma_strided(token, source_port, source_address, 0, destination_port, destination_address, 0, bytes,
                                     1, wait);
}

int32_t willow_import_compare(uint32_t token, uint64_t nv_address, uint64_t body_offset, uint32_t bytes, uint32_t wait) {
    int64_t result;
    int32_t code = check(token, NV_MEMORY_PORT, nv_address, bytes, 0);
    if (code == WILLOW_OK) {
        code = check(token, NETWORK_PORT, body_offset, bytes, 0);
    }
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = COMPARE,
                                  .token = token,
                                  .wait = wait,
                                  .source = nv_address,
                                  .destination = body_offset,
                                  .bytes = bytes};
    if (issue(operation, &result)) {
        return PENDING;
    }
    return result == 0 ? WILLOW_OK : DIFFERENT;
}

int32_t willow_import_checksum(uint32_t token, uint32_t port, uint64_t address, uint32_t bytes, uint32_t seed,
                               uint32_t wait) {
    int64_t result;
    int32_t code = port == ZEROES_PORT ? WILLOW_ERROR_ARGUMENT : check(token, port, address, bytes, 0);
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = CHECKSUM,
                                  .token = token,
                                  .wait = wait,
                                  .source_port = port,
                                  .source = address,
                                  .bytes = bytes,
                                  .seed = seed};
    if (issue(operation, &result)) {
        return PENDING;
    }
    checksum_value = (uint32_t)result;
    return WILLOW_OK;
}

uint32_t willow_import_checksum_value(void) { return checksum_value; }

int32_t willow_import_rpc_start(uint32_t token, int32_t destination, int32_t app, uint32_t handler, uint32_t body_bytes,
                                void *reply, uint32_t reply_bytes) {
    request_of(token);
    if (body_bytes > RPC_BODY_BYTES_MAX) {
        return WILLOW_ERROR_ARGUMENT;
    }
    /* One SPU, number 0, and one app, number 0. */
    if (destination < -1 || destination > 0 || app < -1 || app > 0) {
        return WILLOW_ERROR_REFUSED;
    }
    for (int32_t handle = 0; handle < RPCS_MAX; handle++) {
        if (!rpcs[handle].used) {
            rpcs[handle] = (struct Rpc){.used = 1,
                                        .token = token,
                                        .destination = destination,
                                        .handler = handler,
                                        .body_bytes = body_bytes,
                                        .reply = reply,
                                        .reply_bytes = reply_bytes};
            return handle;
        }
    }
    return WILLOW_ERROR_REFUSED;
}

int32_t willow_import_rpc_append(int32_t handle, uint32_t port, uint64_t address, uint32_t bytes) {
    if (handle < 0 || handle >= RPCS_MAX || !rpcs[handle].used) {
        return WILLOW_ERROR_ARGUMENT;
    }
    struct Rpc *rpc = &rpcs[handle];
    int32_t code = WILLOW_ERROR_ARGUMENT;
    if ((port == LOCAL_MEMORY_PORT || port == NV_MEMORY_PORT) && rpc->segment_count < SEGMENTS_MAX &&
        bytes <= rpc->body_bytes - rpc->gathered) {
        code = check(rpc->token, port, address, bytes, 0);
    }
    if (code != WILLOW_OK) {
        rpc->used = 0;
        return code;
    }
    rpc->segments[rpc->segment_count].port = port;
    rpc->segments[rpc->segment_count].bytes = bytes;
    rpc->segments[rpc->segment_count].address = address;
    rpc->segment_count++;
    rpc->gathered += bytes;
    return WILLOW_OK;
}

int32_t willow_import_rpc_finish(int32_t handle, uint32_t wait) {
    if (handle < 0 || handle >= RPCS_MAX || !rpcs[handle].used) {
        return WILLOW_ERROR_ARGUMENT;
    }
    struct Rpc *rpc = &rpcs[handle];
    rpc->used = 0;
    if (rpc->gathered != rpc->body_bytes) {
        return WILLOW_ERROR_ARGUMENT;
    }
    uint8_t *body = allocate(rpc->body_bytes);
    uint32_t at = 0;
    for (uint32_t index = 0; index < rpc->segment_count; index++) {
        memcpy(body + at, place(rpc->token, rpc->segments[index].port, rpc->segments[index].address, 0),
               rpc->segments[index].bytes);
        at += rpc->segments[index].bytes;
    }
    if (rpc->destination >= 0) {
        uint32_t token = submit(rpc->handler, 0, body, 0, rpc->body_bytes, rpc->reply, rpc->reply_bytes);
        requests[token].of_handler = 1;
        requests[token].wait = wait;
        return PENDING;
    }
    if (answer_upcall == NULL) {
        free(body);
        return WILLOW_ERROR_REFUSED;
    }
    RPCResp_t response = answer_upcall(rpc->handler, body, rpc->body_bytes);
    free(body);
    complete_later(wait, (int64_t)((uint64_t)response.status << 32 | response.result));
    return PENDING;
}

int32_t willow_import_app_number(const char *name, uint32_t bytes) {
    extern const char willow_manifest[];
    const char *own = strstr(willow_manifest, "\nname=");
    if (own == NULL) {
        fail("the manifest has no name");
    }
    own += 6;
    return strncmp(own, name, bytes) == 0 && own[bytes] == '\n' ? 0 : WILLOW_ERROR_NOT_FOUND;
}

int64_t willow_import_region(uint32_t id, uint64_t bytes, uint32_t wait) {
    int64_t value = WILLOW_ERROR_NOT_FOUND, result;
    struct Region *region = find_region(id, 0);
    if (region != NULL) {
        value = (int64_t)region->base;
    } else if (bytes > 0) {
        region = make_region(bytes);
        value = WILLOW_ERROR_FULL;
        if (region != NULL) {
            region->id = id;
            value = (int64_t)region->base;
        }
    }
    return issue((struct Operation){.kind = VALUE, .wait = wait, .value = value}, &result) ? -1 : result;
}

int64_t willow_import_region_bytes(uint32_t id) {
    const struct Region *region = find_region(id, 0);
    return region == NULL ? WILLOW_ERROR_NOT_FOUND : (int64_t)region->bytes;
}

int32_t willow_import_region_free(uint32_t id, uint32_t wait) {
    int64_t result;
    struct Region *region = find_region(id, 0);
    if (region == NULL) {
        return WILLOW_ERROR_NOT_FOUND;
    }
    memset(bank + region->base, 0, region->bytes);
    region->used = 0;
    return issue((struct Operation){.kind = VALUE, .wait = wait}, &result) ? PENDING : WILLOW_OK;
}

int32_t willow_import_namespace(uint32_t nsid, void *to) {
    const struct Region *region = find_region(nsid, 1);
    if (region == NULL) {
        return WILLOW_ERROR_NOT_FOUND;
    }
    Namespace_t described = {.base = region->base,
                             .bank_bytes = region->bytes,
                             .block_bytes = region->block_bytes,
                             .blocks = region->bytes / region->block_bytes};
    memcpy(to, &described, sizeof described);
    return WILLOW_OK;
}

int32_t willow_import_flush(uint32_t wait) {
    int64_t result;
    return issue((struct Operation){.kind = VALUE, .wait = wait}, &result) ? PENDING : WILLOW_OK;
}

uint32_t willow_import_spu_id(void) { return 0; }

uint32_t willow_import_spu_count(void) { return 1; }

uint64_t willow_import_time_ns(void) { return time_ns; }

void willow_import_print(const char *text, uint32_t bytes) {
    for (uint32_t index = 0; index < bytes && serial_bytes < SERIAL_BYTES_MAX - 1; index++) {
        serial[serial_bytes++] = text[index];
    }
}

void willow_import_count(uint32_t counter, int64_t delta) {
    if (counter >= 16) {
        fail("counters are 0 to 15");
    }
    counters[counter] += delta;
}
