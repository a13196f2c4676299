// What choosing the next token needs of logits: the largest element of rows, their first elements in
// order, sums of exponentials.

#include "common.cuh"

// An element as a number: larger for larger elements, of equal ones for those that come first. All
// ones for what is no number below infinity.
__device__ __forceinline__ u64 key_of(float x, int i) {
    u32 bits = __float_as_int(x + 0.0f); // -0 ties with +0
    u32 ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return x < INFINITY ? (u64)ascending << 32 | (u32)~i : ~0ull;
}

__device__ __forceinline__ u64 warp_max(u64 top) {
    for (int step = 16; step; step >>= 1) {
        u64 other = __shfl_xor_sync(FULL, top, step);
        top = other > top ? other : top;
    }
    return top;
}

// The place of the largest element in each of `gridDim.y` rows, the first of several; all ones for a
// row with a NaN or plus infinity. Blocks of a row take shares of it; `keys` and `arrived`, one a
// row, are zeros between launches.
extern "C" __global__ void __launch_bounds__(256) largest(
    const float *x, u64 *keys, u32 *arrived, u32 *out, int width) {
    __shared__ u64 tops[8];
    wait_for_previous();
    int row = blockIdx.y;
    x += (u64)row * width;
    u64 top = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) {
        u64 key = key_of(x[i], i);
        top = key > top ? key : top;
    }
    top = warp_max(top);
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < 8; w++) top = tops[w] > top ? tops[w] : top;
    atomicMax(keys + row, top);
    __threadfence();
    if (atomicAdd(arrived + row, 1u) + 1 < gridDim.x) return;
    u64 key = atomicExch(keys + row, 0);
    arrived[row] = 0;
    out[row] = key == ~0ull ? ~0u : ~(u32)key;
}

// The TOP first elements of rows: the TOP-th largest of the keys of chunks is a bound that at least
// TOP elements reach, all of them in TOP chunks.
#define TOP 128
#define CHUNK 64
#define THREADS 1024

// The largest key of each chunk of rows, `[rows, chunks]`; a warp a chunk.
extern "C" __global__ void __launch_bounds__(256) chunk_keys(const float *x, u64 *keys, int width) {
    wait_for_previous();
    int chunks = (width + CHUNK - 1) / CHUNK, row = blockIdx.y;
    int chunk = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (chunk >= chunks) return;
    x += (u64)row * width;
    u64 top = 0;
    for (int i = chunk * CHUNK + threadIdx.x % WARP; i < min(width, (chunk + 1) * CHUNK); i += WARP) {
        u64 key = key_of(x[i], i);
        top = key > top ? key : top;
    }
    top = warp_max(top);
    if (threadIdx.x % WARP == 0) keys[(u64)row * chunks + chunk] = top;
}

// The keys of elements that reach the bound: at most TOP chunks of them.
extern __shared__ __align__(16) u64 list[];

// A block a row. `values` and `ids` are [rows, TOP], in order; minus infinity and all ones past the
// last element. A row with a NaN or plus infinity has a NaN in front.
extern "C" __global__ void __launch_bounds__(THREADS) first_of_rows(
    const float *x, const u64 *keys, float *values, u32 *ids, int width) {
    __shared__ int counts[256];
    __shared__ u64 shared_bound;
    __shared__ int shared_need, length;
    wait_for_previous();
    int chunks = (width + CHUNK - 1) / CHUNK, thread = threadIdx.x, lane = thread % WARP;
    x += (u64)blockIdx.x * width, keys += (u64)blockIdx.x * chunks;
    values += blockIdx.x * TOP, ids += blockIdx.x * TOP;
    bool broken = false;
    for (int i = thread; i < chunks; i += THREADS) broken |= keys[i] == ~0ull;
    if (__syncthreads_or(broken)) {
        if (thread < TOP) values[thread] = __int_as_float(0x7fc00000), ids[thread] = ~0u;
        return;
    }
    // The bound, eight bits at a time from the top; keys are all different.
    u64 bound = 0;
    int need = TOP;
    for (int shift = 56; chunks > TOP && shift >= 0; shift -= 8) {
        if (thread < 256) counts[thread] = 0;
        __syncthreads();
        for (int i = thread; i < chunks; i += THREADS) {
            u64 key = keys[i];
            if (shift == 56 || key >> (shift + 8) == bound >> (shift + 8))
                atomicAdd(counts + (int)(key >> shift & 255), 1);
        }
        __syncthreads();
        if (thread < WARP) {
            // A lane has eight values of the digit, the first lane the highest.
            int mine = 0;
            for (int j = 0; j < 8; j++) mine += counts[255 - 8 * lane - j];
            int sum = mine;
            for (int step = 1; step < WARP; step *= 2) {
                int other = __shfl_up_sync(FULL, sum, step);
                if (lane >= step) sum += other;
            }
            int before = sum - mine;
            if (before < need && need <= sum) {
                int digit = 255 - 8 * lane;
                while (before + counts[digit] < need) before += counts[digit--];
                shared_bound = bound | (u64)digit << shift, shared_need = need - before;
            }
        }
        __syncthreads();
        bound = shared_bound, need = shared_need;
    }
    if (thread == 0) length = 0;
    __syncthreads();
    for (int chunk = thread / WARP; chunk < chunks; chunk += THREADS / WARP) {
        if (keys[chunk] < bound) continue;
        for (int i = chunk * CHUNK + lane; i < min(width, (chunk + 1) * CHUNK); i += WARP) {
            u64 key = key_of(x[i], i);
            if (key >= bound) list[atomicAdd(&length, 1)] = key;
        }
    }
    __syncthreads();
    int n = TOP;
    while (n < length) n *= 2;
    for (int i = length + thread; i < n; i += THREADS) list[i] = 0;
    // Falling, by a bitonic network.
    for (int size = 2; size <= n; size *= 2) {
        for (int stride = size / 2; stride; stride /= 2) {
            __syncthreads();
            for (int t = thread; t < n / 2; t += THREADS) {
                int i = 2 * t - (t & (stride - 1)), j = i + stride;
                u64 a = list[i], b = list[j];
                if ((a < b) == ((i & size) == 0)) list[i] = b, list[j] = a;
            }
        }
    }
    __syncthreads();
    if (thread < TOP) {
        u64 key = list[thread];
        u32 ascending = (u32)(key >> 32);
        u32 bits = ascending >> 31 ? ascending & 0x7fffffffu : ~ascending;
        values[thread] = key ? __int_as_float(bits) : -INFINITY;
        ids[thread] = key ? ~(u32)key : ~0u;
    }
}

// exp(x) for x <= 0 and the order of the sums below are those of the sampler on the processor
// (crates/sample, exp.rs), operation by operation, so that the sums have the same bits.
__device__ __forceinline__ float exp_nonpositive(float x) {
    const float rounder = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), rounder);
    float n = __fsub_rn(shifted, rounder);
    float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
    float p = 1.0f / 5040.0f;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    u32 exponent = ((u32)__float_as_int(shifted) - (u32)__float_as_int(rounder)) << 23;
    float value = __int_as_float((u32)__float_as_int(p) + exponent);
    return x < -87.0f ? 0.0f : value;
}

#define PART 1024
#define LANES 16

// For each row the sum of exp((x - first) * scale), `firsts` [rows, TOP] beginning with the row's
// largest element. A block a row; 16 threads a part of 1024 elements, whose 16 sums are in f32, all
// further ones in f64. Shared memory holds the parts' sums.
extern "C" __global__ void __launch_bounds__(THREADS) exponentials_of_rows(
    const float *x, const float *firsts, double *sums, int width, float scale) {
    double *parts = (double *)list;
    wait_for_previous();
    x += (u64)blockIdx.x * width;
    float most = firsts[blockIdx.x * TOP];
    int n = (width + PART - 1) / PART, lane = threadIdx.x % LANES;
    for (int first = 0; first < n; first += THREADS / LANES) {
        int part = first + threadIdx.x / LANES;
        const float *from = x + (u64)part * PART;
        int length = part < n ? min(PART, width - part * PART) : 0, whole = length / LANES * LANES;
        float mine = 0.0f;
#pragma unroll 4
        for (int i = lane; i < whole; i += LANES)
            mine = __fadd_rn(mine, exp_nonpositive(__fmul_rn(__fsub_rn(from[i], most), scale)));
        double sum = 0.0, tail = 0.0;
        for (int i = 0; i < LANES; i++)
            sum = __dadd_rn(sum, (double)__shfl_sync(FULL, mine, i, LANES));
        for (int i = whole; i < length; i++)
            tail = __dadd_rn(tail, (double)exp_nonpositive(__fmul_rn(__fsub_rn(from[i], most), scale)));
        if (lane == 0 && part < n) parts[part] = __dadd_rn(sum, tail);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum = __dadd_rn(sum, parts[i]);
    sums[blockIdx.x] = sum;
}
