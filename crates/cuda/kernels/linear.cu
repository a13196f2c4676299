// Products with packed weights for one and for a few tokens, on the tensor cores.
//
// Compiled once per storage kind, which these macros describe:
//   BITS    4, 5, 6 or 8: bits of a code; 16: float weights as f16
//   SIGNED  whether codes are signed; unsigned ones come with offsets
//   GROUP   16 or 32 elements share a scale
//   SCALES  how scales are stored, in packed.cuh
//   PLANES  2 where float weights need two f16 each
//
// A product of codes is exact. A row is cut in `splits` parts; the eight warps of a block take the
// chunks of a part in turn; of the groups of a chunk every unit has a sum of its own in each warp.
// These are added in their order, so what a token gets does not depend on how many tokens there are.

#include "packed.cuh"
#include "rows.cuh"

// Records that a warp has in shared memory: one that it multiplies and those to come.
#if __CUDA_ARCH__ >= 900
#define SLOTS 3
#else
#define SLOTS 2
#endif

// Rows of activations (one token) and the records of every warp.
extern __shared__ __align__(16) u8 memory[];

// The tiles of a block: every `stride`-th, or every `stride`-th pair where tiles come in pairs.
struct Walk {
    int first, stride, paired;
    __device__ __forceinline__ int tile(int i) const {
        return paired ? (first + (i >> 1) * stride) * 2 + (i & 1) : first + i * stride;
    }
};

// A warp's records on their way: of every tile of the walk the chunks from `begin` to `end`, in parts
// of `each`; of a part the `warp`-th and every eighth after it.
struct Stream {
    u32 ring;
    int begin, end, each;
    int next_tile, part, next_chunk, slot;

    __device__ __forceinline__ void ask(const Matrix &m, const Walk &walk, int warp, int lane) {
        int tile = walk.tile(next_tile);
        if (tile < m.tiles && warp < each && begin + warp < end) {
            copy_record(ring + slot * RECORD, m, tile, next_chunk, lane);
            next_chunk += WARPS;
            if (next_chunk >= min(part + each, end)) part += each, next_chunk = part + warp;
            if (next_chunk >= end) part = begin, next_chunk = begin + warp, next_tile++;
        }
        commit_copies();
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
};

__device__ __forceinline__ Stream stream_of(const u8 *ring, int begin, int end, int each, int warp) {
    return {shared_address(ring), begin, end, each, 0, begin, begin + warp, 0};
}

// Blocks that do the parts of the same rows are a cluster; all of them wait here for each other.
__device__ __forceinline__ void meet_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// What block `rank` of the cluster has where this one has `*own`.
__device__ __forceinline__ float of_block(const float *own, int rank) {
    float value = 0.0f;
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
#endif
    return value;
}

// 2^23 + 2^22: an integer added to its bits is added to its value.
#define MAGIC 0x4b400000
#define MAGIC_FLOAT 12582912.0f

#if SIGNED
#define CODE "s8"
#else
#define CODE "u8"
#endif

#if BITS != 16
// d += a * b, of 16 rows and a group's 32 columns (or a subgroup's 16).
__device__ __forceinline__ void multiply(int d[4], const u32 *a, const u32 *b) {
#if GROUP == 32
    asm("mma.sync.aligned.m16n8k32.row.col.s32." CODE ".s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.s32." CODE ".s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}
#else
__device__ __forceinline__ void multiply(float d[4], const uint4 &a, const uint2 &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
#endif

// One token. The columns of the tensor cores' second operand are the groups of a chunk: column n has
// group n of the row and zeros for all others, so that one accumulator collects the products of
// eight groups apart. With float weights column 0 has the row's high halves and column 1 the low.
// The row is plain or normed with a weight; `k` is a multiple of 4. Where a row has parts, each block
// of a cluster does one of them, and the first block puts what all have together; such rows are plain.
extern "C" __global__ void __launch_bounds__(256, BITS == 16 ? 2 : 3) product_1(
    Matrix m, Source s, int k, Targets to) {
    // All that is not dynamic: with 1 KiB two blocks of float weights with 4096 columns just fit.
    __shared__ float sums[2][WARPS][16];
    float *scratch = sums[0][0]; // while the row is prepared
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int part = (int)blockIdx.x % m.splits, each = (m.chunks + m.splits - 1) / m.splits;
    int chunk0 = min(part * each, m.chunks), chunk1 = min(chunk0 + each, m.chunks);
    const int width = UNITS / PLANES * 64; // columns of a chunk
    k = max(min(k, chunk1 * width) - chunk0 * width, 0);
    const float *row_x = s.x + chunk0 * width;
#if BITS == 16
    int padded = (chunk1 - chunk0) * width;
    u16 *high = (u16 *)memory, *low = high + padded;
    u8 *rings = (u8 *)(low + padded);
#else
    int groups = (chunk1 - chunk0) * UNITS * 2;
    u32 *row = (u32 *)memory;                   // [groups][lanes t][2]
    float2 *scales = (float2 *)(row + groups * 8); // scale, and scale times sum
    float *firsts = (float *)(scales + groups); // of the first 16 columns
    u8 *rings = (u8 *)(OFFSETS && SUBGROUPS == 2 ? firsts + groups : firsts);
#endif
    u8 *ring = rings + warp * SLOTS * RECORD;
    Walk walk = {(int)blockIdx.x / m.splits, (int)gridDim.x / m.splits, to.paired};
    Stream stream = stream_of(ring, chunk0, chunk1, each, warp);
    for (int i = 0; i < SLOTS; i++) stream.ask(m, walk, warp, lane);

    // The row, four columns a thread of each 1024, with several loads in flight; a norm's weight does
    // not wait. The sum is that of `row_scale`.
    const int batch = 4;
    bool norm = s.kind == NORM;
    float4 x[batch], w[batch];
    auto load = [&](const float *from, float4 to[batch], int i0) {
#pragma unroll
        for (int b = 0; b < batch; b++) {
            int i = i0 + b * 1024;
            to[b] = i < k ? *(const float4 *)(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    };
    float scale = 1.0f;
    auto normed = [&]() {
#pragma unroll
        for (int b = 0; b < batch; b++) {
            x[b].x = __fmul_rn(__fmul_rn(x[b].x, scale), w[b].x);
            x[b].y = __fmul_rn(__fmul_rn(x[b].y, scale), w[b].y);
            x[b].z = __fmul_rn(__fmul_rn(x[b].z, scale), w[b].z);
            x[b].w = __fmul_rn(__fmul_rn(x[b].w, scale), w[b].w);
        }
    };
    int start = threadIdx.x * 4;
    if (norm) load(s.other, w, start);
    wait_for_previous();
    load(row_x, x, start);
    // What the first tile is added to.
    float early = 0.0f;
    if (threadIdx.x < 16 && walk.tile(0) < m.tiles) {
        int local;
        const Target &target = target_of(to, walk.tile(0), local);
        int at = local * 16 + threadIdx.x;
        if (target.residual && at < target.n) early = target.residual[at];
    }
    if (norm) {
        float sum = 0.0f;
        for (int i0 = start;;) {
#pragma unroll
            for (int b = 0; b < batch; b++) {
                sum = __fmaf_rn(x[b].x, x[b].x, sum), sum = __fmaf_rn(x[b].y, x[b].y, sum);
                sum = __fmaf_rn(x[b].z, x[b].z, sum), sum = __fmaf_rn(x[b].w, x[b].w, sum);
            }
            i0 += batch * 1024;
            if (i0 - start >= k) break;
            load(row_x, x, i0);
        }
        scale = rsqrtf(block_sum(sum, scratch) / (float)k + s.eps);
        if (k > batch * 1024) load(row_x, x, start);
    }
#if BITS == 16
    float &part_top = sums[1][0][0];
    float top = 0.0f, up = 1.0f;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            top = block_max(top, scratch);
            if (m.splits > 1) {
                if (threadIdx.x == 0) part_top = top;
                meet_cluster();
                for (int p = 0; p < m.splits; p++) top = fmaxf(top, of_block(&part_top, p));
            }
            up = row_up(top);
        }
#pragma unroll 1
        for (int i0 = start; i0 < padded; i0 += batch * 1024) {
            // A row of one batch is still here, normed.
            if (padded > batch * 1024 && (pass || i0 > start)) {
                load(row_x, x, i0);
                if (norm) load(s.other, w, i0);
            }
            if (norm && (padded > batch * 1024 || !pass)) normed();
#pragma unroll
            for (int b = 0; b < batch; b++) {
                float4 v = x[b];
                int i = i0 + b * 1024;
                if (!pass) {
                    top = fmaxf(fmaxf(fmaxf(top, fabsf(v.x)), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
                } else if (i < padded) {
                    put_halves(v, up, high + i, low + i);
                }
            }
        }
    }
    float down = 1.0f / up;
#else
#pragma unroll 1
    for (int i0 = start; i0 < groups * 32; i0 += batch * 1024) {
        if (i0 > start) {
            load(row_x, x, i0);
            if (norm) load(s.other, w, i0);
        }
        if (norm) normed();
#pragma unroll
        for (int b = 0; b < batch; b++) {
            int i = i0 + b * 1024;
            if (i >= groups * 32) break;
            float v[4] = {x[b].x, x[b].y, x[b].z, x[b].w};
            Quad q = quantize4(v);
            int group = i / 32, part = i % 32 / 4;
            row[group * 8 + part % 4 * 2 + part / 4] = q.codes;
            if (part == 0) {
                scales[group] = make_float2(q.unit, q.unit * (float)q.sum);
                if (OFFSETS && SUBGROUPS == 2) firsts[group] = q.unit * (float)q.first;
            }
        }
    }
#endif
    __syncthreads();

    int slot = 0;
    float kept = 0.0f;
    for (int i = 0; walk.tile(i) < m.tiles; i++) {
        int tile = walk.tile(i);
#if BITS == 16
        float acc[4] = {};
#else
        float upper = 0.0f, lower = 0.0f; // rows g and g + 8
#endif
        for (int chunk = warp; chunk < chunk1 - chunk0; chunk += WARPS) {
            wait_copies<SLOTS - 1>();
            __syncwarp();
            const u8 *record = ring + slot * RECORD;
#if BITS == 16
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const u16 *from = (g ? low : high) + (chunk * UNITS + u) / PLANES * 64 + 4 * t;
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    uint2 b = make_uint2(0, 0);
                    if (g < 2) b = *(const uint2 *)(from + step * 16);
                    multiply(acc, *(const uint4 *)(record + ((u * 4 + step) * 32 + lane) * 16), b);
                }
            }
#else
            int d[SUBGROUPS][4];
#pragma unroll
            for (int s = 0; s < SUBGROUPS; s++) d[s][0] = d[s][1] = d[s][2] = d[s][3] = MAGIC;
            uint2 mine = make_uint2(0, 0);
            if (g < 2 * UNITS) mine = *(const uint2 *)(row + (chunk * UNITS * 2 + g) * 8 + 2 * t);
#pragma unroll
            for (int n = 0; n < 2 * UNITS; n++) {
                u32 a[4], b[2] = {n == g ? mine.x : 0, n == g ? mine.y : 0};
                codes(record, n / 2, n % 2, lane, a);
#pragma unroll
                for (int s = 0; s < SUBGROUPS; s++) multiply(d[s], a + 2 * s, b + s);
            }
            // This lane's columns are the two groups of unit t.
            if (t < UNITS) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int group = (chunk * UNITS + t) * 2 + j;
                    float2 x = scales[group];
#pragma unroll
                    for (int s = 0; s < SUBGROUPS; s++) {
                        float s0, s1, o0, o1;
                        scale_of(record, t, j, s, 0, g, s0, o0);
                        scale_of(record, t, j, s, 1, g, s1, o1);
                        upper = __fmaf_rn(__int_as_float(d[s][j]) - MAGIC_FLOAT, __fmul_rn(s0, x.x), upper);
                        lower = __fmaf_rn(__int_as_float(d[s][2 + j]) - MAGIC_FLOAT, __fmul_rn(s1, x.x), lower);
                        if (OFFSETS) {
                            float y = x.y;
                            if (SUBGROUPS == 2) y = s ? x.y - firsts[group] : firsts[group];
                            upper = __fmaf_rn(o0, y, upper);
                            lower = __fmaf_rn(o1, y, lower);
                        }
                    }
                }
            }
#endif
            __syncwarp();
            stream.ask(m, walk, warp, lane);
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
#if BITS == 16
        float upper = acc[0] + acc[1], lower = acc[2] + acc[3];
#else
        for (int step = 1; step < 4; step *= 2) {
            upper = __fadd_rn(upper, __shfl_xor_sync(FULL, upper, step));
            lower = __fadd_rn(lower, __shfl_xor_sync(FULL, lower, step));
        }
#endif
        if (t == 0) sums[i & 1][warp][g] = upper, sums[i & 1][warp][g + 8] = lower;
        __syncthreads();
        float sum = 0.0f;
        if (threadIdx.x < 16) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, sums[i & 1][w][threadIdx.x]);
        }
        if (m.splits > 1) {
            // Each thread's own column.
            if (threadIdx.x < 16) sums[i & 1][0][threadIdx.x] = sum;
            meet_cluster();
        }
        if (threadIdx.x < 16 && part == 0) {
            int local, r = threadIdx.x;
            const Target &target = target_of(to, tile, local);
            int at = local * 16 + r;
            for (int p = 1; p < m.splits; p++) sum = __fadd_rn(sum, of_block(&sums[i & 1][0][r], p));
#if BITS == 16
            sum = __fmul_rn(sum, __fmul_rn(m.row_scales[tile * 16 + r], down));
#endif
            if (at < target.n) {
                sum = biased(target, at, sum);
                if (!to.paired && target.residual && i == 0) target.out[at] = __fadd_rn(sum, early);
                else if (!to.paired) put(target, 0, at, sum);
                else if (i & 1) put(to.at[0], 0, at, __fmul_rn(activate(to.activation, kept), sum));
                kept = sum;
            }
        }
    }
    // None leaves before the first has read its sums.
    if (m.splits > 1) meet_cluster();
}

// Rows of activations as activations.cu leaves them.
struct Rows {
    const void *codes;    // [units, columns / 8, 32] of uint4; or high halves [count, padded]
    const void *scales;   // [groups, columns / 2] of float4: scale and sum of two columns; or low halves
    const void *firsts;   // [groups, columns / 2] of float2: sums of the first 16 of a group; or [count]
    int columns;          // rounded up to a multiple of 32; or padded
    int count;
};

// NT tiles of eight tokens for each warp.
template <int NT>
__device__ __forceinline__ void product(const Matrix &m, const Rows &x, const Targets &to) {
    __shared__ float sums[WARPS][NT * 8][16 + 1];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int column_tiles = (x.count + NT * 8 - 1) / (NT * 8);
    int column_tile = blockIdx.x % column_tiles;
    u8 *ring = memory + warp * SLOTS * RECORD;
    Walk walk = {(int)blockIdx.x / column_tiles, (int)gridDim.x / column_tiles, to.paired};
    int each = (m.chunks + m.splits - 1) / m.splits;
    Stream stream = stream_of(ring, 0, m.chunks, each, warp);
    for (int i = 0; i < SLOTS; i++) stream.ask(m, walk, warp, lane);
    wait_for_previous();
    int slot = 0;
    const int mine = (NT * 8 * 16 + 255) / 256;
    float kept[mine], total[mine];
    for (int i = 0; walk.tile(i) < m.tiles; i++) {
        int tile = walk.tile(i);
        for (int first = 0; first < m.chunks; first += each) {
#if BITS == 16
            float acc[2][NT][4] = {};
#else
            float acc[UNITS][NT][4] = {};
            int columns8 = x.columns / 8, columns2 = x.columns / 2;
#endif
            int end = min(first + each, m.chunks);
            for (int chunk = first + warp; chunk < end; chunk += WARPS) {
                wait_copies<SLOTS - 1>();
                __syncwarp();
                const u8 *record = ring + slot * RECORD;
#pragma unroll
                for (int u = 0; u < UNITS; u++) {
                    int unit = chunk * UNITS + u;
#if BITS == 16
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        int token = (column_tile * NT + n) * 8 + g;
                        u64 from = (u64)min(token, x.count - 1) * x.columns + unit / PLANES * 64 + 4 * t;
#pragma unroll
                        for (int step = 0; step < 4; step++) {
                            uint4 a = *(const uint4 *)(record + ((u * 4 + step) * 32 + lane) * 16);
                            multiply(acc[0][n], a, __ldg((const uint2 *)((const u16 *)x.codes + from + step * 16)));
                            multiply(acc[1][n], a, __ldg((const uint2 *)((const u16 *)x.scales + from + step * 16)));
                        }
                    }
#else
                    uint4 b[NT];
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        int column = column_tile * NT + n;
                        b[n] = make_uint4(0, 0, 0, 0);
                        if (column * 8 + g < x.count)
                            b[n] = __ldg((const uint4 *)x.codes + ((u64)unit * columns8 + column) * 32 + lane);
                    }
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float4 xs[NT];
#pragma unroll
                        for (int n = 0; n < NT; n++)
                            xs[n] = __ldg((const float4 *)x.scales + (u64)(unit * 2 + j) * columns2 +
                                          (column_tile * NT + n) * 4 + t);
                        u32 a[4];
                        codes(record, u, j, lane, a);
#pragma unroll
                        for (int s = 0; s < SUBGROUPS; s++) {
                            float s0, s1, o0, o1;
                            scale_of(record, u, j, s, 0, g, s0, o0);
                            scale_of(record, u, j, s, 1, g, s1, o1);
#pragma unroll
                            for (int n = 0; n < NT; n++) {
                                u32 bs[2] = {j ? b[n].z : b[n].x, j ? b[n].w : b[n].y};
                                int d[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                                multiply(d, a + 2 * s, bs + s);
                                float *to = acc[u][n];
                                to[0] = __fmaf_rn(__int_as_float(d[0]) - MAGIC_FLOAT, __fmul_rn(s0, xs[n].x), to[0]);
                                to[1] = __fmaf_rn(__int_as_float(d[1]) - MAGIC_FLOAT, __fmul_rn(s0, xs[n].z), to[1]);
                                to[2] = __fmaf_rn(__int_as_float(d[2]) - MAGIC_FLOAT, __fmul_rn(s1, xs[n].x), to[2]);
                                to[3] = __fmaf_rn(__int_as_float(d[3]) - MAGIC_FLOAT, __fmul_rn(s1, xs[n].z), to[3]);
                                if (OFFSETS) {
                                    float y0 = xs[n].y, y1 = xs[n].w;
                                    if (SUBGROUPS == 2) {
                                        float2 first = __ldg(
                                            (const float2 *)x.firsts + (u64)(unit * 2 + j) * columns2 +
                                            (column_tile * NT + n) * 4 + t);
                                        y0 = s ? y0 - first.x : first.x;
                                        y1 = s ? y1 - first.y : first.y;
                                    }
                                    to[0] = __fmaf_rn(o0, y0, to[0]), to[2] = __fmaf_rn(o1, y0, to[2]);
                                    to[1] = __fmaf_rn(o0, y1, to[1]), to[3] = __fmaf_rn(o1, y1, to[3]);
                                }
                            }
                        }
                    }
#endif
                }
                __syncwarp();
                stream.ask(m, walk, warp, lane);
                slot = slot + 1 == SLOTS ? 0 : slot + 1;
            }
            __syncthreads();
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float sum = __fadd_rn(acc[0][n][e], acc[1][n][e]);
#if BITS != 16
                    if (UNITS == 4) sum = __fadd_rn(sum, __fadd_rn(acc[UNITS - 2][n][e], acc[UNITS - 1][n][e]));
#endif
                    sums[warp][n * 8 + 2 * t + (e & 1)][g + 8 * (e >> 1)] = sum;
                }
            __syncthreads();
#pragma unroll
            for (int part = 0; part < mine; part++) {
                int e = part * 256 + threadIdx.x;
                if (e >= NT * 8 * 16) continue;
                float sum = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, sums[w][e / 16][e % 16]);
                total[part] = first == 0 ? sum : __fadd_rn(total[part], sum);
            }
        }
        int local;
        const Target &target = target_of(to, tile, local);
#pragma unroll
        for (int part = 0; part < mine; part++) {
            int e = part * 256 + threadIdx.x;
            int row = local * 16 + e % 16, column = e / 16;
            int token = column_tile * NT * 8 + column;
            if (e >= NT * 8 * 16 || row >= target.n || token >= x.count) continue;
            float sum = total[part];
#if BITS == 16
            sum = __fmul_rn(sum, __fmul_rn(m.row_scales[tile * 16 + e % 16], ((const float *)x.firsts)[token]));
#endif
            sum = biased(target, row, sum);
            if (!to.paired) put(target, token, row, sum);
            else if (i & 1) put(to.at[0], token, row, __fmul_rn(activate(to.activation, kept[part]), sum));
            kept[part] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) product_8(Matrix m, Rows x, Targets to) {
    product<1>(m, x, to);
}

extern "C" __global__ void __launch_bounds__(256, 1) product_32(Matrix m, Rows x, Targets to) {
    product<4>(m, x, to);
}
