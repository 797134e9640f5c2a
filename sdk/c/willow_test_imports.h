/* The imports of docs/abi.md over the device of willow_test.c, which includes this once and at its end: no header for others. */

void willow_import_request_info(uint32_t token, void *to) {
    const struct Request *request = request_of(token);
    uint32_t words[8] = {0x80000001u,      (uint32_t)request->source, request->body_bytes, request->reply_bytes,
                         request->handler, request->argument_bytes,   0,                   0};
    if (request->handler == 0 || request->of_nobody) {
        words[0] = 0;
    }
    memcpy(to, words, sizeof words);
}

int32_t willow_import_receive_bytes(uint32_t token, void *to, uint32_t bytes) {
    struct Request *request = request_of(token);
    uint32_t left = request->body_bytes - request->received;
    uint32_t count = bytes < left ? bytes : left;
    if (count > 0) {
        memcpy(to, request->body + request->received, count);
    }
    request->received += count;
    return (int32_t)count;
}

void willow_import_respond(uint32_t token, uint32_t status, uint32_t result) {
    struct Request *request = request_of(token);
    if (request->responded) {
        fail("a request was answered twice");
    }
    request->responded = 1;
    request->response = (RPCResp_t){status, result};
    answer_if_through(request);
}

int32_t willow_import_dma_strided(uint32_t token, uint32_t source_port, uint64_t source_address, int64_t source_stride,
                                  uint32_t destination_port, uint64_t destination_address, int64_t destination_stride,
                                  uint32_t segment_bytes, uint32_t segments, uint32_t wait) {
    int64_t result;
    for (uint32_t segment = 0; segment < segments; segment++) {
        uint64_t from = source_address + (uint64_t)(source_stride * (int64_t)segment);
        uint64_t to = destination_address + (uint64_t)(destination_stride * (int64_t)segment);
        int32_t code = check(token, source_port, from, segment_bytes, 0);
        if (code == WILLOW_OK) {
            code = check(token, destination_port, to, segment_bytes, 1);
        }
        if (code != WILLOW_OK) {
            return code;
        }
    }
    return issue((struct Operation){.kind = MOVES,
                                    .token = token,
                                    .wait = wait,
                                    .source_port = source_port,
                                    .source = source_address,
                                    .source_stride = source_stride,
                                    .destination_port = destination_port,
                                    .destination = destination_address,
                                    .destination_stride = destination_stride,
                                    .bytes = segment_bytes,
                                    .segments = segments},
                 &result)
               ? PENDING
               : WILLOW_OK;
}

int32_t willow_import_dma(uint32_t token, uint32_t source_port, uint64_t source_address, uint32_t destination_port,
                          uint64_t destination_address, uint32_t bytes, uint32_t wait) {
    int is_source = source_port == SPU_NV_MEMORY_PORT(0), is_destination = destination_port == SPU_NV_MEMORY_PORT(0);
    if (is_source != is_destination) {
        /* The own bank; another's port is refused below, as one that parks is here. */
        uint32_t other_port = is_source ? destination_port : source_port;
        if (other_port == PARKED_NV_MEMORY_PORT) {
            return WILLOW_ERROR_ARGUMENT;
        }
        source_port = is_source ? NV_MEMORY_PORT : source_port;
        destination_port = is_destination ? NV_MEMORY_PORT : destination_port;
    }
    return willow_import_dma_strided(token, source_port, source_address, 0, destination_port, destination_address, 0, bytes,
                                     1, wait);
}

int32_t willow_import_compare(uint32_t token, uint64_t nv_address, uint64_t body_offset, uint32_t bytes, uint32_t wait) {
    int64_t result;
    int32_t code = check(token, NV_MEMORY_PORT, nv_address, bytes, 0);
    if (code == WILLOW_OK) {
        code = check(token, NETWORK_PORT, body_offset, bytes, 0);
    }
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = COMPARE,
                                  .token = token,
                                  .wait = wait,
                                  .source = nv_address,
                                  .destination = body_offset,
                                  .bytes = bytes};
    if (issue(operation, &result)) {
        return PENDING;
    }
    return result == 0 ? WILLOW_OK : DIFFERENT;
}

int32_t willow_import_checksum(uint32_t token, uint32_t port, uint64_t address, uint32_t bytes, uint32_t seed,
                               uint32_t wait) {
    int64_t result;
    int32_t code = port == ZEROES_PORT ? WILLOW_ERROR_ARGUMENT : check(token, port, address, bytes, 0);
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = CHECKSUM,
                                  .token = token,
                                  .wait = wait,
                                  .source_port = port,
                                  .source = address,
                                  .bytes = bytes,
                                  .seed = seed};
    if (issue(operation, &result)) {
        return PENDING;
    }
    checksum_value = (uint32_t)result;
    return WILLOW_OK;
}

uint32_t willow_import_checksum_value(void) { return checksum_value; }

int32_t willow_import_literals_load(const void *literals, uint32_t bytes, uint32_t flags) {
    const uint8_t *from = literals;
    uint32_t at = 0;
    if (bytes == 0 || bytes > 65536 || (flags & ~0xff03u) != 0 || ((flags & 2) == 0 && flags >> 8 != 0)) {
        return WILLOW_ERROR_ARGUMENT;
    }
    while (at < bytes) {
        uint32_t length = 0;
        if (bytes - at >= sizeof length) {
            memcpy(&length, from + at, sizeof length);
        }
        at += (uint32_t)sizeof length;
        if (length == 0 || length > 1024 || length > bytes - at) {
            return WILLOW_ERROR_ARGUMENT;
        }
        at += length;
    }
    for (int32_t index = 0; index < SETS_MAX; index++) {
        if (sets[index].literals == NULL) {
            sets[index] = (struct Set){allocate(bytes), bytes, flags};
            memcpy(sets[index].literals, literals, bytes);
            return index + 1;
        }
    }
    return WILLOW_ERROR_FULL;
}

int32_t willow_import_multiply_add(uint32_t token, uint32_t number_bytes, uint64_t alpha, const void *x, void *y, uint32_t count,
                                   uint32_t wait) {
    int64_t result;
    uint64_t bytes = (uint64_t)count * number_bytes;
    uintptr_t from = (uintptr_t)x, to = (uintptr_t)y;
    if ((number_bytes != 4 && number_bytes != 8) || bytes > 524288 || (from < to ? to - from : from - to) < bytes) {
        return WILLOW_ERROR_ARGUMENT;
    }
    request_of(token);
    struct Operation operation = {
        .kind = MULTIPLY_ADD, .token = token, .wait = wait, .segments = count, .number_bytes = number_bytes, .numbers = x, .target = y};
    memcpy(&operation.alpha, &alpha, sizeof alpha);
    return issue(operation, &result) ? 1 : (int32_t)result;
}

int32_t willow_import_fft(uint32_t token, uint32_t number_bytes, uint32_t inverse, void *data, uint32_t count, uint32_t rows,
                          uint32_t wait) {
    int64_t result;
    uint64_t row_bytes = (uint64_t)count * 2 * number_bytes;
    if ((number_bytes != 4 && number_bytes != 8) || inverse > 1 || count < 1 || row_bytes > 524288 ||
        (rows > 0 && row_bytes > 524288 / rows)) {
        return WILLOW_ERROR_ARGUMENT;
    }
    request_of(token);
    struct Operation operation = {.kind = TRANSFORM,
                                  .token = token,
                                  .wait = wait,
                                  .segments = count,
                                  .rows = rows,
                                  .number_bytes = number_bytes,
                                  .inverse = (int)inverse,
                                  .target = data};
    return issue(operation, &result) ? 1 : (int32_t)result;
}

int32_t willow_import_decompress(uint32_t token, uint32_t codec, const void *from, uint32_t bytes, void *to, uint32_t to_bytes, void *state,
                                 uint32_t wait) {
    int64_t result;
    Decompression_t *record = state;
    if (codec != 1 || bytes > 65536 || to_bytes > 524288 || record->kept > to_bytes || record->phase > WILLOW_DECOMPRESS_ELEMENTS) {
        return WILLOW_ERROR_ARGUMENT;
    }
    request_of(token);
    struct Operation operation = {.kind = DECOMPRESS,
                                  .token = token,
                                  .wait = wait,
                                  .bytes = bytes,
                                  .segments = to_bytes,
                                  .numbers = from,
                                  .target = to,
                                  .record = record};
    return issue(operation, &result) ? 1 : (int32_t)result;
}

int32_t willow_import_keys_find(uint32_t token, uint32_t port, uint64_t address, uint32_t key_bytes, uint32_t stride, uint32_t count,
                                uint32_t order, const void *key, uint32_t wait) {
    int64_t result;
    uint64_t span = count == 0 ? 0 : (uint64_t)(count - 1) * stride + key_bytes;
    if (key_bytes == 0 || key_bytes > 256 || stride < key_bytes || order > 1 || span > 65536 || port == ZEROES_PORT) {
        return WILLOW_ERROR_ARGUMENT;
    }
    int32_t code = check(token, port, address, span, 0);
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = KEYS,
                                  .token = token,
                                  .wait = wait,
                                  .source_port = port,
                                  .source = address,
                                  .keys = {key_bytes, stride, count, order == 0}};
    memcpy(operation.key, key, key_bytes);
    return issue(operation, &result) ? PENDING : (int32_t)result;
}

int32_t willow_import_literals_free(int32_t set) {
    if (set < 1 || set > SETS_MAX || sets[set - 1].literals == NULL) {
        return WILLOW_ERROR_ARGUMENT;
    }
    free(sets[set - 1].literals);
    sets[set - 1] = (struct Set){0};
    return WILLOW_OK;
}

int32_t willow_import_literals_find(uint32_t token, int32_t set, uint32_t port, uint64_t address, uint32_t bytes, uint32_t state,
                                    void *to, uint32_t most, uint32_t wait) {
    int64_t result;
    if (set < 1 || set > SETS_MAX || sets[set - 1].literals == NULL || state > 1 || most > 4096 || port == ZEROES_PORT) {
        return WILLOW_ERROR_ARGUMENT;
    }
    int32_t code = check(token, port, address, bytes, 0);
    if (code != WILLOW_OK) {
        return code;
    }
    struct Operation operation = {.kind = LITERALS,
                                  .token = token,
                                  .wait = wait,
                                  .source_port = port,
                                  .source = address,
                                  .bytes = bytes,
                                  .set = set,
                                  .state = state,
                                  .most = most,
                                  .found = to};
    return issue(operation, &result) ? PENDING : WILLOW_OK;
}

int32_t willow_import_rpc_start(uint32_t token, int32_t destination, int32_t app, uint32_t handler, uint32_t body_bytes,
                                void *reply, uint32_t reply_bytes) {
    request_of(token);
    if (body_bytes > RPC_BODY_BYTES_MAX) {
        return WILLOW_ERROR_ARGUMENT;
    }
    /* One SPU, number 0, and one app, number 0. */
    if (destination < -1 || destination > 0 || app < -1 || app > 0) {
        return WILLOW_ERROR_REFUSED;
    }
    for (int32_t handle = 0; handle < RPCS_MAX; handle++) {
        if (!rpcs[handle].used) {
            rpcs[handle] = (struct Rpc){.used = 1,
                                        .token = token,
                                        .destination = destination,
                                        .handler = handler,
                                        .body_bytes = body_bytes,
                                        .reply = reply,
                                        .reply_bytes = reply_bytes};
            return handle;
        }
    }
    return WILLOW_ERROR_REFUSED;
}

int32_t willow_import_rpc_append(int32_t handle, uint32_t port, uint64_t address, uint32_t bytes) {
    if (handle < 0 || handle >= RPCS_MAX || !rpcs[handle].used) {
        return WILLOW_ERROR_ARGUMENT;
    }
    struct Rpc *rpc = &rpcs[handle];
    int32_t code = WILLOW_ERROR_ARGUMENT;
    if ((port == LOCAL_MEMORY_PORT || port == NV_MEMORY_PORT) && rpc->segment_count < SEGMENTS_MAX &&
        bytes <= rpc->body_bytes - rpc->gathered) {
        code = check(rpc->token, port, address, bytes, 0);
    }
    if (code != WILLOW_OK) {
        rpc->used = 0;
        return code;
    }
    rpc->segments[rpc->segment_count].port = port;
    rpc->segments[rpc->segment_count].bytes = bytes;
    rpc->segments[rpc->segment_count].address = address;
    rpc->segment_count++;
    rpc->gathered += bytes;
    return WILLOW_OK;
}

int32_t willow_import_rpc_finish(int32_t handle, uint32_t wait) {
    if (handle < 0 || handle >= RPCS_MAX || !rpcs[handle].used) {
        return WILLOW_ERROR_ARGUMENT;
    }
    struct Rpc *rpc = &rpcs[handle];
    rpc->used = 0;
    if (rpc->gathered != rpc->body_bytes) {
        return WILLOW_ERROR_ARGUMENT;
    }
    uint8_t *body = allocate(rpc->body_bytes);
    uint32_t at = 0;
    for (uint32_t index = 0; index < rpc->segment_count; index++) {
        memcpy(body + at, place(rpc->token, rpc->segments[index].port, rpc->segments[index].address, 0),
               rpc->segments[index].bytes);
        at += rpc->segments[index].bytes;
    }
    if (rpc->destination >= 0) {
        uint32_t token = submit(rpc->handler, 0, body, 0, rpc->body_bytes, rpc->reply, rpc->reply_bytes);
        requests[token].of_handler = 1;
        requests[token].wait = wait;
        return PENDING;
    }
    if (answer_upcall == NULL) {
        free(body);
        return WILLOW_ERROR_REFUSED;
    }
    RPCResp_t response = answer_upcall(rpc->handler, body, rpc->body_bytes);
    free(body);
    complete_later(wait, (int64_t)((uint64_t)response.status << 32 | response.result));
    return PENDING;
}

/* Nobody subscribes to this device. */
int32_t willow_import_upcall_start(uint32_t token, uint32_t hre, uint32_t kind, uint32_t body_bytes) {
    (void)hre, (void)body_bytes;
    request_of(token);
    return kind == 0 || kind > 255 ? WILLOW_ERROR_ARGUMENT : WILLOW_ERROR_PERMISSION;
}

int32_t willow_import_subscribers(uint32_t kind, uint32_t after, void *to, uint32_t most) {
    (void)after, (void)to, (void)most;
    return kind == 0 || kind > 255 ? WILLOW_ERROR_ARGUMENT : 0;
}

int32_t willow_import_app_number(const void *name, uint32_t bytes) {
    extern const char willow_manifest[];
    const char *own = strstr(willow_manifest, "\nname=");
    if (own == NULL) {
        fail("the manifest has no name");
    }
    own += 6;
    return strncmp(own, name, bytes) == 0 && own[bytes] == '\n' ? 0 : WILLOW_ERROR_NOT_FOUND;
}

int64_t willow_import_region(uint32_t id, uint64_t bytes, uint32_t wait) {
    int64_t value = WILLOW_ERROR_NOT_FOUND, result;
    struct Region *region = find_region(id, 0);
    if (region != NULL) {
        value = (int64_t)region->base;
    } else if (bytes > 0) {
        region = make_region(bytes);
        value = WILLOW_ERROR_FULL;
        if (region != NULL) {
            region->id = id;
            value = (int64_t)region->base;
        }
    }
    return issue((struct Operation){.kind = VALUE, .wait = wait, .value = value}, &result) ? -1 : result;
}

int64_t willow_import_region_bytes(uint32_t id) {
    const struct Region *region = find_region(id, 0);
    return region == NULL ? WILLOW_ERROR_NOT_FOUND : (int64_t)region->bytes;
}

int32_t willow_import_region_free(uint32_t id, uint32_t wait) {
    int64_t result;
    struct Region *region = find_region(id, 0);
    if (region == NULL) {
        return WILLOW_ERROR_NOT_FOUND;
    }
    memset(bank + region->base, 0, region->bytes);
    region->used = 0;
    return issue((struct Operation){.kind = VALUE, .wait = wait}, &result) ? PENDING : WILLOW_OK;
}

int32_t willow_import_namespace(uint32_t nsid, void *to) {
    const struct Region *region = find_region(nsid, 1);
    if (region == NULL) {
        return WILLOW_ERROR_NOT_FOUND;
    }
    Namespace_t described = {.base = region->base,
                             .bank_bytes = region->bytes,
                             .block_bytes = region->block_bytes,
                             .blocks = region->bytes / region->block_bytes};
    memcpy(to, &described, sizeof described);
    return WILLOW_OK;
}

int32_t willow_import_flush(uint32_t wait) {
    int64_t result;
    return issue((struct Operation){.kind = VALUE, .wait = wait}, &result) ? PENDING : WILLOW_OK;
}

int32_t willow_import_sleep(uint64_t duration_ns, uint32_t wait) {
    time_ns += duration_ns;
    complete_later(wait, 0);
    operations[operation_count - 1].sleeps = 1;
    return PENDING;
}

/* Sleeps can be cancelled: those that are over have nothing to do with it. */
int32_t willow_import_cancel(uint32_t token, uint32_t wait) {
    request_of(token);
    for (uint32_t index = 0; index < operation_count; index++) {
        if (operations[index].kind == VALUE && operations[index].sleeps && operations[index].wait == wait) {
            operations[index].sleeps = 0;
            operations[index].value = WILLOW_ERROR_CANCELLED;
            return WILLOW_OK;
        }
    }
    return 1;
}

int32_t willow_import_background(uint32_t handler, uint64_t argument) {
    uint8_t *body = allocate(sizeof argument);
    memcpy(body, &argument, sizeof argument);
    uint32_t token = submit(handler, 0, body, sizeof argument, sizeof argument, NULL, 0);
    requests[token].of_nobody = 1;
    return WILLOW_OK;
}

uint32_t willow_import_spu_id(void) { return 0; }

uint32_t willow_import_spu_count(void) { return 1; }

uint64_t willow_import_time_ns(void) { return time_ns; }

void willow_import_print(const void *text, uint32_t bytes) {
    const char *characters = text;
    for (uint32_t index = 0; index < bytes && serial_bytes < SERIAL_BYTES_MAX - 1; index++) {
        serial[serial_bytes++] = characters[index];
    }
}

void willow_import_count(uint32_t counter, int64_t delta) {
    if (counter >= 16) {
        fail("counters are 0 to 15");
    }
    counters[counter] += delta;
}
