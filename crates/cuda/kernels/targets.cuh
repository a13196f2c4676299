// Where a product with packed weights puts its sums.

#pragma once

#include "common.cuh"

struct Target {
    float *out;            // [count, n]
    const float *bias;     // [n] or null
    const float *residual; // as out, or null
    int n;
    int first_tile;        // of the tiles of the matrix
};

#define MAX_TARGETS 4

struct Targets {
    Target at[MAX_TARGETS];
    int count;
    // The matrix is a gate and its `up`, tile by tile; the first target is activation(gate) * up.
    int paired;
    int activation;
};

// The target of a tile, and the tile's number in it.
__device__ __forceinline__ const Target &target_of(const Targets &to, int tile, int &local) {
    int which = 0;
    if (to.paired) {
        which = tile & 1, local = tile >> 1;
    } else {
        while (which + 1 < to.count && to.at[which + 1].first_tile <= tile) which++;
        local = tile - to.at[which].first_tile;
    }
    return to.at[which];
}

// With the bias of its target; then with the residual to its place.
__device__ __forceinline__ float biased(const Target &target, int row, float sum) {
    return target.bias ? __fadd_rn(sum, target.bias[row]) : sum;
}

__device__ __forceinline__ void put(const Target &target, int token, int row, float sum) {
    u64 at = (u64)token * target.n + row;
    if (target.residual) sum = __fadd_rn(sum, target.residual[at]);
    target.out[at] = sum;
}
