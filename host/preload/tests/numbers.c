/* Calls by their numbers, past the C library's functions, each on a file that is direct just then (the argument); prints what each returned,
 * so that runs with and without the library can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BYTES = 100000 };

static char path[900], other[1000], third[1000], bytes[BYTES];
static int fd;

/* Reads and writes, by which the file is taken directly. */
static void use(void) {
    char byte;
    if (pwrite(fd, "x", 1, 5) != 1 || pread(fd, &byte, 1, 5) != 1 || byte != 'x') printf("it is not used\n");
}

#define SAY(call)                                                                \
    do {                                                                         \
        use();                                                                   \
        errno = 0;                                                               \
        long said = (long)(call);                                                \
        printf("%d: %ld errno %d\n", __LINE__, said, said < 0 ? errno : 0);      \
    } while (0)

/* Not every file system has them; none that has refuses them so. */
#define SAY_ATTRIBUTE(call) SAY((call) < 0 && errno == EPERM)

int main(int count, char **arguments) {
    if (count != 2) return 2;
    /* Taken again as soon as it was given back. */
    setenv("WILLOW_PRELOAD_EAGER", "1", 1);
    snprintf(path, sizeof path, "%s", arguments[1]);
    snprintf(other, sizeof other, "%s.other", path);
    snprintf(third, sizeof third, "%s.third", path);
    memset(bytes, 'b', sizeof bytes);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, bytes, BYTES) != BYTES || fsync(fd)) return 3;
    struct timespec times[2] = {{1000, 0}, {2000, 0}};

    /* Of a descriptor. */
    SAY(futimens(fd, times));
    SAY(syscall(SYS_utimensat, fd, NULL, times, 0));
    SAY(syscall(SYS_fchmod, fd, 0640));
    SAY(syscall(SYS_fchown, fd, -1, -1));
    SAY_ATTRIBUTE(syscall(SYS_fsetxattr, fd, "user.willow", "one", 3, 0));
    SAY_ATTRIBUTE(syscall(SYS_fremovexattr, fd, "user.willow"));
    SAY(fchownat(fd, "", -1, -1, AT_EMPTY_PATH));
    SAY(syscall(SYS_ftruncate, fd, BYTES - 1000));

    /* Of a path. */
    SAY(syscall(SYS_truncate, path, BYTES - 2000));
    SAY(syscall(SYS_utimensat, AT_FDCWD, path, times, 0));
    SAY(syscall(SYS_fchmodat, AT_FDCWD, path, 0600));
    SAY(syscall(SYS_fchownat, AT_FDCWD, path, -1, -1, 0));
    SAY_ATTRIBUTE(syscall(SYS_setxattr, path, "user.willow", "two", 3, 0));
    SAY_ATTRIBUTE(syscall(SYS_removexattr, path, "user.willow"));
    SAY(syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, other, 0));
    SAY(syscall(SYS_unlinkat, AT_FDCWD, other, 0));
    SAY(syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, other, RENAME_NOREPLACE));
    SAY(syscall(SYS_renameat2, AT_FDCWD, other, AT_FDCWD, path, 0));
#ifdef __x86_64__
    SAY(syscall(SYS_chmod, path, 0644));
    SAY(syscall(SYS_chown, path, -1, -1));
    SAY(syscall(SYS_link, path, other));
    SAY(syscall(SYS_unlink, other));
    SAY(syscall(SYS_rename, path, other));
    SAY(syscall(SYS_rename, other, path));
    SAY(syscall(SYS_utimes, path, NULL));
#endif
    /* By a link, and by a name that does not wait. */
    SAY(symlink(path, third));
    int again = open(third, O_WRONLY | O_NONBLOCK);
    SAY(again >= 0);
    SAY(close(again));
    SAY(unlink(third));

    /* One that is direct renamed over another that is. */
    int second = open(other, O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(write(second, bytes, BYTES) == BYTES && fsync(second) == 0);
    SAY(pwrite(second, "y", 1, 7) == 1 && pread(second, bytes, 10, 0) == 10);
    SAY(rename(other, path));
    SAY(pread(second, bytes, 20, 0) == 20 && bytes[7] == 'y');
    /* Nobody has a name for it any more. */
    SAY(ftruncate(fd, 50000));
    SAY(close(fd) | close(second));
    return 0;
}
