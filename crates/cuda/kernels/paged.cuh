// What attention over pool blocks is given.

#pragma once

#include "rope.cuh"

struct Paged {
    const float *q;      // [tokens, heads, key]
    const void *keys;    // [slots, groups, key]
    const void *values;  // [slots, groups, value]
    const int *tables;   // [sequences, blocks]
    const int *rows;     // [tokens]
    const int *positions;// [tokens]
    const float *sinks;  // [heads] or null
    float *out;          // [tokens, heads, value]
    float *partials;     // of tokens, heads and splits
    u32 *arrived;        // of tokens and groups, zero between launches
    int first_token, tokens, heads, groups, key, value;
    int blocks, block;   // of a table row; positions of a block
    int window;          // 0: all
    int n_slots, sequences;
    float scale, softcap;
};
