// Blocks of 128 rows by 64 columns of f16, as `wgmma` reads them from shared memory: rows of 128
// bytes, whose pieces of 16 bytes are exchanged by the row modulo 8 (the 128-byte swizzle).

#pragma once

#include "common.cuh"

// Weights are scaled by 2^8 so that small ones keep their bits as f16.
#define UP 256.0f

// The place, in halves, of a 16-byte piece of a row.
__device__ __forceinline__ int swizzled(int row, int piece) {
    return row * 64 + (piece ^ (row & 7)) * 8;
}
