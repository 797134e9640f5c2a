/* Adds up the bytes of a file that is read directly, eight reads at once.
 *
 *     cc -o checksum checksum.c -lwillow && ./checksum ./willow.sock ./agent.sock FILE
 */
#include <fcntl.h>
#include <libwillow.h>
#include <stdio.h>

enum { DEPTH = 8, PIECE = 16384 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, willow_error());
    return 1;
}

int main(int count, char **arguments) {
    static unsigned char pieces[DEPTH][PIECE];
    struct willow_done done[DEPTH];
    if (count != 4) return 2;
    willow_session *session = willow_session_open(arguments[1], arguments[2]);
    if (!session) return failed("session");
    willow_file *file = willow_open(session, arguments[3], O_RDONLY, 0);
    if (!file) return failed(arguments[3]);
    willow_queue *queue = willow_queue_open(session, DEPTH);
    if (!queue) return failed("queue");

    off_t size = willow_size(file), next = 0;
    unsigned long long sum = 0;
    int under_way = 0;
    for (; under_way < DEPTH && next < size; under_way++, next += PIECE)
        if (willow_submit_pread(queue, file, pieces[under_way], PIECE, next, (uint64_t)under_way)) return failed("read");
    while (under_way > 0) {
        int some = willow_wait(queue, done, DEPTH, 1, -1);
        for (int index = 0; index < some; index++, under_way--) {
            uint64_t piece = done[index].tag;
            if (done[index].result < 0) return failed("read");
            for (int64_t at = 0; at < done[index].result; at++) sum += pieces[piece][at];
            if (next < size) {
                if (willow_submit_pread(queue, file, pieces[piece], PIECE, next, piece)) return failed("read");
                next += PIECE;
                under_way++;
            }
        }
    }
    printf("%llu %s\n", sum, willow_is_direct(file) ? "directly" : "through the kernel");
    willow_queue_close(queue);
    willow_close(file);
    willow_session_close(session);
    return 0;
}
