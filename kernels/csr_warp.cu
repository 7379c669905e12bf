// y = alpha A x + beta y for CSR, 32 lanes per row, reduced in shared memory.
//
// Formula and shapes: as in csr_scalar.cu.
// Threads: one warp per row; lane l adds entries l, l + 32, ..., so that loads are coalesced; the lanes' sums are added as
//   a tree in shared memory.
// Deterministic: yes.
// Needs: sm_70; 2 KiB of shared memory.
// Source: Bell and Garland, Efficient Sparse Matrix-Vector Multiplication on CUDA, NVIDIA NVR-2008-004, 2008 (their
//   "vector" kernel).
#include "types.cuh"

#define LANES 32
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
csr_warp(int64 n_rows, const OFFSET* indptr, const INDEX* indices, const VALUE* data, const X* x, SUM* y, SUM alpha,
         SUM beta) {
    __shared__ volatile SUM sums[THREADS];
    const int thread = threadIdx.x, lane = thread % LANES;
    const int64 row = (int64(blockIdx.x) * THREADS + thread) / LANES;
    if (row >= n_rows) return;
    const OFFSET stop = indptr[row + 1];
    SUM sum = 0;
    for (OFFSET k = indptr[row] + lane; k < stop; k += LANES)
        sum += contribute(stream_value(data, k), __ldg(x + LOAD_ONCE(indices + k)));
    sums[thread] = sum;
    SYNC_LANES();
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        if (lane < distance) sums[thread] = sum = sum + sums[thread + distance];
        SYNC_LANES();
    }
    if (lane == 0) store_row(y, row, alpha, sum, beta);
}
