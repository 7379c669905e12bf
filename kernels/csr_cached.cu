// y = alpha A x + beta y for CSR, one thread per row, with a window of x in shared memory.
//
// Formula and shapes: as in csr_scalar.cu; row_offset is the global number of the block's first row, because columns
//   are global and the window follows the diagonal.
// Threads: one thread block per ROWS rows. It loads x[begin .. begin + 2 ROWS) into shared memory, where begin is ROWS / 2
//   columns before its first row's place on the diagonal, clamped to the matrix. Thread i adds the entries of row i in the
//   order of their indices, and reads x from the window if the column is in it, otherwise from global memory.
// Deterministic: yes, bit-identical to csr_scalar.
// Needs: sm_70; 2 ROWS values of x in shared memory: 4 KiB in float32, 8 KiB in float64.
// Source: Nickolls, Buck, Garland, Skadron, ACM Queue 6(2), 2008 (their "cached" kernel, with rows = window).
#include "types.cuh"

#define ROWS 512
#define WINDOW (2 * ROWS)

extern "C" __global__ void __launch_bounds__(ROWS)
csr_cached(int64 n_rows, int64 n_cols, int64 row_offset, const OFFSET* indptr, const INDEX* indices, const VALUE* data,
           const X* x, SUM* y, SUM alpha, SUM beta) {
    __shared__ X window[WINDOW];
    const int64 first = int64(blockIdx.x) * ROWS;
    const int64 begin = max(min(row_offset + first - ROWS / 2, n_cols - WINDOW), int64(0));
    for (int i = threadIdx.x; i < WINDOW && begin + i < n_cols; i += ROWS) window[i] = x[begin + i];
    __syncthreads();
    const int64 row = first + threadIdx.x;
    if (row >= n_rows) return;
    const OFFSET stop = indptr[row + 1];
    SUM sum = 0;
    for (OFFSET k = indptr[row]; k < stop; ++k) {
        const int64 column = __ldg(indices + k), place = column - begin;
        const X xj = place >= 0 && place < WINDOW ? window[place] : __ldg(x + column);
        sum += contribute(read_value(data, k), xj);
    }
    store_row(y, row, alpha, sum, beta);
}
