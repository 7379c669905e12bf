// Microbenchmark of gathers: how many elements of x per second the device reads at given indices.
//
// Formula: sums[256 b + t] = sum of x[indices[8192 b + t + 256 i]], i = 0 .. 31.
// Shapes: indices (8192 n_blocks), x (any length that the indices fit), sums (256 n_blocks).
// Threads: thread t of block b, so that neighboring threads read adjacent indices; each thread has IN_FLIGHT loads of indices,
//   then of x, in flight. The sums are stored so that the compiler cannot remove the loads.
// Deterministic: yes.
// Needs: sm_70; no shared memory.
// Source: this project's.
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
