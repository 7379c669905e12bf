// Sum of a vector in a fixed order, by parallel reduction.
//
// Formula: out[c] = sum of x[4096 c .. 4096 (c + 1)); repeated on `out` until one sum is left.
// Shapes: x (n), out (ceil(n / 4096)).
// Threads: one thread block per chunk of 4096 elements; thread t adds elements t, t + 256, ...; the threads' sums are added
//   as a tree in shared memory. Chunks depend on n alone, so that results are bit-identical on all devices.
// Deterministic: yes.
// Needs: sm_70; 2 KiB of shared memory.
// Source: Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007.
#include "types.cuh"

#define THREADS 256
#define CHUNK 4096

extern "C" __global__ void __launch_bounds__(THREADS) sum_chunks(int64 n, const VALUE* __restrict__ x, VALUE* out) {
    __shared__ VALUE sums[THREADS];
    const int64 first = int64(blockIdx.x) * CHUNK + threadIdx.x;
    VALUE sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i += THREADS)
        if (first + i < n) sum += LOAD_ONCE(x + first + i);
    sums[threadIdx.x] = sum;
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance) sums[threadIdx.x] += sums[threadIdx.x + distance];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}
