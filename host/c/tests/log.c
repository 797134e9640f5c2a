/* Threads append records by the drive, each of which comes to lie where its call says. Arguments: device (-: the agent says how it
 * is reached), agent, file, which has a line. Says "appended", and goes on when its input ends. */
#include "libwillow.h"

#include <errno.h>
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

enum { THREADS = 4, RECORDS = 50 };

static willow_log *shared;
static off_t where[THREADS][RECORDS];

static int record(char *into, size_t room, size_t thread, int number) {
    return snprintf(into, room, "record %d of thread %zu, %*d\n", number, thread, 1 + number * 7 % 300, number);
}

static void *one_thread(void *argument) {
    size_t thread = (size_t)argument;
    char text[400];
    for (int number = 0; number < RECORDS; number++) {
        int bytes = record(text, sizeof text, thread, number);
        where[thread][number] = willow_log_append(shared, text, (size_t)bytes);
        CHECK(where[thread][number] > 0);
    }
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 4 && willow_version() == LIBWILLOW_VERSION);
    const char *device = strcmp(arguments[1], "-") ? arguments[1] : NULL;
    willow_session *session = willow_session_open(device, arguments[2]);
    CHECK(session != NULL);
    CHECK(willow_log_open(session, "/nowhere/log") == NULL && errno == ENOENT);
    CHECK(willow_log_open(NULL, arguments[3]) == NULL && errno == EINVAL);
    shared = willow_log_open(session, arguments[3]);
    CHECK(shared != NULL);
    off_t before = willow_log_size(shared), total = before;
    CHECK(willow_log_append(shared, "x", 0) == -1 && errno == EINVAL);
    CHECK(willow_log_append(shared, NULL, 1) == -1 && errno == EFAULT);

    pthread_t threads[THREADS];
    for (size_t thread = 0; thread < THREADS; thread++)
        CHECK(pthread_create(&threads[thread], NULL, one_thread, (void *)thread) == 0);
    char text[400], found[400];
    for (size_t thread = 0; thread < THREADS; thread++) {
        CHECK(pthread_join(threads[thread], NULL) == 0);
        for (int number = 0; number < RECORDS; number++) total += record(text, sizeof text, thread, number);
    }
    CHECK(willow_log_size(shared) == total);
    puts("appended");
    fflush(stdout);
    while (getchar() != EOF) {}

    /* A child has nothing of its parent's. */
    pid_t child = fork();
    if (child == 0) _exit(willow_log_append(shared, "x", 1) == -1 && errno == ENXIO ? 0 : 2);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    CHECK(willow_log_give_back(shared) == 0);
    FILE *file = fopen(arguments[3], "rb");
    CHECK(file != NULL);
    for (size_t thread = 0; thread < THREADS; thread++) {
        for (int number = 0; number < RECORDS; number++) {
            size_t bytes = (size_t)record(text, sizeof text, thread, number);
            CHECK(where[thread][number] >= before && fseeko(file, where[thread][number], SEEK_SET) == 0);
            CHECK(fread(found, 1, bytes, file) == bytes && memcmp(found, text, bytes) == 0);
        }
    }
    fclose(file);
    CHECK(willow_log_append(shared, "the end\n", 8) == total);
    CHECK(willow_log_close(shared) == 0 && willow_log_close(NULL) == -1 && errno == EINVAL);
    willow_session_close(session);
    return 0;
}
