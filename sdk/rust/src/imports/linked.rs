//! The imports of docs/abi.md as a module links them. Generated from the table in device/gate/src/table.rs: see device/tests/interface.rs.
//!
//! Who may call it: `imports`, whose names they are.

#[link(wasm_import_module = "willow")]
unsafe extern "C" {
    pub fn request_info(token: u32, to: *mut u8);
    pub fn receive_bytes(token: u32, to: *mut u8, bytes: u32) -> i32;
    pub fn receive_bytes_at(token: u32, offset: u32, to: *mut u8, bytes: u32) -> i32;
    pub safe fn respond(token: u32, status: u32, result: u32);
    pub fn dma(
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32;
    pub fn dma_strided(
        token: u32,
        source_port: u32,
        source_address: u64,
        source_stride: i64,
        destination_port: u32,
        destination_address: u64,
        destination_stride: i64,
        segment_bytes: u32,
        segments: u32,
        wait: u32,
    ) -> i32;
    pub safe fn compare(token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32;
    pub fn checksum(token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32;
    pub safe fn checksum_value() -> u32;
    pub fn rpc_start(
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32;
    pub fn rpc_append(handle: i32, port: u32, address: u64, bytes: u32) -> i32;
    pub fn rpc_finish(handle: i32, wait: u32) -> i32;
    pub safe fn upcall_start(token: u32, hre: u32, kind: u32, body_bytes: u32) -> i32;
    pub fn subscribers(kind: u32, after: u32, to: *mut u8, most: u32) -> i32;
    pub fn app_number(name: *const u8, bytes: u32) -> i32;
    pub safe fn region(id: u32, bytes: u64, wait: u32) -> i64;
    pub safe fn region_bytes(id: u32) -> i64;
    pub safe fn region_free(id: u32, wait: u32) -> i32;
    pub fn namespace(nsid: u32, to: *mut u8) -> i32;
    pub safe fn flush(wait: u32) -> i32;
    pub fn literals_load(literals: *const u8, bytes: u32, flags: u32) -> i32;
    pub fn literals_find(
        token: u32,
        set: i32,
        port: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: *mut u8,
        most: u32,
        wait: u32,
    ) -> i32;
    pub fn keys_find(
        token: u32,
        port: u32,
        address: u64,
        key_bytes: u32,
        stride: u32,
        count: u32,
        order: u32,
        key: *const u8,
        wait: u32,
    ) -> i32;
    pub fn multiply_add(
        token: u32,
        number_bytes: u32,
        alpha: u64,
        x: *const u8,
        y: *mut u8,
        count: u32,
        wait: u32,
    ) -> i32;
    pub fn fft(token: u32, number_bytes: u32, inverse: u32, data: *mut u8, count: u32, rows: u32, wait: u32) -> i32;
    pub fn decompress(
        token: u32,
        codec: u32,
        from: *const u8,
        bytes: u32,
        to: *mut u8,
        to_bytes: u32,
        state: *mut u8,
        wait: u32,
    ) -> i32;
    pub safe fn literals_free(set: i32) -> i32;
    pub safe fn sleep(duration_ns: u64, wait: u32) -> i32;
    pub safe fn cancel(token: u32, wait: u32) -> i32;
    pub safe fn background(handler: u32, argument: u64) -> i32;
    pub safe fn spu_id() -> u32;
    pub safe fn spu_count() -> u32;
    pub safe fn time_ns() -> u64;
    pub fn print(text: *const u8, bytes: u32);
    pub safe fn count(counter: u32, delta: i64);
}

#[link(wasm_import_module = "willow_flash")]
unsafe extern "C" {
    pub fn flash_geometry(to: *mut u8) -> i32;
    pub fn flash_bad_blocks(die: u32, to: *mut u8, most: u32) -> i32;
    pub fn flash_read(
        die: u32,
        block: u32,
        page: u32,
        offset: u32,
        bytes: u32,
        peer: u32,
        to: u64,
        spare: *mut u8,
        spare_bytes: u32,
        wait: u32,
    ) -> i32;
    pub fn flash_program(die: u32, pages: *const u8, count: u32, wait: u32) -> i32;
    pub fn flash_erase(die: u32, blocks: *const u8, count: u32, wait: u32) -> i32;
    pub safe fn flash_zero_peer(peer: u32, offset: u64, bytes: u32) -> i32;
    pub safe fn flash_pause(wait: u32) -> i32;
    pub fn flash_minimum(numbers: *const u8, count: u32) -> i32;
    pub safe fn flash_health(spare_percent: u32, media_errors: u64, read_only: u32) -> i32;
    pub fn flash_read_map(lanes: *const u8, count: u32, corrected_bits_max: u32) -> i32;
}
