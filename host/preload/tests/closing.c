/* Closes what it does not know, as daemons do, and goes on with its file: numbers of descriptors and bytes are the same with the library. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char buffer[6000];

static void use(const char *when, const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    printf("%s: descriptor %d\n", when, fd);
    for (int round = 0; round < 200; round++) {
        memset(buffer, 'a' + round % 26, sizeof buffer);
        if (pwrite(fd, buffer, sizeof buffer, (round % 7) * 5000) != (ssize_t)sizeof buffer) printf("not written: %s\n", strerror(errno));
        if (pread(fd, buffer, 100, (round % 7) * 5000) != 100 || buffer[50] != 'a' + round % 26) printf("not read: %s\n", strerror(errno));
    }
    int other = open("/dev/null", O_RDONLY);
    printf("%s: the next one %d\n", when, other);
    close(other);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    char *path = arguments[1];
    use("at first", path);
    closefrom(3);
    use("after closefrom", path);
    printf("%d\n", close_range(3, ~0U, 0));
    use("after close_range", path);
    for (int fd = 3; fd < 5000; fd++) close(fd);
    use("after many times close", path);
    printf("%d\n", close_range(4, 4000, 0));
    printf("%d\n", close(3));
    int closed = close(4000);
    printf("%d %d\n", closed, errno == EBADF);
    return 0;
}
