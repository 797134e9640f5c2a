/* A device in memory for native tests; see willow_test.h. Users build a test by naming this file alone: what apps call of it is in
 * willow_test_decompress.h, and, included at the end, willow_test_imports.h and willow_test_flash.h. */
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
    int of_nobody;        /* in the background: nobody asks for the outcome */
    uint32_t wait;
};

enum Kind { MOVES, COMPARE, CHECKSUM, LITERALS, KEYS, MULTIPLY_ADD, TRANSFORM, DECOMPRESS, VALUE };

/* What the literals accelerator holds, and the most that one search of the mock looks at. */
#define SETS_MAX 16
#define SEARCH_BYTES_MAX 1000u
struct Set {
    uint8_t *literals;
    uint32_t bytes, flags;
};

struct Operation {
    enum Kind kind;
    uint32_t token, wait;
    uint32_t source_port, destination_port, bytes, segments, seed;
    uint64_t source, destination;
    int64_t source_stride, destination_stride, value;
    int sleeps;           /* a VALUE that can be cancelled */
    int32_t set;          /* of a search, with what it is to bring where */
    uint32_t state, most;
    Found_t *found;
    Keys_t keys;          /* of a search for a key */
    uint32_t number_bytes; /* of rows of numbers, of which `segments` is how many */
    uint32_t rows;
    int inverse;
    double alpha;
    const void *numbers;
    void *target;
    Decompression_t *record; /* of a decompression from `numbers` to `target` */
    uint8_t key[256];
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
static struct Set sets[SETS_MAX];
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
    case NOTHING_PORT:
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

static int same_byte(uint8_t one, uint8_t other, uint32_t flags) {
    int is_letter = (one | 32) >= 'a' && (one | 32) <= 'z';
    return one == other || ((flags & LITERALS_IGNORE_CASE) != 0 && is_letter && (one ^ other) == 32);
}

/* The longest literal of a set that stands at a place: its length, or 0. */
static uint32_t literal_at(const struct Set *set, const uint8_t *text, uint32_t left, uint32_t *number) {
    uint32_t longest = 0, index = 0;
    for (uint32_t at = 0; at < set->bytes; index++) {
        uint32_t length, same = 0;
        memcpy(&length, set->literals + at, sizeof length);
        at += sizeof length;
        while (same < length && same < left && same_byte(set->literals[at + same], text[same], set->flags)) {
            same++;
        }
        if (same == length && length > longest) {
            longest = length;
            *number = index;
        }
        at += length;
    }
    return longest;
}

static int64_t search(const struct Operation *o, const uint8_t *text) {
    const struct Set *set = &sets[o->set - 1];
    uint32_t bytes = o->bytes < SEARCH_BYTES_MAX ? o->bytes : SEARCH_BYTES_MAX, at = 0, number = 0, state = o->state, found = 0;
    Match_t *matches = (Match_t *)(o->found + 1);
    while (at < bytes && (o->most == 0 || found < o->most)) {
        if (state != 0) {
            state = text[at++] != (uint8_t)(set->flags >> 8);
            continue;
        }
        uint32_t length = literal_at(set, text + at, bytes - at, &number);
        if (length == 0) {
            at++;
            continue;
        }
        if (o->most > 0) {
            matches[found] = (Match_t){at, at + length, number};
        }
        found++;
        at += length;
        if ((set->flags & 2) != 0) {
            at--;
            state = 1;
        }
    }
    while (state != 0 && at < bytes) {
        state = text[at++] != (uint8_t)(set->flags >> 8);
    }
    *o->found = (Found_t){found, at, state};
    return 0;
}

static int64_t find_key(const struct Operation *o, const uint8_t *keys) {
    uint32_t index = 0;
    int order = 1;
    for (; index < o->keys.count; index++) {
        order = memcmp(keys + (size_t)index * o->keys.stride_bytes, o->key, o->keys.key_bytes);
        if (order == 0 || (o->keys.in_order && order > 0)) {
            break;
        }
    }
    return 2 + 2 * (int64_t)index + (index < o->keys.count && order == 0);
}

static int64_t multiply_add(const struct Operation *o) {
    for (uint32_t place = 0; place < o->segments; place++) {
        if (o->number_bytes == 4) {
            float x, y;
            memcpy(&x, (const char *)o->numbers + 4 * (size_t)place, 4);
            memcpy(&y, (char *)o->target + 4 * (size_t)place, 4);
            float product = (float)o->alpha * x;
            y = product + y;
            memcpy((char *)o->target + 4 * (size_t)place, &y, 4);
        } else {
            double x, y;
            memcpy(&x, (const char *)o->numbers + 8 * (size_t)place, 8);
            memcpy(&y, (char *)o->target + 8 * (size_t)place, 8);
            double product = o->alpha * x;
            y = product + y;
            memcpy((char *)o->target + 8 * (size_t)place, &y, 8);
        }
    }
    return 0;
}

/* Sine and cosine of a part of a turn, by their series: no library of mathematics is needed. */
static void turn(double part, double *cosine, double *sine) {
    double angle = 6.283185307179586476925287 * (part > 0.5 ? part - 1 : part), term = 1;
    *cosine = 0;
    *sine = 0;
    for (int power = 0; power < 40; power++) {
        double *sum = power % 2 == 0 ? cosine : sine;
        *sum += power % 4 < 2 ? term : -term;
        term *= angle / (power + 1);
    }
}

static double part_of(const struct Operation *o, const char *row, uint32_t place) {
    float single;
    double number;
    if (o->number_bytes == 4) {
        memcpy(&single, row + 4 * (size_t)place, 4);
        return single;
    }
    memcpy(&number, row + 8 * (size_t)place, 8);
    return number;
}

/* By the definition. */
static int64_t transform(const struct Operation *o) {
    uint32_t count = o->segments;
    size_t row_bytes = (size_t)count * 2 * o->number_bytes;
    char *copy = malloc(row_bytes > 0 ? row_bytes : 1);
    if (copy == NULL) {
        fail("there is no memory");
    }
    for (uint32_t number = 0; number < o->rows; number++) {
        char *row = (char *)o->target + number * row_bytes;
        memcpy(copy, row, row_bytes);
        for (uint32_t to = 0; to < count; to++) {
            double re = 0, im = 0, scale = o->inverse ? 1.0 / count : 1;
            for (uint32_t from = 0; from < count; from++) {
                double cosine, sine, a = part_of(o, copy, 2 * from), b = part_of(o, copy, 2 * from + 1);
                turn((double)((uint64_t)from * to % count) / count, &cosine, &sine);
                sine = o->inverse ? sine : -sine;
                re += a * cosine - b * sine;
                im += a * sine + b * cosine;
            }
            double parts[2] = {re * scale, im * scale};
            for (int which = 0; which < 2; which++) {
                float single = (float)parts[which];
                memcpy(row + ((size_t)to * 2 + (size_t)which) * o->number_bytes,
                       o->number_bytes == 4 ? (void *)&single : (void *)&parts[which], o->number_bytes);
            }
        }
    }
    free(copy);
    return 0;
}

#include "willow_test_decompress.h"

static int64_t carry_out(const struct Operation *operation) {
    const struct Operation *o = operation;
    switch (o->kind) {
    case MOVES:
        for (uint32_t segment = 0; segment < o->segments; segment++) {
            uint64_t from = o->source + (uint64_t)(o->source_stride * (int64_t)segment);
            uint64_t to = o->destination + (uint64_t)(o->destination_stride * (int64_t)segment);
            uint8_t *destination = place(o->token, o->destination_port, to, 1);
            if (o->source_port == NOTHING_PORT) {
                continue;
            }
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
    case LITERALS:
        return search(o, place(o->token, o->source_port, o->source, 0));
    case KEYS:
        return find_key(o, place(o->token, o->source_port, o->source, 0));
    case MULTIPLY_ADD:
        return multiply_add(o);
    case TRANSFORM:
        return transform(o);
    case DECOMPRESS:
        return decompress(o);
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
    if (request->of_nobody) {
        request->used = 0;
    }
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

#include "willow_test_imports.h"
#include "willow_test_flash.h"
