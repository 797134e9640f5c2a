/* A mock device of one SPU, for native unit tests of apps in C: link the app, willow.c and willow_test.c, and write a main.
 *
 * All is in memory, without threads or clocks. The seed chooses which operations complete later and in what order; with seed 0
 * all complete at once. What cannot be ends the test with a message. */
#ifndef WILLOW_TEST_H
#define WILLOW_TEST_H

#include "willow.h"
#include "willow_flash.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends the test where the condition does not hold. */
#define WILLOW_CHECK(condition)                                                                                             \
    do {                                                                                                                    \
        if (!(condition)) {                                                                                                 \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                                  \
            exit(1);                                                                                                        \
        }                                                                                                                   \
    } while (0)

/* Makes the device, with zeroed NV memory, and tells the app that it has started. Once in a program. */
void WillowTestStart(uint64_t bank_bytes, uint64_t seed);
/* Another seed from here on. */
void WillowTestSeed(uint64_t seed);
/* Makes a block namespace, tells the app, and returns its base in the bank. */
uint64_t WillowTestNamespace(uint32_t nsid, uint32_t block_bytes, uint64_t bank_bytes);
/* The SPU's NV memory. */
uint8_t *WillowTestBank(void);
/* Sends a request and runs until all is quiet; the reply, as long as it has room, is at `reply`. */
RPCResp_t WillowTestCall(uint32_t handler, const void *arguments, uint32_t argument_bytes, const void *payload,
                         uint32_t payload_bytes, void *reply, uint32_t reply_bytes);
/* Sends a request; returns its number. The reply buffer must stay until it is answered. */
uint32_t WillowTestSubmit(uint32_t handler, const void *arguments, uint32_t argument_bytes, const void *payload,
                          uint32_t payload_bytes, void *reply, uint32_t reply_bytes);
/* Runs until all is quiet. */
void WillowTestRun(void);
/* 1 and the response where the request is answered, else 0. */
int WillowTestOutcome(uint32_t request, RPCResp_t *response);
/* What the app printed. */
const char *WillowTestSerial(void);
/* A counter of the app. */
int64_t WillowTestCounter(uint32_t counter);
/* Answers the app's upcalls, which are refused without it. */
void WillowTestOnUpcall(RPCResp_t (*answer)(uint32_t handler, const uint8_t *body, uint32_t bytes));

/* ---- For FTLs (willow_flash.h) ---- */

/* Gives the device flash, all of it erased, which outlives the app's state. Before WillowTestStart, whose bank is then of no use. */
void WillowTestFlash(const FlashGeometry_t *geometry);
/* Asks the FTL (NV_READ, NV_WRITE, NV_ZERO or NV_FLUSH) for a range of its bank and runs until all is quiet; its status. `buffer` is what is written, or
 * where what is read goes. As on a device, ranges of requests under way must not overlap in any unit, unless both are reads. */
uint32_t WillowTestCallNV(uint8_t handler, uint64_t address, void *buffer, uint64_t bytes);
/* The same without running; the request's number for WillowTestOutcome. */
uint32_t WillowTestSubmitNV(uint8_t handler, uint64_t address, void *buffer, uint64_t bytes);
/* What the FTL told by FlashHealth last. */
struct WillowTestHealth {
    uint32_t spare_percent;
    uint64_t media_errors;
    int is_read_only;
};
struct WillowTestHealth WillowTestHealth(void);

#endif
