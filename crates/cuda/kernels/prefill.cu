// Causal attention over f16 keys and values in pool blocks, for many tokens, on the tensor cores.
//
// A block does 64 query rows: the heads of one key head, of as many tokens in a row. It walks over
// the context of each sequence among them in tiles of 64 positions that start at multiples of 64,
// with a running maximum and sum for each row. A tile in which a row sees nothing changes nothing of
// it, so a token's result does not depend on the tokens beside it.

#include "paged.cuh"

#define KEYS 64
#define QUERIES 64
#define LOG2E 1.4426950408889634f

__device__ __forceinline__ void load_matrices(u32 r[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

__device__ __forceinline__ void load_transposed(u32 r[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

__device__ __forceinline__ void multiply(float d[4], const u32 a[4], const u32 *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ int first_seen(const Paged &p, int position) {
    return p.window && position >= p.window ? position + 1 - p.window : 0;
}

// Sixteen bytes to shared memory; zeros where there are none.
__device__ __forceinline__ void copy16(u32 to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

// Asks for keys and values of the tile at position `at` of a sequence, up to position `last`.
template <int D>
__device__ __forceinline__ void ask(
    const Paged &p, u32 keys, u32 values, int row, int group, int at, int last) {
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += 128) {
        int key = i / (D / 8), piece = i % (D / 8) * 8, here = min(at + key, last);
        int slot = p.tables[(u64)row * p.blocks + here / p.block] * p.block + here % p.block;
        slot = min(max(slot, 0), p.n_slots - 1);
        u64 from = ((u64)slot * p.groups + group) * D + piece;
        u32 to = (key * (D + 8) + piece) * 2;
        copy16(keys + to, (const u16 *)p.keys + from, at + key <= last);
        copy16(values + to, (const u16 *)p.values + from, at + key <= last);
    }
}

template <int D>
__device__ __forceinline__ void attend_many(const Paged &p) {
    extern __shared__ __align__(16) u16 tiles[];
    // Two tiles, one of them on its way, where there is room.
    const int stride = D + 8, stages = D == 256 ? 1 : 2;
    wait_for_previous();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int per_group = p.heads / p.groups, group = blockIdx.y, tokens = QUERIES / per_group;
    // Late tokens see most: they go first.
    int begin = (int)(gridDim.x - 1 - blockIdx.x) * tokens, end = min(begin + tokens, p.tokens);

    int token[2], head[2], position[2], first[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp * 16 + g + 8 * r;
        token[r] = begin + row / per_group;
        head[r] = group * per_group + row % per_group;
        if (row >= tokens * per_group || token[r] >= end) token[r] = -1;
        position[r] = token[r] < 0 ? -1 : p.positions[token[r]];
        first[r] = first_seen(p, position[r]);
    }
    float factor = p.softcap > 0.0f ? p.scale : p.scale * LOG2E;
    u32 q[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = i & 1;
            float2 v = make_float2(0.0f, 0.0f);
            if (token[r] >= 0)
                v = *(const float2 *)(p.q + ((u64)token[r] * p.heads + head[r]) * D + k * 16 +
                                      (i >> 1) * 8 + 2 * t);
            q[k][i] = pack_halves(v.x * factor, v.y * factor);
        }
    float out[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

    int stage = 0;
    for (int run = begin; run < end;) {
        int row = p.rows[run], next = run, last = -1, from = 0x7fffffff;
        while (next < end && p.rows[next] == row) {
            int here = p.positions[next];
            last = max(last, here), from = min(from, first_seen(p, here));
            next++;
        }
        bool known = row >= 0 && row < p.sequences && last < p.blocks * p.block;
        for (int at = from / KEYS * KEYS; known && at <= last; at += KEYS) {
            // All are done with the tile whose place the next one takes.
            __syncthreads();
            u16 *keys = tiles + stage * 2 * KEYS * stride, *values = keys + KEYS * stride;
            if (at == from / KEYS * KEYS || stages == 1)
                ask<D>(p, shared_address(keys), shared_address(values), row, group, at, last);
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (stages == 2) {
                stage ^= 1;
                u16 *coming = tiles + stage * 2 * KEYS * stride;
                if (at + KEYS <= last)
                    ask<D>(p, shared_address(coming), shared_address(coming + KEYS * stride), row, group,
                           at + KEYS, last);
                asm volatile("cp.async.commit_group;" ::: "memory");
            }
            asm volatile("cp.async.wait_group %0;" ::"n"(stages - 1) : "memory");
            __syncthreads();
            float s[KEYS / 8][4] = {};
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int j = 0; j < KEYS / 8; j += 2) {
                    u32 b[4];
                    int key = j * 8 + lane / 16 * 8 + lane % 8, column = k * 16 + lane / 8 % 2 * 8;
                    load_matrices(b, shared_address(keys + key * stride + column));
                    multiply(s[j], q[k], b);
                    multiply(s[j + 1], q[k], b + 2);
                }
            if (p.softcap > 0.0f) {
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[j][i] = p.softcap * LOG2E * tanhf(s[j][i] / p.softcap);
            }
            float most[2] = {top[0], top[1]};
            bool mine[2], all = true;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                mine[r] = token[r] >= run && token[r] < next;
                all = all && mine[r] && at + KEYS - 1 <= position[r] && at >= first[r];
            }
            if (!all) {
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int r = i >> 1, here = at + j * 8 + 2 * t + (i & 1);
                        if (!mine[r] || here > position[r] || here < first[r]) s[j][i] = -INFINITY;
                    }
            }
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) most[i >> 1] = fmaxf(most[i >> 1], s[j][i]);
            float base[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                most[r] = fmaxf(most[r], __shfl_xor_sync(FULL, most[r], 1));
                most[r] = fmaxf(most[r], __shfl_xor_sync(FULL, most[r], 2));
                base[r] = most[r] == -INFINITY ? 0.0f : most[r];
                float back = exp2f(top[r] - base[r]);
                top[r] = most[r];
                sum[r] *= back;
#pragma unroll
                for (int n = 0; n < D / 8; n++) out[n][2 * r] *= back, out[n][2 * r + 1] *= back;
            }
#pragma unroll
            for (int k = 0; k < KEYS / 16; k++) {
                u32 a[4];
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float x = exp2f(s[2 * k + half][2 * r] - base[r]);
                        float y = exp2f(s[2 * k + half][2 * r + 1] - base[r]);
                        sum[r] += x + y;
                        a[half * 2 + r] = pack_halves(x, y);
                    }
#pragma unroll
                for (int n = 0; n < D / 8; n += 2) {
                    u32 b[4];
                    int key = k * 16 + lane / 8 % 2 * 8 + lane % 8, column = n * 8 + lane / 16 * 8;
                    load_transposed(b, shared_address(values + key * stride + column));
                    multiply(out[n], a, b);
                    multiply(out[n + 1], a, b + 2);
                }
            }
        }
        run = next;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(FULL, sum[r], 1);
        sum[r] += __shfl_xor_sync(FULL, sum[r], 2);
        if (token[r] < 0) continue;
        float back = 1.0f, total = sum[r];
        if (p.sinks) {
            float sink = p.sinks[head[r]] * LOG2E, most = fmaxf(top[r], sink);
            back = exp2f(top[r] - most);
            total = total * back + exp2f(sink - most);
        }
        float share = back / total;
        float *to = p.out + ((u64)token[r] * p.heads + head[r]) * D + 2 * t;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2 *)(to + n * 8) = make_float2(out[n][2 * r] * share, out[n][2 * r + 1] * share);
    }
}

#define ATTEND(d)                                                                       \
    extern "C" __global__ void __launch_bounds__(128) attend_many_##d(Paged p) {        \
        attend_many<d>(p);                                                              \
    }
ATTEND(64)
ATTEND(80)
ATTEND(96)
ATTEND(128)
ATTEND(256)
