/* Vectors multiplied and added in the drive. Arguments: agent, folder. */
#include "libwillow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #condition, errno, willow_error());        \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

enum { COUNT = 100000 };

static double x[COUNT], y[COUNT], a[COUNT];

static void file(const char *path, const void *bytes, size_t count) {
    FILE *out = fopen(path, "w");
    CHECK(out != NULL && fwrite(bytes, 1, count, out) == count && fflush(out) == 0 && fsync(fileno(out)) == 0);
    CHECK(fclose(out) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 3 && chdir(arguments[2]) == 0);
    const char *agent = arguments[1];
    for (int place = 0; place < COUNT; place++) {
        x[place] = 1.0 / (place + 1);
        y[place] = place * 0.1;
    }
    file("x", x, sizeof x);
    file("y", y, sizeof y);
    CHECK(willow_saxpy(agent, 3.7, "x", "y", "a", "f8", WILLOW_COMPUTE_DRIVE_ONLY) == 0);
    FILE *in = fopen("a", "r");
    CHECK(in != NULL && fread(a, 1, sizeof a, in) == sizeof a && fgetc(in) == EOF);
    for (int place = 0; place < COUNT; place++) {
        volatile double product = 3.7 * x[place];
        CHECK(a[place] == product + y[place]);
    }
    CHECK(willow_saxpy(agent, 1, "x", "y", "y", "f8", WILLOW_COMPUTE_IN_PLACE) == -1 && errno == EINVAL);
    CHECK(willow_saxpy(agent, 1, "x", "y", "b", NULL, 0) == -1 && errno == EINVAL && access("b", F_OK) == -1);
    CHECK(willow_saxpy(agent, 1, "x", "nowhere", "b", "f8", 0) == -1 && errno == ENOENT);
    CHECK(willow_saxpy(agent, 1, "x", "y", "b", "f9", 0) == -1 && errno == EINVAL);
    CHECK(willow_saxpy(agent, 1, "x", "y", "b", "f8", 4) == -1 && errno == EINVAL);
    CHECK(willow_saxpy(NULL, 1, "x", "y", "b", "f8", 0) == -1 && errno == EINVAL);
    /* A wave of one number is flat, and comes back. */
    double wave[2 * 1024] = {1};
    uint64_t shape[2] = {32, 32}, wrong[1] = {7};
    file("wave", wave, sizeof wave);
    CHECK(willow_fft(agent, "wave", "flat", "c16", NULL, 0, WILLOW_COMPUTE_DRIVE_ONLY) == 0);
    in = fopen("flat", "r");
    CHECK(in != NULL && fread(wave, 1, sizeof wave, in) == sizeof wave && fgetc(in) == EOF && fclose(in) == 0);
    for (int place = 0; place < 1024; place++) CHECK(wave[2 * place] == 1 && wave[2 * place + 1] == 0);
    CHECK(willow_fft(agent, "flat", "back", "c16", shape, 2,
                     WILLOW_FFT_INVERSE | WILLOW_FFT_2D | WILLOW_FFT_TRANSPOSE_DRIVE | WILLOW_COMPUTE_DRIVE_ONLY) == 0);
    in = fopen("back", "r");
    CHECK(in != NULL && fread(wave, 1, sizeof wave, in) == sizeof wave && fclose(in) == 0);
    for (int place = 0; place < 2048; place++) CHECK(wave[place] == (place == 0));
    CHECK(willow_fft(agent, "flat", "c", "c16", wrong, 1, 0) == -1 && errno == EINVAL && access("c", F_OK) == -1);
    CHECK(willow_fft(agent, "flat", "c", NULL, shape, 2, 0) == -1 && errno == EINVAL);
    printf("computed\n");
    return 0;
}
