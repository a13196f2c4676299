// What attention over pool blocks is given.

#pragma once

#include "common.cuh"

enum { POOL_F32, POOL_F16, POOL_BF16, POOL_Q8_0 };

struct Paged {
    const float *q;      // [tokens, heads, key]
    const void *keys;    // [slots, groups, key]
    const void *values;  // [slots, groups, value]
    const int *tables;   // [sequences, blocks]
    const int *rows;     // [tokens]
    const int *positions;// [tokens]
    const float *sinks;  // [heads] or null
    float *out;          // [tokens, heads, value]
    float *partials;     // [tokens, heads, splits, value + 2]
    u32 *arrived;        // [tokens, groups], zero between launches
    int first_token, tokens, heads, groups, key, value;
    int blocks, block;   // of a table row; positions of a block
    int window;          // 0: all
    int n_slots, sequences;
    float scale, softcap;
};
