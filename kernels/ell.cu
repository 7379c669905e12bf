// y = alpha A x + beta y for ELLPACK, one thread per row.
//
// Formula: y[i] = alpha sum_{k < width} data[k][i] x[indices[k][i]] + beta y[i], without the k where indices[k][i] = -1
// Shapes: indices and data (width, n_rows), so that entries k of neighboring rows are adjacent; x (n_cols), y (n_rows).
// Threads: thread i adds the entries of row i in the order of their indices; all loads except those of x are coalesced.
// Deterministic: yes, bit-identical to csr_scalar.
// Needs: sm_70; no shared memory.
// Source: Bell and Garland, NVIDIA NVR-2008-004, 2008. HYB runs this kernel, then coo.cu for the remaining entries.
#include "types.cuh"

extern "C" __global__ void ell(int64 n_rows, int64 width, const INDEX* __restrict__ indices,
                               const VALUE* __restrict__ data, const X* __restrict__ x, SUM* y, SUM alpha, SUM beta) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    SUM sum = 0;
    int64 k = row;
#pragma unroll 4
    for (int64 i = 0; i < width; ++i, k += n_rows) {
        const INDEX column = LOAD_ONCE(indices + k);
        if (column >= 0) sum += contribute(stream_value(data, k), __ldg(x + column));
    }
    store_row(y, row, alpha, sum, beta);
}
