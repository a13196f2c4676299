// Products with quantised weights for many tokens, on Hopper's float tensor cores.
//
// Two warpgroups of four warps do 128 rows of weights times N tokens. A warp decodes its 16 rows
// from registers to f16 operands of `wgmma`, while the tensor cores work on the operands before;
// tokens come as f16 rows through shared memory, four stages deep. Columns of the rows are in the
// order in which decoding yields them: see `narrow_rows`.
//
// Weights are scaled by 2^8 so that small ones keep their bits as f16; tokens have been scaled by
// powers of two of their own. Both are taken back at the end.

#include "packed.cuh"

#define WEIGHT "f16"
#include "wgmma.cuh"

#define ROWS 128
#define STAGES 4
#define COLUMNS 64
#define UP 256.0f

// Four codes to two pairs of halves: code * scale + offset.
__device__ __forceinline__ void to_halves(u32 four, u32 scale, u32 offset, u32 &first, u32 &second) {
    // A byte below 0x64 is 1024 more as a half, and exact.
    const u32 magic = 0x64646464u;
#if SIGNED
    const u32 base = 0x64806480u; // 1152
    four ^= 0x80808080u;
#else
    const u32 base = 0x64006400u; // 1024
#endif
    asm("prmt.b32 %0, %1, %2, 0x4140;" : "=r"(first) : "r"(four), "r"(magic));
    asm("prmt.b32 %0, %1, %2, 0x4342;" : "=r"(second) : "r"(four), "r"(magic));
    asm("sub.f16x2 %0, %0, %1;" : "+r"(first) : "r"(base));
    asm("sub.f16x2 %0, %0, %1;" : "+r"(second) : "r"(base));
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(scale), "r"(offset));
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(scale), "r"(offset));
}

// Operands of a unit's four steps of 16 columns.
__device__ __forceinline__ void decode(const Chunk &c, int u, int lane, u32 a[16]) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 four[4];
        codes(c, u, j, four);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float scale, offset;
                scale_of(c, u, j, SUBGROUPS == 2 ? s : 0, r, lane, scale, offset);
                u32 *to = a + (j * 2 + s) * 4 + r;
                to_halves(four[2 * s + r], pack_halves(scale * UP, scale * UP),
                          pack_halves(offset * UP, offset * UP), to[0], to[2]);
            }
    }
}

__device__ __forceinline__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Rows of 128 bytes in the 128-byte swizzle: the 16-byte pieces of row r are exchanged by r % 8.
__device__ __forceinline__ void load_tokens(
    u32 stage, const u16 *x, int stride, int first, int last, int n, int unit) {
    for (int i = threadIdx.x; i < n * 8; i += blockDim.x) {
        int row = i / 8, piece = i % 8;
        const u16 *from = x + (u64)min(first + row, last) * stride + unit * COLUMNS + piece * 8;
        u32 to = stage + row * 128 + ((piece ^ (row & 7)) * 16);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
    }
}

struct Wide {
    const u16 *x;       // [count, stride] f16
    const float *down;  // [count]
    float *partials;    // [splits, count, tiles * 16], or null where there is one split
    int count, stride;
    int split_chunks;   // chunks of a split
};

template <int N>
__device__ __forceinline__ void wide(const Matrix &m, const Wide &x, const Targets &to) {
    extern __shared__ __align__(1024) u8 stages[];
    u32 base = (shared_address(stages) + 1023u) & ~1023u;
    const u32 size = N * 128;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int tile = blockIdx.x * (ROWS / 16) + warp, first = blockIdx.y * N;
    int chunk0 = blockIdx.z * x.split_chunks, chunk1 = min(chunk0 + x.split_chunks, m.chunks);
    int unit = chunk0 * UNITS, end = chunk1 * UNITS;
    bool real = tile < m.tiles;
    int mine = min(tile, m.tiles - 1);
    Chunk now;
    load(now, m, mine, chunk0, lane);
    wait_for_previous();
    for (int s = 0; s < STAGES - 1; s++) {
        if (unit + s < end) load_tokens(base + s * size, x.x, x.stride, first, x.count - 1, N, unit + s);
        asm volatile("cp.async.commit_group;");
    }
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = 0.0f;
    u32 a[2][16];
    decode(now, 0, lane, a[0]);
    int step = 0;
    for (int chunk = chunk0; chunk < chunk1; chunk++) {
#pragma unroll
        for (int u = 0; u < UNITS; u++, step++, unit++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            u32 stage = base + step % STAGES * size;
            // Start address in units of 16 bytes, 1024 bytes from one eight rows to the next,
            // 128-byte swizzle.
            u64 b = (u64)(stage >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int i = 0; i < 4; i++) Wgmma<N>::run(d, a[u & 1] + 4 * i, b + 2 * i);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (unit + STAGES - 1 < end)
                load_tokens(base + (step + STAGES - 1) % STAGES * size, x.x, x.stride, first,
                            x.count - 1, N, unit + STAGES - 1);
            asm volatile("cp.async.commit_group;");
            decode(now, (u + 1) % UNITS, lane, a[(u + 1) & 1]);
            // The next chunk, once the last unit of this one is decoded.
            if (u == UNITS - 2 && chunk + 1 < chunk1) load(now, m, mine, chunk + 1, lane);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        }
    }
    if (!real) return;
    int which = 0;
    while (which + 1 < to.count && to.at[which + 1].first_tile <= tile) which++;
    const Target &target = to.at[which];
    int row0 = (tile - target.first_tile) * 16 + g;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int token = first + i / 4 * 8 + 2 * t + (i & 1), row = row0 + 8 * (i >> 1 & 1);
        if (token >= x.count) continue;
        float value = d[i] * (x.down[token] * (1.0f / UP));
        if (x.partials) {
            int all = m.tiles * 16;
            x.partials[((u64)blockIdx.z * x.count + token) * all + tile * 16 + g + 8 * (i >> 1 & 1)] = value;
        } else if (row < target.n) {
            u64 at = (u64)token * target.n + row;
            if (target.bias) value = __fadd_rn(value, target.bias[row]);
            if (target.residual) value = __fadd_rn(value, target.residual[at]);
            target.out[at] = value;
        }
    }
}

#define WIDE(n)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 1) wide_##n(Matrix m, Wide x, Targets to) { \
        wide<n>(m, x, to);                                                                      \
    }
WIDE(32)
WIDE(64)
WIDE(128)
WIDE(256)

// The splits of a product added in their order.
extern "C" __global__ void add_splits(
    const float *partials, int splits, int count, int tiles, Targets to) {
    wait_for_previous();
    int all = tiles * 16;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)count * all) return;
    int token = (int)(i / all), column = (int)(i % all), which = 0;
    while (which + 1 < to.count && to.at[which + 1].first_tile <= column / 16) which++;
    const Target &target = to.at[which];
    int row = column - target.first_tile * 16;
    if (row >= target.n) return;
    float sum = 0.0f;
    for (int s = 0; s < splits; s++) sum = __fadd_rn(sum, partials[(u64)s * count * all + i]);
    u64 at = (u64)token * target.n + row;
    if (target.bias) sum = __fadd_rn(sum, target.bias[row]);
    if (target.residual) sum = __fadd_rn(sum, target.residual[at]);
    target.out[at] = sum;
}
