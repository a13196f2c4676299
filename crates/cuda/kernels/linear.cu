// Products with quantised weights on the integer tensor cores.
//
// Compiled once per storage kind, which these macros describe:
//   BITS    4, 5, 6 or 8: bits of a code
//   SIGNED  whether codes are signed; unsigned ones come with offsets
//   GROUP   16 or 32 elements share a scale
//   SCALES  how scales are stored, below
//
// A product of codes is exact. The eight warps of a block take the chunks of a row in turn, each adds
// its own in order, and the eight sums are added in order: what a token gets does not depend on how
// many tokens there are.

#include "packed.cuh"

// 2^23 + 2^22: an integer added to its bits is added to its value.
#define MAGIC 0x4b400000
#define MAGIC_FLOAT 12582912.0f

#if SIGNED
#define CODE "s8"
#else
#define CODE "u8"
#endif

__device__ __forceinline__ void multiply(int d[4], const u32 *a, const u32 *b) {
#if GROUP == 32
    asm("mma.sync.aligned.m16n8k32.row.col.s32." CODE ".s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(MAGIC));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.s32." CODE ".s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(MAGIC));
#endif
}

// Quantised rows of activations, as `quantize_rows` leaves them.
struct Rows {
    const uint4 *codes;   // [units, columns / 8, 32]
    const float4 *scales; // [groups, columns / 2]: scale and sum of two columns
    const float2 *firsts; // [groups, columns / 2]: sums of the first 16 of a group
    int columns;          // rounded up to a multiple of 32
    int count;
};

// NT tiles of eight tokens and RT tiles of sixteen rows for each warp. With ALONE there is one token:
// only the first column of the tensor cores' result is used.
template <int NT, int RT, bool ALONE>
__device__ __forceinline__ void product(const Matrix &m, const Rows &x, const Targets &to) {
    __shared__ float sums[WARPS][NT * 8][16 + 1];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int column_tiles = (x.count + NT * 8 - 1) / (NT * 8);
    int column_tile = blockIdx.x % column_tiles;
    int stride = gridDim.x / column_tiles * RT;
    int tile = blockIdx.x / column_tiles * RT;
    int columns8 = x.columns / 8, columns2 = x.columns / 2;
    Chunk next[RT];
#pragma unroll
    for (int r = 0; r < RT; r++)
        if (tile < m.tiles && warp < m.chunks) load(next[r], m, min(tile + r, m.tiles - 1), warp, lane);
    wait_for_previous();
    for (; tile < m.tiles; tile += stride) {
        float acc[RT][NT][4] = {};
        for (int chunk = warp; chunk < m.chunks; chunk += WARPS) {
            Chunk now[RT];
#pragma unroll
            for (int r = 0; r < RT; r++) now[r] = next[r];
            // The chunk after this one, of this tile or the next.
            bool last = chunk + WARPS >= m.chunks;
            int ahead_tile = last ? tile + stride : tile, ahead = last ? warp : chunk + WARPS;
#pragma unroll
            for (int r = 0; r < RT; r++)
                if (ahead_tile < m.tiles) load(next[r], m, min(ahead_tile + r, m.tiles - 1), ahead, lane);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                int unit = chunk * UNITS + u;
                uint4 b[NT];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    int column = column_tile * NT + n;
                    b[n] = make_uint4(0, 0, 0, 0);
                    if (column * 8 + g < x.count)
                        b[n] = __ldg(x.codes + ((u64)unit * columns8 + column) * 32 + lane);
                }
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float4 xs[NT];
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        xs[n] = __ldg(
                            x.scales + (u64)(unit * 2 + j) * columns2 + (column_tile * NT + n) * 4 + t);
#pragma unroll
                    for (int r = 0; r < RT; r++) {
                        u32 a[4];
                        codes(now[r], u, j, a);
#pragma unroll
                        for (int s = 0; s < SUBGROUPS; s++) {
                            float s0, s1, o0, o1;
                            scale_of(now[r], u, j, s, 0, lane, s0, o0);
                            scale_of(now[r], u, j, s, 1, lane, s1, o1);
#pragma unroll
                            for (int n = 0; n < NT; n++) {
                                u32 bs[2] = {j ? b[n].z : b[n].x, j ? b[n].w : b[n].y};
                                int d[4];
                                multiply(d, a + 2 * s, bs + s);
                                float *to = acc[r][n];
                                to[0] = __fmaf_rn(
                                    __int_as_float(d[0]) - MAGIC_FLOAT, __fmul_rn(s0, xs[n].x), to[0]);
                                to[2] = __fmaf_rn(
                                    __int_as_float(d[2]) - MAGIC_FLOAT, __fmul_rn(s1, xs[n].x), to[2]);
                                if (!ALONE) {
                                    to[1] = __fmaf_rn(
                                        __int_as_float(d[1]) - MAGIC_FLOAT, __fmul_rn(s0, xs[n].z), to[1]);
                                    to[3] = __fmaf_rn(
                                        __int_as_float(d[3]) - MAGIC_FLOAT, __fmul_rn(s1, xs[n].z), to[3]);
                                }
                                if (OFFSETS) {
                                    float y0 = xs[n].y, y1 = xs[n].w;
                                    if (SUBGROUPS == 2) {
                                        float2 first = __ldg(
                                            x.firsts + (u64)(unit * 2 + j) * columns2 +
                                            (column_tile * NT + n) * 4 + t);
                                        y0 = s ? y0 - first.x : first.x;
                                        y1 = s ? y1 - first.y : first.y;
                                    }
                                    to[0] = __fmaf_rn(o0, y0, to[0]);
                                    to[2] = __fmaf_rn(o1, y0, to[2]);
                                    if (!ALONE) {
                                        to[1] = __fmaf_rn(o0, y1, to[1]);
                                        to[3] = __fmaf_rn(o1, y1, to[3]);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < RT; r++) {
            __syncthreads();
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[warp][n * 8 + 2 * t + (i & 1)][g + 8 * (i >> 1)] = acc[r][n][i];
            __syncthreads();
            int here = tile + r, which = 0;
            while (which + 1 < to.count && to.at[which + 1].first_tile <= here) which++;
            const Target &target = to.at[which];
            for (int i = threadIdx.x; i < NT * 8 * 16; i += WARPS * WARP) {
                int row = (here - target.first_tile) * 16 + i % 16, column = i / 16;
                int token = column_tile * NT * 8 + column;
                if (here >= m.tiles || row >= target.n || token >= x.count) continue;
                float sum = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, sums[w][column][i % 16]);
                if (target.bias) sum = __fadd_rn(sum, target.bias[row]);
                u64 at = (u64)token * target.n + row;
                if (target.residual) sum = __fadd_rn(sum, target.residual[at]);
                target.out[at] = sum;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) product_1(Matrix m, Rows x, Targets to) {
    product<1, 1, true>(m, x, to);
}

extern "C" __global__ void __launch_bounds__(256, 2) product_8(Matrix m, Rows x, Targets to) {
    product<1, 1, false>(m, x, to);
}

extern "C" __global__ void __launch_bounds__(256, 1) product_32(Matrix m, Rows x, Targets to) {
    product<4, 2, false>(m, x, to);
}
