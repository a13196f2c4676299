// Causal attention over f16 keys and values in pool blocks, a token at a time, on the tensor cores.
//
// A block does one token, up to four query heads of one key head, and one split of the context. A
// warp does 32 of its positions. Queries and weights are split in two f16 each, high and low, in
// neighbouring columns of the second operand, so that the products are as exact as with f32. Keys
// and values come from global memory in the order of the operands: which column of a product is
// which element of a head does not matter as long as both sides agree.
//
// Splits start at multiples of SPLIT positions, each with a softmax of its own; the block that ends
// last merges them in their order. So a token's result depends on its own sequence only.
//
// With ALONE the step has one token: its query and key are turned and its key and value stored here
// too, and keys of earlier steps are loaded while the kernel before still runs.

#include "paged.cuh"
#include "rope.cuh"

#define SPLIT 256
#define THREADS 256
#define HEADS 4

struct Fresh {
    const float *q, *k, *v; // before turning: [heads, D], [groups, D] twice
    const int *slots;       // [1]
};

__device__ __forceinline__ void multiply(float d[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 eight(const void *pool, u64 at) {
    return *(const uint4 *)((const u16 *)pool + at);
}

__device__ __forceinline__ u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

// The value itself in even columns, what f16 leaves of it in odd ones.
__device__ __forceinline__ float part_of(float x, int odd) {
    return odd ? x - half_to_float(float_to_half(x)) : x;
}

// Not inlined: see `activate`.
__device__ __noinline__ float capped(float x, float softcap) { return softcap * tanhf(x / softcap); }

__device__ __noinline__ float2 angle_of(float x, float scale) {
    float sine, cosine;
    sincosf(x, &sine, &cosine);
    return make_float2(cosine * scale, sine * scale);
}

template <int D, bool ALONE>
__device__ __forceinline__ void attend(const Paged &p, const Rope &rope, const Fresh &fresh) {
    const int stride = D + 8;
    __shared__ __align__(16) u16 queries[2 * HEADS * stride];
    __shared__ __align__(16) u16 new_key[D], new_value[D];
    __shared__ __align__(16) float parts[8][HEADS][D];
    __shared__ float tops[8][HEADS], sums[8][HEADS], factors[8][HEADS], all_top[HEADS], all_sum[HEADS];
    __shared__ bool last_one;
    if (!ALONE) wait_for_previous();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int per_group = p.heads / p.groups, sets = (per_group + HEADS - 1) / HEADS;
    int split = blockIdx.x, group = blockIdx.y / sets, set = blockIdx.y % sets;
    int local_token = blockIdx.z, token = p.first_token + local_token;
    int head0 = group * per_group + set * HEADS, heads = min(HEADS, per_group - set * HEADS);
    int position = p.positions[token], row = p.rows[token];
    int first = p.window && position >= p.window ? position + 1 - p.window : 0;
    int begin = max(split * SPLIT, first), end = min((split + 1) * SPLIT, position + 1);
    bool active = begin < end && row >= 0 && row < p.sequences && position < p.blocks * p.block;
    bool stores = ALONE && split == 0 && set == 0;
    int new_slot = ALONE ? fresh.slots[0] : -1;
    bool known = new_slot >= 0 && new_slot < p.n_slots;

    // The slot of position 32 * warp + lane; those not seen are another's. With one sequence the table
    // need not wait for the row's number.
    int base = split * SPLIT + warp * 32, last = min(base + lane, p.blocks * p.block - 1);
    int entry = 0;
    if (p.blocks == 0 || p.sequences == 0) last = 0;
    else if (p.sequences == 1) entry = p.tables[last / p.block];
    else entry = p.tables[(u64)min(max(row, 0), p.sequences - 1) * p.blocks + last / p.block];
    bool busy = active && base < end && base + 32 > begin;
    int slot = min(max(entry * p.block + last % p.block, 0), p.n_slots - 1);
    slot = __shfl_sync(FULL, slot, busy ? min(max(base + lane, begin), end - 1) - base : lane);
    if (busy) {
        const u16 *from = (const u16 *)p.values + ((u64)slot * p.groups + group) * D;
#pragma unroll
        for (int i = 0; i < D; i += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
    }
    uint4 k[2][2][D / 32];
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int here = __shfl_sync(FULL, slot, s * 16 + g + 8 * r);
            u64 from = ((u64)here * p.groups + group) * D + t * 8;
#pragma unroll
            for (int i = 0; i < D / 32; i++)
                k[s][r][i] = busy ? eight(p.keys, from + i * 32) : make_uint4(0, 0, 0, 0);
        }
    // A thread has the same two columns of several queries and, where it is new, of the key.
    const int per = THREADS / (D / 2), each = (HEADS + ALONE + per - 1) / per;
    int pair = threadIdx.x % (D / 2), head_of_0 = threadIdx.x / (D / 2);
    int at = 2 * pair, next = at + 1;
    float2 angle = make_float2(1.0f, 0.0f); // cosine and sine
    if (ALONE) {
        if (pair < rope.turned) {
            angle = angle_of((float)position * rope.frequencies[pair], rope.scale);
            if (!rope.pairs) at = pair, next = pair + rope.turned;
        }
        wait_for_previous();
        if (!active && !stores) return;
    } else if (!active) {
        return;
    }
    const float *q = (ALONE ? fresh.q : p.q + (u64)token * p.heads * D) + (u64)head0 * D;
    float x[each][2];
#pragma unroll
    for (int n = 0; n < each; n++) {
        int head = n * per + head_of_0;
        const float *from = q + head * D;
        bool there = head < heads;
        if (ALONE && head == HEADS) from = fresh.k + (u64)group * D, there = true;
        x[n][0] = there ? from[at] : 0.0f, x[n][1] = there ? from[next] : 0.0f;
    }
    u64 new_at = ((u64)max(new_slot, 0) * p.groups + group) * D;
    if (ALONE && threadIdx.x < D) {
        u16 value = float_to_half(fresh.v[(u64)group * D + threadIdx.x]);
        new_value[threadIdx.x] = value;
        if (stores && known) ((u16 *)p.values)[new_at + threadIdx.x] = value;
    }
#pragma unroll
    for (int n = 0; n < each; n++) {
        int head = n * per + head_of_0;
        float y0 = x[n][0] * angle.x - x[n][1] * angle.y, y1 = x[n][1] * angle.x + x[n][0] * angle.y;
        if (head < HEADS) {
            u16 *high = queries + 2 * head * stride, *low = high + stride;
            y0 *= p.scale, y1 *= p.scale;
            high[at] = float_to_half(y0), low[at] = float_to_half(part_of(y0, 1));
            high[next] = float_to_half(y1), low[next] = float_to_half(part_of(y1, 1));
        } else if (ALONE && head == HEADS) {
            u16 key0 = float_to_half(y0), key1 = float_to_half(y1);
            new_key[at] = key0, new_key[next] = key1;
            if (stores && known) {
                u16 *keys = (u16 *)p.keys + new_at;
                keys[at] = key0, keys[next] = key1;
            }
        }
    }
    if (!active) return;
    __syncthreads();

    if (busy) {
        bool has_new = ALONE && known && __any_sync(FULL, slot == new_slot);
        // Scores of head t: positions g and g + 8 of both steps.
        float score[2][2];
        uint4 v[2][4][D / 64];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (has_new) {
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (__shfl_sync(FULL, slot, s * 16 + g + 8 * r) == new_slot) {
#pragma unroll
                        for (int i = 0; i < D / 32; i++) k[s][r][i] = *(const uint4 *)(new_key + i * 32 + t * 8);
                    }
            }
            float d[4] = {};
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                uint4 q = *(const uint4 *)(queries + g * stride + i * 32 + t * 8);
                const uint4 &a = k[s][0][i], &b = k[s][1][i];
                multiply(d, a.x, b.x, a.y, b.y, q.x, q.y);
                multiply(d, a.z, b.z, a.w, b.w, q.z, q.w);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x = d[2 * r] + d[2 * r + 1];
                if (p.softcap > 0.0f) x = capped(x, p.softcap);
                int at = base + s * 16 + g + 8 * r;
                score[s][r] = at >= begin && at < end ? x : -INFINITY;
            }
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int here = __shfl_sync(FULL, slot, s * 16 + 2 * t + (c & 1) + (c >> 1) * 8);
                u64 from = ((u64)here * p.groups + group) * D + g * 8;
#pragma unroll
                for (int i = 0; i < D / 64; i++)
                    v[s][c][i] = eight(p.values, from + i * 64);
                if (has_new && here == new_slot) {
#pragma unroll
                    for (int i = 0; i < D / 64; i++)
                        v[s][c][i] = *(const uint4 *)(new_value + i * 64 + g * 8);
                }
            }
        }
        float top = fmaxf(fmaxf(score[0][0], score[0][1]), fmaxf(score[1][0], score[1][1]));
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                score[s][r] = top == -INFINITY ? 0.0f : expf(score[s][r] - top);
                sum += score[s][r];
            }
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(FULL, sum, step);
        if (g == 0) tops[warp][t] = top, sums[warp][t] = sum;

        float out[D / 16][4];
#pragma unroll
        for (int i = 0; i < D / 16; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int from = 8 * t + g / 2, odd = g & 1; // lane of position 2t and this column's head
            float w0 = part_of(__shfl_sync(FULL, score[s][0], from), odd);
            float w1 = part_of(__shfl_sync(FULL, score[s][0], from + 4), odd);
            float w2 = part_of(__shfl_sync(FULL, score[s][1], from), odd);
            float w3 = part_of(__shfl_sync(FULL, score[s][1], from + 4), odd);
            u32 b0 = pack_halves(w0, w1), b1 = pack_halves(w2, w3);
#pragma unroll
            for (int i = 0; i < D / 64; i++) {
                const uint4 &x0 = v[s][0][i], &x1 = v[s][1][i], &x2 = v[s][2][i], &x3 = v[s][3][i];
#define PAIR(e, word)                                                                            \
    multiply(out[i * 4 + e], low_halves(x0.word, x1.word), high_halves(x0.word, x1.word),         \
             low_halves(x2.word, x3.word), high_halves(x2.word, x3.word), b0, b1);
                PAIR(0, x) PAIR(1, y) PAIR(2, z) PAIR(3, w)
            }
        }
#pragma unroll
        for (int i = 0; i < D / 64; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *o = out[i * 4 + e];
                *(float2 *)&parts[warp][t][i * 64 + g * 8 + 2 * e] = make_float2(o[0] + o[1], o[2] + o[3]);
            }
    }
    __syncthreads();
    bool alone = first / SPLIT == position / SPLIT;
    int splits = gridDim.x;
    // [local tokens, heads, splits, D], then tops and sums [.., 2].
    float *partials = p.partials + ((u64)local_token * p.heads + head0) * splits * D;
    float2 *stats = (float2 *)(p.partials + (u64)gridDim.z * p.heads * splits * D) +
                    ((u64)local_token * p.heads + head0) * splits;
    // Only warps with positions count.
    int first_warp = (begin - split * SPLIT) / 32, last_warp = (end - 1 - split * SPLIT) / 32;
    if (warp == 0) {
        // Lane 4 w + h: how much the sums of warp w count for head h.
        int w = g, h = t;
        bool counts = w >= first_warp && w <= last_warp;
        float mine = counts ? tops[w][h] : -INFINITY, most = mine;
        if (alone && p.sinks && h < heads) most = fmaxf(most, p.sinks[head0 + h]);
        for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, step));
        float back = expf(mine - most), total = counts ? sums[w][h] * back : 0.0f;
        for (int step = 4; step < 32; step *= 2) total += __shfl_xor_sync(FULL, total, step);
        if (alone) {
            if (p.sinks && h < heads) total += expf(p.sinks[head0 + h] - most);
            back /= total;
        } else if (w == 0 && h < heads) {
            stats[h * splits + split] = make_float2(most, total);
        }
        factors[w][h] = back;
    }
    __syncthreads();
    const int width = HEADS * D / THREADS; // neighbouring columns of a thread
    int head = threadIdx.x * width / D, column = threadIdx.x * width % D;
    if (head < heads) {
        float value[width] = {};
        for (int w = first_warp; w <= last_warp; w++)
#pragma unroll
            for (int i = 0; i < width; i++)
                value[i] = __fmaf_rn(parts[w][head][column + i], factors[w][head], value[i]);
        float *to = alone ? p.out + ((u64)token * p.heads + head0 + head) * D
                          : partials + ((u64)head * splits + split) * D;
#pragma unroll
        for (int i = 0; i < width; i++) to[column + i] = value[i];
    }
    if (alone) return;

    int first_split = first / SPLIT, last_split = position / SPLIT;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *arrived = p.arrived + (u64)local_token * gridDim.y + blockIdx.y;
        last_one = atomicAdd(arrived, 1u) == (u32)(last_split - first_split);
        if (last_one) *arrived = 0;
    }
    __syncthreads();
    if (!last_one) return;
    __threadfence();
    if (warp < heads) {
        float most = p.sinks ? p.sinks[head0 + warp] : -INFINITY, total = 0.0f;
        for (int s = first_split + lane; s <= last_split; s += WARP)
            most = fmaxf(most, __ldcg(&stats[warp * splits + s].x));
        for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, step));
        for (int s = first_split + lane; s <= last_split; s += WARP) {
            float2 stat = __ldcg(&stats[warp * splits + s]);
            total += stat.y * expf(stat.x - most);
        }
        for (int step = 16; step; step >>= 1) total += __shfl_xor_sync(FULL, total, step);
        if (p.sinks) total += expf(p.sinks[head0 + warp] - most);
        if (lane == 0) all_top[warp] = most, all_sum[warp] = total;
    }
    __syncthreads();
    // A thread has four columns of every `PARTS`-th split.
    const int columns = HEADS * D / 4, PARTS = THREADS / columns;
    int mine = threadIdx.x % columns, part = threadIdx.x / columns, h = mine / (D / 4);
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (h < heads) {
        float most = all_top[h];
        const float4 *from = (const float4 *)(partials + (u64)h * splits * D) + mine % (D / 4);
#pragma unroll 8
        for (int s = first_split + part; s <= last_split; s += PARTS) {
            float back = expf(__ldcg(&stats[h * splits + s].x) - most);
            float4 x = __ldcg(from + (u64)s * (D / 4));
            acc.x += x.x * back, acc.y += x.y * back, acc.z += x.z * back, acc.w += x.w * back;
        }
    }
    float4 *merged = (float4 *)parts;
    merged[threadIdx.x] = acc;
    __syncthreads();
    if (part > 0 || h >= heads) return;
    for (int other = 1; other < PARTS; other++) {
        float4 x = merged[other * columns + mine];
        acc.x += x.x, acc.y += x.y, acc.z += x.z, acc.w += x.w;
    }
    float total = all_sum[h];
    *((float4 *)(p.out + ((u64)token * p.heads + head0 + h) * D) + mine % (D / 4)) =
        make_float4(acc.x / total, acc.y / total, acc.z / total, acc.w / total);
}

#define ATTEND(d, blocks)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) attend_each_##d(Paged p) {     \
        attend<d, false>(p, Rope(), Fresh());                                                    \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) attend_alone_##d(              \
        Paged p, Rope rope, Fresh fresh) {                                                       \
        attend<d, true>(p, rope, fresh);                                                         \
    }
ATTEND(64, 2)
ATTEND(128, 2)
ATTEND(256, 1)
