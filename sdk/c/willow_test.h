/* A mock device of one SPU, for native unit tests of apps in C: link the app, willow.c and willow_test.c, and write a main.
 *
 * All is in memory, without threads or clocks. The seed chooses which operations complete later and in what order; with seed 0
 * all complete at once. What cannot be ends the test with a message. */
#ifndef WILLOW_TEST_H
#define WILLOW_TEST_H

#include "willow.h"

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

#endif
