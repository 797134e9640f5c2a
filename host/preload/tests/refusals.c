/* What the kernel refuses a program: a descriptor past its limit, running a file that is written, writing one that runs, waiting where it was
 * told not to. Each call is made on a file that is direct just then; what each returns is printed, so that runs with and without the
 * library can be compared. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, DESCRIPTORS = 400, DESCRIPTORS_LOW = 300 };

static char path[900], other[1000], run[1000], bytes[BYTES];
static int fd;

/* Reads and writes, by which the file is taken directly. */
static void use(int file) {
    char byte, written;
    if (pread(file, &written, 1, 5) != 1 || pwrite(file, &written, 1, 5) != 1 || pread(file, &byte, 1, 5) != 1 || byte != written)
        printf("it is not used: %s\n", strerror(errno));
}

static void say(int line, long said) { printf("%d: %ld errno %d\n", line, said, said < 0 ? errno : 0); }

#define SAY(call)                      \
    do {                               \
        errno = 0;                     \
        say(__LINE__, (long)(call));   \
    } while (0)

/* Where no number is left. How many there were is not said: some are the library's. */
static void without_descriptors(void) {
    static int filling[DESCRIPTORS];
    struct stat stat;
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    memset(bytes, 'b', sizeof bytes);
    SAY(write(fd, bytes, BYTES));
    SAY(fsync(fd));
    int twin = dup(fd), reader = open(path, O_RDONLY);
    for (int round = 0; round < 3; round++) {
        use(fd);
        int count = 0;
        while (count < DESCRIPTORS && (filling[count] = dup(2)) >= 0) count++;
        SAY(dup(2));
        SAY(count < DESCRIPTORS);
        SAY(open(path, O_RDWR));
        SAY(open(path, O_RDONLY));
        SAY(pwrite(fd, "inside", 6, 50 + round));
        SAY(pwrite(fd, "past the end", 12, BYTES + 100 * round));
        SAY(pwrite(twin, "again", 5, 7));
        SAY(ftruncate(twin, BYTES + 5000 + round));
        SAY(pread(reader, bytes, 100, 0));
        SAY(fsync(fd));
        SAY(fchmod(fd, 0640));
        SAY(rename(path, other));
        SAY(rename(other, path));
        SAY(link(path, other));
        SAY(unlink(other));
        SAY(truncate(path, BYTES));
        SAY(lseek(fd, 10, SEEK_SET));
        SAY(write(twin, "here", 4));
        SAY(lseek(fd, 0, SEEK_CUR));
        SAY(dup2(fd, filling[0]));
        SAY(pwrite(filling[0], "third", 5, 3));
        SAY(close(filling[0]));
        SAY(open(path, O_RDWR | O_APPEND) == filling[0]);
        SAY(write(filling[0], "appended", 8));
        SAY(fstat(fd, &stat));
        SAY(stat.st_size);
        while (count) close(filling[--count]);
    }
    close(twin);
    close(reader);
    close(fd);
}

/* A child that runs a program when it is told to; its end is what came of that. */
static pid_t runs(const char *what, int in, int out, int go) {
    pid_t child = fork();
    if (child) return child;
    char byte;
    if (go >= 0 && read(go, &byte, 1) != 1) _exit(100);
    dup2(in, 0);
    dup2(out, 1);
    /* What is not its own keeps pipes from ending. */
    close_range(3, ~0U, 0);
    execl(what, what, (char *)NULL);
    _exit(errno);
}

static int ended(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -status;
}

/* Programs that are written, and run. */
static void programs(void) {
    static char program[1 << 20];
    int from = open("/bin/cat", O_RDONLY), nothing = open("/dev/null", O_RDWR), early[2], late[2], in[2], out[2];
    ssize_t count = read(from, program, sizeof program);
    close(from);
    if (count < 5000 || count == (ssize_t)sizeof program || pipe(early) || pipe(late)) printf("there is no program\n");
    pid_t first = runs(run, nothing, nothing, early[0]), second = runs(run, nothing, nothing, late[0]);
    fd = open(run, O_RDWR | O_CREAT | O_TRUNC, 0600);
    SAY(write(fd, program, count) == count);
    SAY(fsync(fd));
    for (int round = 0; round < 40; round++) use(fd);
    SAY(fchmod(fd, 0700));
    SAY(write(early[1], "g", 1));
    SAY(ended(first));
    for (int round = 0; round < 40; round++) use(fd);
    SAY(write(late[1], "g", 1));
    SAY(ended(second));
    SAY(close(fd));
    if (pipe(in) || pipe(out)) printf("there are no pipes\n");
    pid_t running = runs(run, in[0], out[1], -1);
    close(in[0]);
    close(out[1]);
    char byte = 0;
    SAY(write(in[1], "x", 1));
    SAY(read(out[0], &byte, 1));
    SAY(byte);
    SAY(open(run, O_RDWR));
    SAY(open(run, O_WRONLY | O_NONBLOCK));
    SAY(open(run, O_RDONLY | O_TRUNC));
    SAY(truncate(run, 10));
    int reader = open(run, O_RDONLY);
    for (int round = 0; round < 40; round++)
        if (pread(reader, bytes, 4000, round * 100) != 4000 || memcmp(bytes, program + round * 100, 4000)) printf("not read\n");
    SAY(open(run, O_RDWR));
    SAY(chmod(run, 0755));
    SAY(close(reader));
    SAY(write(in[1], "y", 1));
    SAY(read(out[0], &byte, 1));
    SAY(byte);
    close(in[1]);
    SAY(ended(running));
    close(out[0]);
    fd = open(run, O_RDWR);
    SAY(fd >= 0);
    for (int round = 0; round < 40; round++) use(fd);
    SAY(close(fd));
    SAY(unlink(run));
    close(nothing);
    for (int end = 0; end < 2; end++) close(early[end]), close(late[end]);
}

/* Descriptors that do not wait. */
static void without_waiting(void) {
    fd = open(path, O_RDWR | O_NONBLOCK);
    for (int round = 0; round < 40; round++) use(fd);
    SAY(fcntl(fd, F_GETFL));
    SAY(pwrite(fd, "grown", 5, BYTES + 20000));
    SAY(read(fd, bytes, 100));
    for (int round = 0; round < 40; round++) use(fd);
    SAY(fcntl(fd, F_SETFL, 0));
    SAY(fcntl(fd, F_GETFL));
    use(fd);
    SAY(fcntl(fd, F_SETFL, O_NONBLOCK));
    SAY(ftruncate(fd, BYTES));
    SAY(fcntl(fd, F_GETFL));
    for (int round = 0; round < 40; round++) use(fd);
    SAY(fcntl(fd, F_GETFL));
    SAY(open(path, O_RDWR | O_NONBLOCK | O_EXCL | O_CREAT, 0600));
    SAY(close(fd));
    /* A lease of the program's own. */
    signal(SIGIO, SIG_IGN);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    for (int round = 0; round < 40; round++) SAY(pread(reader, bytes, 10, round));
    SAY(fcntl(reader, F_SETLEASE, F_RDLCK));
    SAY(fcntl(reader, F_GETLEASE));
    SAY(open(path, O_RDWR | O_NONBLOCK));
    SAY(fcntl(reader, F_SETLEASE, F_UNLCK));
    fd = open(path, O_RDWR | O_NONBLOCK);
    SAY(fd >= 0);
    use(fd);
    SAY(close(fd));
    SAY(close(reader));
}

int main(int count, char **arguments) {
    /* Where a program has ended early, what is said of it is compared. */
    signal(SIGPIPE, SIG_IGN);
    if (count != 2) return 2;
    /* Taken again as soon as it was given back. */
    setenv("WILLOW_PRELOAD_EAGER", "1", 1);
    struct rlimit limit = {DESCRIPTORS_LOW, DESCRIPTORS_LOW};
    if (setrlimit(RLIMIT_NOFILE, &limit)) return 3;
    snprintf(path, sizeof path, "%s", arguments[1]);
    snprintf(other, sizeof other, "%s.other", path);
    snprintf(run, sizeof run, "%s.run", path);
    without_descriptors();
    programs();
    without_waiting();
    return 0;
}
