// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The compression service of the stand-in, on zlib. Part of card.c, which has the device's memory, the controls and
// the answers. Offsets are those of icp_qat_fw_comp.h in qatlib; slices, verification in the card and levels are not
// imitated: every level is zlib's 4.

#ifndef MILLRACE_QAT_COMPRESSION_H
#define MILLRACE_QAT_COMPRESSION_H

#include <zlib.h>

// What became of a request.
struct compressed {
    uint32_t consumed, produced;
    int8_t error;
};

// Requests of a compression ring, in bytes from the start of the message.
enum { COMMAND = 1, FLAGS = 6, SOURCE = 32, TARGET = 40, INPUT_SIZE = 56, OUTPUT_SIZE = 60, PARAMETERS = 72 };
enum { STATIC_CODES = 0, DYNAMIC_CODES = 1, LIST = 1, FINAL_BLOCK = 1 << 6 };
// CPA_DC_OVERFLOW, and the bit of the answer's status that says that compression failed.
enum { OVERFLOWN = -11, COMPRESSION_FAILED = 1 << 5 };
#define PIECES 64

// A list of buffers as the library writes it for the card.
struct list {
    uint64_t reserved;
    uint32_t count, reserved_too;
    struct piece { uint32_t size, reserved; uint64_t iova; } pieces[PIECES];
};

static uint32_t word(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static uint64_t address(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }

// Moves `size` bytes between memory and the buffers that the message names at `where`.
static int move_bytes(const uint8_t *message, int where, uint8_t *bytes, uint32_t size, int to_card) {
    struct list list = {.count = 1};
    if (word(message + FLAGS) & LIST) {
        if (dma_read(address(message + where), &list, 16) || list.count > PIECES ||
            dma_read(address(message + where) + 16, list.pieces, list.count * sizeof *list.pieces))
            return -1;
    } else
        list.pieces[0] = (struct piece){size, 0, address(message + where)};
    for (uint32_t i = 0; i < list.count && size; i++) {
        uint32_t part = list.pieces[i].size < size ? list.pieces[i].size : size;
        if (to_card ? dma_read(list.pieces[i].iova, bytes, part) : dma_write(list.pieces[i].iova, bytes, part)) return -1;
        bytes += part;
        size -= part;
    }
    return size ? -1 : 0;
}

static enum answer compress_message(const uint8_t *message, int wrong, struct compressed *result) {
    uint32_t size = word(message + INPUT_SIZE), room = word(message + OUTPUT_SIZE);
    if (message[COMMAND] != STATIC_CODES && message[COMMAND] != DYNAMIC_CODES) {
        controls->unknown_functions++;
        return UNSUPPORTED;
    }
    uint8_t *input = malloc(size + 1), *output = malloc(room + 1);
    enum answer answer = FAILED;
    z_stream stream = {.next_in = input, .avail_in = size, .next_out = output, .avail_out = room};
    if (!input || !output || move_bytes(message, SOURCE, input, size, 1) ||
        deflateInit2(&stream, 4, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        goto end;
    int final = word(message + PARAMETERS) & FINAL_BLOCK;
    int status = deflate(&stream, final ? Z_FINISH : Z_FULL_FLUSH);
    int complete = final ? status == Z_STREAM_END : status == Z_OK && stream.avail_out > 0;
    result->consumed = size - stream.avail_in;
    result->produced = room - stream.avail_out;
    deflateEnd(&stream);
    if (!complete) {
        result->error = OVERFLOWN;
        goto end;
    }
    if (wrong) {
        output[result->produced / 2] ^= 0x10;
        controls->wrong++;
    }
    answer = move_bytes(message, TARGET, output, result->produced, 0) ? FAILED : RIGHT;
end:
    free(input);
    free(output);
    return answer;
}

// The answer's 32 bytes; type, validity and opaque data are there.
static void answer_compression(uint8_t *bytes, const struct compressed *result, int right) {
    bytes[4] = 0;
    bytes[5] = (uint8_t)result->error;
    bytes[6] = right ? 0 : COMPRESSION_FAILED;
    bytes[7] = 0;
    memset(bytes + 16, 0, 16);
    memcpy(bytes + 16, &result->consumed, 4);
    memcpy(bytes + 20, &result->produced, 4);
}

#endif
