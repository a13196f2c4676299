// Products of many tokens with weights that `widen` (wide.cu) has decoded to f16, on Hopper's tensor
// cores.
//
// A multiprocessor does 128 tokens by 256 rows of weights at a time: one thread copies blocks of
// tokens and weights (see blocks.cuh) to shared memory some stages ahead, two warpgroups multiply 64
// tokens each. Two multiprocessors form a cluster that works on the same weights: each copies half of
// them, to both.

#include "blocks.cuh"
#include "targets.cuh"

#define TOKENS 128
#define ROWS 256
#define STAGES 4
#define PART 16384u // bytes of a block
#define STAGE (3 * PART)
#define AHEAD 12    // units that weights are asked for into the second-level cache
#define PAIR 2      // multiprocessors of a cluster
#define MULTIPLIERS 8 // warps that multiply
#define PIECE 64    // rows of weights whose sums a warp puts at a time

struct Dense {
    const u8 *weights;       // [rows / 128, units] blocks, of the tiles from `first` to `last`
    const u8 *x;             // [tokens / 128, stride] blocks
    const float *down;       // [count]
    const float *row_scales; // [tiles, 16] of all tiles, or null for those of quantised weights
    int count, units, stride, first, last;
};

// Barriers in shared memory that count arrivals and bytes.
__device__ __forceinline__ void set_barrier(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives at the same barrier of a multiprocessor of the cluster.
__device__ __forceinline__ void arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(barrier), "r"(rank)
        : "memory");
}

// Until the barrier has completed the phase of this parity.
__device__ __forceinline__ void wait_at(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(barrier), "r"(parity)
        : "memory");
}

__device__ __forceinline__ void copy_block(u32 to, const u8 *from, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(PART), "r"(barrier)
        : "memory");
}

// To this place of both multiprocessors, counted by the barriers of both.
__device__ __forceinline__ void copy_block_to_both(u32 to, const u8 *from, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(PART), "r"(barrier), "h"((u16)3)
        : "memory");
}

__device__ __forceinline__ void prefetch_block(const u8 *from) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(PART) : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A block in shared memory: its address in units of 16 bytes, 1024 bytes from one eight rows to the
// next, 128-byte swizzle.
__device__ __forceinline__ u64 block_at(u32 address) {
    return (u64)(address >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

// d += the 64 tokens' 16 columns at `x` times those of the 256 rows at `w`.
__device__ __forceinline__ void multiply(float *d, u64 x, u64 w) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
          "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
          "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
          "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]),
          "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
          "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),
          "+f"(d[126]), "+f"(d[127])
        : "l"(x), "l"(w));
}

__device__ __forceinline__ void copy_all(
    const Dense &m, u32 base, u32 full, u32 empty, int cluster, int clusters, int all, int pairs, u32 rank) {
    u32 stage = 0, phase = 0;
    for (int work = cluster; work < all; work += clusters) {
        const u8 *x = m.x + (u64)(work % pairs * PAIR + rank) * m.stride * PART;
        const u8 *w = m.weights + (u64)(work / pairs * (ROWS / 128) + rank) * m.units * PART;
        for (int u = 0; u < m.units; u++) {
            u32 at = base + stage * STAGE, ready = full + stage * 8;
            // Those who work on the same weights do so at about the same time.
            if (work % pairs == 0 && u + AHEAD < m.units) prefetch_block(w + AHEAD * PART);
            wait_at(empty + stage * 8, phase ^ 1);
            expect(ready, STAGE);
            copy_block(at, x, ready);
            copy_block_to_both(at + PART + rank * PART, w, ready);
            x += PART, w += PART;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

// A quarter of a warp's sums to shared memory: lane 4g + t has, for every eight rows of weights, rows
// 2t and 2t + 1 of tokens g and g + 8. Columns are exchanged by the token so that no two lanes meet
// in a bank.
__device__ __forceinline__ int kept_at(int token, int column) {
    return token * PIECE + (column ^ (token & 3) * 8);
}

template <int QUARTER>
__device__ __forceinline__ void keep(float *kept, const float *d) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < PIECE / 8; i++) {
        const float *v = d + (QUARTER * (PIECE / 8) + i) * 4;
        *(float2 *)(kept + kept_at(g, i * 8 + 2 * t)) = make_float2(v[0], v[1]);
        *(float2 *)(kept + kept_at(g + 8, i * 8 + 2 * t)) = make_float2(v[2], v[3]);
    }
}

// The scale and the bias of a row of weights.
__device__ __forceinline__ float scale_at(const Dense &m, int row) {
    return m.row_scales ? m.row_scales[row] : 1.0f / UP;
}

__device__ __forceinline__ float bias_at(const Target &target, int row) {
    return target.bias && row < target.n ? target.bias[row] : 0.0f;
}

// Puts the sums of 16 tokens and of the four tiles from `tile`; a lane has two neighbouring columns.
__device__ __forceinline__ void put_plain(
    const Dense &m, const Targets &to, const float *kept, int first_token, int tile) {
    int lane = threadIdx.x % WARP, own = tile + lane / 8, local;
    if (own >= m.last) return;
    const Target target = target_of(to, own, local);
    int in_tile = lane % 8 * 2, column = local * 16 + in_tile, n = target.n;
    float s0 = scale_at(m, own * 16 + in_tile), s1 = scale_at(m, own * 16 + in_tile + 1);
    float b0 = bias_at(target, column), b1 = bias_at(target, column + 1);
    bool first = column < n, second = column + 1 < n;
    bool pair = second && n % 2 == 0 && (((u64)target.out | (u64)target.residual) & 7) == 0;
    const int batch = 8; // tokens whose residuals are on their way at once
#pragma unroll 1
    for (int i0 = 0; i0 < 16; i0 += batch) {
        float2 more[batch];
        float back[batch];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            int token = first_token + i0 + i;
            bool real = token < m.count;
            back[i] = real ? m.down[token] : 0.0f;
            more[i] = make_float2(0.0f, 0.0f);
            if (!real || !target.residual) continue;
            const float *from = target.residual + (u64)token * n + column;
            if (pair) more[i] = *(const float2 *)from;
            else more[i] = make_float2(first ? from[0] : 0.0f, second ? from[1] : 0.0f);
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            int token = first_token + i0 + i;
            float2 v = *(const float2 *)(kept + kept_at(i0 + i, 2 * lane));
            v.x *= back[i] * s0, v.y *= back[i] * s1;
            if (target.bias) v.x = __fadd_rn(v.x, b0), v.y = __fadd_rn(v.y, b1);
            if (target.residual) v.x = __fadd_rn(v.x, more[i].x), v.y = __fadd_rn(v.y, more[i].y);
            if (token >= m.count) continue;
            float *out = target.out + (u64)token * n + column;
            if (pair) *(float2 *)out = v;
            else {
                if (first) out[0] = v.x;
                if (second) out[1] = v.y;
            }
        }
    }
}

// The same where the tiles are two pairs of a gate and its `up`; a lane has one column of both.
__device__ __forceinline__ void put_paired(
    const Dense &m, const Targets &to, const float *kept, int first_token, int tile) {
    int lane = threadIdx.x % WARP, gate = tile + lane / 16 * 2, in_tile = lane % 16;
    int column = gate / 2 * 16 + in_tile, n = to.at[0].n;
    if (gate >= m.last || column >= n) return;
    float gate_scale = scale_at(m, gate * 16 + in_tile), up_scale = scale_at(m, gate * 16 + 16 + in_tile);
    float gate_bias = bias_at(to.at[0], column), up_bias = bias_at(to.at[1], column);
    int from = lane / 16 * 32 + in_tile;
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        int token = first_token + i;
        if (token >= m.count) break;
        float back = m.down[token];
        float g = __fadd_rn(kept[kept_at(i, from)] * (back * gate_scale), gate_bias);
        float up = __fadd_rn(kept[kept_at(i, from + 16)] * (back * up_scale), up_bias);
        put(to.at[0], token, column, __fmul_rn(activated(to.activation, g), up));
    }
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1)
    dense(Dense m, Targets to) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    u32 base = (shared_address(memory) + 1023u) & ~1023u;
    float *sums = (float *)(memory + (base - shared_address(memory)) + STAGES * STAGE);
    u32 full = shared_address(barriers), empty = full + STAGES * 8;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    int cluster = blockIdx.x / PAIR, clusters = gridDim.x / PAIR;
    int pairs = (m.count + PAIR * TOKENS - 1) / (PAIR * TOKENS);
    int all = pairs * (((m.last - m.first) * 16 + ROWS - 1) / ROWS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            set_barrier(full + i * 8, 1);
            set_barrier(empty + i * 8, PAIR * MULTIPLIERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet_cluster();
    wait_for_previous();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) copy_all(m, base, full, empty, cluster, clusters, all, pairs, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int half = threadIdx.x / 128 - 1, warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
        u32 stage = 0, phase = 0;
        for (int work = cluster; work < all; work += clusters) {
            float d[ROWS / 2];
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) d[i] = 0.0f;
            u32 before = 0;
            for (int u = 0; u < m.units; u++) {
                u32 at = base + stage * STAGE;
                u64 x = block_at(at + half * (PART / 2)), w = block_at(at + PART);
                wait_at(full + stage * 8, phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int step = 0; step < 4; step++) multiply(d, x + 2 * step, w + 2 * step);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // The stage before is free when its products are done.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (u > 0 && lane < PAIR) arrive_at(before, lane);
                before = empty + stage * 8;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < PAIR) arrive_at(before, lane);
            // One loop over quarters keeps the code short: it does not stay in the instruction cache.
            int token = (work % pairs * PAIR + rank) * TOKENS + half * 64 + warp * 16;
            int tile = m.first + work / pairs * (ROWS / 16);
            float *kept = sums + (half * 4 + warp) * 16 * PIECE;
#pragma unroll 1
            for (int quarter = 0; quarter < ROWS / PIECE; quarter++) {
                __syncwarp();
                if (quarter == 0) keep<0>(kept, d);
                else if (quarter == 1) keep<1>(kept, d);
                else if (quarter == 2) keep<2>(kept, d);
                else keep<3>(kept, d);
                __syncwarp();
                if (to.paired) put_paired(m, to, kept, token, tile + quarter * (PIECE / 16));
                else put_plain(m, to, kept, token, tile + quarter * (PIECE / 16));
            }
        }
    }
    // None leaves while the other still copies to it or arrives at its barriers.
    meet_cluster();
}
