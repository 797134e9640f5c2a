/* The imports of docs/abi.md, for willow.c alone; natively willow_test.c carries them out.
   Generated from the table in device/gate/src/table.rs: see device/tests/interface.rs. */
#ifndef WILLOW_IMPORTS_H
#define WILLOW_IMPORTS_H

#include <stdint.h>

#define WILLOW_ABI_VERSION 2

#ifdef __wasm__
#define WILLOW_IMPORT(name) __attribute__((import_module("willow"), import_name(#name)))
#define WILLOW_FLASH_IMPORT(name) __attribute__((import_module("willow_flash"), import_name(#name)))
#else
#define WILLOW_IMPORT(name)
#define WILLOW_FLASH_IMPORT(name)
#endif

WILLOW_IMPORT(request_info)
void willow_import_request_info(uint32_t token, void *to);
WILLOW_IMPORT(receive_bytes)
int32_t willow_import_receive_bytes(uint32_t token, void *to, uint32_t bytes);
WILLOW_IMPORT(receive_bytes_at)
int32_t willow_import_receive_bytes_at(uint32_t token, uint32_t offset, void *to, uint32_t bytes);
WILLOW_IMPORT(respond)
void willow_import_respond(uint32_t token, uint32_t status, uint32_t result);
WILLOW_IMPORT(dma)
int32_t willow_import_dma(uint32_t token, uint32_t source_port, uint64_t source_address, uint32_t destination_port,
                          uint64_t destination_address, uint32_t bytes, uint32_t wait);
WILLOW_IMPORT(dma_strided)
int32_t willow_import_dma_strided(uint32_t token, uint32_t source_port, uint64_t source_address, int64_t source_stride,
                                  uint32_t destination_port, uint64_t destination_address, int64_t destination_stride,
                                  uint32_t segment_bytes, uint32_t segments, uint32_t wait);
WILLOW_IMPORT(compare)
int32_t willow_import_compare(uint32_t token, uint64_t nv_address, uint64_t body_offset, uint32_t bytes, uint32_t wait);
WILLOW_IMPORT(checksum)
int32_t willow_import_checksum(uint32_t token, uint32_t port, uint64_t address, uint32_t bytes, uint32_t seed,
                               uint32_t wait);
WILLOW_IMPORT(checksum_value)
uint32_t willow_import_checksum_value(void);
WILLOW_IMPORT(rpc_start)
int32_t willow_import_rpc_start(uint32_t token, int32_t destination, int32_t app, uint32_t handler,
                                uint32_t body_bytes, void *reply, uint32_t reply_bytes);
WILLOW_IMPORT(rpc_append)
int32_t willow_import_rpc_append(int32_t handle, uint32_t port, uint64_t address, uint32_t bytes);
WILLOW_IMPORT(rpc_finish)
int32_t willow_import_rpc_finish(int32_t handle, uint32_t wait);
WILLOW_IMPORT(upcall_start)
int32_t willow_import_upcall_start(uint32_t token, uint32_t hre, uint32_t kind, uint32_t body_bytes);
WILLOW_IMPORT(subscribers)
int32_t willow_import_subscribers(uint32_t kind, uint32_t after, void *to, uint32_t most);
WILLOW_IMPORT(app_number)
int32_t willow_import_app_number(const void *name, uint32_t bytes);
WILLOW_IMPORT(region)
int64_t willow_import_region(uint32_t id, uint64_t bytes, uint32_t wait);
WILLOW_IMPORT(region_bytes)
int64_t willow_import_region_bytes(uint32_t id);
WILLOW_IMPORT(region_free)
int32_t willow_import_region_free(uint32_t id, uint32_t wait);
WILLOW_IMPORT(namespace)
int32_t willow_import_namespace(uint32_t nsid, void *to);
WILLOW_IMPORT(flush)
int32_t willow_import_flush(uint32_t wait);
WILLOW_IMPORT(literals_load)
int32_t willow_import_literals_load(const void *literals, uint32_t bytes, uint32_t flags);
WILLOW_IMPORT(literals_find)
int32_t willow_import_literals_find(uint32_t token, int32_t set, uint32_t port, uint64_t address, uint32_t bytes,
                                    uint32_t state, void *to, uint32_t most, uint32_t wait);
WILLOW_IMPORT(keys_find)
int32_t willow_import_keys_find(uint32_t token, uint32_t port, uint64_t address, uint32_t key_bytes, uint32_t stride,
                                uint32_t count, uint32_t order, const void *key, uint32_t wait);
WILLOW_IMPORT(multiply_add)
int32_t willow_import_multiply_add(uint32_t token, uint32_t number_bytes, uint64_t alpha, const void *x, void *y,
                                   uint32_t count, uint32_t wait);
WILLOW_IMPORT(fft)
int32_t willow_import_fft(uint32_t token, uint32_t number_bytes, uint32_t inverse, void *data, uint32_t count,
                          uint32_t rows, uint32_t wait);
WILLOW_IMPORT(decompress)
int32_t willow_import_decompress(uint32_t token, uint32_t codec, const void *from, uint32_t bytes, void *to,
                                 uint32_t to_bytes, void *state, uint32_t wait);
WILLOW_IMPORT(literals_free)
int32_t willow_import_literals_free(int32_t set);
WILLOW_IMPORT(sleep)
int32_t willow_import_sleep(uint64_t duration_ns, uint32_t wait);
WILLOW_IMPORT(cancel)
int32_t willow_import_cancel(uint32_t token, uint32_t wait);
WILLOW_IMPORT(background)
int32_t willow_import_background(uint32_t handler, uint64_t argument);
WILLOW_IMPORT(spu_id)
uint32_t willow_import_spu_id(void);
WILLOW_IMPORT(spu_count)
uint32_t willow_import_spu_count(void);
WILLOW_IMPORT(time_ns)
uint64_t willow_import_time_ns(void);
WILLOW_IMPORT(print)
void willow_import_print(const void *text, uint32_t bytes);
WILLOW_IMPORT(count)
void willow_import_count(uint32_t counter, int64_t delta);
WILLOW_FLASH_IMPORT(flash_geometry)
int32_t willow_import_flash_geometry(void *to);
WILLOW_FLASH_IMPORT(flash_bad_blocks)
int32_t willow_import_flash_bad_blocks(uint32_t die, void *to, uint32_t most);
WILLOW_FLASH_IMPORT(flash_read)
int32_t willow_import_flash_read(uint32_t die, uint32_t block, uint32_t page, uint32_t offset, uint32_t bytes,
                                 uint32_t peer, uint64_t to, void *spare, uint32_t spare_bytes, uint32_t wait);
WILLOW_FLASH_IMPORT(flash_program)
int32_t willow_import_flash_program(uint32_t die, const void *pages, uint32_t count, uint32_t wait);
WILLOW_FLASH_IMPORT(flash_erase)
int32_t willow_import_flash_erase(uint32_t die, const void *blocks, uint32_t count, uint32_t wait);
WILLOW_FLASH_IMPORT(flash_zero_peer)
int32_t willow_import_flash_zero_peer(uint32_t peer, uint64_t offset, uint32_t bytes);
WILLOW_FLASH_IMPORT(flash_pause)
int32_t willow_import_flash_pause(uint32_t wait);
WILLOW_FLASH_IMPORT(flash_minimum)
int32_t willow_import_flash_minimum(const void *numbers, uint32_t count);
WILLOW_FLASH_IMPORT(flash_health)
int32_t willow_import_flash_health(uint32_t spare_percent, uint64_t media_errors, uint32_t read_only);
WILLOW_FLASH_IMPORT(flash_read_map)
int32_t willow_import_flash_read_map(const void *lanes, uint32_t count, uint32_t corrected_bits_max);

/* The exports of the app. */
int32_t willow_start(uint32_t token, uint32_t handler);
void willow_complete(uint32_t wait, int64_t result);

#endif
