/* To write SSD Apps in C: handlers in blocking style that run on the processors inside a Willow device.
 *
 * The calls of the RPC interface are those of the Willow paper (section 2.5, Figure 3). A call that takes time waits, and
 * other handlers of the same app run on that SPU meanwhile: whatever is not local to a handler can change during a call that
 * is marked "waits". The contract with SPU-OS is docs/abi.md.
 *
 * An app is one or more C files, one of which has a WILLOW_APP, together with willow.c:
 *
 *     static void double_it(RPCHdr_t *request) {
 *         uint32_t value;
 *         RPCResp_t response;
 *         if (RPCReceiveBytes(&value, sizeof value) < sizeof value) {
 *             RPCCreateResponse(request, &response, 1);
 *         } else {
 *             RPCCreateResponse(request, &response, RPC_SUCCESS);
 *             response.result = value * 2;
 *         }
 *         RPCSendResponse(response);
 *     }
 *     #define HANDLERS(HANDLER) HANDLER(1, double_it)
 *     WILLOW_APP("doubler", "0.1.0", HANDLERS)
 */
#ifndef WILLOW_H
#define WILLOW_H

#include <stddef.h>
#include <stdint.h>

/* Most requests that are handled on an SPU at the same time, 1 to 255; more wait outside. */
#ifndef WILLOW_THREADS
#define WILLOW_THREADS 8
#endif
/* Stack of each thread. An overflow is found when the thread next waits or ends, and ends the app. */
#ifndef WILLOW_STACK_BYTES
#define WILLOW_STACK_BYTES 4096
#endif
/* Where a waiting thread keeps its local variables: a few dozen bytes for each function that is being called. */
#ifndef WILLOW_UNWIND_BYTES
#define WILLOW_UNWIND_BYTES 1024
#endif

/* Errors of the calls (docs/abi.md). */
enum {
    WILLOW_OK = 0,
    WILLOW_ERROR_ARGUMENT = -2,   /* a port, length, stride or call that cannot be */
    WILLOW_ERROR_RANGE = -3,      /* an address past the bank, body or reply */
    WILLOW_ERROR_PERMISSION = -4, /* the originating HRE may not access this NV memory, and it is no region of this app */
    WILLOW_ERROR_MEDIA = -5,      /* the media failed */
    WILLOW_ERROR_FULL = -6,       /* no room */
    WILLOW_ERROR_REFUSED = -7,    /* the receiver had no room, or there is no such app, SPU or handler */
    WILLOW_ERROR_ENDED = -8,      /* the other side ended before it answered */
    WILLOW_ERROR_NOT_FOUND = -9,  /* no such region or namespace */
    WILLOW_ERROR_CANCELLED = -10  /* another handler has cancelled it */
};

/* ---- Requests ---- */

/* An SPU's number, or HOST_CPU. */
typedef int32_t CPUID_t;
/* As a source: the host. As a destination: an upcall to the originating HRE. */
#define HOST_CPU ((CPUID_t)-1)

/* What is known of a request. */
typedef struct {
    uint32_t originating_hre; /* the HRE it goes back to; a zero in the highest bit: the host kernel */
    CPUID_t src;              /* who sent it */
    uint32_t size;            /* bytes of its body: inline arguments, then payload */
    uint32_t reply_bytes;     /* bytes that fit the reply */
    uint32_t handler;
    uint32_t argument_bytes;  /* bytes of the body that are inline arguments */
} RPCHdr_t;

/* The end of a request. */
typedef struct {
    uint32_t status; /* RPC_SUCCESS, or the app's own */
    uint32_t result;
} RPCResp_t;

#define RPC_SUCCESS 0u

/* Copies the next bytes of the body to local memory; returns how many there were. */
uint32_t RPCReceiveBytes(void *to, uint32_t bytes);
/* Fills in a response: the status, and a result of 0. */
void RPCCreateResponse(const RPCHdr_t *request, RPCResp_t *response, uint32_t status);
/* Sets the request's response. It leaves when the handler ends, since what the handler still does is done on the request's
 * behalf; a handler that sets none answers with status FFFFFFF8h. */
void RPCSendResponse(RPCResp_t response);

/* ---- DMA ---- */

typedef enum {
    LOCAL_MEMORY_PORT = 0, /* address: a pointer */
    NV_MEMORY_PORT = 1,    /* address: a byte of this SPU's bank */
    NETWORK_PORT = 2,      /* as a source an offset in the body, as a destination one in the reply */
    ZEROES_PORT = 3,       /* source only; deallocates NV memory where whole units are covered */
    NOTHING_PORT = 4,      /* source only, NV memory as destination: moves nothing, and tells whether the request may write there */
    /* NV memory; a DMA without permission is parked until the host's agent has installed one or refused, instead of failing */
    PARKED_NV_MEMORY_PORT = 0x101
} Port_t;

/* NV memory of another SPU, for DMATransfer: over the interconnect, without work for that SPU's processor. The other end is local memory, the
 * request, or zeroes as the source. */
#define SPU_NV_MEMORY_PORT(spu) ((Port_t)(NV_MEMORY_PORT + (((uint32_t)(spu) + 1) << 16)))

/* An address for a port: pointers and integers both do. */
#define WILLOW_ADDRESS(address)                                                                                              \
    ((uint64_t)__builtin_choose_expr(__builtin_classify_type(address) == 5, (uintptr_t)(address), (address)))

/* Moves bytes between two ports. Waits. 0, or an error. */
#define DMATransfer(source_port, source_address, destination_port, destination_address, bytes)                              \
    willow_dma(source_port, WILLOW_ADDRESS(source_address), destination_port, WILLOW_ADDRESS(destination_address), bytes)
int32_t willow_dma(Port_t source_port, uint64_t source_address, Port_t destination_port, uint64_t destination_address,
                   uint32_t bytes);

/* Moves several pieces of `segment_bytes`; each side moves on by its stride. */
typedef struct {
    uint32_t segment_bytes;
    uint32_t segments;
    int64_t source_stride;
    int64_t destination_stride;
} Strides_t;
/* Waits. 0, or an error. */
#define DMATransferStrided(source_port, source_address, destination_port, destination_address, strides)                     \
    willow_dma_strided(source_port, WILLOW_ADDRESS(source_address), destination_port, WILLOW_ADDRESS(destination_address),    \
                       strides)
int32_t willow_dma_strided(Port_t source_port, uint64_t source_address, Port_t destination_port,
                           uint64_t destination_address, const Strides_t *strides);

/* Compares NV memory with the body from an offset on. Waits. 0: equal, 1: different, or an error. */
int32_t NVCompare(uint64_t nv_address, uint64_t body_offset, uint32_t bytes);
/* CRC-32C (Castagnoli) of bytes at a port, continued from `seed`. Waits. The sum, or an error. */
#define Checksum(port, address, bytes, seed) willow_checksum(port, WILLOW_ADDRESS(address), bytes, seed)
int64_t willow_checksum(Port_t port, uint64_t address, uint32_t bytes, uint32_t seed);

/* How keys lie at a port; in_order: they ascend, as bytes. */
typedef struct {
    uint32_t key_bytes, stride_bytes, count;
    int in_order;
} Keys_t;
/* The place of a key among keys at a port: how many are less, or, in no order, how many come before the first that equals it. `equal` is set to
 * whether the key there equals it. Waits. The place, or an error. */
#define KeysFind(port, address, keys, key, equal) willow_keys_find(port, WILLOW_ADDRESS(address), keys, key, equal)
int32_t willow_keys_find(Port_t port, uint64_t address, const Keys_t *keys, const void *key, int *equal);

/* ---- The multiply-add and FFT accelerators, on local memory ---- */

/* Bytes of a number: float or double, little-endian. */
#define WILLOW_SINGLE 4u
#define WILLOW_DOUBLE 8u
/* y = alpha * x + y, `count` numbers, 512 KiB at most; they have no byte in common. Rounds after the multiplication and after the addition. Waits. 0, or
 * an error. */
int32_t MultiplyAdd(uint32_t number_bytes, double alpha, const void *x, void *y, uint32_t count);
/* Fourier transforms of `rows` rows of `count` complex numbers (real part first), each in its place, 512 KiB at most together; the
 * inverse divides by `count`. Waits. 0, or an error. */
int32_t FourierTransform(uint32_t number_bytes, int inverse, void *data, uint32_t count, uint32_t rows);

/* ---- The decompress accelerator, on local memory ---- */

/* Where a block of Snappy's raw format is, between the calls that decompress it piece by piece (docs/abi.md, Decompressing). At the beginning all is zero but for `left`:
 * the bytes that are to come, or UINT32_MAX for as many as the block says. */
typedef struct {
    uint32_t kept;          /* bytes at the beginning of `to` that are there: what comes goes behind them */
    uint32_t left;          /* bytes yet to come, without those of the element under way */
    uint32_t phase;         /* one of WILLOW_DECOMPRESS_... */
    uint32_t offset, count; /* the element under way */
    uint32_t used;          /* bytes of the input that the last call has used */
    uint32_t reserved[2];
} Decompression_t;
#define WILLOW_DECOMPRESS_HEAD 0u
#define WILLOW_DECOMPRESS_ELEMENTS 1u /* over where `left` and `count` are 0 */
#define WILLOW_DECOMPRESS_MALFORMED 2u
#define WILLOW_DECOMPRESS_TOO_FAR 3u
/* Goes on with a block: 64 KiB of input and 512 KiB of memory at most. Waits. 0, or an error. */
int32_t Decompress(const void *from, uint32_t bytes, void *to, uint32_t to_bytes, Decompression_t *state);

/* ---- The literals accelerator ---- */

/* Flags of a set: letters of ASCII match in either case; one match a line, which ends with this byte. */
#define LITERALS_IGNORE_CASE 1u
#define LITERALS_LINES(end) (2u | (uint32_t)(uint8_t)(end) << 8)
/* What a search found: how many, how far it got in its range, and what the next one takes up. Set `state` to 0 for a new text. */
typedef struct {
    uint32_t found, looked_at, state;
} Found_t;
/* A match: offsets in the range, and the number of the literal. */
typedef struct {
    uint32_t begin, end, literal;
} Match_t;
/* Loads a set: of each literal its length, a uint32_t, and its bytes. A handle above 0, or an error. */
int32_t LiteralsLoad(const void *literals, uint32_t bytes, uint32_t flags);
/* Looks for the literals of a set in bytes at a port. `found` is followed by room for `most` matches (0: they are only counted). Waits. 0,
 * or an error. It may end early: the next search begins where `looked_at` says. */
#define LiteralsFind(set, port, address, bytes, found, most)                                                                \
    willow_literals_find(set, port, WILLOW_ADDRESS(address), bytes, found, most)
int32_t willow_literals_find(int32_t set, Port_t port, uint64_t address, uint32_t bytes, Found_t *found, uint32_t most);
/* Gives a set up. 0, or an error. */
int32_t LiteralsFree(int32_t set);

/* ---- RPCs that a handler sends ---- */

/* Begins a request to a handler of this app on an SPU, or an upcall to the originating HRE. The body has `bytes` bytes, at
 * most 65536. 0, or an error. One request at a time: it is finished before the next is started. */
int32_t RPCStartRequest(CPUID_t destination, uint32_t bytes, uint32_t handler);
/* The same for an installed app, with room for a reply. `app` is -1 for the own one, or AppNumber's. */
int32_t RPCStartRequestTo(CPUID_t destination, int32_t app, uint32_t bytes, uint32_t handler, void *reply,
                          uint32_t reply_bytes);
/* Begins an upcall to an endpoint that has subscribed to this app's upcalls of a kind, 1 to 255. 0, or an error; RPCAppendRequest and
 * RPCFinishRequest follow. */
int32_t UpcallStart(uint32_t hre, uint32_t kind, uint32_t bytes);
/* Writes ids of endpoints that have subscribed to a kind, in rising order, from behind `after` on (0: all). How many, or an error. */
int32_t Subscribers(uint32_t kind, uint32_t after, uint32_t *to, uint32_t most);
/* Appends to the body from local or NV memory, which stays unchanged until the request is finished. 0, or an error; after
 * an error here or in RPCStartRequest all up to RPCFinishRequest does nothing but return it. */
#define RPCAppendRequest(port, bytes, address) willow_rpc_append(port, bytes, WILLOW_ADDRESS(address))
int32_t willow_rpc_append(Port_t port, uint32_t bytes, uint64_t address);
/* Sends it and waits for the response. 0 where there is one, whatever its status, or an error. */
int32_t RPCFinishRequest(void);
/* The response to the last request that this handler finished. */
RPCResp_t RPCGetResponse(void);
/* The number of an installed app, or WILLOW_ERROR_NOT_FOUND. */
int32_t AppNumber(const char *name);

/* ---- NV memory ---- */

typedef struct {
    uint64_t base;       /* first byte in every bank */
    uint64_t bank_bytes; /* bytes in every bank */
    uint32_t command_set; /* 0 block, 1 key-value */
    uint32_t block_bytes; /* of a logical block */
    uint64_t blocks;     /* in all banks together */
} Namespace_t;

/* Describes a namespace. 0, or WILLOW_ERROR_NOT_FOUND. */
int32_t NVNamespace(uint32_t nsid, Namespace_t *to);
/* The base, the same in every bank, of the app's persistent region; made where it is new (zeroed, a multiple of 64 KiB), unless
 * `bytes` is 0. Waits. The base, or an error. */
int64_t NVRegion(uint32_t id, uint64_t bytes);
/* The region's size in every bank, or an error. */
int64_t NVRegionBytes(uint32_t id);
/* Deletes a region. Waits. 0, or an error. */
int32_t NVRegionFree(uint32_t id);
/* Makes durable all that was written to this SPU's bank before. Waits. 0, or an error. */
int32_t NVFlush(void);

/* ---- Time of its own ---- */

/* Waits for so many ns of the device's clock; the thread stays taken. Waits. 0, or an error. */
int32_t SleepNs(uint64_t duration_ns);
/* Lets others have their turn. Waits. 0, or an error. */
int32_t Yield(void);
/* The number of the thread that this handler runs on, for CancelThread. */
uint32_t ThreadId(void);
/* Cancels what a thread waits for, on behalf of this handler's request: it goes on with WILLOW_ERROR_CANCELLED. 0; 1 where that cannot be cancelled
 * (docs/abi.md says what can) or the thread does not wait; or an error. */
int32_t CancelThread(uint32_t thread);
/* Begins a handler of this app on this SPU that belongs to no request, with `argument` as its 8 argument bytes. Nobody waits for it, and it
 * ends with this version of the app. 0, or an error. */
int32_t BackgroundStart(uint32_t handler, uint64_t argument);

/* ---- The rest ---- */

uint32_t SPUId(void);
uint32_t SPUCount(void);
uint64_t TimeNs(void);
/* Prints on the virtual serial port, which `willow app log NAME` shows. */
void SerialPrint(const char *text);
void SerialPrintNumber(uint64_t value);
/* Adds to the app's counter 0 to 15, which `willow stat` shows. */
void CounterAdd(uint32_t counter, int64_t delta);

/* ---- The app ---- */

/* What SPU-OS itself tells an app. */
typedef enum {
    NAMESPACE_CREATED = 1, /* of that NSID */
    NAMESPACE_DELETED = 2,
    DEVICE_SHUTDOWN = 3,   /* the device goes down when the handler has ended, or after 5 s */
    DEVICE_STARTED = 4,    /* this instance is up */
    NAMESPACE_RESIZED = 6  /* of that NSID */
} Event_t;

struct WillowHandler {
    uint32_t number;
    void (*run)(RPCHdr_t *request);
};

/* Ends with a `run` of NULL. */
extern const struct WillowHandler willow_handlers[];
extern void (*const willow_on_event)(RPCHdr_t *request, Event_t event, uint32_t nsid);

#define WILLOW_HANDLER_DECLARATION(number, function) static void function(RPCHdr_t *request);
#define WILLOW_HANDLER_ENTRY(number, function) {(number), (function)},
#define WILLOW_HANDLER_LINE(number, function) "handler=" #number ":" #function WILLOW_NEWLINE

/* The manifest: in a module the custom section willow.app, which is written by the assembler. */
#ifdef __wasm__
#define WILLOW_NEWLINE "\\n"
#define WILLOW_MANIFEST(text) __asm__(".section .custom_section.willow.app,\"\",@\n.ascii \"" text "\"\n");
#else
#define WILLOW_NEWLINE "\n"
#define WILLOW_MANIFEST(text) const char willow_manifest[] = text;
#endif

/* Once in an app, at file level. `name` is [a-z][a-z0-9-]{0,30}; `handlers` is a macro that applies its argument to each
 * number (a literal from 1 to 255) and static function. Use it after the functions, or declare them before. */
#define WILLOW_APP(name, version, handlers) WILLOW_APP_WITH_EVENTS(name, version, handlers, NULL)
/* The same with a function that is called for events, as handler 0; SPU-OS waits for its end. */
#define WILLOW_APP_WITH_EVENTS(name, version, handlers, on_event)                                                           \
    handlers(WILLOW_HANDLER_DECLARATION)                                                                                    \
    const struct WillowHandler willow_handlers[] = {handlers(WILLOW_HANDLER_ENTRY){0, NULL}};                                \
    void (*const willow_on_event)(RPCHdr_t *, Event_t, uint32_t) = on_event;                                                 \
    WILLOW_MANIFEST("abi=2" WILLOW_NEWLINE "name=" name WILLOW_NEWLINE "version=" version WILLOW_NEWLINE                     \
                        handlers(WILLOW_HANDLER_LINE))

/* ---- The names of the XSSD thesis ----
 *
 * With WILLOW_XSSD_NAMES defined before this header is included, its calls have the names, types and orders of arguments of the thesis' table 3.1 as well:
 * what was written for it compiles. DMATransfer has its order then, size first, and no longer the one above. */
#ifdef WILLOW_XSSD_NAMES

typedef CPUID_t CPUIID_t;
typedef RPCHdr_t Msg_t;
typedef RPCResp_t MsgResp_t;
typedef uint32_t RPC_Status;
typedef uint64_t Address_t;

/* Pieces that a message is made of, at most. */
#define XSSD_PIECES_MAX 8u

/* A message that a thread puts together: the thesis says its length when it is sent, SPU-OS wants to know it before. */
struct XssdMessage {
    CPUID_t to;
    uint32_t handler, pieces, bytes;
    struct {
        Port_t port;
        uint32_t bytes;
        uint64_t address;
    } piece[XSSD_PIECES_MAX];
};
static struct XssdMessage xssd_messages[WILLOW_THREADS] __attribute__((unused));

/* Begins a message to a handler of this app on an SPU, or to the host. */
static inline void BuildMsgHeader(CPUIID_t dst_id, uint32_t rpc_handler) {
    struct XssdMessage *message = &xssd_messages[ThreadId()];
    message->to = dst_id;
    message->handler = rpc_handler;
    message->pieces = 0;
    message->bytes = 0;
}

static inline int32_t xssd_append(Port_t src, uint32_t size, uint64_t src_addr) {
    struct XssdMessage *message = &xssd_messages[ThreadId()];
    if (message->pieces == XSSD_PIECES_MAX || size > UINT32_MAX - message->bytes) {
        return WILLOW_ERROR_FULL;
    }
    message->piece[message->pieces].port = src;
    message->piece[message->pieces].bytes = size;
    message->piece[message->pieces].address = src_addr;
    message->pieces++;
    message->bytes += size;
    return WILLOW_OK;
}

static inline int32_t xssd_flush(Port_t src, uint32_t size, uint64_t src_addr) {
    int32_t code = xssd_append(src, size, src_addr);
    struct XssdMessage message = xssd_messages[ThreadId()];
    xssd_messages[ThreadId()].pieces = 0;
    xssd_messages[ThreadId()].bytes = 0;
    if (code != WILLOW_OK) {
        return code;
    }
    RPCStartRequest(message.to, message.bytes, message.handler);
    for (uint32_t index = 0; index < message.pieces; index++) {
        willow_rpc_append(message.piece[index].port, message.piece[index].bytes, message.piece[index].address);
    }
    return RPCFinishRequest();
}

/* Appends to the message from local or NV memory, which stays unchanged until it is sent. 0, or an error. */
#define AppendMsgBody(src, size, src_addr) xssd_append(src, size, WILLOW_ADDRESS(src_addr))
/* Appends the last piece, sends the message and waits for its response, which RPCGetResponse has. Waits. 0, or an error. */
#define AppendMsgBodyAndFlush(src, size, src_addr) xssd_flush(src, size, WILLOW_ADDRESS(src_addr))
#define CreateResponse(header, response, status) RPCCreateResponse(header, response, status)
#define SendResponse(response) RPCSendResponse(response)
#define ReceiveBytes(buf, size) RPCReceiveBytes(buf, size)
#undef DMATransfer
#define DMATransfer(size, src, src_addr, dst, dst_addr)                                                                     \
    willow_dma(src, WILLOW_ADDRESS(src_addr), dst, WILLOW_ADDRESS(dst_addr), size)

#endif

#endif
