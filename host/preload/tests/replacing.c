/* Threads write a file (the argument) by a descriptor for as long as another thread puts other files under it (dup2, dup3): first the same
 * file opened once more, then another one. Prints what was lost, and what failed. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, RECORDS = 200, BYTES = 256, MOVING = 100, TURNS = 100 };

static char path[900], other[1000];
static int fd;
static atomic_int replaced, failed;

static void fail(const char *what) {
    atomic_fetch_add(&failed, 1);
    printf("%s: %s\n", what, strerror(errno));
}

static void *write_records(void *number) {
    long thread = (long)number;
    char record[BYTES], read[BYTES];
    for (long turn = 0; turn < RECORDS || !atomic_load(&replaced); turn++) {
        long index = turn % RECORDS;
        memset(record, 'a' + (index + thread) % 26, sizeof record);
        if (pwrite(fd, record, BYTES, (thread * RECORDS + index) * BYTES) != BYTES) fail("pwrite");
        if (pread(fd, read, BYTES, 0) != BYTES) fail("pread");
        if (index % 16 == 0 && fsync(fd)) fail("fsync");
        if (index % 50 == 0 && ftruncate(fd, THREADS * RECORDS * BYTES + MOVING)) fail("ftruncate");
    }
    return NULL;
}

/* Bytes that are in neither of the files. */
static long lost(int one, int two) {
    char record[BYTES], twin[BYTES], expected[BYTES];
    long count = 0;
    for (long at = 0; at < THREADS * RECORDS; at++) {
        memset(expected, 'a' + (at % RECORDS + at / RECORDS) % 26, sizeof expected);
        if (pread(one, record, BYTES, at * BYTES) != BYTES || pread(two, twin, BYTES, at * BYTES) != BYTES) return -1;
        count += memcmp(record, expected, BYTES) && memcmp(twin, expected, BYTES);
    }
    return count;
}

static int opened(const char *name) {
    static char zeroes[THREADS * RECORDS * BYTES + MOVING];
    int opened = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (write(opened, zeroes, sizeof zeroes) != (ssize_t)sizeof zeroes || fsync(opened)) fail("prepared");
    return opened;
}

static void round_of(const char *name, int same) {
    pthread_t threads[THREADS];
    fd = opened(path);
    int mine = dup(fd), with = same ? open(path, O_RDWR) : opened(other);
    atomic_store(&replaced, 0);
    for (long thread = 0; thread < THREADS; thread++) pthread_create(&threads[thread], NULL, write_records, (void *)thread);
    for (long turn = 0; turn < TURNS; turn++) {
        int from = turn % 2 ? mine : with;
        if ((turn % 3 ? dup2(from, fd) : dup3(from, fd, O_CLOEXEC)) != fd) fail("dup2");
    }
    atomic_store(&replaced, 1);
    for (int thread = 0; thread < THREADS; thread++) pthread_join(threads[thread], NULL);
    if (dup2(-1, fd) != -1 || errno != EBADF || dup3(mine, fd, O_APPEND) != -1 || errno != EINVAL || pwrite(fd, "z", 1, THREADS * RECORDS * BYTES) != 1)
        fail("it is what it was");
    printf("%s: %ld records lost, %d calls failed\n", name, lost(mine, with), atomic_load(&failed));
    close(mine);
    close(with);
    close(fd);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    /* Taken again as soon as it was given back. */
    setenv("WILLOW_PRELOAD_EAGER", "1", 1);
    snprintf(path, sizeof path, "%s", arguments[1]);
    snprintf(other, sizeof other, "%s.other", path);
    round_of("the same file", 1);
    round_of("another file", 0);
    unlink(other);
    return 0;
}
