/*
 * libwillow: files that are read and written by the process' own endpoints at a Willow device, without the operating
 * system between. Where a file cannot go that way (it grows, has holes, is on another device), the calls go through the
 * kernel, with the same results; willow_is_direct() tells.
 *
 *     cc -o program program.c -lwillow
 *
 * Calls return -1 (or NULL) where they fail, with errno set; willow_error() has a sentence about it. All of them may be
 * called by any number of threads, but a queue is one thread's at a time. A forked child opens a session of its own:
 * calls on its parent's fail there with ENXIO.
 */
#ifndef LIBWILLOW_H
#define LIBWILLOW_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something here changes in a way that programs notice. */
#define LIBWILLOW_VERSION 6
uint32_t willow_version(void);

/* What the last call of this thread that failed says was wrong: until the thread's next failure. Never NULL. */
const char *willow_error(void);

/* -- sessions: a process' connection with a device and its agent ------------------------------------------------- */
typedef struct willow_session willow_session;

/* `agent`: the socket of `willow agent --socket`; `device`: that of `willow serve --socket`, or NULL: the agent says how the
 * device is reached, which may be by a network. ECONNREFUSED: the agent is not there. EIO: the device is not, or refuses. */
willow_session *willow_session_open(const char *device, const char *agent);

/* Its files and queues are closed before it. */
void willow_session_close(willow_session *session);

/* -- files -------------------------------------------------------------------------------------------------------- */
typedef struct willow_file willow_file;

/* As open(2). The file is taken directly at once where that goes. */
willow_file *willow_open(willow_session *session, const char *path, int flags, mode_t mode);

/* Of a descriptor of a regular file (EINVAL: of something else), which is the file's from now on, and closed with it.
 * Where this fails the descriptor is still the caller's. */
willow_file *willow_open_descriptor(willow_session *session, int descriptor);

/* When this returns, the file is the file system's own again. Frees `file` in any case. */
int willow_close(willow_file *file);

/* 1 while it is read or written directly, 0 while through the kernel. */
int willow_is_direct(willow_file *file);

/* Takes it directly now. -1 and EOPNOTSUPP where it cannot be, willow_error() says why. */
int willow_take(willow_file *file);

/* The descriptor, for whatever else is done with it. While the file is direct it only reads, whatever it was opened for:
 * write(2) fails with EBADF, ftruncate(2) with EINVAL. A program that takes record locks on a file (fcntl, flock) keeps it
 * out of here: closing and exchanging descriptors drops locks. */
int willow_descriptor(const willow_file *file);

/* As pread(2), pwrite(2), preadv(2), pwritev(2): any offset and length, short reads at the end of the file alone.
 * EBADF: the file was not opened for that. EINVAL: no such offset. ENOSPC: no room. EIO: the device failed. */
ssize_t willow_pread(willow_file *file, void *into, size_t bytes, off_t offset);
ssize_t willow_pwrite(willow_file *file, const void *from, size_t bytes, off_t offset);
ssize_t willow_preadv(willow_file *file, const struct iovec *into, int count, off_t offset);
ssize_t willow_pwritev(willow_file *file, const struct iovec *from, int count, off_t offset);

/* As fsync(2) and fdatasync(2). */
int willow_fsync(willow_file *file);
int willow_fdatasync(willow_file *file);

/* As ftruncate(2). */
int willow_ftruncate(willow_file *file, off_t bytes);

/* Its length. */
off_t willow_size(willow_file *file);

/* -- queues: several operations at once ------------------------------------------------------------------------------ */
typedef struct willow_queue willow_queue;

struct willow_done {
    uint64_t tag;   /* of the operation, as it was submitted */
    int64_t result; /* bytes moved (a sync: 0), or the negative of an errno */
};

/* At most `depth` operations (1 to 1024) under way or not yet handed back. */
willow_queue *willow_queue_open(willow_session *session, unsigned depth);
/* Forgets what is under way: buffers are the caller's again; writes may be done or not. */
void willow_queue_close(willow_queue *queue);

/* Submits an operation; EAGAIN where `depth` of them are there. Its buffer (not the vector) and its file stay valid until
 * it is handed back. What cannot go directly is done before this returns, and handed back by the next poll as well. A
 * sync covers the writes that had been handed back when it was submitted. */
int willow_submit_pread(willow_queue *queue, willow_file *file, void *into, size_t bytes, off_t offset, uint64_t tag);
int willow_submit_pwrite(willow_queue *queue, willow_file *file, const void *from, size_t bytes, off_t offset, uint64_t tag);
int willow_submit_preadv(willow_queue *queue, willow_file *file, const struct iovec *into, int count, off_t offset, uint64_t tag);
int willow_submit_pwritev(willow_queue *queue, willow_file *file, const struct iovec *from, int count, off_t offset, uint64_t tag);
int willow_submit_fsync(willow_queue *queue, willow_file *file, uint64_t tag);

/* Hands back at most `most` operations that have ended, without waiting; how many that were. */
int willow_poll(willow_queue *queue, struct willow_done *done, int most);

/* The same, once there are `wanted` of them (or all that are under way), or `timeout_ms` is over; -1: no timeout. */
int willow_wait(willow_queue *queue, struct willow_done *done, int most, int wanted, int timeout_ms);

/* -- logs: records that the drive appends to a file on ext4 (docs/append.md) ------------------------------------------- */
typedef struct willow_log willow_log;

/* The file is there (ENOENT), and may be written. What cannot be appended by the drive is appended by the kernel, with the
 * same results. */
willow_log *willow_log_open(willow_session *session, const char *path);

/* Appends a record, whole, behind all that were answered before; where in the file it begins. It is durable when this
 * returns. ECONNRESET: the device, or the way to it, failed meanwhile, and the record is there whole or not at all; all
 * other errors: it is not there, but for a part of it where ENOSPC or a limit stopped the kernel in the midst, as write(2). */
off_t willow_log_append(willow_log *log, const void *record, size_t bytes);

/* The file's length, with all that was appended by anybody. */
off_t willow_log_size(willow_log *log);

/* When this returns, the file has all that this process appended, and is the file system's own again unless other
 * processes append to it. The next record has the drive take it over again. */
int willow_log_give_back(willow_log *log);

/* The same; frees `log` in any case. */
int willow_log_close(willow_log *log);

/* -- cached files: on slow storage, with a cache on the drive (docs/caching.md) ---------------------------------------- */
typedef struct willow_cached willow_cached;

/* When a write is answered: as the cache does it that is there (a new one writes through), when the file has it, or when
 * the cache has it. */
enum { WILLOW_CACHE_AS_IT_IS, WILLOW_CACHE_WRITE_THROUGH, WILLOW_CACHE_WRITE_BACK };

/* `flags`: O_RDONLY or O_RDWR (EINVAL: others), as open(2) with the caller's rights. `cache_bytes`: of the cache; 0: as it
 * is, 64 MiB for a new one. EIO: it is not cached, and willow_error() says why. The agent of the session is the cache's
 * manager; it needs no block device of the drive's (`willow agent --caches-only`). */
willow_cached *willow_cached_open(willow_session *session, const char *path, int flags, int mode, uint64_t cache_bytes);

/* As pread(2) and pwrite(2), but the file keeps its length: reads are short at its end, and a write past it fails with ENOSPC
 * and writes nothing. A write is whole when this returns; where it failed, a part of it may have been written. EBADF: the file was
 * opened for reading. EIO: the device or the file failed. */
ssize_t willow_cached_pread(willow_cached *file, void *into, size_t bytes, off_t offset);
ssize_t willow_cached_pwrite(willow_cached *file, const void *from, size_t bytes, off_t offset);

/* Makes all that was written durable: in the file where the cache writes through, else in the cache. EIO also, once, where the
 * device has failed since something was written and not synced: it may be forgotten. */
int willow_cached_sync(willow_cached *file);

/* Its length, and when writes are answered (WILLOW_CACHE_WRITE_THROUGH or WILLOW_CACHE_WRITE_BACK). */
off_t willow_cached_size(willow_cached *file);
int willow_cached_mode(willow_cached *file);

/* Frees `file`. What was written to the cache is written to the file soon after its last process has closed it. */
int willow_cached_close(willow_cached *file);

/* -- key-value namespaces: pairs of a key of 1 to 16 bytes and a value ----------------------------------------------- */
/* errno where a call fails: EINVAL: an argument, or a key of another length; EMSGSIZE: the value is longer than one command
 * moves; ENOSPC: no room; EAGAIN: the device has no place for it just now, and did nothing; EIO: the device
 * failed, or is gone. All calls may be made by any number of threads; a forked child opens a namespace of its own (ENXIO). */
typedef struct willow_kv willow_kv;

/* `device`: the socket of `willow serve --socket`; `nsid`: the namespace, or 0 where the device has one with keys only.
 * ENODEV: there is no such namespace. */
willow_kv *willow_kv_open(const char *device, uint32_t nsid);
void willow_kv_close(willow_kv *kv);

enum {
    WILLOW_KV_ALWAYS = 0,
    WILLOW_KV_IF_EXISTS = 1,  /* else ENOENT */
    WILLOW_KV_IF_ABSENT = 2,  /* else EEXIST */
    WILLOW_KV_IF_VERSION = 3, /* ESTALE where it has another version, ENOENT where there is none */
};

struct willow_kv_options {
    uint32_t condition; /* WILLOW_KV_... */
    uint32_t expiry;    /* seconds since 1970 at which the pair is gone; 0: never */
    uint64_t version;   /* for WILLOW_KV_IF_VERSION */
    int durable;        /* 1: it survives a power cut once this has returned; 0: once a flush has */
};

/* Stores a pair; `options` may be NULL: always, for ever, not durable. `version`, where it is not NULL, gets the pair's,
 * which no other pair under that key has had or will have. */
int willow_kv_put(willow_kv *kv, const void *key, size_t key_bytes, const void *value, size_t value_bytes,
                  const struct willow_kv_options *options, uint64_t *version);

/* The value's length, of which at most `room` bytes are copied to `into`. ENOENT: no such pair. `version` and `expiry` may
 * be NULL. */
ssize_t willow_kv_get(willow_kv *kv, const void *key, size_t key_bytes, void *into, size_t room, uint64_t *version,
                      uint32_t *expiry);

/* Removes a pair; where `version` is not 0 only that one (else ESTALE). ENOENT: no such pair. */
int willow_kv_delete(willow_kv *kv, const void *key, size_t key_bytes, uint64_t version, int durable);

/* Gives a pair another expiry; its value and version stay. ENOENT: no such pair. */
int willow_kv_touch(willow_kv *kv, const void *key, size_t key_bytes, uint32_t expiry, int durable);

struct willow_kv_pair {
    const void *key;
    size_t key_bytes;
    void *value;        /* get: at most `value_bytes` are copied here */
    size_t value_bytes;
    uint32_t condition; /* put: as in willow_kv_options */
    uint32_t expiry;    /* get: the pair's */
    uint64_t version;   /* put: for the condition; get: the pair's */
    int64_t result;     /* put: 0, get: the value's length; or the negative of an errno */
};

/* Stores or reads at most 65536 pairs at once, each with a result of its own; how many went well. -1: the call failed, and
 * of a put any pair may be stored or not. With `durable` all that were stored survive a power cut once it has returned. */
int willow_kv_put_many(willow_kv *kv, struct willow_kv_pair *pairs, size_t count, int durable);
int willow_kv_get_many(willow_kv *kv, struct willow_kv_pair *pairs, size_t count);

/* Calls `each` with the keys from `from` on up to `to` without it (0 bytes: no bound), in the device's order, which is not
 * theirs, until it returns other than 0; returns that (a number above 0), or 0. The device looks at every pair for it. */
int willow_kv_scan(willow_kv *kv, const void *from, size_t from_bytes, const void *to, size_t to_bytes,
                   int (*each)(void *context, const void *key, size_t key_bytes), void *context);

/* What was stored and removed before survives a power cut when this has returned. */
int willow_kv_flush(willow_kv *kv);

/* -- numeric kernels on files of numbers, done in the drive (docs/compute.md) -------------------------------------------- */
#define WILLOW_COMPUTE_DRIVE_ONLY 1u /* EOPNOTSUPP where the drive cannot do it, instead of this host's doing it */
#define WILLOW_COMPUTE_IN_PLACE 2u   /* `out` is there, and is written over; a failure leaves part of the result in it */

/* out = alpha * x + y, number by number, each rounded after the multiplication and after the addition. `agent`: its socket.
 * `dtype`: NULL for .npy files, else "f4" or "f8" for files of numbers alone. When this returns 0 (the drive did it) or 1
 * (this host did) the result is durable and has its name; -1: it failed, and nothing is at `out` that was not before, but
 * with WILLOW_COMPUTE_IN_PLACE. ESTALE: a file was taken back or changed in the middle. */
int willow_saxpy(const char *agent, double alpha, const char *x, const char *y, const char *out, const char *dtype,
                 uint32_t flags);

#define WILLOW_FFT_INVERSE 16u         /* divides by the number of numbers */
#define WILLOW_FFT_2D 32u              /* both axes of a matrix */
#define WILLOW_FFT_TRANSPOSE_DRIVE 64u /* the drive transposes the matrix, instead of this host */

/* Fourier transforms along the last axis, or along both axes of a matrix; otherwise as willow_saxpy. Numbers are "f4", "f8",
 * "c8" or "c16"; the result is complex, of the same precision, and that of a matrix lies in the other order (a file in C's
 * order becomes one in Fortran's). `shape`: of plain numbers, the sizes of `dimensions`
 * axes, or NULL for one; for .npy files NULL. */
int willow_fft(const char *agent, const char *in, const char *out, const char *dtype, const uint64_t *shape,
               size_t dimensions, uint32_t flags);

#ifdef __cplusplus
}
#endif
#endif
