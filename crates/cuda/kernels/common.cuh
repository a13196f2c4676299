// What all kernels share. No header of the toolkit is needed: NVRTC compiles these files alone.

#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define FULL 0xffffffffu
#define INFINITY __int_as_float(0x7f800000)

// Programmatic dependent launch: a kernel may start before the one ahead of it has ended, and waits
// here until all of that one's results are visible. Every kernel calls it before it reads them.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float bf16_to_float(u16 bits) { return __int_as_float((u32)bits << 16); }

__device__ __forceinline__ u16 float_to_bf16(float value) {
    u32 bits = __float_as_int(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Two halves, the first in the low bits.
__device__ __forceinline__ u32 pack_halves(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    return (u32)float_to_bf16(low) | (u32)float_to_bf16(high) << 16;
}

// Weights are read once: they pass by the first-level cache.
__device__ __forceinline__ uint4 stream(const uint4 *from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from));
    return v;
}

__device__ __forceinline__ uint2 stream(const uint2 *from) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

__device__ __forceinline__ u32 stream(const u32 *from) {
    u32 v;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}

// Sums over a block of at most 1024 threads, in an order that depends on the block's size only.
// `scratch` has 32 floats.
__device__ __forceinline__ float block_sum(float value, float *scratch) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(FULL, value, step);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    __syncthreads();
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = lane < warps ? scratch[lane] : 0.0f;
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(FULL, value, step);
    return value;
}

__device__ __forceinline__ float block_max(float value, float *scratch) {
    for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL, value, step));
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    __syncthreads();
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = lane < warps ? scratch[lane] : -INFINITY;
    for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL, value, step));
    return value;
}

// Activations, in the numbering of `Activation` on the host.
enum { SILU, GELU_ERF, GELU_TANH, GELU_QUICK, SIGMOID, TANH, RELU };

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float activated(int kind, float x) {
    switch (kind) {
        case SILU: return x * sigmoid(x);
        case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case GELU_TANH: {
            float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
            return 0.5f * x * (1.0f + tanhf(inner));
        }
        case GELU_QUICK: return x * sigmoid(1.702f * x);
        case SIGMOID: return sigmoid(x);
        case TANH: return tanhf(x);
        default: return x < 0.0f ? 0.0f : x;
    }
}

// Not inlined: a kernel's code is fetched anew for every launch, and this is long.
__device__ __noinline__ float activate(int kind, float x) { return activated(kind, x); }

// What stands before a product: the row as it is, its rmsnorm, or a gated activation.
enum { PLAIN, NORM, GATED };

struct Source {
    const float *x;      // [rows, k]
    const float *other;  // NORM: weight [k], may be null; GATED: up [rows, k]
    int kind;
    int activation;
    float eps;
};

// 1 / sqrt(mean(x^2) + eps) of row `row`; the block works together.
__device__ __forceinline__ float row_scale(const Source &s, u64 row, int k, float *scratch) {
    if (s.kind != NORM) return 1.0f;
    const float *x = s.x + row * k;
    float sum = 0.0f;
    if (k % 4 == 0) {
        // Several loads are in flight at once.
#pragma unroll 4
        for (int i = threadIdx.x * 4; i < k; i += blockDim.x * 4) {
            float4 v = *(const float4 *)(x + i);
            sum = __fmaf_rn(v.x, v.x, sum), sum = __fmaf_rn(v.y, v.y, sum);
            sum = __fmaf_rn(v.z, v.z, sum), sum = __fmaf_rn(v.w, v.w, sum);
        }
    } else {
        for (int i = threadIdx.x; i < k; i += blockDim.x) sum = __fmaf_rn(x[i], x[i], sum);
    }
    sum = block_sum(sum, scratch);
    return rsqrtf(sum / (float)k + s.eps);
}

__device__ __forceinline__ float source_at(const Source &s, u64 row, int k, int i, float scale) {
    float x = s.x[row * k + i];
    if (s.kind == NORM) {
        x = __fmul_rn(x, scale);
        return s.other ? __fmul_rn(x, s.other[i]) : x;
    }
    if (s.kind == GATED) return __fmul_rn(activate(s.activation, x), s.other[row * k + i]);
    return x;
}
