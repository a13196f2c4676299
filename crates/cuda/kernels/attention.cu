// Causal attention over keys and values in pool blocks, a token at a time.
//
// A block does one token, the query heads of one key head, and one split of the context. Splits
// start at multiples of SPLIT positions, each with a softmax of its own; the block that ends last
// merges them in their order. So a token's result depends on its own sequence only.

#include "paged.cuh"

#define SPLIT 256
#define THREADS 128
// Query heads that are in registers together.
#define TOGETHER 4

// Eight elements from element `at` of a pool; `at` is a multiple of 8.
template <int KIND>
__device__ __forceinline__ void eight(const void *pool, u64 at, float v[8]) {
    if (KIND == POOL_F32) {
        const float4 *p = (const float4 *)((const float *)pool + at);
        float4 a = p[0], b = p[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else if (KIND == POOL_Q8_0) {
        const u8 *b = (const u8 *)pool + at / 32 * 34;
        float d = half_to_float(*(const u16 *)b);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = d * (float)(i8)b[2 + at % 32 + i];
    } else {
        uint4 a = *(const uint4 *)((const u16 *)pool + at);
        u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = KIND == POOL_F16 ? half_to_float((u16)w[i]) : __int_as_float(w[i] << 16);
            v[2 * i + 1] =
                KIND == POOL_F16 ? half_to_float((u16)(w[i] >> 16)) : __int_as_float(w[i] & 0xffff0000u);
        }
    }
}

template <int KIND>
__device__ __forceinline__ void attend(const Paged &p) {
    extern __shared__ float shared[];
    __shared__ int slots[SPLIT];
    __shared__ bool last_one;
    wait_for_previous();
    // `arrived` and `partials` are of the launch's own tokens.
    int split = blockIdx.x, group = blockIdx.y, local_token = blockIdx.z;
    int token = p.first_token + local_token;
    int per_group = p.heads / p.groups, key = p.key, value = p.value;
    int position = p.positions[token], row = p.rows[token];
    int first = p.window && position >= p.window ? position + 1 - p.window : 0;
    int begin = max(split * SPLIT, first), end = min((split + 1) * SPLIT, position + 1);
    // Splits that this token does not see have nothing to do.
    if (begin >= end || row < 0 || row >= p.sequences || position >= p.blocks * p.block) return;
    int first_split = first / SPLIT, last_split = position / SPLIT, n = end - begin;

    float *queries = shared;                        // [per_group, key]
    float *weights = queries + per_group * key;     // [per_group, SPLIT]
    float *parts = weights + per_group * SPLIT;     // [position groups, TOGETHER, value]
    float *tops = parts + TOGETHER * THREADS * 8;   // [per_group] maxima, then sums
    const float *q = p.q + ((u64)token * p.heads + group * per_group) * key;
    for (int i = threadIdx.x; i < per_group * key; i += THREADS) queries[i] = q[i] * p.scale;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int at = begin + i;
        int slot = p.tables[(u64)row * p.blocks + at / p.block] * p.block + at % p.block;
        slots[i] = min(max(slot, 0), p.n_slots - 1);
    }
    __syncthreads();

    // Scores: eight lanes a position.
    int lane8 = threadIdx.x % 8;
    for (int i0 = 0; i0 < n; i0 += THREADS / 8) {
        int i = i0 + threadIdx.x / 8;
        u64 at = ((u64)slots[min(i, n - 1)] * p.groups + group) * key;
        for (int h0 = 0; h0 < per_group; h0 += TOGETHER) {
            float dots[TOGETHER] = {};
            for (int c = lane8 * 8; c < key; c += 64) {
                float k[8];
                eight<KIND>(p.keys, at + c, k);
#pragma unroll
                for (int h = 0; h < TOGETHER; h++) {
                    if (h0 + h >= per_group) break;
                    const float4 *from = (const float4 *)(queries + (h0 + h) * key + c);
                    float4 a = from[0], b = from[1];
                    dots[h] += a.x * k[0] + a.y * k[1] + a.z * k[2] + a.w * k[3] + b.x * k[4] +
                               b.y * k[5] + b.z * k[6] + b.w * k[7];
                }
            }
#pragma unroll
            for (int h = 0; h < TOGETHER; h++) {
                for (int step = 4; step; step >>= 1) dots[h] += __shfl_xor_sync(FULL, dots[h], step);
                if (lane8 == 0 && i < n && h0 + h < per_group) {
                    float s = dots[h];
                    if (p.softcap > 0.0f) s = p.softcap * tanhf(s / p.softcap);
                    weights[(h0 + h) * SPLIT + i] = s;
                }
            }
        }
    }
    __syncthreads();
    // A warp does a head's softmax.
    for (int h = threadIdx.x / WARP; h < per_group; h += THREADS / WARP) {
        float *w = weights + h * SPLIT, top = -INFINITY, sum = 0.0f;
        int lane = threadIdx.x % WARP;
        for (int i = lane; i < n; i += WARP) top = fmaxf(top, w[i]);
        for (int step = 16; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
        for (int i = lane; i < n; i += WARP) {
            float e = expf(w[i] - top);
            w[i] = e;
            sum += e;
        }
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
        if (lane == 0) tops[h] = top, tops[per_group + h] = sum;
    }
    __syncthreads();

    // Values: a thread has eight columns of every `stride`-th position.
    bool alone = first_split == last_split;
    int columns = value / 8, stride = THREADS / columns;
    int mine = threadIdx.x % columns, start = threadIdx.x / columns;
    int splits = gridDim.x;
    for (int h0 = 0; h0 < per_group; h0 += TOGETHER) {
        float acc[TOGETHER][8] = {};
        if (start < stride)
            for (int i = start; i < n; i += stride) {
                float v[8];
                eight<KIND>(p.values, ((u64)slots[i] * p.groups + group) * value + mine * 8, v);
#pragma unroll
                for (int h = 0; h < TOGETHER; h++) {
                    if (h0 + h >= per_group) break;
                    float w = weights[(h0 + h) * SPLIT + i];
#pragma unroll
                    for (int j = 0; j < 8; j++) acc[h][j] += w * v[j];
                }
            }
        __syncthreads();
        if (start < stride) {
#pragma unroll
            for (int h = 0; h < TOGETHER; h++)
#pragma unroll
                for (int j = 0; j < 8; j++) parts[(start * TOGETHER + h) * value + mine * 8 + j] = acc[h][j];
        }
        __syncthreads();
        int here = min(TOGETHER, per_group - h0);
        for (int i = threadIdx.x; i < here * value; i += THREADS) {
            int h = i / value, column = i % value, local = h0 + h, head = group * per_group + local;
            float sum = 0.0f;
            for (int s = 0; s < stride; s++) sum += parts[(s * TOGETHER + h) * value + column];
            float top = tops[local], total = tops[per_group + local];
            if (alone) {
                float back = 1.0f;
                if (p.sinks) {
                    float most = fmaxf(top, p.sinks[head]);
                    back = expf(top - most);
                    total = total * back + expf(p.sinks[head] - most);
                }
                p.out[((u64)token * p.heads + head) * value + column] = sum * back / total;
            } else {
                float *to = p.partials + (((u64)local_token * p.heads + head) * splits + split) * (value + 2);
                to[2 + column] = sum;
                if (column == 0) to[0] = top, to[1] = total;
            }
        }
    }
    if (alone) return;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *arrived = p.arrived + (u64)local_token * p.groups + group;
        u32 before = atomicAdd(arrived, 1u);
        last_one = before == (u32)(last_split - first_split);
        if (last_one) *arrived = 0;
    }
    __syncthreads();
    if (!last_one) return;
    __threadfence();
    for (int i = threadIdx.x; i < per_group * value; i += THREADS) {
        int head = group * per_group + i / value, column = i % value;
        const float *from = p.partials + ((u64)local_token * p.heads + head) * splits * (value + 2);
        float top = p.sinks ? p.sinks[head] : -INFINITY;
        for (int s = first_split; s <= last_split; s++) top = fmaxf(top, __ldcg(from + s * (value + 2)));
        float total = p.sinks ? expf(p.sinks[head] - top) : 0.0f, sum = 0.0f;
        for (int s = first_split; s <= last_split; s++) {
            const float *part = from + s * (value + 2);
            float back = expf(__ldcg(part) - top);
            total += __ldcg(part + 1) * back;
            sum += __ldcg(part + 2 + column) * back;
        }
        p.out[((u64)token * p.heads + head) * value + column] = sum / total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attend_f32(Paged p) { attend<POOL_F32>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attend_f16(Paged p) { attend<POOL_F16>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attend_bf16(Paged p) { attend<POOL_BF16>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) attend_q8_0(Paged p) { attend<POOL_Q8_0>(p); }
