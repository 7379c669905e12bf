// y = alpha A x + beta y for diagonals, one thread per row.
//
// Formula: y[i] = alpha sum_d data[d][i] x[row_offset + i + offsets[d]] + beta y[i], without the d where data[d][i] = 0
// Shapes: offsets (n_diags), column minus row, both global, ascending; data (n_diags, n_rows); x (n_cols), y (n_rows).
//   No column index is stored. For a pattern, data holds the number of entries at each position.
// Threads: thread i adds the diagonals of row i in ascending order; all loads are coalesced, including those of x.
// Deterministic: yes, bit-identical to csr_scalar if no column is repeated in a row.
// Needs: sm_70; no shared memory.
// Source: Bell and Garland, NVIDIA NVR-2008-004, 2008. Values of 0 are skipped, so that padding times an infinite x does
//   not give NaN.
#include "types.cuh"

extern "C" __global__ void dia(int64 n_rows, int64 n_cols, int64 row_offset, int n_diags, const int64* offsets,
                               const VALUE* __restrict__ data, const X* __restrict__ x, SUM* y, SUM alpha, SUM beta) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    SUM sum = 0;
    int64 k = row;
#pragma unroll 4
    for (int d = 0; d < n_diags; ++d, k += n_rows) {
        const int64 column = row_offset + row + __ldg(offsets + d);
        const VALUE value = LOAD_ONCE(data + k);
        if (value != 0 && column >= 0 && column < n_cols) sum += contribute(value, __ldg(x + column));
    }
    store_row(y, row, alpha, sum, beta);
}
