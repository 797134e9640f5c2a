/* A file through its cache. Arguments: device (-: the agent says how it is reached), agent, file of 300,000 bytes 's', and "through" or "back". */
#include "libwillow.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #condition, errno, willow_error());        \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

enum { BYTES = 300000, THREADS = 4, FROM = 4100, WRITTEN = 200000 };

static willow_cached *shared;

/* A part of what is written, each by its thread, of which neither end is a chunk's. */
static void *one_thread(void *argument) {
    enum { PART = WRITTEN / THREADS };
    static const char bytes[] = {'b', 'b', 'b', 'b', 'b', 'b', 'b', 'b', 'b', 'b'};
    off_t begin = FROM + (off_t)(size_t)argument * PART;
    char found[sizeof bytes];
    for (off_t at = begin; at < begin + PART; at += (off_t)sizeof bytes) {
        CHECK(willow_cached_pwrite(shared, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes);
        if (at % 1000 == 0) {
            CHECK(willow_cached_pread(shared, found, sizeof found, at) == (ssize_t)sizeof found);
            CHECK(memcmp(found, bytes, sizeof found) == 0);
        }
    }
    return NULL;
}

/* What the file has past the cache. */
static char plain(const char *path, off_t at) {
    char byte;
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, &byte, 1, at) == 1);
    close(file);
    return byte;
}

int main(int count, char **arguments) {
    CHECK(count == 5 && willow_version() == LIBWILLOW_VERSION);
    const char *device = strcmp(arguments[1], "-") ? arguments[1] : NULL, *path = arguments[3];
    int mode = strcmp(arguments[4], "back") ? WILLOW_CACHE_WRITE_THROUGH : WILLOW_CACHE_WRITE_BACK;
    willow_session *session = willow_session_open(device, arguments[2]);
    CHECK(session != NULL);
    CHECK(willow_cached_open(session, "/nowhere/file", O_RDWR, mode, 0) == NULL && errno == ENOENT);
    CHECK(willow_cached_open(NULL, path, O_RDWR, mode, 0) == NULL && errno == EINVAL);
    CHECK(willow_cached_open(session, path, O_WRONLY, mode, 0) == NULL && errno == EINVAL);
    CHECK(willow_cached_open(session, path, O_RDWR, 7, 0) == NULL && errno == EINVAL);
    CHECK(willow_cached_open(session, "/", O_RDONLY, mode, 0) == NULL && errno == EIO);
    /* A cache of a part of the file: chunks make way. */
    shared = willow_cached_open(session, path, O_RDWR, mode, 1 << 17);
    CHECK(shared != NULL);
    CHECK(willow_cached_mode(shared) == mode && willow_cached_size(shared) == BYTES);
    static char all[BYTES + 10];
    CHECK(willow_cached_pread(shared, all, sizeof all, 0) == BYTES && all[0] == 's' && all[BYTES - 1] == 's');
    CHECK(willow_cached_pread(shared, all, 10, BYTES) == 0 && willow_cached_pread(shared, all, 10, BYTES - 3) == 3);
    CHECK(willow_cached_pread(shared, all, 10, -1) == -1 && errno == EINVAL);
    CHECK(willow_cached_pread(shared, NULL, 10, 0) == -1 && errno == EFAULT);
    CHECK(willow_cached_pread(NULL, all, 10, 0) == -1 && errno == EINVAL);
    CHECK(willow_cached_pwrite(shared, all, 10, BYTES - 9) == -1 && errno == ENOSPC);
    CHECK(willow_cached_pread(shared, all, 9, BYTES - 9) == 9 && all[8] == 's');
    if (mode == WILLOW_CACHE_WRITE_BACK) {
        pthread_t threads[THREADS];
        for (size_t thread = 0; thread < THREADS; thread++)
            CHECK(pthread_create(&threads[thread], NULL, one_thread, (void *)thread) == 0);
        for (size_t thread = 0; thread < THREADS; thread++) CHECK(pthread_join(threads[thread], NULL) == 0);
    } else {
        memset(all, 't', 200);
        CHECK(willow_cached_pwrite(shared, all, 200, 4000) == 200);
        CHECK(plain(path, 4000) == 't' && plain(path, 4199) == 't' && plain(path, 4200) == 's');
    }
    CHECK(willow_cached_sync(shared) == 0);
    willow_cached *reader = willow_cached_open(session, path, O_RDONLY, WILLOW_CACHE_AS_IT_IS, 0);
    CHECK(reader != NULL && willow_cached_mode(reader) == mode);
    CHECK(willow_cached_pwrite(reader, all, 1, 0) == -1 && errno == EBADF);
    CHECK(willow_cached_pread(reader, all, BYTES, 0) == BYTES && all[4099] != all[3999] && all[4100] == all[4199]);
    CHECK(willow_cached_close(reader) == 0);

    /* A child has nothing of its parent's. */
    pid_t child = fork();
    if (child == 0) _exit(willow_cached_pread(shared, all, 1, 0) == -1 && errno == ENXIO ? 0 : 2);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(willow_cached_pread(shared, all, 1, 4100) == 1 && all[0] == (mode == WILLOW_CACHE_WRITE_BACK ? 'b' : 't'));
    CHECK(willow_cached_close(shared) == 0 && willow_cached_close(NULL) == -1 && errno == EINVAL);
    willow_session_close(session);
    return 0;
}
