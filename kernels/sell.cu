// y = alpha A x + beta y for SELL-C-sigma, one thread per row; C = 32.
//
// Formula: y[order[s C + l]] = alpha sum_k data[p] x[indices[p]] + beta y[...], p = slice_ptr[s] + k C + l, without the
//   p where indices[p] = -1
// Shapes: slice_ptr (n_slices + 1), order (n_slices C) with the row of each slot or -1, indices and data (padded nnz);
//   x (n_cols), y (n_rows). Rows are sorted by length within windows of sigma rows, so that slices need little padding.
// Threads: one warp per slice, lane l at slot l; a lane adds its entries in the order of their indices, coalesced.
// Deterministic: yes, bit-identical to csr_scalar.
// Needs: sm_70; no shared memory.
// Source: Kreutzer, Hager, Wellein, Fehske, Bishop, A unified sparse matrix data format for efficient general sparse
//   matrix-vector multiplication on modern processors with wide SIMD units, SIAM J. Sci. Comput. 36(5), 2014.
#include "types.cuh"

#define C 32

extern "C" __global__ void sell(int64 n_slices, const int64* slice_ptr, const ROW* order,
                                const INDEX* __restrict__ indices, const VALUE* __restrict__ data,
                                const X* __restrict__ x, SUM* y, SUM alpha, SUM beta) {
    const int64 slot = int64(blockIdx.x) * blockDim.x + threadIdx.x, slice = slot / C;
    if (slice >= n_slices) return;
    const int64 stop = __ldg(slice_ptr + slice + 1);
    SUM sum = 0;
#pragma unroll 4
    for (int64 k = __ldg(slice_ptr + slice) + slot % C; k < stop; k += C) {
        const INDEX column = LOAD_ONCE(indices + k);
        if (column >= 0) sum += contribute(stream_value(data, k), __ldg(x + column));
    }
    const int64 row = order[slot];
    if (row >= 0) store_row(y, row, alpha, sum, beta);
}
