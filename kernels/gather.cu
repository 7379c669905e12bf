// sums[t] = the sum of x at the indices of thread t: how many elements of x a device reads at given places per second.
//
// Formula: thread t of block b adds x[indices[8192 b + t + 256 i]], i = 0 .. 31.
// Shapes: indices (8192 blocks), x (as long as the indices need), sums (256 blocks).
// Threads: neighbours read neighbouring indices; each thread has IN_FLIGHT of its indices, then of x, under way at once.
//   The sums are stored so that nothing is left out by the compiler.
// Deterministic: yes.
// Needs: sm_70; no shared memory.
#include "types.cuh"

#define THREADS 256
#define ITEMS 32
#define IN_FLIGHT 4

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const INDEX* __restrict__ indices, const VALUE* __restrict__ x, VALUE* sums) {
    const INDEX* own = indices + int64(blockIdx.x) * (THREADS * ITEMS) + threadIdx.x;
    VALUE sum = 0;
#pragma unroll 1
    for (int i = 0; i < ITEMS; i += IN_FLIGHT) {
        INDEX column[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) column[j] = LOAD_ONCE(own + (i + j) * THREADS);
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) sum += __ldg(x + column[j]);
    }
    sums[int64(blockIdx.x) * THREADS + threadIdx.x] = sum;
}
