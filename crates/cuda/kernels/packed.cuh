// Weights in tiles of 16 rows, and how they are read; see linear.cu for the macros that describe a
// storage kind.
//
// A tile is in chunks of 64 * UNITS columns. A chunk is one record of RECORD bytes: codes, further
// bits, scales, factors of scales. Blocks copy records to shared memory some chunks ahead.
//
// A unit of 64 columns lies as the 32 lanes of a warp want it for `mma.m16n8k32`: lane 4g + t holds,
// for both 32-column groups of the unit, the codes of rows g and g + 8 in columns 4t..4t+3 and
// 16+4t..16+4t+3. Low four bits come first (16 bytes a lane), further bits in a plane of their own.
// A code is moved to the top of its byte, so that signed codes need no sign extension; the scale
// takes the power of two back.
//
// BITS 16 is float weights as f16, each row scaled by a power of two: for each step of 16 columns a
// lane holds columns 4t, 4t+1 of rows g and g + 8, then 4t+2, 4t+3 of both. With PLANES 2 a unit of
// what f16 leaves over follows each unit.

#pragma once

#include "targets.cuh"

#define F16 0       // an f16 a group
#define F16_MIN 1   // and an f16 offset
#define SUPER_MIN 2 // 8-bit scale and minimum a group, f16 factors of both a chunk
#define SUPER 3     // signed 8-bit scale a group, f16 factor a chunk
#define F32 4       // an f32 a group
#define F32_MIN 5   // and an f32 offset
#define ROW 6       // an f32 a row, apart from the records

#ifndef PLANES
#define PLANES 1
#endif

#define SHIFT (8 - BITS)
#define SUBGROUPS (32 / GROUP)
#define UNITS ((SCALES == SUPER_MIN || SCALES == SUPER) ? 4 : 2)
#define OFFSETS (SCALES == F16_MIN || SCALES == SUPER_MIN || SCALES == F32_MIN)
#define WARPS 8

#define LOW_BYTES (UNITS * (BITS == 16 ? 2048 : BITS == 8 ? 1024 : 512))
#define HIGH_BYTES (BITS == 5 ? UNITS * 128 : BITS == 6 ? UNITS * 256 : 0)
#define F32_BYTES (UNITS * 16 * 2 * SUBGROUPS * 4)
#define SCALE_BYTES                                                                              \
    (SCALES == F16 ? UNITS * 64 : SCALES == F16_MIN ? UNITS * 128 : SCALES == F32 ? F32_BYTES     \
     : SCALES == F32_MIN ? 2 * F32_BYTES : SCALES == ROW ? 0 : 256)
#define SUPER_BYTES (SCALES == SUPER_MIN ? 64 : SCALES == SUPER ? 32 : 0)
#define RECORD (LOW_BYTES + HIGH_BYTES + SCALE_BYTES + SUPER_BYTES)

struct Matrix {
    const u8 *records;       // [tiles, chunks, RECORD]
    const float *row_scales; // [tiles, 16] for ROW
    int tiles;
    int chunks;
    int splits; // parts of a row that are summed apart; see linear.cu
};

__device__ __forceinline__ void copy16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// A warp copies the record of a chunk.
__device__ __forceinline__ void copy_record(u32 to, const Matrix &m, int tile, int chunk, int lane) {
    const u8 *from = m.records + ((u64)tile * m.chunks + chunk) * RECORD;
#pragma unroll
    for (int i = 0; i < RECORD; i += 512)
        if (RECORD - i >= 512 || lane * 16 < RECORD - i) copy16(to + i + lane * 16, from + i + lane * 16);
}

#if BITS != 16

// The four operand registers of group `j` of unit `u`: rows g and g + 8 of the first 16 columns,
// then of the last 16.
__device__ __forceinline__ void codes(const u8 *record, int u, int j, int lane, u32 a[4]) {
#if BITS == 8
    uint4 w = *(const uint4 *)(record + ((2 * u + j) * 32 + lane) * 16);
    a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
#else
    uint2 w = *(const uint2 *)(record + (u * 32 + lane) * 16 + j * 8);
    const u32 mask = 0x0f0f0f0fu << SHIFT;
#if BITS == 4
    a[0] = w.x << 4 & mask, a[1] = w.y << 4 & mask, a[2] = w.x & mask, a[3] = w.y & mask;
#else
    a[0] = w.x << SHIFT & mask, a[1] = w.y << SHIFT & mask;
    a[2] = w.x >> (4 - SHIFT) & mask, a[3] = w.y >> (4 - SHIFT) & mask;
#endif
#if BITS == 5
    u32 h = *(const u32 *)(record + LOW_BYTES + (u * 32 + lane) * 4) << (j ? 4 : 0);
    a[0] |= h & 0x80808080u, a[1] |= h << 1 & 0x80808080u;
    a[2] |= h << 2 & 0x80808080u, a[3] |= h << 3 & 0x80808080u;
#elif BITS == 6
    u32 h = *(const u32 *)(record + LOW_BYTES + (u * 32 + lane) * 8 + j * 4);
    a[0] |= h & 0xc0c0c0c0u, a[1] |= h << 2 & 0xc0c0c0c0u;
    a[2] |= h << 4 & 0xc0c0c0c0u, a[3] |= h << 6 & 0xc0c0c0c0u;
#endif
#endif
}

// Scale and offset of subgroup `s` of group `j` of unit `u`, for row g (`r` 0) or g + 8 (`r` 1).
__device__ __forceinline__ void scale_of(
    const u8 *record, int u, int j, int s, int r, int g, float &scale, float &offset) {
    const float down = 1.0f / (1 << SHIFT);
    const u8 *scales = record + LOW_BYTES + HIGH_BYTES;
#if SUPER_BYTES > 0
    const u8 *supers = scales + SCALE_BYTES;
#endif
    offset = 0.0f;
#if SCALES == F16
    u32 pair = *(const u32 *)(scales + (u * 8 + g) * 8 + r * 4);
    scale = half_to_float((u16)(j ? pair >> 16 : pair)) * down;
#elif SCALES == F16_MIN
    uint2 pair = *(const uint2 *)(scales + (u * 8 + g) * 16 + r * 8);
    scale = half_to_float((u16)(j ? pair.x >> 16 : pair.x)) * down;
    offset = half_to_float((u16)(j ? pair.y >> 16 : pair.y));
#elif SCALES == SUPER_MIN
    u32 packed = *(const u32 *)(scales + ((g * 4 + u) * 2 + r) * 4);
    u32 super = *(const u32 *)(supers + (g * 2 + r) * 4);
    scale = half_to_float((u16)super) * down * (float)(packed >> (8 * j) & 255u);
    offset = -(half_to_float((u16)(super >> 16)) * (float)(packed >> (16 + 8 * j) & 255u));
#elif SCALES == SUPER
    u32 packed = *(const u32 *)(scales + ((g * 4 + u) * 2 + r) * 4);
    float super = half_to_float(*(const u16 *)(supers + (g * 2 + r) * 2));
    scale = super * down * (float)(i8)(packed >> (8 * (SUBGROUPS * j + s)));
#else
    const int per_row = 2 * SUBGROUPS;
    const float *at =
        (const float *)scales + (u * 16 + g + 8 * r) * per_row * (OFFSETS ? 2 : 1) + j * SUBGROUPS + s;
    scale = at[0] * down;
    if (OFFSETS) offset = at[per_row];
#endif
}

#endif
