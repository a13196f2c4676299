// Norms, rotary embedding, cache writes, table lookups and what works element by element.

#include "rope.cuh"

// rmsnorm of rows; a block a row.
extern "C" __global__ void __launch_bounds__(256) rmsnorm(Source s, float *out, int k) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.x;
    float scale = row_scale(s, row, k, scratch);
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        out[row * k + i] = source_at(s, row, k, i, scale);
}

// out[i] = activation(a[i]), or activation(a[i]) * b[i].
extern "C" __global__ void activation(const float *a, const float *b, float *out, u64 n, int kind) {
    wait_for_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float y = activate(kind, a[i]);
    out[i] = b ? __fmul_rn(y, b[i]) : y;
}

// Sum, product or difference with broadcasting. Strides are in elements, 0 along broadcast axes.
struct Broadcast {
    int rank;
    int dims[6];
    int a[6], b[6];
};

// IEEE 754 `maximum`: a NaN stays, +0 is above -0.
__device__ __forceinline__ float maximum(float x, float y) {
    if (x != x || y != y) return __int_as_float(0x7fc00000);
    return x == y ? __int_as_float(__float_as_int(x) & __float_as_int(y)) : fmaxf(x, y);
}

extern "C" __global__ void binary(
    const float *a, const float *b, float *out, u64 n, int op, Broadcast shape) {
    wait_for_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 rest = i, at_a = 0, at_b = 0;
    for (int axis = shape.rank - 1; axis >= 0; axis--) {
        int index = (int)(rest % shape.dims[axis]);
        rest /= shape.dims[axis];
        at_a += (u64)index * shape.a[axis];
        at_b += (u64)index * shape.b[axis];
    }
    float x = a[at_a], y = b[at_b];
    switch (op) {
        case 0: out[i] = __fadd_rn(x, y); break;
        case 1: out[i] = __fmul_rn(x, y); break;
        case 2: out[i] = __fsub_rn(x, y); break;
        default: out[i] = maximum(x, y);
    }
}

// Elements of four bytes as a view has them: `shape` has the view's axes, from the last, and the
// strides of what it views, in `a`. With `writes` the elements go there.
extern "C" __global__ void view(
    const u32 *from, u32 *to, u64 n, u64 start, int writes, Broadcast shape) {
    wait_for_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 rest = i, at = start;
    for (int axis = shape.rank - 1; axis >= 0; axis--) {
        int index = (int)(rest % shape.dims[axis]);
        rest /= shape.dims[axis];
        at += (long long)index * shape.a[axis];
    }
    if (writes) to[at] = from[i];
    else to[i] = from[at];
}

// One new row of `width` elements stored in slot `slot`; the block works together.
__device__ __forceinline__ void store_row(
    void *pool, int kind, u64 slot, int width, const float *from) {
    u64 at = slot * width;
    if (kind == POOL_Q8_0) {
        // A warp a block of 34 bytes: f16 scale, 32 codes.
        int lane = threadIdx.x % WARP;
        for (int block = threadIdx.x / WARP; block < width / 32; block += blockDim.x / WARP) {
            float v = from[block * 32 + lane], top = fabsf(v);
            for (int step = 16; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
            float d = __fdiv_rn(top, 127.0f), inverse = d == 0.0f ? 0.0f : __fdiv_rn(1.0f, d);
            u8 *to = (u8 *)pool + (at / 32 + block) * 34;
            to[2 + lane] = (u8)(i8)(int)roundf(__fmul_rn(v, inverse));
            if (lane == 0) *(u16 *)to = float_to_half(d);
        }
        return;
    }
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = from[i];
        if (kind == POOL_F32) ((float *)pool)[at + i] = v;
        else ((u16 *)pool)[at + i] = kind == POOL_F16 ? float_to_half(v) : float_to_bf16(v);
    }
}

extern "C" __global__ void kv_cache(
    void *pool, const int *slots, const float *from, int width, int kind, int n_slots) {
    wait_for_previous();
    int slot = slots[blockIdx.x];
    if (slot < 0 || slot >= n_slots) return;
    store_row(pool, kind, slot, width, from + (u64)blockIdx.x * width);
}

// `n` pairs of bytes.
extern "C" __global__ void copy(const u16 *from, u16 *to, u64 n) {
    wait_for_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i];
}

// A block a token.
extern "C" __global__ void rope(Rope r, const float *x, float *out, int heads, int width) {
    wait_for_previous();
    u64 at = (u64)blockIdx.x * heads * width;
    turn(r, blockIdx.x, x + at, out + at, heads, width);
}

// Rotary embedding of queries and keys, and the new keys and values into their pools: a block a
// token, which turns by each angle in all its heads. Heads are at most 512 wide.
struct Stored {
    const float *q, *k, *v;
    float *q_out, *k_out;
    const int *slots;
    void *key_pool, *value_pool;
    int heads, groups, key_width, value_width, key_kind, value_kind, n_slots;
};

extern "C" __global__ void __launch_bounds__(256) rope_store(Rope r, Stored s) {
    __shared__ float2 angles[256];
    wait_for_previous();
    u64 token = blockIdx.x;
    float position = (float)r.positions[token];
    for (int i = threadIdx.x; i < r.turned; i += blockDim.x) {
        float sine, cosine;
        sincosf(position * r.frequencies[i], &sine, &cosine);
        angles[i] = make_float2(sine * r.scale, cosine * r.scale);
    }
    __syncthreads();
    const float *q = s.q + token * s.heads * s.key_width, *k = s.k + token * s.groups * s.key_width;
    float *q_out = s.q_out + token * s.heads * s.key_width;
    float *k_out = s.k_out + token * s.groups * s.key_width;
    int rest = s.key_width - 2 * r.turned;
    for (int i = threadIdx.x; i < r.turned * (s.heads + s.groups); i += blockDim.x) {
        int head = i / r.turned, pair = i % r.turned;
        bool query = head < s.heads;
        int at = (query ? head : head - s.heads) * s.key_width;
        int first = at + (r.pairs ? 2 * pair : pair), second = first + (r.pairs ? 1 : r.turned);
        const float *x = query ? q : k;
        float *out = query ? q_out : k_out, a = x[first], b = x[second];
        float sine = angles[pair].x, cosine = angles[pair].y;
        out[first] = a * cosine - b * sine;
        out[second] = b * cosine + a * sine;
    }
    for (int i = threadIdx.x; i < rest * (s.heads + s.groups); i += blockDim.x) {
        int head = i / rest, at = 2 * r.turned + i % rest;
        if (head < s.heads) q_out[head * s.key_width + at] = q[head * s.key_width + at];
        else k_out[(head - s.heads) * s.key_width + at] = k[(head - s.heads) * s.key_width + at];
    }
    int slot = s.slots[token];
    if (slot < 0 || slot >= s.n_slots) return;
    int width = s.groups * s.value_width;
    store_row(s.value_pool, s.value_kind, slot, width, s.v + token * width);
    __syncthreads();
    store_row(s.key_pool, s.key_kind, slot, s.groups * s.key_width, k_out);
}

// Formats of tables, in the numbering of `table_kind` on the host.
enum { T_F32, T_F16, T_BF16, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_Q8_0, T_Q4_K, T_Q5_K, T_Q6_K };

__device__ __forceinline__ u16 u16_at(const u8 *p) { return (u16)(p[0] | p[1] << 8); }

__device__ __forceinline__ float affine(float scale, int code, float offset) {
    return __fadd_rn(__fmul_rn(scale, (float)code), offset);
}

// Element `i` of a row, with the roundings of the definition.
__device__ float element(const u8 *row, int kind, int i) {
    switch (kind) {
        case T_F32: return ((const float *)row)[i];
        case T_F16: return half_to_float(((const u16 *)row)[i]);
        case T_BF16: return bf16_to_float(((const u16 *)row)[i]);
        case T_Q8_0: {
            const u8 *b = row + i / 32 * 34;
            return __fmul_rn(half_to_float(u16_at(b)), (float)(i8)b[2 + i % 32]);
        }
        case T_Q4_0:
        case T_Q4_1: {
            int min = kind == T_Q4_1;
            const u8 *b = row + i / 32 * (18 + 2 * min);
            int low = b[2 + 2 * min + i % 16], code = i % 32 < 16 ? low & 15 : low >> 4;
            float d = half_to_float(u16_at(b));
            if (!min) return __fmul_rn(d, (float)(code - 8));
            return affine(d, code, half_to_float(u16_at(b + 2)));
        }
        case T_Q5_0:
        case T_Q5_1: {
            int min = kind == T_Q5_1;
            const u8 *b = row + i / 32 * (22 + 2 * min), *high = b + 2 + 2 * min;
            int low = high[4 + i % 16], code = i % 32 < 16 ? low & 15 : low >> 4;
            code |= (high[i % 32 / 8] >> (i % 8) & 1) << 4;
            float d = half_to_float(u16_at(b));
            if (!min) return __fmul_rn(d, (float)(code - 16));
            return affine(d, code, half_to_float(u16_at(b + 2)));
        }
        case T_Q4_K:
        case T_Q5_K: {
            int five = kind == T_Q5_K;
            const u8 *b = row + i / 256 * (five ? 176 : 144), *packed = b + 4;
            int e = i % 256, group = e / 32;
            int scale, least;
            if (group < 4) {
                scale = packed[group] & 63, least = packed[4 + group] & 63;
            } else {
                int low = packed[4 + group];
                scale = (low & 15) | packed[group - 4] >> 6 << 4;
                least = low >> 4 | packed[group] >> 6 << 4;
            }
            const u8 *codes = b + (five ? 48 : 16);
            int low = codes[e / 64 * 32 + e % 32], code = e % 64 < 32 ? low & 15 : low >> 4;
            if (five) code |= (b[16 + e % 32] >> group & 1) << 4;
            float d = __fmul_rn(half_to_float(u16_at(b)), (float)scale);
            return affine(d, code, -__fmul_rn(half_to_float(u16_at(b + 2)), (float)least));
        }
        default: {
            const u8 *b = row + i / 256 * 210;
            int e = i % 256, half = e / 128, within = e % 128;
            int low = b[half * 64 + within % 64], code = within < 64 ? low & 15 : low >> 4;
            code |= (b[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3) << 4;
            float d = __fmul_rn(half_to_float(u16_at(b + 208)), (float)(i8)b[192 + e / 16]);
            return __fmul_rn(d, (float)(code - 32));
        }
    }
}

// Rows of a table; a thread an element, y the block of a row. Ids outside the table give NaN.
extern "C" __global__ void embedding(
    const u8 *table, const int *ids, float *out, int width, u64 row_bytes, int kind, int rows) {
    wait_for_previous();
    int id = ids[blockIdx.x];
    bool known = id >= 0 && id < rows;
    const u8 *row = table + (u64)(known ? id : 0) * row_bytes;
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < width) out[(u64)blockIdx.x * width + i] = known ? element(row, kind, i) : __int_as_float(0x7fc00000);
}

// A run's inputs, in pieces of 16 bytes, from the machine's memory. It does not let the next kernel
// begin early: kernels read positions and tables before they wait for the one ahead.
extern "C" __global__ void __launch_bounds__(256) copy_in(const uint4 *from, uint4 *to, u64 pieces) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += stride) to[i] = from[i];
}
