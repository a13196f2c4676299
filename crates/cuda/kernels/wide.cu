// Products with packed weights for many tokens, on Hopper's float tensor cores.
//
// Two warpgroups of four warps do 128 rows of weights times N tokens. A warp decodes its 16 rows
// from shared memory to f16 operands in registers, while the tensor cores work on the operands
// before; tokens come as f16 rows through shared memory too. Columns of the rows are in the order in
// which decoding yields them: see `narrow_rows`.
//
// Quantised weights are scaled by 2^8 so that small ones keep their bits as f16, float weights by a
// power of two a row; tokens by powers of two of their own. All are taken back at the end.

#include "blocks.cuh"
#include "packed.cuh"
#include "wgmma.cuh"

#define ROWS 128
#define COLUMNS 64

// How tokens come: in stages of `units` steps of 64 columns, `ahead` stages before they are
// multiplied. One stage is multiplied, one may still be, and `ahead` are on their way.
template <int N>
struct Depth {
    static const int units = N == 256 ? 1 : N == 128 ? UNITS / 2 : N == 64 ? 2 : UNITS;
    static const int ahead = N >= 128 ? 2 : 1, stages = ahead + 2;
    // Records of a warp: one that is decoded and those to come.
    static const int slots = 3;
};

extern __shared__ __align__(1024) u8 memory[];

#if BITS == 16

// Operands of two of a unit's four steps of 16 columns.
__device__ __forceinline__ void decode(const u8 *record, int u, int j, int lane, u32 a[16]) {
#pragma unroll
    for (int step = 2 * j; step < 2 * j + 2; step++) {
        uint4 v = *(const uint4 *)(record + ((u * 4 + step) * 32 + lane) * 16);
        a[4 * step] = v.x, a[4 * step + 1] = v.y, a[4 * step + 2] = v.z, a[4 * step + 3] = v.w;
    }
}

#else

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

// Operands of two of a unit's four steps of 16 columns.
__device__ __forceinline__ void decode(const u8 *record, int u, int j, int lane, u32 a[16]) {
    int g = lane / 4;
    u32 four[4];
    codes(record, u, j, lane, four);
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float scale, offset;
            scale_of(record, u, j, SUBGROUPS == 2 ? s : 0, r, g, scale, offset);
            u32 *to = a + (j * 2 + s) * 4 + r;
            to_halves(four[2 * s + r], pack_halves(scale * UP, scale * UP),
                      pack_halves(offset * UP, offset * UP), to[0], to[2]);
        }
}

#endif

// Rows of 128 bytes in the 128-byte swizzle: the 16-byte pieces of row r are exchanged by r % 8.
template <int N>
__device__ __forceinline__ void load_tokens(
    u32 stage, const u16 *x, int stride, int first, int last, int unit) {
    int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    u32 to = stage + row * 128 + ((piece ^ (row & 7)) * 16);
    x += unit * COLUMNS + piece * 8;
#pragma unroll
    for (int i = 0; i < N; i += 32)
        copy16(to + i * 128, x + (u64)(u32)min(first + row + i, last) * (u32)stride);
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
    const int ahead = Depth<N>::ahead, stages = Depth<N>::stages, slots = Depth<N>::slots;
    const int together = Depth<N>::units;
    const u32 unit_size = N * 128, size = together * unit_size;
    u32 base = (shared_address(memory) + 1023u) & ~1023u;
    u8 *aligned = memory + (base - shared_address(memory));
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    // Blocks of the same weights stand side by side.
    int tile = blockIdx.y * (ROWS / 16) + warp, first = blockIdx.x * N;
    int chunk0 = blockIdx.z * x.split_chunks, chunk1 = min(chunk0 + x.split_chunks, m.chunks);
    int begin = chunk0 * UNITS, end = chunk1 * UNITS;
    bool real = tile < m.tiles;
    int mine = min(tile, m.tiles - 1);
    u8 *ring = aligned + stages * size + warp * slots * RECORD;
    u32 ring_address = base + stages * size + warp * slots * RECORD;
    for (int i = 0; i < slots - 1; i++)
        if (chunk0 + i < chunk1) copy_record(ring_address + i * RECORD, m, mine, chunk0 + i, lane);
    commit_copies();
    wait_for_previous();
    // Asks for the tokens of a stage.
    auto ask = [&](int number) {
#pragma unroll
        for (int u = 0; u < together; u++) {
            int unit = begin + number * together + u;
            if (unit < end)
                load_tokens<N>(base + number % stages * size + u * unit_size, x.x, x.stride, first,
                               x.count - 1, unit / PLANES);
        }
    };
    for (int s = 0; s < ahead; s++) {
        ask(s);
        commit_copies();
    }
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = 0.0f;
    u32 a[2][16];
    wait_copies<ahead>();
    __syncwarp();
    decode(ring, 0, 0, lane, a[0]);
    decode(ring, 0, 1, lane, a[0]);
    int stage = 0, slot = 0;
    for (int chunk = chunk0; chunk < chunk1; chunk++) {
        int after = slot + 1 == slots ? 0 : slot + 1;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (u % together == 0) {
                wait_copies<ahead - 1>();
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                // From here on all see this stage's tokens, and none uses those of two stages before.
                __syncthreads();
            }
            u32 tokens = base + stage % stages * size + u % together * unit_size;
            // Start address in units of 16 bytes, 1024 bytes from one eight rows to the next,
            // 128-byte swizzle.
            u64 b = (u64)(tokens >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
            // The unit after this one is decoded between products: a warp waits at each until the
            // tensor cores take its operands.
            const u32 *now = a[u & 1];
            u32 *next = a[(u + 1) & 1];
            const u8 *record = ring + (u + 1 < UNITS ? slot : after) * RECORD;
            bool more = u + 1 < UNITS || chunk + 1 < chunk1;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            Wgmma<N>::run(d, now, b);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // The operands of the unit before are free from here on.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (more) decode(record, (u + 1) % UNITS, 0, lane, next);
            Wgmma<N>::run(d, now + 4, b + 2);
            if (u % together == 0) {
                ask(stage + ahead);
                if (u == 0 && chunk + slots - 1 < chunk1) {
                    int place = slot == 0 ? slots - 1 : slot - 1;
                    copy_record(ring_address + place * RECORD, m, mine, chunk + slots - 1, lane);
                }
                commit_copies();
            }
            Wgmma<N>::run(d, now + 8, b + 4);
            if (more) decode(record, (u + 1) % UNITS, 1, lane, next);
            Wgmma<N>::run(d, now + 12, b + 6);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (u % together == together - 1) stage++;
        }
        slot = after;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float scales[2] = {1.0f / UP, 1.0f / UP};
#if BITS == 16
    scales[0] = m.row_scales[mine * 16 + g], scales[1] = m.row_scales[mine * 16 + g + 8];
#endif
    int local;
    const Target &target = target_of(to, mine, local);
    bool pair = to.paired && !x.partials;
    if (pair) {
        // Both warps of a pair leave what they have and take half each.
        __syncthreads();
        float *kept = (float *)aligned + lane;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int token = first + i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1, row = local * 16 + g + 8 * r;
            float value = d[i] * (x.down[min(token, x.count - 1)] * scales[r]);
            kept[(warp * (N / 2) + i) * WARP] = row < target.n ? biased(target, row, value) : 0.0f;
        }
        __syncthreads();
        const float *gate = kept + (warp & ~1) * (N / 2) * WARP, *up = gate + (N / 2) * WARP;
#pragma unroll 4
        for (int i = warp & 1; i < N / 2; i += 2) {
            int pair_row = i >> 1, token = first + pair_row / 2 * 8 + 2 * t + (i & 1);
            int row = local * 16 + g + 8 * (pair_row & 1);
            if (real && token < x.count && row < target.n)
                put(to.at[0], token, row, __fmul_rn(activate(to.activation, gate[i * WARP]), up[i * WARP]));
        }
        return;
    }
    if (!real) return;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int token = first + i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1, row = local * 16 + g + 8 * r;
        if (token >= x.count) continue;
        float value = d[i] * (x.down[token] * scales[r]);
        if (x.partials) {
            int all = m.tiles * 16;
            x.partials[((u64)blockIdx.z * x.count + token) * all + tile * 16 + g + 8 * r] = value;
        } else if (row < target.n) {
            put(target, token, row, biased(target, row, value));
        }
    }
}

#define WIDE(n, blocks)                                                                         \
    extern "C" __global__ void __launch_bounds__(256, blocks) wide_##n(                         \
        Matrix m, Wide x, Targets to) {                                                         \
        wide<n>(m, x, to);                                                                      \
    }
WIDE(32, 2)
WIDE(64, 2)
WIDE(128, 1)
WIDE(256, 1)

// The splits of a product added in their order.
extern "C" __global__ void add_splits(
    const float *partials, int splits, int count, int tiles, Targets to) {
    wait_for_previous();
    int all = tiles * 16;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)count * all) return;
    int token = (int)(i / all), column = (int)(i % all), local;
    const Target &target = target_of(to, column / 16, local);
    int row = local * 16 + column % 16;
    if (row >= target.n || (to.paired && (column / 16 & 1))) return;
    float sum = 0.0f, up = 0.0f;
    for (int s = 0; s < splits; s++) sum = __fadd_rn(sum, partials[(u64)s * count * all + i]);
    sum = biased(target, row, sum);
    if (to.paired) {
        for (int s = 0; s < splits; s++) up = __fadd_rn(up, partials[(u64)s * count * all + i + 16]);
        sum = __fmul_rn(activate(to.activation, sum), biased(to.at[1], row, up));
    }
    put(target, token, row, sum);
}

#if PLANES == 1

// Tiles from `first` to `last` as f16, in blocks of 128 rows by 64 columns, for dense.cu. A warp does
// the record of a chunk. A block whose rows are past the last keeps what was there: no sum of a row
// that is real reads them.
extern "C" __global__ void __launch_bounds__(256) widen(Matrix m, u16 *out, int first, int last) {
    __shared__ __align__(16) u8 records[WARPS][RECORD];
    __shared__ __align__(16) u16 units[WARPS][16 * COLUMNS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int number = blockIdx.x * WARPS + warp;
    if (number >= (last - first) * m.chunks) return;
    int tile = first + number / m.chunks, chunk = number % m.chunks;
    copy_record(shared_address(records[warp]), m, tile, chunk, lane);
    commit_copies();
    wait_for_previous();
    wait_copies<0>();
    __syncwarp();
    int row = (tile - first) * 16, blocks = m.chunks * UNITS;
    u16 *unit = units[warp];
    uint4 *to = (uint4 *)(out + ((u64)(row / 128) * blocks + chunk * UNITS) * (128 * COLUMNS)
                          + row % 128 * COLUMNS);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        u32 a[16];
        decode(records[warp], u, 0, lane, a);
        decode(records[warp], u, 1, lane, a);
#pragma unroll
        for (int i = 0; i < 16; i++)
            ((u32 *)(unit + swizzled(g + (i & 1) * 8, i / 4 * 2 + (i >> 1 & 1))))[t] = a[i];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) to[i * WARP + lane] = ((uint4 *)unit)[i * WARP + lane];
        to += 128 * COLUMNS / 8;
        __syncwarp();
    }
}

#endif
