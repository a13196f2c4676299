// What stands before a product: rows of activations, normalised or gated where the step says so,
// written as the product's kernel wants them.

#include "rows.cuh"
#include "blocks.cuh"

#define SEGMENT 1024

// Rows as 8-bit codes in groups of 32, each with a scale, in the order of `mma.m16n8k32`'s second
// operand; see linear.cu. A block of 256 threads does 1024 columns of one row. Columns from `k` up
// to `padded`, a multiple of 128, become zeros.
extern "C" __global__ void __launch_bounds__(256) quantize_rows(
    Source s, u32 *codes, float2 *scales, float *firsts, int k, int padded, int columns) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.y;
    float scale = row_scale(s, row, k, scratch);
    int i = blockIdx.x * SEGMENT + threadIdx.x * 4; // eight lanes do a group
    if (i >= padded) return;
    float v[4];
    source4(s, row, k, i, scale, v);
    Quad q = quantize4(v);
    int group = i / 32, part = i % 32 / 4; // part 0..8: columns 4 * part
    int lane = (int)(row % 8) * 4 + part % 4;
    u64 at = ((u64)(group / 2) * (columns / 8) + row / 8) * 32 + lane;
    codes[at * 4 + (group & 1) * 2 + part / 4] = q.codes;
    if (part == 0) {
        u64 place = (u64)group * columns + row;
        scales[place] = make_float2(q.unit, q.unit * (float)q.sum);
        firsts[place] = q.unit * (float)q.first;
    }
}

// Rows as two halves a column for float weights: [rows, padded] each, and what takes their power of
// two back.
extern "C" __global__ void __launch_bounds__(256) split_rows(
    Source s, u16 *high, u16 *low, float *down, int k, int padded) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.x;
    float back = split_row(s, row, k, padded, high + row * padded, low + row * padded, scratch);
    if (threadIdx.x == 0) down[row] = back;
}

// Rows as f16 of `padded` columns, a multiple of 16, for wide.cu. Each row is scaled by a power of
// two that puts its largest value below 512, so that none overflows; `down` takes it back. The
// columns of each 16 are in the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15. With `kept` the block
// has shared memory for the row. With `rounded` columns are rounded to the 8-bit codes that other
// numbers of tokens are multiplied as, so that what a token gets hardly depends on how many there
// are. With `blocked` they lie in blocks of 128 rows by 64 columns, as dense.cu wants them.
extern "C" __global__ void __launch_bounds__(256) narrow_rows(
    Source s, u16 *out, float *down, int k, int padded, int kept, int rounded, int blocked) {
    extern __shared__ __align__(16) float values[];
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.x;
    float scale = row_scale(s, row, k, scratch), top = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < padded; i += blockDim.x * 4) {
        float v[4];
        source4(s, row, k, i, scale, v);
        if (rounded) round4(v);
        top = fmaxf(fmaxf(fmaxf(top, fabsf(v[0])), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
        if (kept) *(float4 *)(values + i) = make_float4(v[0], v[1], v[2], v[3]);
    }
    float up = row_up(block_max(top, scratch));
    if (threadIdx.x == 0) down[row] = 1.0f / up;
    for (int i = threadIdx.x * 4; i < padded; i += blockDim.x * 4) {
        float v[4];
        if (kept) {
            float4 x = *(const float4 *)(values + i);
            v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
        } else {
            source4(s, row, k, i, scale, v);
            if (rounded) round4(v);
        }
        u16 *first = out + row * padded + i / 16 * 16, *second = first + 8;
        if (blocked) {
            u16 *block = out + (row / 128 * (padded / 64) + i / 64) * (128 * 64);
            int piece = i % 64 / 16 * 2;
            first = block + swizzled((int)(row % 128), piece);
            second = block + swizzled((int)(row % 128), piece + 1);
        }
        ((u32 *)first)[i % 16 / 4] = pack_halves(v[0] * up, v[1] * up);
        ((u32 *)second)[i % 16 / 4] = pack_halves(v[2] * up, v[3] * up);
    }
}
