/* Calls that the C library makes of its own accord, questions about a file, and requests of file systems, each on a file that is direct just
 * then (the argument); prints what each returned, so that runs with and without the library can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, TRIES = 3000 };

/* The kernel's, which no header of its has. */
struct space {
    int16_t type, whence;
    int64_t start, bytes;
    int32_t system;
    uint32_t process;
    int32_t reserved[4];
};
#define RESERVE _IOW('X', 40, struct space)
#define UNRESERVE _IOW('X', 41, struct space)
#define RESERVE_64 _IOW('X', 42, struct space)
#define UNRESERVE_64 _IOW('X', 43, struct space)
#define ZERO _IOW('X', 57, struct space)

static char path[900], name[100], bytes[BYTES];
static int fd;

/* Whether it has to be direct: it is run with the library. */
static int is_direct(void) {
    int flags = 0;
    return !getenv("WILLOW_DIRECT") || (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_IMMUTABLE_FL);
}

/* Reads and writes, by which the file is taken directly: now, or when nobody else asks for it any more. */
static void use(void) {
    char byte;
    for (int tries = 0; tries < TRIES; tries++) {
        if (pwrite(fd, "x", 1, 5) != 1 || pread(fd, &byte, 1, 5) != 1 || byte != 'x') printf("it is not used\n");
        if (is_direct()) return;
        usleep(10000);
    }
    printf("it is not direct\n");
}

/* Every block written, so that none keeps the file from being direct. */
static void whole(void) {
    if (pwrite(fd, bytes, BYTES, 0) != BYTES || fsync(fd)) printf("it is not written\n");
}

#define SAY(call)                                                           \
    do {                                                                    \
        use();                                                              \
        errno = 0;                                                          \
        long said = (long)(call);                                           \
        printf("%d: %ld errno %d\n", __LINE__, said, said < 0 ? errno : 0); \
    } while (0)

#define SAY_ONCE(call) printf("%d: %ld\n", __LINE__, (long)(call))

static int print(const char *format, ...) {
    va_list all;
    va_start(all, format);
    int said = vdprintf(fd, format, all);
    va_end(all);
    return said;
}

/* Whether a file may be read, written and run. */
static void questions(void) {
    int modes[] = {F_OK, R_OK, W_OK, R_OK | W_OK, X_OK};
    for (size_t at = 0; at < sizeof modes / sizeof *modes; at++) {
        int mode = modes[at];
        SAY(access(path, mode));
        SAY(eaccess(path, mode));
        SAY(euidaccess(path, mode));
        SAY(faccessat(AT_FDCWD, name, mode, 0));
        SAY(faccessat(AT_FDCWD, path, mode, AT_EACCESS));
        SAY(faccessat(fd, "", mode, AT_EMPTY_PATH));
        SAY(syscall(SYS_faccessat, AT_FDCWD, path, mode));
        SAY(syscall(SYS_faccessat2, AT_FDCWD, path, mode, AT_EACCESS));
#ifdef SYS_access
        SAY(syscall(SYS_access, path, mode));
#endif
    }
    SAY(access("nothing", W_OK));
}

/* What the C library writes to a descriptor by itself. */
static void printed(void) {
    SAY(lseek(fd, 1000, SEEK_SET));
    SAY(dprintf(fd, "%s %d\n", "printed", 7));
    SAY(dprintf(fd, "nothing else"));
    SAY(dprintf(fd, "%d %g %ld %g %s %d %g %d %g %c %g %g %g %g %g %d\n", 1, 2.5, 3L, 4.5, "five", 6, 7.5, 8, 9.5, 'x', 1.5, 2.25, 3.5, 4.75,
                5.5, 16));
    SAY(print("%s %d\n", "printed again", 8));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(lseek(fd, BYTES - 5, SEEK_SET));
    SAY(dprintf(fd, "%s\n", "past the end"));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(ftruncate(fd, BYTES));
}

/* Requests of file systems: those that change something, and some that only tell. */
static void requests(void) {
    struct space space = {.whence = SEEK_SET, .start = 8192, .bytes = 8192};
    int flags = 0;
    SAY(ioctl(fd, RESERVE, &space));
    whole();
    SAY(ioctl(fd, ZERO, &space));
    whole();
    SAY(ioctl(fd, UNRESERVE_64, &space));
    whole();
    SAY(ioctl(fd, RESERVE_64, &space));
    whole();
    SAY(ioctl(fd, UNRESERVE, &space));
    whole();
    SAY(syscall(SYS_ioctl, fd, ZERO, &space));
    whole();
    SAY(ioctl(fd, FIONREAD, &flags) | flags);
    SAY(lchmod(path, 0640));
}

/* What a stream of the C library's own writes where a descriptor of the file has its number; the results of what wrote it. */
static void standard(int number, FILE *stream) {
    int saved = dup(number), own = open(path, O_RDWR);
    SAY(lseek(own, 2000, SEEK_SET));
    use();
    fflush(stdout);
    dup2(own, number);
    int first = write(number, "by its number, ", 15) == 15, second = fprintf(stream, "by its stream, ") > 0 && fflush(stream) == 0;
    int third = write(number, "again, ", 7) == 7, fourth = fprintf(stream, "and again\n") > 0 && fflush(stream) == 0;
    dup2(saved, number);
    printf("by %d: %d %d %d %d to %ld\n", number, first, second, third, fourth, (long)lseek(own, 0, SEEK_CUR));
    close(saved);
    /* Nobody has the stream's file any more. */
    if (close(own)) printf("it is not closed\n");
    use();
}

static void say_end(const char *what, pid_t child) {
    int status = 0;
    pid_t ended = waitpid(child, &status, 0);
    printf("%s: %d %d\n", what, ended == child, status);
}

/* The file once more, with a descriptor that nobody else has. */
static void anew(void) {
    if (close(fd) || (fd = open(path, O_RDWR)) < 0) printf("it is not opened\n");
    use();
}

static int in_child(void *number) { return pwrite(*(int *)number, "by a child", 10, 3000) == 10 ? 7 : 8; }

/* Children that share the descriptor, made otherwise than by fork. */
static void children(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    use();
    pid_t child = vfork();
    if (child == 0) _exit(in_child(&fd));
    say_end("vfork", child);
    SAY_ONCE(write(fd, "after it", 8));
    anew();
    child = clone(in_child, stack + sizeof stack, SIGCHLD, &fd);
    say_end("clone", child);
    SAY_ONCE(write(fd, "after it", 8));
    anew();
}

/* Memory that was there, and is not any more. */
static void memory(void) {
    int id = shmget(IPC_PRIVATE, 8192, 0600);
    char *shared = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    SAY(pread(fd, shared, 8192, 0));
    SAY(pwrite(fd, shared, 100, 8192));
    SAY(shmdt(shared));
    SAY(pread(fd, shared, 8192, 0));
    SAY(pwrite(fd, shared, 100, 8192));
}

/* This program as another one, by the call's number: in a child, which has another file directly, and hands that on. */
static void executed(const char *this) {
    char number[20];
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        strcat(path, ".other");
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        whole();
        use();
        snprintf(number, sizeof number, "%d", fd);
        char *const arguments[] = {(char *)this, "child", number, NULL};
        fflush(stdout);
        syscall(SYS_execve, this, arguments, environ);
        _exit(91);
    }
    say_end("executed", child);
}

/* The program that was executed writes by what it has inherited. */
static int as_child(int own) {
    int flags = fcntl(own, F_GETFL) & O_ACCMODE;
    long wrote = pwrite(own, "inherited", 9, 50);
    printf("executed: %d %ld\n", flags == O_RDWR, wrote);
    fflush(stdout);
    syscall(SYS_exit_group, 0);
    return 2;
}

int main(int count, char **arguments) {
    if (count == 3) return as_child(atoi(arguments[2]));
    if (count != 2) return 2;
    /* Taken again as soon as it was given back. */
    setenv("WILLOW_PRELOAD_EAGER", "1", 1);
    snprintf(path, sizeof path, "%s", arguments[1]);
    snprintf(name, sizeof name, "%s", strrchr(path, '/') + 1);
    *strrchr(arguments[1], '/') = 0;
    if (chdir(arguments[1])) return 3;
    memset(bytes, 'b', sizeof bytes);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, bytes, BYTES) != BYTES || fsync(fd)) return 4;
    questions();
    printed();
    requests();
    for (int round = 0; round < 3; round++) {
        standard(2, stderr);
        standard(1, stdout);
    }
    memory();
    children();
    executed(arguments[0]);
    return close(fd);
}
