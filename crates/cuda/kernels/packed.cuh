// Quantised weights in tiles of 16 rows, and how they are read; see linear.cu for the macros that
// describe a storage kind.
//
// A tile is in units of 64 columns, a unit as the 32 lanes of a warp want it for `mma.m16n8k32`:
// lane 4g + t holds, for both 32-column groups of the unit, the codes of rows g and g + 8 in columns
// 4t..4t+3 and 16+4t..16+4t+3. Low four bits come first (one 16-byte load a lane), further bits in a
// plane of their own.
//
// A code is moved to the top of its byte, so that signed codes need no sign extension; the scale
// takes the power of two back.

#pragma once

#include "common.cuh"

#define F16 0       // an f16 a group
#define F16_MIN 1   // and an f16 offset
#define SUPER_MIN 2 // 8-bit scale and minimum a group, f16 factors of both a chunk
#define SUPER 3     // signed 8-bit scale a group, f16 factor a chunk
#define F32 4       // an f32 a group
#define F32_MIN 5   // and an f32 offset

#define SHIFT (8 - BITS)
#define SUBGROUPS (32 / GROUP)
#define UNITS ((SCALES == SUPER_MIN || SCALES == SUPER) ? 4 : 2)
#define LOW (BITS == 8 ? 2 : 1)
#define OFFSETS (SCALES == F16_MIN || SCALES == SUPER_MIN || SCALES == F32_MIN)
#define WARPS 8

struct Matrix {
    const uint4 *low;   // [tiles, units, LOW, 32]
    const u32 *high;    // BITS 5: [tiles, units, 32]; BITS 6: [tiles, units, 32, 2]
    const void *scales; // [tiles, chunks, ...] by SCALES
    const void *supers; // [tiles, chunks, 8, 2] of half or half2
    int tiles;
    int chunks;         // of 64 * UNITS columns
};

struct Chunk {
    uint4 low[UNITS * LOW];
#if BITS == 5
    u32 high[UNITS];
#elif BITS == 6
    uint2 high[UNITS];
#endif
#if SCALES == F16
    uint2 scales[UNITS];
#elif SCALES == F16_MIN
    uint4 scales[UNITS];
#elif SCALES == SUPER_MIN
    uint4 scales[2];
    uint2 supers;
#elif SCALES == SUPER
    uint4 scales[2];
    u32 supers;
#else
    const float *scales;
#endif
};

__device__ __forceinline__ void load(Chunk &c, const Matrix &m, int tile, int chunk, int lane) {
    u64 at = (u64)tile * m.chunks + chunk;
#if SCALES != F32 && SCALES != F32_MIN
    int g = lane / 4;
#endif
#pragma unroll
    for (int i = 0; i < UNITS * LOW; i++) c.low[i] = stream(m.low + (at * UNITS * LOW + i) * 32 + lane);
#if BITS == 5
#pragma unroll
    for (int i = 0; i < UNITS; i++) c.high[i] = stream(m.high + (at * UNITS + i) * 32 + lane);
#elif BITS == 6
#pragma unroll
    for (int i = 0; i < UNITS; i++)
        c.high[i] = stream((const uint2 *)m.high + (at * UNITS + i) * 32 + lane);
#endif
#if SCALES == F16
#pragma unroll
    for (int i = 0; i < UNITS; i++) c.scales[i] = stream((const uint2 *)m.scales + (at * UNITS + i) * 8 + g);
#elif SCALES == F16_MIN
#pragma unroll
    for (int i = 0; i < UNITS; i++) c.scales[i] = stream((const uint4 *)m.scales + (at * UNITS + i) * 8 + g);
#elif SCALES == SUPER_MIN || SCALES == SUPER
    c.scales[0] = stream((const uint4 *)m.scales + (at * 8 + g) * 2);
    c.scales[1] = stream((const uint4 *)m.scales + (at * 8 + g) * 2 + 1);
#if SCALES == SUPER_MIN
    c.supers = stream((const uint2 *)m.supers + at * 8 + g);
#else
    c.supers = stream((const u32 *)m.supers + at * 8 + g);
#endif
#else
    c.scales = (const float *)m.scales + at * UNITS * 16 * 2 * SUBGROUPS * (OFFSETS ? 2 : 1);
#endif
}

// The four operand registers of group `j` of unit `u`: rows g and g + 8 of the first 16 columns,
// then of the last 16.
__device__ __forceinline__ void codes(const Chunk &c, int u, int j, u32 a[4]) {
#if BITS == 8
    uint4 w = c.low[2 * u + j];
    a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
#else
    u32 first = j ? c.low[u].z : c.low[u].x, second = j ? c.low[u].w : c.low[u].y;
    const u32 mask = 0x0f0f0f0fu << SHIFT;
#if BITS == 4
    a[0] = first << 4 & mask, a[1] = second << 4 & mask, a[2] = first & mask, a[3] = second & mask;
#else
    a[0] = first << SHIFT & mask, a[1] = second << SHIFT & mask;
    a[2] = first >> (4 - SHIFT) & mask, a[3] = second >> (4 - SHIFT) & mask;
#endif
#if BITS == 5
    u32 h = c.high[u] << (j ? 4 : 0);
    a[0] |= h & 0x80808080u, a[1] |= h << 1 & 0x80808080u;
    a[2] |= h << 2 & 0x80808080u, a[3] |= h << 3 & 0x80808080u;
#elif BITS == 6
    u32 h = j ? c.high[u].y : c.high[u].x;
    a[0] |= h & 0xc0c0c0c0u, a[1] |= h << 2 & 0xc0c0c0c0u;
    a[2] |= h << 4 & 0xc0c0c0c0u, a[3] |= h << 6 & 0xc0c0c0c0u;
#endif
#endif
}

__device__ __forceinline__ u32 word(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Scale and offset of subgroup `s` of group `j` of unit `u`, for row g (`r` 0) or g + 8 (`r` 1).
__device__ __forceinline__ void scale_of(
    const Chunk &c, int u, int j, int s, int r, int lane, float &scale, float &offset) {
    const float down = 1.0f / (1 << SHIFT);
    offset = 0.0f;
#if SCALES == F16
    u32 pair = r ? c.scales[u].y : c.scales[u].x;
    scale = half_to_float((u16)(j ? pair >> 16 : pair)) * down;
#elif SCALES == F16_MIN
    u32 pair = r ? c.scales[u].z : c.scales[u].x, least = r ? c.scales[u].w : c.scales[u].y;
    scale = half_to_float((u16)(j ? pair >> 16 : pair)) * down;
    offset = half_to_float((u16)(j ? least >> 16 : least));
#elif SCALES == SUPER_MIN
    u32 packed = word(c.scales[r], u), super = r ? c.supers.y : c.supers.x;
    scale = half_to_float((u16)super) * down * (float)(packed >> (8 * j) & 255u);
    offset = -(half_to_float((u16)(super >> 16)) * (float)(packed >> (16 + 8 * j) & 255u));
#elif SCALES == SUPER
    u32 packed = word(c.scales[r], u);
    float super = half_to_float((u16)(r ? c.supers >> 16 : c.supers));
    scale = super * down * (float)(i8)(packed >> (8 * (SUBGROUPS * j + s)));
#else
    const int per_row = 2 * SUBGROUPS;
    int row = lane / 4 + 8 * r;
    const float *at = c.scales + (u * 16 + row) * per_row * (OFFSETS ? 2 : 1) + j * SUBGROUPS + s;
    scale = at[0] * down;
    if (OFFSETS) offset = at[per_row];
#endif
}

struct Target {
    float *out;            // [count, n] at column `first`
    const float *bias;     // [n] or null
    const float *residual; // as out, or null
    int n;
    int first_tile;        // of the tiles of the matrix
};

#define MAX_TARGETS 4

struct Targets {
    Target at[MAX_TARGETS];
    int count;
};
