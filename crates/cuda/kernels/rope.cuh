// Rotary embedding, and rows stored in pools.

#pragma once

#include "common.cuh"

// Storage of pool elements.
enum { POOL_F32, POOL_F16, POOL_BF16, POOL_Q8_0 };

struct Rope {
    const int *positions;      // [tokens]
    const float *frequencies;  // [turned]
    int turned;                // pairs
    int pairs;                 // whether pairs are neighbours
    float scale;
};

// Turns heads [heads, width] of one token, the last of which is apart from the others; the block
// works together.
__device__ __forceinline__ void turn(
    const Rope &r, int token, const float *x, const float *last, float *out, int heads, int width) {
    last -= (heads - 1) * width;
    float position = (float)r.positions[token];
    for (int i = threadIdx.x; i < r.turned * heads; i += blockDim.x) {
        int head = i / r.turned, pair = i % r.turned;
        float sine, cosine;
        sincosf(position * r.frequencies[pair], &sine, &cosine);
        sine *= r.scale, cosine *= r.scale;
        int first = head * width + (r.pairs ? 2 * pair : pair);
        int second = first + (r.pairs ? 1 : r.turned);
        const float *from = head + 1 < heads ? x : last;
        float a = from[first], b = from[second];
        out[first] = a * cosine - b * sine;
        out[second] = b * cosine + a * sine;
    }
    int rest = width - 2 * r.turned;
    for (int i = threadIdx.x; i < rest * heads; i += blockDim.x) {
        int at = i / rest * width + 2 * r.turned + i % rest;
        out[at] = (i / rest + 1 < heads ? x : last)[at];
    }
}

// Heads one after the other.
__device__ __forceinline__ void turn(
    const Rope &r, int token, const float *x, float *out, int heads, int width) {
    turn(r, token, x, x + (heads - 1) * width, out, heads, width);
}
