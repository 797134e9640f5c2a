/* Writes a file (the argument), maps it when it is told to, and says what it has in the mapping when it is told once more. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char bytes[100000];

int main(int count, char **arguments) {
    if (count != 2) return 2;
    int fd = open(arguments[1], O_RDWR | O_CREAT, 0644);
    if (write(fd, bytes, sizeof bytes) != (ssize_t)sizeof bytes || fsync(fd)) return 3;
    for (int round = 0; round < 200; round++)
        if (pwrite(fd, "direct", 6, 4096) != 6) return 4;
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 5;
    errno = 0;
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    printf("mapped %d %.6s\n", errno, map == MAP_FAILED ? "" : map + 4096);
    fflush(stdout);
    if (map == MAP_FAILED) return 6;
    memcpy(map, "by memory", 9);
    if (getchar() == EOF) return 7;
    printf("%.8s\n", map + 100);
    return 0;
}
