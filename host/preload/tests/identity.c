/* A program that changes who it is, where it is or what it may do while it has a file open (the first argument), in the way that the second one
 * names; with a third one by the call's number. Prints what each call returned, so that runs with and without the library can be compared;
 * to its standard error, whether the file was direct just before. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, USER = 54945, LANDLOCK_WRITE = 2 };

static char path[900], root[1000], bytes[BYTES];
static int fd, by_number;
static pthread_barrier_t barrier;

static void say(int line, long said) {
    printf("%d: %ld errno %d\n", line, said, said < 0 ? errno : 0);
    fflush(stdout);
}

#define SAY(call)                    \
    do {                             \
        errno = 0;                   \
        say(__LINE__, (long)(call)); \
    } while (0)
#define CALL(name, ...) (by_number ? syscall(SYS_##name, __VA_ARGS__) : name(__VA_ARGS__))

/* Reads and writes, by which the file is taken directly. */
static void use(void) {
    char byte;
    int flags = 0;
    for (int round = 0; round < 20; round++)
        if (pwrite(fd, "used", 4, 4096 * round) != 4 || pread(fd, &byte, 1, 4096 * round) != 1 || byte != 'u')
            printf("it is not used: %s\n", strerror(errno));
    ioctl(fd, FS_IOC_GETFLAGS, &flags);
    fprintf(stderr, flags & FS_IMMUTABLE_FL ? "direct\n" : "not direct\n");
}

/* What a program does with a file that it has. */
static void go_on(void) {
    for (int round = 0; round < 50; round++)
        if (pwrite(fd, "gone on", 7, 1000 * round) != 7) SAY(-1);
    SAY(ftruncate(fd, BYTES + 5000));
    SAY(pwrite(fd, "grown", 5, BYTES + 4000));
    SAY(pwrite(fd, "past", 4, BYTES + 6000));
    SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4096));
    SAY(pread(fd, bytes, 100, 50));
    SAY(lseek(fd, 70, SEEK_SET));
    SAY(write(fd, "here", 4));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(fchmod(fd, 0640));
    SAY(fsync(fd));
    int twin = dup(fd);
    SAY(twin < 0);
    SAY(pwrite(twin < 0 ? fd : twin, "twin", 4, 3));
    SAY(close(twin));
    int again = open(path, O_RDWR);
    SAY(again < 0);
    SAY(pwrite(again, "again", 5, 333));
    SAY(close(again));
    int child = fork();
    if (!child) {
        SAY(pwrite(fd, "child", 5, 777));
        _exit(0);
    }
    SAY(waitpid(child, NULL, 0) == child);
    SAY(pwrite(fd, "parent", 6, 888));
    SAY(ftruncate(fd, BYTES));
    SAY(close(fd));
}

static void users(const char *how) {
    if (!strcmp(how, "setuid")) SAY(CALL(setuid, USER));
    if (!strcmp(how, "setgid")) SAY(CALL(setgid, USER));
    if (!strcmp(how, "setreuid")) SAY(CALL(setreuid, -1, USER));
    if (!strcmp(how, "setregid")) SAY(CALL(setregid, -1, USER));
    if (!strcmp(how, "setfsuid")) SAY(CALL(setfsuid, USER));
    if (!strcmp(how, "setfsgid")) SAY(CALL(setfsgid, USER));
    if (!strcmp(how, "setgroups")) SAY(CALL(setgroups, 0, NULL));
    if (!strcmp(how, "initgroups")) SAY(initgroups("nobody", USER));
    if (!strcmp(how, "seteuid")) {
        for (int round = 0; round < 5; round++) {
            SAY(seteuid(USER));
            SAY(pwrite(fd, "user", 4, 10 + round));
            SAY(ftruncate(fd, BYTES + round));
            SAY(seteuid(0));
            SAY(pwrite(fd, "root", 4, 20 + round));
        }
        SAY(seteuid(USER));
    }
    if (!strcmp(how, "setegid")) SAY(setegid(USER));
    if (!strcmp(how, "daemon")) {
        SAY(CALL(setgroups, 0, NULL));
        SAY(CALL(setresgid, USER, USER, USER));
        SAY(CALL(setresuid, USER, USER, USER));
    }
    if (!strcmp(how, "capset")) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {0};
        extern int capset(cap_user_header_t, const cap_user_data_t);
        SAY(CALL(capset, &header, none));
    }
}

/* Something else is at /proc: nothing, or what looks like it. */
static void cover(int is_fake) {
    char name[40];
    SAY(mount("none", "/proc", "tmpfs", 0, NULL));
    if (!is_fake) return;
    SAY(mkdir("/proc/self", 0755) | mkdir("/proc/self/fd", 0755));
    for (int number = 0; number < 4096; number++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", number);
        if (mknod(name, number % 2 ? S_IFREG | 0644 : S_IFIFO | 0644, 0)) printf("no %s\n", name);
    }
}

static void places(const char *how) {
    if (!strcmp(how, "chroot")) SAY(CALL(chroot, root) | chdir("/"));
    if (!strcmp(how, "userns")) SAY(CALL(unshare, CLONE_NEWUSER));
    if (!strcmp(how, "mountns")) {
        SAY(CALL(unshare, CLONE_NEWNS));
        SAY(umount2("/proc", MNT_DETACH));
    }
    if (!strcmp(how, "setns")) {
        int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
        SAY(CALL(setns, own, CLONE_NEWNS));
        SAY(close(own));
    }
    /* In mounts of its own, by who starts it. */
    if (!strcmp(how, "covered") || !strcmp(how, "imitated")) cover(!strcmp(how, "imitated"));
    if (!strcmp(how, "pivot_root")) {
        extern int pivot_root(const char *, const char *);
        SAY(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        SAY(mount("none", root, "tmpfs", 0, NULL));
        SAY(CALL(pivot_root, root, root));
        SAY(chdir("/"));
    }
    if (!strcmp(how, "landlock")) {
        unsigned long handled = LANDLOCK_WRITE;
        int rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
        SAY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        SAY(syscall(SYS_landlock_restrict_self, rules, 0));
        SAY(close(rules));
    }
}

/* From here on it may read, write and end, and nothing else. */
static void sandbox(void) {
    static const char said[] = "in the sandbox\n";
    long done = by_number ? syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) : prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    for (int round = 0; round < 50; round++)
        if (done || write(fd, bytes, 300) != 300) syscall(SYS_exit, 9);
    if (read(fd, bytes, 100) != 100 || write(1, said, sizeof said - 1) < 0) syscall(SYS_exit, 8);
    syscall(SYS_exit, 0);
}

static void limit(rlim_t to) {
    struct rlimit limit = {to, to};
    if (by_number)
        SAY(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, NULL));
    else
        SAY(setrlimit(RLIMIT_NOFILE, &limit));
}

/* A process that was there before the file was opened, and sets this one's limit when it is told to. */
static int ask[2], told[2];

static void other_process(void) {
    struct rlimit limit;
    char byte;
    if (pipe(ask) || pipe(told)) printf("no pipes\n");
    int other = fork();
    if (other) return;
    if (read(ask[0], &byte, 1) != 1 || getrlimit(RLIMIT_NOFILE, &limit)) _exit(1);
    /* The file's own number is past it. */
    limit.rlim_cur = told[1] + 1;
    byte = prlimit(getppid(), RLIMIT_NOFILE, &limit, NULL) ? 'n' : 'y';
    _exit(write(told[1], &byte, 1) != 1);
}

static void be_limited(void) {
    char said = 0;
    if (write(ask[1], "x", 1) != 1 || read(told[0], &said, 1) != 1) printf("no other process\n");
    SAY(said == 'y');
}

/* A thread that has descriptors of its own, and one that changes the file meanwhile. */
static void *apart(void *how) {
    if (!strcmp(how, "close_range")) {
        SAY(CALL(close_range, 3, ~0U, CLOSE_RANGE_UNSHARE));
        SAY(pwrite(fd, "closed", 6, 0));
    } else {
        SAY(CALL(unshare, CLONE_FILES));
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    if (strcmp(how, "close_range"))
        for (int round = 0; round < 3; round++) SAY(pwrite(fd, "apart", 5, 4096 + round));
    int other = open(path, O_RDWR);
    SAY(pwrite(other, "another", 7, 5000));
    SAY(ftruncate(other, BYTES + 3));
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void threads(char *how) {
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    if (pthread_create(&thread, NULL, apart, how)) printf("no thread\n");
    pthread_barrier_wait(&barrier);
    SAY(pwrite(fd, "together", 8, 8192));
    SAY(ftruncate(fd, BYTES + 200000));
    SAY(pwrite(fd, "end", 3, BYTES + 199997));
    for (int round = 0; round < 50; round++)
        if (pwrite(fd, "once more", 9, 9000) != 9) SAY(-1);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

/* A child with memory of its own and this process' descriptors. */
static void child(void) {
    int child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (!child) {
        SAY(pwrite(fd, "by the child", 12, 4096));
        SAY(ftruncate(fd, BYTES + 77));
        int other = open(path, O_RDWR);
        SAY(other);
        SAY(pwrite(other, "opened by it", 12, 5000));
        syscall(SYS_exit_group, 0);
    }
    SAY(waitpid(child, NULL, 0) == child);
    SAY(pwrite(fd + 1, "by the parent", 13, 6000));
    SAY(close(fd + 1));
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    char *how = arguments[2];
    by_number = count > 3;
    snprintf(path, sizeof path, "%s", arguments[1]);
    snprintf(root, sizeof root, "%s.root", path);
    mkdir(root, 0755);
    memset(bytes, 'b', sizeof bytes);
    if (!strcmp(how, "limit by another")) other_process();
    fd = open(path, O_RDWR | O_CREAT, 0644);
    if (write(fd, bytes, BYTES) != BYTES || fsync(fd) || lseek(fd, 0, SEEK_SET)) return 3;
    use();
    if (!strcmp(how, "sandbox")) sandbox();
    if (!strcmp(how, "no descriptors")) limit(0);
    if (!strcmp(how, "no more descriptors")) limit(fd + 1);
    if (!strcmp(how, "limit by another")) be_limited();
    if (!strcmp(how, "unshare") || !strcmp(how, "close_range")) threads(how);
    if (!strcmp(how, "clone")) child();
    users(how);
    places(how);
    go_on();
    return 0;
}
