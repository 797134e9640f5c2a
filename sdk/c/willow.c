/* The runtime of apps in C: handlers are threads that wait in the middle of a call.
 *
 * In a module a waiting thread is unwound: wasm-opt's Asyncify pass has made every function on the way save its local variables
 * and return, so that `start` and `complete` run to completion as SPU-OS wants it; when what it waits for has happened the
 * thread is rewound to where it was. Natively, for tests, the same is done with contexts of the C library.
 *
 * What always holds: each thread waits for one thing at a time, and the number of the wait is the thread's; a thread has a
 * stack of its own, whose lowest word still is STACK_MARK whenever the thread gives the processor back. */
#include "willow.h"
#include "willow_flash.h"
#include "willow_imports.h"

#define DONE 0
#define PENDING 1
#define DIFFERENT 2
#define SNAPPY 1
#define STACK_MARK 0x57494c4cu

_Static_assert(WILLOW_THREADS >= 1 && WILLOW_THREADS <= 255, "1 to 255 threads");
_Static_assert(WILLOW_STACK_BYTES >= 512 && WILLOW_STACK_BYTES % 16 == 0, "stack: a multiple of 16, at least 512");
_Static_assert(WILLOW_UNWIND_BYTES >= 128 && WILLOW_UNWIND_BYTES % 16 == 0, "unwinding: a multiple of 16, at least 128");
_Static_assert(sizeof(RPCHdr_t) == 24, "the first 24 bytes of request_info");
_Static_assert(sizeof(Decompression_t) == 32, "what decompress reads and writes");
_Static_assert(sizeof(Namespace_t) == 32, "what namespace writes");
_Static_assert(sizeof(FlashGeometry_t) == 64, "what flash_geometry writes");
_Static_assert(sizeof(NVArguments_t) == 24, "what an FTL is asked");
_Static_assert(sizeof(FlashPage_t) == 32 && sizeof(FlashPart_t) == 24, "what flash_program reads");

enum State { FREE, RUNNING, WAITING };

struct Thread {
    enum State state;
    uint32_t token;
    RPCHdr_t header;
    uint32_t reserved[2]; /* request_info writes 32 bytes */
    void (*run)(RPCHdr_t *request);
    RPCResp_t response;
    int64_t result;        /* of what it waited for */
    int32_t rpc;           /* handle of the request being made, or an error */
    RPCResp_t rpc_response;
};

static struct Thread threads[WILLOW_THREADS];
static struct Thread *current;

/* Ends the app. */
#ifdef __wasm__
_Noreturn static void fail(const char *why) {
    SerialPrint(why);
    __builtin_trap();
}
#else
#include <stdio.h>
#include <stdlib.h>
_Noreturn static void fail(const char *why) {
    fputs(why, stderr);
    exit(1);
}
#endif

/* ---- Switching between threads ---- */

#ifdef __wasm__

__attribute__((import_module("asyncify"), import_name("start_unwind"))) void asyncify_start_unwind(void *record);
__attribute__((import_module("asyncify"), import_name("stop_unwind"))) void asyncify_stop_unwind(void);
__attribute__((import_module("asyncify"), import_name("start_rewind"))) void asyncify_start_rewind(void *record);
__attribute__((import_module("asyncify"), import_name("stop_rewind"))) void asyncify_stop_rewind(void);

/* What Asyncify keeps of a thread that waits. */
static struct Unwound {
    void *next; /* where the next local variable goes */
    void *end;
    char *stack_pointer;
    uint8_t variables[WILLOW_UNWIND_BYTES] __attribute__((aligned(16)));
} unwound[WILLOW_THREADS];
static union {
    uint32_t mark;
    uint8_t bytes[WILLOW_STACK_BYTES];
} stacks[WILLOW_THREADS] __attribute__((aligned(16)));
static int rewinding;

/* Both keep nothing on the stack themselves, as long as they are optimised: they leave its pointer as they set it. (Assembly
 * outside of functions is what clang 14 and 15 fail on.) */
__attribute__((noinline)) static char *willow_get_stack(void) {
    char *stack_pointer;
    __asm__ volatile(".globaltype __stack_pointer, i32\n"
                     "global.get __stack_pointer\n"
                     "local.set %0"
                     : "=r"(stack_pointer));
    return stack_pointer;
}
__attribute__((noinline)) static void willow_set_stack(char *stack_pointer) {
    __asm__ volatile(".globaltype __stack_pointer, i32\n"
                     "local.get %0\n"
                     "global.set __stack_pointer"
                     :
                     : "r"(stack_pointer)
                     : "memory");
}

/* Called from within a thread: returns when `complete` has come for it. Never inlined: Asyncify must find the call that unwinds
 * and the one that ends rewinding in a function of their own. */
__attribute__((noinline)) static void suspend(void) {
    if (rewinding) {
        rewinding = 0;
        asyncify_stop_rewind();
        return;
    }
    struct Unwound *record = &unwound[current - threads];
    record->next = record->variables;
    record->end = record->variables + WILLOW_UNWIND_BYTES;
    record->stack_pointer = willow_get_stack();
    current->state = WAITING;
    asyncify_start_unwind(record);
}

/* Runs a thread until it waits or ends. Never inlined, for the same reason. */
__attribute__((noinline)) static void run(struct Thread *thread) {
    struct Unwound *record = &unwound[thread - threads];
    char *outside = willow_get_stack();
    current = thread;
    if (thread->state == WAITING) {
        willow_set_stack(record->stack_pointer);
        rewinding = 1;
        asyncify_start_rewind(record);
    } else {
        stacks[thread - threads].mark = STACK_MARK;
        willow_set_stack((char *)stacks[thread - threads].bytes + WILLOW_STACK_BYTES);
    }
    thread->state = RUNNING;
    thread->run(&thread->header);
    if (thread->state == WAITING) {
        asyncify_stop_unwind();
    }
    willow_set_stack(outside);
    if (stacks[thread - threads].mark != STACK_MARK) {
        fail("stack overflow of a handler: raise WILLOW_STACK_BYTES\n");
    }
}

#else

#include <ucontext.h>

/* Natively functions of the C library run on these stacks too. */
#define NATIVE_STACK_BYTES (WILLOW_STACK_BYTES + 65536)

static ucontext_t outside;
static ucontext_t contexts[WILLOW_THREADS];
static union {
    uint32_t mark;
    uint8_t bytes[NATIVE_STACK_BYTES];
} stacks[WILLOW_THREADS] __attribute__((aligned(16)));

static void suspend(void) {
    struct Thread *thread = current;
    thread->state = WAITING;
    if (swapcontext(&contexts[thread - threads], &outside) != 0) {
        fail("swapcontext failed\n");
    }
}

static void enter(void) { current->run(&current->header); }

static void run(struct Thread *thread) {
    ucontext_t *context = &contexts[thread - threads];
    current = thread;
    if (thread->state != WAITING) {
        stacks[thread - threads].mark = STACK_MARK;
        if (getcontext(context) != 0) {
            fail("getcontext failed\n");
        }
        context->uc_stack.ss_sp = stacks[thread - threads].bytes;
        context->uc_stack.ss_size = NATIVE_STACK_BYTES;
        context->uc_link = &outside;
        makecontext(context, enter, 0);
    }
    thread->state = RUNNING;
    if (swapcontext(&outside, context) != 0) {
        fail("swapcontext failed\n");
    }
    if (stacks[thread - threads].mark != STACK_MARK) {
        fail("stack overflow of a handler\n");
    }
}

#endif

/* ---- Exports ---- */

static void handle_event(RPCHdr_t *request) {
    uint32_t words[2] = {0, 0};
    current->response.status = RPC_SUCCESS;
    RPCReceiveBytes(words, sizeof words);
    if (willow_on_event != NULL) {
        willow_on_event(request, (Event_t)words[0], words[1]);
    }
}

static void finish_if_ended(struct Thread *thread) {
    if (thread->state == RUNNING) {
        if (thread->rpc > 0) {
            fail("a handler ended between RPCStartRequest and RPCFinishRequest\n");
        }
        thread->state = FREE;
        willow_import_respond(thread->token, thread->response.status, thread->response.result);
    }
}

#ifdef __wasm__
__attribute__((export_name("start")))
#endif
int32_t willow_start(uint32_t token, uint32_t handler) {
    void (*found)(RPCHdr_t *) = handler == 0 ? handle_event : NULL;
    for (const struct WillowHandler *entry = willow_handlers; entry->run != NULL; entry++) {
        if (entry->number == handler && handler != 0) {
            found = entry->run;
        }
    }
    if (found == NULL) {
        willow_import_respond(token, (uint32_t)WILLOW_ERROR_REFUSED, 0);
        return 0;
    }
    for (struct Thread *thread = threads; thread < threads + WILLOW_THREADS; thread++) {
        if (thread->state == FREE) {
            thread->token = token;
            thread->run = found;
            thread->response = (RPCResp_t){(uint32_t)WILLOW_ERROR_ENDED, 0};
            thread->rpc = 0;
            thread->rpc_response = (RPCResp_t){0, 0};
            willow_import_request_info(token, &thread->header);
            run(thread);
            finish_if_ended(thread);
            return 0;
        }
    }
    return 1;
}

#ifdef __wasm__
__attribute__((export_name("complete")))
#endif
void willow_complete(uint32_t wait, int64_t result) {
    if (wait >= WILLOW_THREADS || threads[wait].state != WAITING) {
        fail("completed, but nobody waits\n");
    }
    threads[wait].result = result;
    run(&threads[wait]);
    finish_if_ended(&threads[wait]);
}

/* ---- Calls ---- */

static uint32_t wait_number(void) { return (uint32_t)(current - threads); }

/* Waits where an import said so. */
static int64_t waited(int32_t code) {
    if (code != PENDING) {
        return code;
    }
    suspend();
    return current->result;
}

uint32_t RPCReceiveBytes(void *to, uint32_t bytes) { return willow_import_receive_bytes(current->token, to, bytes); }

void RPCCreateResponse(const RPCHdr_t *request, RPCResp_t *response, uint32_t status) {
    (void)request;
    response->status = status;
    response->result = 0;
}

void RPCSendResponse(RPCResp_t response) { current->response = response; }

int32_t willow_dma(Port_t source_port, uint64_t source_address, Port_t destination_port, uint64_t destination_address,
                   uint32_t bytes) {
    return (int32_t)waited(willow_import_dma(current->token, source_port, source_address, destination_port,
                                             destination_address, bytes, wait_number()));
}

int32_t willow_dma_strided(Port_t source_port, uint64_t source_address, Port_t destination_port,
                           uint64_t destination_address, const Strides_t *strides) {
    return (int32_t)waited(willow_import_dma_strided(current->token, source_port, source_address, strides->source_stride,
                                                     destination_port, destination_address, strides->destination_stride,
                                                     strides->segment_bytes, strides->segments, wait_number()));
}

int32_t NVCompare(uint64_t nv_address, uint64_t body_offset, uint32_t bytes) {
    int32_t code = willow_import_compare(current->token, nv_address, body_offset, bytes, wait_number());
    return code == DIFFERENT ? 1 : (int32_t)waited(code);
}

int64_t willow_checksum(Port_t port, uint64_t address, uint32_t bytes, uint32_t seed) {
    int32_t code = willow_import_checksum(current->token, port, address, bytes, seed, wait_number());
    return code == DONE ? (int64_t)willow_import_checksum_value() : waited(code);
}

int32_t willow_keys_find(Port_t port, uint64_t address, const Keys_t *keys, const void *key, int *equal) {
    int32_t code = willow_import_keys_find(current->token, port, address, keys->key_bytes, keys->stride_bytes, keys->count,
                                           !keys->in_order, key, wait_number());
    int32_t place = code > PENDING ? code : (int32_t)waited(code);
    *equal = place >= 2 && place % 2 == 1;
    return place >= 2 ? (place - 2) / 2 : place;
}

int32_t MultiplyAdd(uint32_t number_bytes, double alpha, const void *x, void *y, uint32_t count) {
    union {
        double number;
        uint64_t bits;
    } as = {.number = alpha};
    return (int32_t)waited(willow_import_multiply_add(current->token, number_bytes, as.bits, x, y, count, wait_number()));
}

int32_t FourierTransform(uint32_t number_bytes, int inverse, void *data, uint32_t count, uint32_t rows) {
    return (int32_t)waited(
        willow_import_fft(current->token, number_bytes, inverse != 0, data, count, rows, wait_number()));
}

int32_t Decompress(const void *from, uint32_t bytes, void *to, uint32_t to_bytes, Decompression_t *state) {
    return (int32_t)waited(
        willow_import_decompress(current->token, SNAPPY, from, bytes, to, to_bytes, state, wait_number()));
}

int32_t LiteralsLoad(const void *literals, uint32_t bytes, uint32_t flags) {
    return willow_import_literals_load(literals, bytes, flags);
}

int32_t willow_literals_find(int32_t set, Port_t port, uint64_t address, uint32_t bytes, Found_t *found, uint32_t most) {
    return (int32_t)waited(willow_import_literals_find(current->token, set, port, address, bytes, found->state, found, most,
                                                       wait_number()));
}

int32_t LiteralsFree(int32_t set) { return willow_import_literals_free(set); }

int32_t RPCStartRequest(CPUID_t destination, uint32_t bytes, uint32_t handler) {
    return RPCStartRequestTo(destination, -1, bytes, handler, NULL, 0);
}

int32_t RPCStartRequestTo(CPUID_t destination, int32_t app, uint32_t bytes, uint32_t handler, void *reply,
                          uint32_t reply_bytes) {
    if (current->rpc > 0) {
        fail("RPCStartRequest before the last request was finished\n");
    }
    int32_t handle =
        willow_import_rpc_start(current->token, destination, app, handler, bytes, reply, reply_bytes);
    /* Handles are kept plus one, so that 0 is none. */
    current->rpc = handle < 0 ? handle : handle + 1;
    return handle < 0 ? handle : WILLOW_OK;
}

int32_t UpcallStart(uint32_t hre, uint32_t kind, uint32_t bytes) {
    if (current->rpc > 0) {
        fail("UpcallStart before the last request was finished\n");
    }
    int32_t handle = willow_import_upcall_start(current->token, hre, kind, bytes);
    current->rpc = handle < 0 ? handle : handle + 1;
    return handle < 0 ? handle : WILLOW_OK;
}

int32_t Subscribers(uint32_t kind, uint32_t after, uint32_t *to, uint32_t most) {
    return willow_import_subscribers(kind, after, to, most);
}

int32_t willow_rpc_append(Port_t port, uint32_t bytes, uint64_t address) {
    if (current->rpc <= 0) {
        return current->rpc == 0 ? WILLOW_ERROR_ARGUMENT : current->rpc;
    }
    int32_t code = willow_import_rpc_append(current->rpc - 1, port, address, bytes);
    if (code < 0) {
        current->rpc = code;
    }
    return code;
}

int32_t RPCFinishRequest(void) {
    int32_t rpc = current->rpc;
    current->rpc = 0;
    if (rpc <= 0) {
        return rpc == 0 ? WILLOW_ERROR_ARGUMENT : rpc;
    }
    int32_t code = willow_import_rpc_finish(rpc - 1, wait_number());
    if (code < 0) {
        return code;
    }
    int64_t result = waited(code);
    if (result >= WILLOW_ERROR_CANCELLED && result <= WILLOW_ERROR_ARGUMENT) {
        return (int32_t)result;
    }
    current->rpc_response = (RPCResp_t){(uint32_t)((uint64_t)result >> 32), (uint32_t)result};
    return WILLOW_OK;
}

RPCResp_t RPCGetResponse(void) { return current->rpc_response; }

static uint32_t text_bytes(const char *text) {
    uint32_t bytes = 0;
    while (text[bytes] != 0) {
        bytes++;
    }
    return bytes;
}

int32_t AppNumber(const char *name) { return willow_import_app_number(name, text_bytes(name)); }

int32_t NVNamespace(uint32_t nsid, Namespace_t *to) { return willow_import_namespace(nsid, to); }

int64_t NVRegion(uint32_t id, uint64_t bytes) {
    int64_t base = willow_import_region(id, bytes, wait_number());
    return base == -1 ? waited(PENDING) : base;
}

int64_t NVRegionBytes(uint32_t id) { return willow_import_region_bytes(id); }

int32_t NVRegionFree(uint32_t id) { return (int32_t)waited(willow_import_region_free(id, wait_number())); }

int32_t NVFlush(void) { return (int32_t)waited(willow_import_flush(wait_number())); }

int32_t SleepNs(uint64_t duration_ns) { return (int32_t)waited(willow_import_sleep(duration_ns, wait_number())); }

int32_t Yield(void) { return SleepNs(0); }

uint32_t ThreadId(void) { return wait_number(); }

int32_t CancelThread(uint32_t thread) {
    if (thread >= WILLOW_THREADS || threads[thread].state != WAITING) {
        return 1;
    }
    return willow_import_cancel(current->token, thread);
}

int32_t BackgroundStart(uint32_t handler, uint64_t argument) { return willow_import_background(handler, argument); }

/* ---- The flash port ---- */

int32_t FlashGeometry(FlashGeometry_t *to) { return willow_import_flash_geometry(to); }

int32_t FlashBadBlocks(uint32_t die, uint32_t *to, uint32_t most) { return willow_import_flash_bad_blocks(die, to, most); }

int32_t FlashReadToPeer(FlashRange_t range, uint32_t peer, uint64_t offset) {
    /* A peer of 0 would be local memory. */
    if (peer == 0) {
        return WILLOW_ERROR_ARGUMENT;
    }
    return (int32_t)waited(willow_import_flash_read(range.die, range.block, range.page, range.offset, range.bytes, peer, offset,
                                                    NULL, 0, wait_number()));
}

int32_t FlashReadToLocal(FlashRange_t range, void *to, void *spare, uint32_t spare_bytes) {
    return (int32_t)waited(willow_import_flash_read(range.die, range.block, range.page, range.offset, range.bytes, 0,
                                                    (uint64_t)(uintptr_t)to, spare, spare_bytes, wait_number()));
}

int32_t FlashProgram(uint32_t die, const FlashPage_t *pages, uint32_t count) {
    return (int32_t)waited(willow_import_flash_program(die, pages, count, wait_number()));
}

int32_t FlashErase(uint32_t die, const uint32_t *blocks, uint32_t count) {
    return (int32_t)waited(willow_import_flash_erase(die, blocks, count, wait_number()));
}

int32_t FlashZeroPeer(uint32_t peer, uint64_t offset, uint32_t bytes) {
    return willow_import_flash_zero_peer(peer, offset, bytes);
}

int32_t FlashPause(void) { return (int32_t)waited(willow_import_flash_pause(wait_number())); }

int32_t FlashMinimum(const uint32_t *numbers, uint32_t count) { return willow_import_flash_minimum(numbers, count); }

int32_t FlashReadMap(const FlashLane_t *lanes, uint32_t count, uint32_t corrected_bits_max) {
    return willow_import_flash_read_map(lanes, count, corrected_bits_max);
}

int32_t FlashHealth(uint32_t spare_percent, uint64_t media_errors, int is_read_only) {
    return willow_import_flash_health(spare_percent, media_errors, is_read_only != 0);
}

/* ---- The rest ---- */

uint32_t SPUId(void) { return willow_import_spu_id(); }

uint32_t SPUCount(void) { return willow_import_spu_count(); }

uint64_t TimeNs(void) { return willow_import_time_ns(); }

void SerialPrint(const char *text) { willow_import_print(text, text_bytes(text)); }

void SerialPrintNumber(uint64_t value) {
    char digits[20];
    uint32_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    willow_import_print(digits + at, sizeof digits - at);
}

void CounterAdd(uint32_t counter, int64_t delta) { willow_import_count(counter, delta); }

/* ---- What the compiler itself calls, where there is no C library ---- */

#ifdef __wasm__
__attribute__((no_builtin("memcpy"))) void *memcpy(void *to, const void *from, size_t bytes) {
    return __builtin_memcpy(to, from, bytes);
}

__attribute__((no_builtin("memmove"))) void *memmove(void *to, const void *from, size_t bytes) {
    return __builtin_memmove(to, from, bytes);
}

__attribute__((no_builtin("memset"))) void *memset(void *to, int value, size_t bytes) {
    return __builtin_memset(to, value, bytes);
}

__attribute__((no_builtin("memcmp"))) int memcmp(const void *left, const void *right, size_t bytes) {
    const uint8_t *a = left, *b = right;
    for (; bytes > 0; bytes--, a++, b++) {
        if (*a != *b) {
            return *a - *b;
        }
    }
    return 0;
}
#endif
