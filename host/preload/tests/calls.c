/* Every call that the library stands in front of, on the file that is the argument; prints what each returned, so that runs with and
 * without the library can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 300000 };

static char buffer[BYTES];

static unsigned long sum(const char *bytes, size_t count) {
    unsigned long total = 5381;
    for (size_t at = 0; at < count; at++) total = total * 33 + (unsigned char)bytes[at];
    return total;
}

#define SAY(call)                                                                                               \
    do {                                                                                                        \
        errno = 0;                                                                                              \
        long said = (long)(call);                                                                               \
        printf("%d: %ld errno %d\n", __LINE__, said, said < 0 ? errno : 0);                                     \
    } while (0)

#define READ(call)                                                                                              \
    do {                                                                                                        \
        memset(buffer, 'z', sizeof buffer);                                                                     \
        errno = 0;                                                                                              \
        long said = (long)(call);                                                                               \
        printf("%d: %ld errno %d sum %lx\n", __LINE__, said, said < 0 ? errno : 0, sum(buffer, sizeof buffer)); \
    } while (0)

static char *data(size_t count, unsigned seed) {
    static char made[BYTES];
    for (size_t at = 0; at < count; at++) made[at] = (char)((at * 31 + seed * 7 + at / 253) & 0xff);
    return made;
}

static void child(int fd, const char *path) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        /* The position is the parent's and the child's; what either writes, both see. */
        char part[100];
        int good = read(fd, part, 100) == 100 && pread(fd, part, 100, 5000) == 100;
        good = good && pwrite(fd, data(3000, 77), 3000, 6000) == 3000;
        int own = open(path, O_RDONLY);
        good = good && own >= 0 && pread(own, part, 100, 6000) == 100 && memcmp(part, data(3000, 77), 100) == 0;
        good = good && lseek(fd, 0, SEEK_CUR) == 1100;
        if (!good) _exit(1);
        if (dup2(fd, 0) != 0) _exit(2);
        execlp("head", "head", "-c", "1000", (char *)NULL);
        _exit(3);
    }
    int status;
    SAY(waitpid(pid, &status, 0) == pid ? status : -1);
}

static void *reader(void *argument) {
    int fd = *(int *)argument;
    char part[4096];
    for (int round = 0; round < 200; round++)
        if (pread(fd, part, sizeof part, round * 1000) != (ssize_t)sizeof part) return (void *)1;
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    const char *path = arguments[1];
    volatile int less = -1;
    char *volatile nothing = NULL;
    volatile size_t much = 5000; /* so that the compiler leaves the check to the library */

    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(fd >= 0);
    SAY(write(fd, data(BYTES, 1), BYTES));
    SAY(fsync(fd));
    SAY(close(fd));

    fd = open64(path, O_RDWR);
    for (int round = 0; round < 40; round++) READ(pread(fd, buffer, much + (size_t)round, round * 777));
    READ(pread64(fd, buffer, 10000, BYTES - 5000));
    READ(read(fd, buffer, much));
    READ(read(fd, buffer, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(lseek(fd, -100, SEEK_END));
    READ(read(fd, buffer, much));
    READ(read(fd, buffer, much));
    SAY(lseek(fd, 1000, SEEK_SET));
    SAY(write(fd, data(20000, 2), 20000));
    SAY(pwrite(fd, data(9000, 3), 9000, 100001));
    SAY(pwrite64(fd, data(1, 4), 1, 8191));
    struct iovec parts[3] = {{buffer, 1000}, {buffer + 1000, 0}, {buffer + 5000, 4000}};
    READ(readv(fd, parts, 3));
    READ(preadv(fd, parts, 3, 20000));
    READ(preadv64(fd, parts, 3, BYTES - 2000));
    READ(preadv2(fd, parts, 3, 30000, 0));
    READ(preadv2(fd, parts, 3, -1, 0));
    memcpy(buffer, data(10000, 5), 10000);
    SAY(writev(fd, parts, 3));
    SAY(pwritev(fd, parts, 3, 50000));
    SAY(pwritev64(fd, parts, 3, 60000));
    SAY(pwritev2(fd, parts, 3, 70000, RWF_DSYNC));
    SAY(pwritev2(fd, parts, 3, 0, RWF_APPEND));
    SAY(fdatasync(fd));
    SAY(sync_file_range(fd, 0, 100, SYNC_FILE_RANGE_WRITE));
    SAY(preadv(fd, parts, less, 0));
    SAY(pread(fd, buffer, 10, -5));
    SAY(pread(fd, nothing, 10, 0));
    SAY(lseek(fd, 0, SEEK_CUR));

    /* Duplicates share the position. */
    int twin = dup(fd), third = dup3(fd, 60, O_CLOEXEC), fourth = fcntl(fd, F_DUPFD, 70);
    SAY(third == 60 && fourth >= 70 && dup2(fd, 61) == 61);
    SAY(lseek(twin, 500, SEEK_SET));
    READ(read(third, buffer, 100));
    READ(read(fourth, buffer, 100));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(close(twin) | close(third) | close(fourth) | close(61));
    READ(pread(fd, buffer, 6000, 0));

    /* Growing, cutting, holes. */
    struct stat stat;
    for (int round = 0; round < 30; round++) {
        for (int again = 0; again < 20; again++) SAY(pwrite(fd, data(100, (unsigned)round), 100, round * 1000));
        if (round % 10 == 9) SAY(pwrite(fd, data(7000, 6), 7000, BYTES + round * 3000));
    }
    SAY(fstat(fd, &stat) == 0 ? stat.st_size : -1);
    SAY(ftruncate(fd, BYTES + 50000));
    READ(pread(fd, buffer, BYTES, 60000));
    SAY(pwrite(fd, data(100, 8), 100, BYTES + 40000));
    SAY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 65536));
    READ(pread(fd, buffer, BYTES, 0));
    SAY(pwrite(fd, data(9000, 9), 9000, 20000));
    SAY(posix_fallocate(fd, 0, BYTES + 60000));
    SAY(fchmod(fd, 0640));
    SAY(truncate(path, BYTES));
    SAY(chmod(path, 0600));
    SAY(fstat(fd, &stat) == 0 ? stat.st_size : -1);
    SAY(stat.st_mode);

    /* Access modes and appending. */
    int only = open(path, O_RDONLY), append = openat(AT_FDCWD, path, O_WRONLY | O_APPEND);
    READ(pread(only, buffer, 5000, 5));
    SAY(pwrite(only, buffer, 1, 0));
    SAY(write(append, data(300, 10), 300));
    SAY(lseek(append, 0, SEEK_CUR));
    SAY(read(append, buffer, 1));
    READ(pread(only, buffer, 5000, BYTES - 100));
    SAY(fcntl(fd, F_SETFL, O_APPEND));
    SAY(write(fd, data(50, 11), 50));
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(pwrite(fd, data(50, 12), 50, 7));
    SAY(close(append));

    /* Threads. */
    pthread_t threads[4];
    for (int index = 0; index < 4; index++) pthread_create(&threads[index], NULL, reader, &fd);
    for (int index = 0; index < 4; index++) {
        void *failed;
        pthread_join(threads[index], &failed);
        SAY(failed == NULL);
    }

    /* Forks and programs that inherit the file. */
    SAY(lseek(fd, 1000, SEEK_SET));
    child(fd, path);
    fflush(stdout);
    READ(pread(fd, buffer, 5000, 5500));
    fflush(stdout);
    char command[1000];
    snprintf(command, sizeof command, "tail -c 3000 '%s' | cksum; cksum < '%s'", path, path);
    SAY(system(command));

    /* Streams, sending, copying. */
    char name[1000];
    snprintf(name, sizeof name, "%s.copy", path);
    int copy = creat(name, 0644);
    off_t at = 100;
    SAY(sendfile(copy, only, &at, 5000));
    SAY(at);
    SAY(close(copy));
    FILE *stream = fdopen(dup(only), "r");
    SAY(stream != NULL && fseek(stream, 10, SEEK_SET) == 0);
    READ((long)fread(buffer, 1, 3000, stream));
    SAY(fclose(stream));
    READ(pread(only, buffer, 3000, 10));

    /* Names. */
    char other[1000];
    snprintf(other, sizeof other, "%s.other", path);
    READ(pread(fd, buffer, 3000, 10));
    SAY(link(path, other));
    SAY(unlink(other));
    SAY(rename(path, other));
    for (int round = 0; round < 100; round++) SAY(pwrite(fd, data(10, 3), 10, round));
    SAY(rename(name, path));
    SAY(rename(other, path));
    SAY(open(other, O_RDWR));

    /* Mapped, it is the kernel's. */
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
    SAY(map != MAP_FAILED);
    SAY(pwrite(fd, data(100, 13), 100, 5000));
    SAY(memcmp(map + 904, data(100, 13), 100));
    map[1000] = 'm';
    READ(pread(only, buffer, 10, 5096));
    SAY(munmap(map, 8192));
    SAY(close(only));
    SAY(close_range((unsigned)fd, (unsigned)fd, 0));
    SAY(close(fd));
    return 0;
}
