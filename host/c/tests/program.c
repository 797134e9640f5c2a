/* Each form of libwillow's calls, checked against what the same calls of the kernel give. Arguments: device
 * (-: the agent says how it is reached), agent, file. */
#include "libwillow.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #condition, errno, willow_error());        \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

enum { BYTES = 200000, THREADS = 4, OPERATIONS = 16 };

static unsigned char model[BYTES];
static willow_file *shared;

static void fill(unsigned char *into, size_t bytes, unsigned seed) {
    for (size_t at = 0; at < bytes; at++) {
        seed = seed * 1103515245u + 12345u;
        into[at] = (unsigned char)(seed >> 16);
    }
}

static void *one_thread(void *argument) {
    size_t number = (size_t)argument, region = BYTES / THREADS, start = number * region;
    unsigned char got[3000];
    for (int round = 0; round < 50; round++) {
        size_t at = start + (size_t)round * 700 % (region - sizeof got);
        fill(model + at, sizeof got, (unsigned)(number * 1000 + (size_t)round));
        CHECK(willow_pwrite(shared, model + at, sizeof got, (off_t)at) == (ssize_t)sizeof got);
        CHECK(willow_pread(shared, got, sizeof got, (off_t)at) == (ssize_t)sizeof got);
        CHECK(memcmp(got, model + at, sizeof got) == 0);
    }
    return NULL;
}

static void queues(willow_session *session, willow_file *file) {
    static unsigned char got[OPERATIONS][5000];
    struct willow_done done[OPERATIONS];
    willow_queue *queue = willow_queue_open(session, OPERATIONS);
    CHECK(queue != NULL);
    CHECK(willow_queue_open(session, 0) == NULL && errno == EINVAL);
    for (int number = 0; number < OPERATIONS; number++) {
        CHECK(willow_submit_pread(queue, file, got[number], sizeof got[number], number * 7001, (uint64_t)number) == 0);
    }
    CHECK(willow_submit_fsync(queue, file, 99) == -1 && errno == EAGAIN);
    int seen = 0, count = 0;
    while (count < OPERATIONS) {
        int some = willow_wait(queue, done, 5, 1, 10000);
        CHECK(some > 0 && some <= 5);
        for (int index = 0; index < some; index++) {
            size_t number = done[index].tag;
            CHECK(done[index].result == (int64_t)sizeof got[number] && !(seen & 1 << number));
            CHECK(memcmp(got[number], model + number * 7001, sizeof got[number]) == 0);
            seen |= 1 << number;
        }
        count += some;
    }
    CHECK(willow_poll(queue, done, OPERATIONS) == 0);
    CHECK(willow_wait(queue, done, OPERATIONS, 1, 10) == 0);
    fill(model + 10, 9000, 5);
    struct iovec parts[2] = {{model + 10, 4000}, {model + 4010, 5000}};
    CHECK(willow_submit_pwritev(queue, file, parts, 2, 10, 1) == 0);
    CHECK(willow_wait(queue, done, 1, 1, -1) == 1 && done[0].result == 9000);
    CHECK(willow_submit_pwrite(queue, file, model, 10, 0, 2) == 0 && willow_submit_fsync(queue, file, 3) == 0);
    struct iovec into[2] = {{got[0], 100}, {got[1], 200}};
    CHECK(willow_submit_preadv(queue, file, into, 2, 4000, 4) == 0);
    CHECK(willow_wait(queue, done, OPERATIONS, 3, -1) == 3);
    CHECK(memcmp(got[0], model + 4000, 100) == 0 && memcmp(got[1], model + 4100, 200) == 0);
    /* Past the end: 0 bytes, and no error. */
    CHECK(willow_submit_pread(queue, file, got[0], 10, BYTES + 5, 6) == 0);
    CHECK(willow_wait(queue, done, 1, 1, -1) == 1 && done[0].result == 0);
    willow_queue_close(queue);
}

int main(int count, char **arguments) {
    CHECK(count == 4 && willow_version() == LIBWILLOW_VERSION);
    unsigned char *got = malloc(BYTES + 100);
    CHECK(willow_session_open("/nowhere/device", arguments[2]) == NULL && errno == EIO && *willow_error());
    CHECK(willow_session_open(NULL, NULL) == NULL && errno == EINVAL);
    const char *device = strcmp(arguments[1], "-") ? arguments[1] : NULL;
    willow_session *session = willow_session_open(device, arguments[2]);
    CHECK(session != NULL);
    CHECK(willow_open(session, "/nowhere/file", O_RDWR, 0) == NULL && errno == ENOENT);

    /* A new file is the kernel's as long as it grows, and direct when it is taken. */
    willow_file *file = willow_open(session, arguments[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file != NULL);
    fill(model, BYTES, 1);
    CHECK(willow_pwrite(file, model, BYTES, 0) == BYTES && willow_size(file) == BYTES);
    CHECK(willow_fsync(file) == 0 && willow_take(file) == 0 && willow_is_direct(file) == 1);
    CHECK(willow_pread(file, got, BYTES + 100, 0) == BYTES && memcmp(got, model, BYTES) == 0);
    CHECK(willow_pread(file, got, 10, BYTES) == 0 && willow_pread(file, got, 10, -1) == -1 && errno == EINVAL);
    CHECK(willow_pread(file, NULL, 10, 0) == -1 && errno == EFAULT);
    CHECK(willow_pread(file, NULL, 0, 0) == 0);

    struct iovec parts[3] = {{got, 1000}, {NULL, 0}, {got + 1000, 7000}};
    CHECK(willow_preadv(file, parts, 3, 777) == 8000 && memcmp(got, model + 777, 8000) == 0);
    fill(model + 12345, 5000, 2);
    struct iovec from[2] = {{model + 12345, 1}, {model + 12346, 4999}};
    CHECK(willow_pwritev(file, from, 2, 12345) == 5000 && willow_fdatasync(file) == 0);
    CHECK(willow_preadv(file, parts, -1, 0) == -1 && errno == EINVAL);

    shared = file;
    pthread_t threads[THREADS];
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, one_thread, (void *)number) == 0);
    for (size_t number = 0; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    queues(session, file);
    CHECK(willow_is_direct(file) == 1);

    /* While it is direct the kernel lets nobody change it; the library grows and cuts it all the same. */
    CHECK(ftruncate(willow_descriptor(file), 10) == -1 && errno == EINVAL);
    CHECK(write(willow_descriptor(file), "x", 1) == -1 && errno == EBADF);
    CHECK(willow_ftruncate(file, BYTES + 5000) == 0 && willow_size(file) == BYTES + 5000);
    CHECK(willow_ftruncate(file, BYTES) == 0 && willow_pread(file, got, 10, BYTES) == 0);

    /* A child has nothing of its parent's session. It has the file directly where its parent cannot write it by the kernel. */
    CHECK(willow_take(file) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (willow_pread(file, got, 10, 0) != -1 || errno != ENXIO) _exit(2);
        willow_close(file);
        willow_session *own = willow_session_open(device, arguments[2]);
        willow_file *again = own ? willow_open(own, arguments[3], O_RDONLY, 0) : NULL;
        _exit(again && willow_is_direct(again) && willow_pread(again, got, 100, 0) == 100 && !memcmp(got, model, 100) ? 0 : 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* A descriptor that is handed over; one that is not taken stays the caller's. */
    int pipes[2];
    CHECK(pipe(pipes) == 0 && willow_open_descriptor(session, pipes[0]) == NULL && errno == EINVAL && close(pipes[0]) == 0);
    CHECK(willow_open_descriptor(session, -1) == NULL && errno == EBADF);
    willow_file *reader = willow_open_descriptor(session, open(arguments[3], O_RDONLY));
    CHECK(reader != NULL && willow_pread(reader, got, BYTES, 0) == BYTES && memcmp(got, model, BYTES) == 0);
    CHECK(willow_pwrite(reader, got, 1, 0) == -1 && errno == EBADF);
    CHECK(willow_close(reader) == 0 && willow_close(file) == 0);
    CHECK(willow_close(NULL) == -1 && willow_pread(NULL, got, 1, 0) == -1 && errno == EINVAL);
    willow_session_close(session);

    FILE *plain = fopen(arguments[3], "rb");
    CHECK(plain != NULL && fread(got, 1, BYTES + 100, plain) == BYTES && memcmp(got, model, BYTES) == 0);
    fclose(plain);
    free(got);
    return 0;
}
