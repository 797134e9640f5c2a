/* Each call of libwillow's key-value namespaces, on an empty one. Arguments: device, `use` or `survived`: what a device that
 * was killed must still have. */
#include "libwillow.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #condition, errno, willow_error());        \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)
#define FAILS(call, error) CHECK((call) == -1 && errno == (error) && *willow_error())

enum { MANY = 300, THREADS = 4, ROUNDS = 50, LARGE = 100000 };

static willow_kv *shared;

/* Adds to a number that all threads share, on condition that nobody else has meanwhile. */
static void *counts(void *unused) {
    (void)unused;
    for (int round = 0; round < ROUNDS;) {
        uint32_t number;
        struct willow_kv_options options = {.condition = WILLOW_KV_IF_VERSION};
        CHECK(willow_kv_get(shared, "count", 5, &number, sizeof number, &options.version, NULL) == sizeof number);
        number++;
        if (willow_kv_put(shared, "count", 5, &number, sizeof number, &options, NULL) == 0)
            round++;
        else
            CHECK(errno == ESTALE);
    }
    return NULL;
}

struct seen {
    int keys, ends_after;
    int had[MANY];
};

static int each(void *context, const void *key, size_t key_bytes) {
    struct seen *seen = context;
    char name[17] = {0}, value[8];
    CHECK(key_bytes <= 16);
    memcpy(name, key, key_bytes);
    seen->had[atoi(name + 1)]++;
    /* The namespace may be used here. */
    CHECK(willow_kv_get(shared, key, key_bytes, value, sizeof value, NULL, NULL) >= 0);
    return ++seen->keys == seen->ends_after ? 7 : 0;
}

static void many(willow_kv *kv, int durable) {
    static char keys[MANY][16], values[MANY][16];
    static struct willow_kv_pair pairs[MANY + 1];
    for (int at = 0; at < MANY; at++) {
        pairs[at] = (struct willow_kv_pair){
            .key = keys[at], .key_bytes = (size_t)sprintf(keys[at], "n%d", at), .value = values[at],
            .value_bytes = (size_t)sprintf(values[at], "value %d", at), .condition = WILLOW_KV_IF_ABSENT, .result = 99,
        };
    }
    pairs[MANY] = pairs[5];
    CHECK(willow_kv_put_many(kv, pairs, MANY + 1, durable) == MANY);
    CHECK(pairs[0].result == 0 && pairs[MANY].result == -EEXIST);
    char got[MANY][16];
    for (int at = 0; at < MANY; at++)
        pairs[at].value = got[at], pairs[at].value_bytes = 3 + (size_t)at % 10;
    pairs[MANY].key = "nothing", pairs[MANY].key_bytes = 7;
    CHECK(willow_kv_get_many(kv, pairs, MANY + 1) == MANY && pairs[MANY].result == -ENOENT);
    for (int at = 0; at < MANY; at++) {
        size_t bytes = strlen(values[at]), there = pairs[at].value_bytes < bytes ? pairs[at].value_bytes : bytes;
        CHECK(pairs[at].result == (int64_t)bytes && pairs[at].version != 0 && !memcmp(got[at], values[at], there));
    }
    pairs[3].key_bytes = 17;
    FAILS(willow_kv_get_many(kv, pairs, MANY), EINVAL);
    FAILS(willow_kv_put_many(kv, pairs, 65537, 0), EINVAL);
    FAILS(willow_kv_put_many(kv, NULL, 1, 0), EFAULT);
    CHECK(willow_kv_put_many(kv, NULL, 0, 0) == 0);
    struct seen all = {0};
    CHECK(willow_kv_scan(kv, "n", 1, "n:", 2, each, &all) == 0 && all.keys == MANY);
    for (int at = 0; at < MANY; at++)
        CHECK(all.had[at] == 1);
    struct seen some = {.ends_after = 4};
    CHECK(willow_kv_scan(kv, "n", 1, "n:", 2, each, &some) == 7 && some.keys == 4);
    struct seen few = {0};
    CHECK(willow_kv_scan(kv, "n10", 3, "n12", 3, each, &few) == 0 && few.keys == 22);
    FAILS(willow_kv_scan(kv, "", 0, "", 0, NULL, NULL), EINVAL);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    FAILS(willow_kv_open("/nowhere/device", 0) ? 0 : -1, EIO);
    FAILS(willow_kv_open(NULL, 0) ? 0 : -1, EINVAL);
    /* A block namespace, and none at all. */
    FAILS(willow_kv_open(arguments[1], 1) ? 0 : -1, ENODEV);
    FAILS(willow_kv_open(arguments[1], 99) ? 0 : -1, ENODEV);
    willow_kv *kv = shared = willow_kv_open(arguments[1], 0);
    CHECK(kv != NULL);
    static char large[LARGE], got[LARGE];
    memset(large, 'w', sizeof large);
    if (!strcmp(arguments[2], "survived")) {
        struct seen all = {0};
        CHECK(willow_kv_get(kv, "flushed", 7, got, sizeof got, NULL, NULL) == LARGE && !memcmp(got, large, LARGE));
        CHECK(willow_kv_get(kv, "durable", 7, got, sizeof got, NULL, NULL) == 3 && !memcmp(got, "two", 3));
        CHECK(willow_kv_scan(kv, "n", 1, "n:", 2, each, &all) == 0 && all.keys == MANY);
        willow_kv_close(kv);
        return 0;
    }

    uint64_t version, later;
    uint32_t expiry;
    FAILS((int)willow_kv_get(kv, "a", 1, got, sizeof got, NULL, NULL), ENOENT);
    CHECK(willow_kv_put(kv, "a", 1, "one", 3, NULL, &version) == 0 && version != 0);
    CHECK(willow_kv_get(kv, "a", 1, got, 2, &later, &expiry) == 3 && later == version && expiry == 0);
    CHECK(!memcmp(got, "on", 2) && got[2] == 0 && willow_kv_get(kv, "a", 1, NULL, 0, NULL, NULL) == 3);
    struct willow_kv_options options = {.condition = WILLOW_KV_IF_ABSENT};
    FAILS(willow_kv_put(kv, "a", 1, "two", 3, &options, NULL), EEXIST);
    options.condition = WILLOW_KV_IF_EXISTS;
    FAILS(willow_kv_put(kv, "b", 1, "two", 3, &options, NULL), ENOENT);
    options.condition = 4;
    FAILS(willow_kv_put(kv, "b", 1, "two", 3, &options, NULL), EINVAL);
    options = (struct willow_kv_options){.condition = WILLOW_KV_IF_VERSION, .version = version};
    CHECK(willow_kv_put(kv, "a", 1, "", 0, &options, &later) == 0 && later != version);
    CHECK(willow_kv_get(kv, "a", 1, got, sizeof got, NULL, NULL) == 0);
    FAILS(willow_kv_put(kv, "a", 1, "two", 3, &options, NULL), ESTALE);
    FAILS(willow_kv_delete(kv, "a", 1, version, 0), ESTALE);
    CHECK(willow_kv_delete(kv, "a", 1, later, 1) == 0);
    FAILS(willow_kv_delete(kv, "a", 1, 0, 0), ENOENT);
    FAILS(willow_kv_put(kv, "", 0, "x", 1, NULL, NULL), EINVAL);
    FAILS(willow_kv_put(kv, "12345678901234567", 17, "x", 1, NULL, NULL), EINVAL);
    FAILS(willow_kv_put(kv, NULL, 1, "x", 1, NULL, NULL), EFAULT);
    FAILS(willow_kv_put(kv, "a", 1, NULL, 1, NULL, NULL), EFAULT);
    FAILS(willow_kv_put(NULL, "a", 1, "x", 1, NULL, NULL), EINVAL);
    char *huge = calloc(1, 64 << 20);
    CHECK(huge != NULL);
    FAILS(willow_kv_put(kv, "huge", 4, huge, 64 << 20, NULL, NULL), EMSGSIZE);
    free(huge);

    /* What has expired is not there; a touch keeps it from that. */
    uint32_t now = (uint32_t)time(NULL);
    options = (struct willow_kv_options){.expiry = now - 10};
    CHECK(willow_kv_put(kv, "old", 3, "x", 1, &options, NULL) == 0);
    FAILS((int)willow_kv_get(kv, "old", 3, got, sizeof got, NULL, NULL), ENOENT);
    FAILS(willow_kv_touch(kv, "old", 3, 0, 0), ENOENT);
    options.expiry = now + 10000;
    CHECK(willow_kv_put(kv, "new", 3, "x", 1, &options, NULL) == 0 && willow_kv_touch(kv, "new", 3, now + 20000, 0) == 0);
    CHECK(willow_kv_get(kv, "new", 3, got, sizeof got, NULL, &expiry) == 1 && expiry == now + 20000);

    uint32_t number = 0;
    CHECK(willow_kv_put(kv, "count", 5, &number, sizeof number, NULL, NULL) == 0);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, counts, NULL) == 0);
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(willow_kv_get(kv, "count", 5, &number, sizeof number, NULL, NULL) == sizeof number && number == THREADS * ROUNDS);

    pid_t child = fork();
    if (child == 0) {
        if (willow_kv_get(kv, "count", 5, &number, sizeof number, NULL, NULL) != -1 || errno != ENXIO) _exit(2);
        willow_kv_close(kv);
        willow_kv *own = willow_kv_open(arguments[1], 0);
        _exit(own && willow_kv_get(own, "count", 5, &number, sizeof number, NULL, NULL) == sizeof number ? 0 : 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    CHECK(willow_kv_put(kv, "flushed", 7, large, sizeof large, NULL, NULL) == 0 && willow_kv_flush(kv) == 0);
    options = (struct willow_kv_options){.durable = 1};
    CHECK(willow_kv_put(kv, "durable", 7, "two", 3, &options, NULL) == 0);
    many(kv, 1);
    willow_kv_close(kv);
    willow_kv_close(NULL);
    return 0;
}
