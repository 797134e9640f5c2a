/* A log that is made durable record by record (the argument), and everything else that a program may do with its descriptor meanwhile; prints
 * what each call returned, so that runs with and without the library can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char path[900], large[100000];
static const char *volatile nowhere = (char *)8;
static int fd, number;

/* Whether a descriptor is a mere path, as those are of files to which the device appends. */
static int is_path(int descriptor) {
    char name[64], line[200];
    int flags = 0;
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", descriptor);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "flags: %o", (unsigned *)&flags);
    if (file) fclose(file);
    return (flags & O_PATH) != 0;
}

static void record(int descriptor) {
    char text[100];
    int bytes = snprintf(text, sizeof text, "record %d %*s\n", number, 1 + number % 60, "end");
    number++;
    if (write(descriptor, text, bytes) != bytes) printf("%d: a record is not written: errno %d\n", number, errno);
}

/* Records, each made durable. With the library the device appends the last of them; the number of records is the same in any run. */
static void logged(int descriptor) {
    for (int count = 0; count < 6; count++) {
        record(descriptor);
        if (fdatasync(descriptor)) printf("it is not durable: errno %d\n", errno);
    }
    int appends = fcntl(descriptor, F_GETFL) & O_APPEND;
    if (getenv("WILLOW_DIRECT") && appends && !is_path(descriptor)) printf("%d: the device does not append\n", number);
}

#define SAY(call)                                                           \
    do {                                                                    \
        logged(fd);                                                         \
        errno = 0;                                                          \
        long said = (long)(call);                                           \
        printf("%d: %ld errno %d\n", __LINE__, said, said < 0 ? errno : 0); \
    } while (0)

static long size_of(int failed, struct stat *found) { return failed ? -1 : (long)found->st_size; }

/* What is asked of it. */
static void asked(void) {
    struct stat found;
    struct statx more;
    struct statfs system;
    struct pollfd one = {.events = POLLIN | POLLOUT};
    struct timespec none = {0};
    struct timeval soon = {0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;
    int poller = epoll_create1(EPOLL_CLOEXEC);
    char text[20];
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(size_of(fstat(fd, &found), &found));
    SAY(size_of(stat(path, &found), &found));
    SAY(size_of(lstat(path, &found), &found));
    SAY(size_of(fstatat(AT_FDCWD, path, &found, 0), &found));
    SAY(size_of(fstatat(fd, "", &found, AT_EMPTY_PATH), &found));
    /* No folder is looked at for a path from the root on. */
    SAY(*path != '/' || size_of(fstatat(-1, path, &found, 0), &found));
    SAY(size_of(fstatat(-1, "/", &found, 0), &found) >= 0);
    SAY(statx(AT_FDCWD, path, 0, STATX_SIZE, &more) ? -1 : (long)more.stx_size);
    SAY(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &more) ? -1 : (long)more.stx_size);
    SAY(syscall(SYS_fstat, fd, &found) ? -1 : (long)found.st_size);
    SAY(syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0) ? -1 : (long)found.st_size);
    SAY(syscall(SYS_lseek, fd, 0, SEEK_CUR));
    SAY(fstatfs(fd, &system));
    one.fd = fd;
    SAY(poll(&one, 1, 0) * 100 + one.revents);
    SAY(ppoll(&one, 1, &none, NULL) * 100 + one.revents);
    SAY(syscall(SYS_ppoll, &one, 1, &none, NULL, 0) * 100 + one.revents);
    FD_ZERO(&set);
    FD_SET(fd, &set);
    SAY(select(fd + 1, &set, NULL, NULL, &soon));
    FD_ZERO(&set);
    FD_SET(fd, &set);
    SAY(pselect(fd + 1, NULL, &set, NULL, &none, NULL));
    SAY(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    SAY(posix_fadvise64(fd, 0, 0, POSIX_FADV_NORMAL));
    SAY(readahead(fd, 0, 4096));
    SAY(fgetxattr(fd, "user.none", text, sizeof text));
    SAY(flistxattr(fd, text, sizeof text));
    SAY(syncfs(fd));
    SAY(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(fcntl(fd, F_GETFD));
    close(poller);
}

/* What is done with it. */
static void changed(void) {
    struct iovec parts[] = {{"one", 3}, {" two", 4}, {"\n", 1}};
    char text[50] = "";
    SAY(pread(fd, text, 20, 0));
    SAY(text[5]);
    SAY(lseek(fd, 3, SEEK_SET));
    SAY(pwrite(fd, "at its end\n", 11, 0));
    SAY(writev(fd, parts, 3));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(write(fd, "", 0));
    SAY(write(fd, large, sizeof large));
    SAY(write(fd, nowhere, 100));
    SAY(syscall(SYS_write, fd, "by number\n", 10));
    SAY(ftruncate(fd, 5000));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(0);
    SAY(fcntl(fd, F_SETFL, O_APPEND));
    SAY(fsync(fd));
    SAY(syscall(SYS_fdatasync, fd));
    SAY(fchmod(fd, 0640));
    SAY(fsetxattr(fd, "user.some", "it", 2, 0));
    SAY(fremovexattr(fd, "user.some"));
}

/* By several descriptors, and several processes. */
static void shared(void) {
    int other = dup(fd), third = open(path, O_RDONLY), log = open(path, O_WRONLY | O_APPEND | O_DSYNC);
    struct stat found;
    char text[30];
    record(other), record(fd), record(log), record(other);
    printf("duplicated: %ld %ld\n", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(other, 0, SEEK_CUR));
    printf("read: %ld %.6s\n", (long)read(third, text, sizeof text), text);
    close(third);
    close(other);
    logged(fd);
    logged(log);
    printf("two: %ld %ld %ld\n", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(log, 0, SEEK_CUR), size_of(fstat(log, &found), &found));
    logged(log);
    close(log);
    logged(fd);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        record(fd);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    number++;
    record(fd);
    printf("forked: %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    /* What a child has had stays with the kernel. */
    close(fd);
    fd = open(path, O_RDWR | O_APPEND);
    logged(fd);
    if (dup2(fd, 77) != 77) printf("no 77\n");
    record(77), fdatasync(77);
    close(77);
    SAY(lseek(fd, 0, SEEK_CUR));
}

static void limited(void) {
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    logged(fd);
    limit.rlim_cur = lseek(fd, 0, SEEK_END) + 10;
    setrlimit(RLIMIT_FSIZE, &limit);
    long first = write(fd, "past the limit\n", 15), second = write(fd, "past the limit\n", 15);
    printf("limited: %ld, then %ld errno %d\n", first, second, errno);
    setrlimit(RLIMIT_FSIZE, &before);
    SAY(lseek(fd, 0, SEEK_CUR));
}

/* Appends what comes, and says so when it is durable. */
static int follow(void) {
    char bytes[500];
    long count;
    fd = open(path, O_WRONLY | O_APPEND | O_DSYNC);
    while ((count = read(0, bytes, sizeof bytes)) > 0) {
        if (write(fd, bytes, count) != count || write(1, "ok\n", 3) != 3) return 4;
    }
    return close(fd);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    /* Taken again as soon as it was given back. */
    setenv("WILLOW_PRELOAD_EAGER", "1", 1);
    snprintf(path, sizeof path, "%s", arguments[1]);
    if (count == 3) return follow();
    memset(large, 'l', sizeof large);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    if (fd < 0) return 3;
    asked();
    changed();
    shared();
    limited();
    /* By no other descriptor than one that only writes. */
    close(fd);
    fd = open(path, O_WRONLY | O_APPEND | O_DSYNC);
    SAY(write(fd, "the end\n", 8));
    SAY(lseek(fd, 0, SEEK_CUR));
    return close(fd);
}
