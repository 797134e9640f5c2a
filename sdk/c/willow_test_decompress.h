/* Part of willow_test.c alone: the decompress accelerator of the test world, Snappy's raw format byte by byte, another way than the device's. What goes from one call
 * to the next is in the app's record (docs/abi.md, Decompressing). */

/* One byte of input that is there, or -1. */
static int next_byte(const struct Operation *o, uint32_t at) {
    return at < o->bytes ? ((const uint8_t *)o->numbers)[at] : -1;
}

/* Byte by byte: a mock may be slow. */
static int64_t decompress(const struct Operation *o) {
    Decompression_t *s = o->record;
    uint8_t *to = o->target;
    s->used = 0;
    while (s->phase == WILLOW_DECOMPRESS_HEAD || s->phase == WILLOW_DECOMPRESS_ELEMENTS) {
        if (s->phase == WILLOW_DECOMPRESS_HEAD) {
            uint64_t length = 0;
            int byte = 128;
            uint32_t at = 0;
            for (; byte >= 128 && at < 5; at++) {
                if ((byte = next_byte(o, at)) < 0) {
                    return 0;
                }
                length |= (uint64_t)(byte & 127) << (7 * at);
            }
            int is_right = byte < 128 && length <= UINT32_MAX && (s->left == UINT32_MAX || length == s->left);
            s->phase = is_right ? WILLOW_DECOMPRESS_ELEMENTS : WILLOW_DECOMPRESS_MALFORMED;
            s->left = is_right ? (uint32_t)length : s->left;
            s->used = is_right ? at : 0;
            s->count = 0;
        } else if (s->count > 0) {
            int byte = s->offset == 0 ? next_byte(o, s->used) : 0;
            if (s->kept == o->segments || byte < 0) {
                return 0;
            }
            if (s->offset > s->kept) {
                s->phase = WILLOW_DECOMPRESS_TOO_FAR;
                break;
            }
            s->used += s->offset == 0;
            to[s->kept] = s->offset == 0 ? (uint8_t)byte : to[s->kept - s->offset];
            s->kept++;
            s->count--;
        } else if (s->left == 0) {
            return 0;
        } else {
            int tag = next_byte(o, s->used);
            if (tag < 0) {
                return 0;
            }
            uint32_t upper = (uint32_t)tag >> 2, kind = (uint32_t)tag & 3;
            uint32_t more = kind == 0 ? (upper < 60 ? 0 : upper - 59) : kind == 3 ? 4 : kind;
            uint64_t number = 0;
            for (uint32_t index = 0; index < more; index++) {
                int byte = next_byte(o, s->used + 1 + index);
                if (byte < 0) {
                    return 0;
                }
                number |= (uint64_t)byte << (8 * index);
            }
            uint64_t count = kind == 1 ? (upper & 7) + 4 : kind == 0 && more > 0 ? number + 1 : upper + 1;
            uint64_t offset = kind == 0 ? 0 : kind == 1 ? ((uint64_t)tag >> 5) << 8 | number : number;
            if (count > s->left || (kind != 0 && offset == 0)) {
                s->phase = WILLOW_DECOMPRESS_MALFORMED;
                break;
            }
            s->used += 1 + more;
            s->left -= (uint32_t)count;
            s->offset = (uint32_t)offset;
            s->count = (uint32_t)count;
        }
    }
    return 0;
}
