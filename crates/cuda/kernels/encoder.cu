// What text encoders need besides: layernorm, and attention within packed sequences.

#include "common.cuh"

// layernorm of rows; a block a row.
extern "C" __global__ void __launch_bounds__(256) layernorm(
    const float *x, const float *weight, const float *bias, float *out, int k, float eps) {
    __shared__ float scratch[32];
    wait_for_previous();
    x += (u64)blockIdx.x * k;
    out += (u64)blockIdx.x * k;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < k; i += blockDim.x) sum += x[i];
    float mean = block_sum(sum, scratch) / (float)k;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        float centered = x[i] - mean;
        squares = __fmaf_rn(centered, centered, squares);
    }
    float scale = rsqrtf(block_sum(squares, scratch) / (float)k + eps);
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        float y = __fmul_rn(__fmul_rn(x[i] - mean, scale), weight[i]);
        out[i] = bias ? __fadd_rn(y, bias[i]) : y;
    }
}

// Attention within sequences that lie one after the other.
//
// A block does 16 queries of one sequence and one head, a warp four of them; keys come 32 at a time,
// a lane a key, counted from the sequence's first token. So a token's result depends on its own
// sequence only.
struct Packed {
    const float *q, *k, *v; // [tokens, heads, d], [tokens, groups, d], [tokens, groups, e]
    const int *bounds;      // [sequences + 1]
    const int *shown;       // [tokens]
    const float *bias;      // [heads, distances] or null
    // Contents meet positions: `index` [distances] gives the row of a distance in the tables
    // [positions, heads, d], either of which may be null.
    const int *index;
    const float *pos_k, *pos_q;
    float *out;             // [tokens, heads, e]
    int sequences, tokens, heads, groups, d, e, distances, window, causal, positions;
    float scale, softcap;
};

#define QUERIES 16
#define KEYS 32
#define PER_WARP 4
// Distances between the queries and the keys that a block has at once.
#define APART (QUERIES + KEYS - 1)

extern __shared__ __align__(16) float packed_memory[];

// The rows of a table that the distances `first`, `first + 1`, ... have, side by side; of a place that
// the table does not have, NaN.
__device__ __forceinline__ void stage_apart(
    const Packed &p, const float *table, int first, int head, int padded, int stride, float *out) {
    int half = p.distances / 2;
    for (int i = threadIdx.x; i < APART * padded; i += blockDim.x) {
        int row = i / padded, column = i % padded;
        int at = p.index[half + min(max(first + row, -half), half)];
        float x = 0.0f;
        if (column < p.d)
            x = (u32)at < (u32)p.positions ? table[((u64)at * p.heads + head) * p.d + column]
                                           : __int_as_float(0x7fc00000);
        out[row * stride + column] = x;
    }
}

// Columns of V that a lane has: 32 * COLUMNS of them in all.
template <int COLUMNS, bool RELATIVE>
__device__ __forceinline__ void attend(const Packed &p) {
    __shared__ int found[2]; // the block's sequence, and its first query there
    wait_for_previous();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.y;
    int group = head / (p.heads / p.groups);
    if (threadIdx.x == 0) found[0] = -1;
    __syncthreads();
    if (warp == 0) {
        // Blocks are dealt to sequences in their order.
        int before = 0;
        for (int first = 0; first < p.sequences && before <= (int)blockIdx.x; first += WARP) {
            int s = first + lane, blocks = 0;
            if (s < p.sequences) blocks = (p.bounds[s + 1] - p.bounds[s] + QUERIES - 1) / QUERIES;
            int sum = blocks;
            for (int step = 1; step < WARP; step *= 2) {
                int other = __shfl_up_sync(FULL, sum, step);
                if (lane >= step) sum += other;
            }
            int mine = before + sum - blocks;
            if (blocks > 0 && mine <= (int)blockIdx.x && (int)blockIdx.x < mine + blocks)
                found[0] = s, found[1] = ((int)blockIdx.x - mine) * QUERIES;
            before += __shfl_sync(FULL, sum, WARP - 1);
        }
    }
    __syncthreads();
    if (found[0] < 0) return;
    int begin = max(p.bounds[found[0]], 0), end = min(p.bounds[found[0] + 1], p.tokens);
    int query0 = found[1], length = end - begin;
    int queries = min(QUERIES, length - query0);

    // Rows of keys and queries are padded so that eight lanes' 16-byte loads meet no bank twice.
    int padded = (p.d + 3) / 4 * 4, stride = padded / 4 % 2 ? padded : padded + 4;
    float *q = packed_memory;           // [QUERIES, padded]
    float *k = q + QUERIES * padded;    // [KEYS, stride]
    float *v = k + KEYS * stride;       // [KEYS, e]
    float *weights = v + KEYS * p.e;    // [QUERIES, KEYS]
    float *apart_k = weights + QUERIES * KEYS; // [APART, stride] with pos_k
    float *apart_q = apart_k + (p.pos_k ? APART * stride : 0);
    for (int i = threadIdx.x; i < QUERIES * padded; i += blockDim.x) {
        int row = i / padded, column = i % padded;
        float x = 0.0f;
        if (row < queries && column < p.d)
            x = p.q[((u64)(begin + query0 + row) * p.heads + head) * p.d + column] * p.scale;
        q[i] = x;
    }
    float acc[PER_WARP][COLUMNS], top[PER_WARP], sum[PER_WARP];
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        top[i] = -INFINITY, sum[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) acc[i][c] = 0.0f;
    }
    int first = 0, last = length;
    if (p.window) {
        first = max(query0 - p.window, 0) / KEYS * KEYS;
        last = min(last, query0 + queries + p.window);
    }
    if (p.causal) last = min(last, query0 + queries);
    const float *bias = p.bias ? p.bias + (u64)head * p.distances : nullptr;
    int half = p.distances / 2;
    for (int key0 = first; key0 < last; key0 += KEYS) {
        __syncthreads();
        int keys = min(KEYS, length - key0);
        for (int i = threadIdx.x; i < KEYS * padded; i += blockDim.x) {
            int row = i / padded, column = i % padded;
            float x = 0.0f;
            if (row < keys && column < p.d)
                x = p.k[((u64)(begin + key0 + row) * p.groups + group) * p.d + column];
            k[row * stride + column] = x;
        }
        for (int i = threadIdx.x; i < KEYS * p.e; i += blockDim.x) {
            int row = i / p.e, column = i % p.e;
            v[i] = row < keys ? p.v[((u64)(begin + key0 + row) * p.groups + group) * p.e + column] : 0.0f;
        }
        if (RELATIVE) {
            int nearest = key0 - query0 - (QUERIES - 1);
            if (p.pos_k) stage_apart(p, p.pos_k, nearest, head, padded, stride, apart_k);
            if (p.pos_q) stage_apart(p, p.pos_q, nearest, head, padded, stride, apart_q);
        }
        __syncthreads();
        int key = key0 + lane;
        bool shown = lane < keys && p.shown[begin + key] != 0;
        float score[PER_WARP] = {}, turned[PER_WARP] = {};
        for (int c = 0; c < padded; c += 4) {
            float4 b = *(const float4 *)(k + lane * stride + c);
#pragma unroll
            for (int i = 0; i < PER_WARP; i++) {
                float4 a = *(const float4 *)(q + (warp * PER_WARP + i) * padded + c);
                score[i] = __fmaf_rn(a.x, b.x, score[i]), score[i] = __fmaf_rn(a.y, b.y, score[i]);
                score[i] = __fmaf_rn(a.z, b.z, score[i]), score[i] = __fmaf_rn(a.w, b.w, score[i]);
                int row = lane - (warp * PER_WARP + i) + QUERIES - 1;
                if (RELATIVE && p.pos_k) {
                    float4 r = *(const float4 *)(apart_k + row * stride + c);
                    score[i] = __fmaf_rn(a.x, r.x, score[i]), score[i] = __fmaf_rn(a.y, r.y, score[i]);
                    score[i] = __fmaf_rn(a.z, r.z, score[i]), score[i] = __fmaf_rn(a.w, r.w, score[i]);
                }
                if (RELATIVE && p.pos_q) {
                    float4 r = *(const float4 *)(apart_q + row * stride + c);
                    turned[i] = __fmaf_rn(b.x, r.x, turned[i]), turned[i] = __fmaf_rn(b.y, r.y, turned[i]);
                    turned[i] = __fmaf_rn(b.z, r.z, turned[i]), turned[i] = __fmaf_rn(b.w, r.w, turned[i]);
                }
            }
        }
        // Queries are scaled when they come in, keys are not.
        if (RELATIVE)
            for (int i = 0; i < PER_WARP; i++) score[i] = __fmaf_rn(turned[i], p.scale, score[i]);
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            int query = query0 + warp * PER_WARP + i, distance = key - query;
            bool seen = shown && (!p.causal || distance <= 0) && (!p.window || abs(distance) <= p.window);
            if (p.softcap > 0.0f) score[i] = p.softcap * activate(TANH, score[i] / p.softcap);
            if (bias && seen) score[i] += bias[half + min(max(distance, -half), half)];
            float x = seen ? score[i] : -INFINITY, most = x;
            for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, step));
            most = fmaxf(most, top[i]);
            float weight = seen ? expf(x - most) : 0.0f, total = weight;
            for (int step = 16; step; step >>= 1) total += __shfl_xor_sync(FULL, total, step);
            float back = most == -INFINITY ? 1.0f : expf(top[i] - most);
            sum[i] = __fmaf_rn(sum[i], back, total), top[i] = most;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) acc[i][c] *= back;
            weights[(warp * PER_WARP + i) * KEYS + lane] = weight;
        }
        __syncwarp();
        for (int j = 0; j < keys; j++) {
            float w[PER_WARP];
#pragma unroll
            for (int i = 0; i < PER_WARP; i++) w[i] = weights[(warp * PER_WARP + i) * KEYS + j];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                int column = c * WARP + lane;
                float x = column < p.e ? v[j * p.e + column] : 0.0f;
#pragma unroll
                for (int i = 0; i < PER_WARP; i++) acc[i][c] = __fmaf_rn(w[i], x, acc[i][c]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
        int row = warp * PER_WARP + i;
        if (row >= queries) continue;
        float *out = p.out + ((u64)(begin + query0 + row) * p.heads + head) * p.e;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            int column = c * WARP + lane;
            if (column < p.e) out[column] = sum[i] > 0.0f ? acc[i][c] / sum[i] : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) attend_packed_64(Packed p) { attend<2, false>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_packed_256(Packed p) { attend<8, false>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_apart_64(Packed p) { attend<2, true>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_apart_128(Packed p) { attend<4, true>(p); }
