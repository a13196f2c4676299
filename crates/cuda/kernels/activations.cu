// What stands before a product: rows of activations, normalised or gated where the step says so,
// written as the product's kernel wants them.

#include "common.cuh"

#define SEGMENT 1024

// Rows as 8-bit codes in groups of 32, each with a scale, in the order of `mma.m16n8k32`'s second
// operand; see linear.cu. A block of 256 threads does 1024 columns of one row. Columns from `k` up
// to `padded` become zeros.
extern "C" __global__ void __launch_bounds__(256) quantize_rows(
    Source s, u32 *codes, float2 *scales, float *firsts, int k, int padded, int columns) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.y;
    float scale = row_scale(s, row, k, scratch);
    int i = blockIdx.x * SEGMENT + threadIdx.x * 4; // eight lanes do a group
    if (i >= padded) return;
    float v[4];
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = i + j < k ? source_at(s, row, k, i + j, scale) : 0.0f;
        top = fmaxf(top, fabsf(v[j]));
    }
    // `padded` is a multiple of 128: the lanes of a warp stay together.
    for (int step = 4; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
    float unit = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int sum = 0;
    u32 packed = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int code = __float2int_rn(v[j] * inverse);
        sum += code;
        packed |= (u32)(code & 255) << (8 * j);
    }
    for (int step = 2; step; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
    int first = sum;
    sum += __shfl_xor_sync(FULL, sum, 4);
    int group = i / 32, part = i % 32 / 4; // part 0..8: columns 4 * part
    int lane = (int)(row % 8) * 4 + part % 4;
    u64 at = ((u64)(group / 2) * (columns / 8) + row / 8) * 32 + lane;
    codes[at * 4 + (group & 1) * 2 + part / 4] = packed;
    if (part == 0) {
        // A row with an infinity or NaN stays visible: its scale is no number.
        u64 place = (u64)group * columns + row;
        scales[place] = make_float2(unit, unit * (float)sum);
        firsts[place] = unit * (float)first;
    }
}

// Rows as floats.
extern "C" __global__ void __launch_bounds__(256) float_rows(Source s, float *out, int k) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.y;
    float scale = row_scale(s, row, k, scratch);
    int end = min(k, (int)(blockIdx.x + 1) * SEGMENT);
    for (int i = blockIdx.x * SEGMENT + threadIdx.x; i < end; i += blockDim.x)
        out[row * k + i] = source_at(s, row, k, i, scale);
}

// Rows as f16 of `padded` columns for wide.cu. Each row is scaled by a power of two that puts its
// largest value below 512, so that none overflows; `down` takes it back. The columns of each 16 are
// in the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15.
extern "C" __global__ void __launch_bounds__(256) narrow_rows(
    Source s, u16 *out, float *down, int k, int padded) {
    __shared__ float scratch[32];
    wait_for_previous();
    u64 row = blockIdx.x;
    float scale = row_scale(s, row, k, scratch), up = 1.0f, top = 0.0f;
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        top = fmaxf(top, fabsf(source_at(s, row, k, i, scale)));
    top = block_max(top, scratch);
    int exponent = (__float_as_int(top) >> 23 & 255) - 127;
    if (top > 0.0f && exponent < 128) up = ldexpf(1.0f, min(max(8 - exponent, -100), 100));
    if (threadIdx.x == 0) down[row] = 1.0f / up;
    for (int i = threadIdx.x * 2; i < padded; i += blockDim.x * 2) {
        int within = i % 16, from = i - within + within % 8 * 2 + (within < 8 ? 0 : 2);
        float a = from < k ? source_at(s, row, k, from, scale) : 0.0f;
        float b = from + 1 < k ? source_at(s, row, k, from + 1, scale) : 0.0f;
        *(u32 *)(out + row * padded + i) = pack_halves(a * up, b * up);
    }
}

// Products with float weights for a few rows: a warp does two rows of weights and up to eight
// tokens. The sum's order depends on `k` only.
struct FloatMatrix {
    const void *rows; // [n, padded], padded a multiple of 8
    int n, k, padded;
};

template <int KIND>
__device__ __forceinline__ void load8(const void *from, float v[8]) {
    if (KIND == 0) {
        uint4 a = stream((const uint4 *)from), b = stream((const uint4 *)from + 1);
        v[0] = __int_as_float(a.x), v[1] = __int_as_float(a.y), v[2] = __int_as_float(a.z);
        v[3] = __int_as_float(a.w), v[4] = __int_as_float(b.x), v[5] = __int_as_float(b.y);
        v[6] = __int_as_float(b.z), v[7] = __int_as_float(b.w);
    } else {
        uint4 a = stream((const uint4 *)from);
        u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = KIND == 1 ? half_to_float((u16)w[i]) : __int_as_float(w[i] << 16);
            v[2 * i + 1] = KIND == 1 ? half_to_float((u16)(w[i] >> 16)) : __int_as_float(w[i] & 0xffff0000u);
        }
    }
}

template <int KIND, int TOKENS>
__device__ __forceinline__ void float_product(
    const FloatMatrix &m, const float *x, int count, float *out, const float *bias,
    const float *residual) {
    const int bytes = KIND == 0 ? 4 : 2, rows = 2;
    int lane = threadIdx.x % WARP;
    int row = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * rows;
    int token0 = blockIdx.y * TOKENS;
    wait_for_previous();
    if (row >= m.n) return;
    bool two = row + 1 < m.n;
    const char *w0 = (const char *)m.rows + (u64)row * m.padded * bytes;
    const char *w1 = two ? w0 + (u64)m.padded * bytes : w0;
    float acc[TOKENS][rows] = {};
    bool whole = m.k % 4 == 0;
#pragma unroll(TOKENS == 1 ? 4 : 1)
    for (int i = lane * 8; i < m.k; i += WARP * 8) {
        float a[8], b[8];
        load8<KIND>(w0 + (u64)i * bytes, a);
        load8<KIND>(w1 + (u64)i * bytes, b);
#pragma unroll
        for (int n = 0; n < TOKENS; n++) {
            if (token0 + n >= count) break;
            const float *from = x + (u64)(token0 + n) * m.k + i;
            float v[8];
            if (whole && i + 8 <= m.k) {
                float4 p = __ldg((const float4 *)from), q = __ldg((const float4 *)from + 1);
                v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w;
                v[4] = q.x, v[5] = q.y, v[6] = q.z, v[7] = q.w;
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = i + j < m.k ? from[j] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                acc[n][0] = __fmaf_rn(a[j], v[j], acc[n][0]);
                acc[n][1] = __fmaf_rn(b[j], v[j], acc[n][1]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < TOKENS; n++) {
#pragma unroll
        for (int r = 0; r < rows; r++) {
            float sum = acc[n][r];
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
            if (lane == 0 && token0 + n < count && row + r < m.n) {
                u64 at = (u64)(token0 + n) * m.n + row + r;
                if (bias) sum = __fadd_rn(sum, bias[row + r]);
                if (residual) sum = __fadd_rn(sum, residual[at]);
                out[at] = sum;
            }
        }
    }
}

#define FLOAT_PRODUCT(name, kind, tokens)                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(                                     \
        FloatMatrix m, const float *x, int count, float *out, const float *bias,                \
        const float *residual) {                                                                \
        float_product<kind, tokens>(m, x, count, out, bias, residual);                          \
    }
FLOAT_PRODUCT(product_f32_1, 0, 1)
FLOAT_PRODUCT(product_f32_8, 0, 8)
FLOAT_PRODUCT(product_f16_1, 1, 1)
FLOAT_PRODUCT(product_f16_8, 1, 8)
FLOAT_PRODUCT(product_bf16_1, 2, 1)
FLOAT_PRODUCT(product_bf16_8, 2, 8)
