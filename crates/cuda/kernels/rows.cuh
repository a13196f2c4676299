// Rows before a product: normalised or gated where the step says so, as 8-bit codes or as halves.

#pragma once

#include "common.cuh"

// Four columns from `i`, a multiple of 4; zeros past `k`.
__device__ __forceinline__ void source4(
    const Source &s, u64 row, int k, int i, float scale, float v[4]) {
    if (k % 4 == 0 && i < k) {
        float4 x = *(const float4 *)(s.x + row * k + i);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        if (s.kind == NORM) {
            float4 w = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (s.other) w = *(const float4 *)(s.other + i);
            v[0] = __fmul_rn(__fmul_rn(v[0], scale), w.x), v[1] = __fmul_rn(__fmul_rn(v[1], scale), w.y);
            v[2] = __fmul_rn(__fmul_rn(v[2], scale), w.z), v[3] = __fmul_rn(__fmul_rn(v[3], scale), w.w);
        } else if (s.kind == GATED) {
            float4 u = *(const float4 *)(s.other + row * k + i);
            v[0] = __fmul_rn(activate(s.activation, v[0]), u.x);
            v[1] = __fmul_rn(activate(s.activation, v[1]), u.y);
            v[2] = __fmul_rn(activate(s.activation, v[2]), u.z);
            v[3] = __fmul_rn(activate(s.activation, v[3]), u.w);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = i + j < k ? source_at(s, row, k, i + j, scale) : 0.0f;
}

// Four of the 32 columns of a group as codes; the eight lanes of a group work together.
struct Quad {
    u32 codes;
    float unit;
    int first, sum; // of the codes of the first 16 columns (valid in the first lane), and of all
};

__device__ __forceinline__ Quad quantize4(const float v[4]) {
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) top = fmaxf(top, fabsf(v[j]));
    for (int step = 4; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
    // A row with an infinity or NaN stays visible: its scale is no number.
    Quad q = {0, top / 127.0f, 0, 0};
    float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int code = __float2int_rn(v[j] * inverse);
        sum += code;
        q.codes |= (u32)(code & 255) << (8 * j);
    }
    for (int step = 2; step; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
    q.first = sum;
    q.sum = sum + __shfl_xor_sync(FULL, sum, 4);
    return q;
}

// Four columns as a product of 8-bit codes sees them.
__device__ __forceinline__ void round4(float v[4]) {
    Quad q = quantize4(v);
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = q.unit * (float)(i8)(q.codes >> (8 * j));
}

// The power of two that puts a row's largest value below 512.
__device__ __forceinline__ float row_up(float top) {
    int exponent = (__float_as_int(top) >> 23 & 255) - 127;
    if (!(top > 0.0f) || exponent >= 128) return 1.0f;
    return ldexpf(1.0f, min(max(8 - exponent, -100), 100));
}

// Four values times a power of two as halves, and what these leave over.
__device__ __forceinline__ void put_halves(float4 v, float up, u16 *high, u16 *low) {
    float a = v.x * up, b = v.y * up, c = v.z * up, d = v.w * up;
    u32 h0 = pack_halves(a, b), h1 = pack_halves(c, d);
    *(uint2 *)high = make_uint2(h0, h1);
    *(uint2 *)low = make_uint2(
        pack_halves(a - half_to_float((u16)h0), b - half_to_float((u16)(h0 >> 16))),
        pack_halves(c - half_to_float((u16)h1), d - half_to_float((u16)(h1 >> 16))));
}

// The row times a power of two as two halves a column, what the first leaves over in the second; up
// to column `padded`, a multiple of 4. Gives what takes the power back. The block works together.
__device__ __forceinline__ float split_row(
    const Source &s, u64 row, int k, int padded, u16 *high, u16 *low, float *scratch) {
    float scale = row_scale(s, row, k, scratch), top = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < padded; i += blockDim.x * 4) {
        float v[4];
        source4(s, row, k, i, scale, v);
        top = fmaxf(fmaxf(fmaxf(top, fabsf(v[0])), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    }
    float up = row_up(block_max(top, scratch));
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < padded; i += blockDim.x * 4) {
        float v[4];
        source4(s, row, k, i, scale, v);
        put_halves(make_float4(v[0], v[1], v[2], v[3]), up, high + i, low + i);
    }
    return 1.0f / up;
}
