// y = alpha A x + beta y for CSR, one thread per row.
//
// Formula: y[i] = alpha sum_{k = indptr[i]}^{indptr[i+1]-1} data[k] x[indices[k]] + beta y[i]
// Shapes: indptr (n_rows + 1), indices and data (nnz), x (n_cols), y (n_rows).
// Threads: thread i adds the entries of row i in the order of their indices. Neighboring threads read addresses one row
//   apart, so that loads are coalesced only if rows are short.
// Deterministic: yes.
// Needs: sm_70; no shared memory.
// Source: Nickolls, Buck, Garland, Skadron, Scalable Parallel Programming with CUDA, ACM Queue 6(2), 2008; with alpha
//   and beta as in AMD lab notes, Sparse matrix vector multiplication, part 1, 2023.
#include "types.cuh"

extern "C" __global__ void csr_scalar(int64 n_rows, const OFFSET* indptr, const INDEX* indices, const VALUE* data,
                                      const X* x, SUM* y, SUM alpha, SUM beta) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    const OFFSET stop = indptr[row + 1];
    SUM sum = 0;
    for (OFFSET k = indptr[row]; k < stop; ++k) sum += contribute(read_value(data, k), __ldg(x + __ldg(indices + k)));
    store_row(y, row, alpha, sum, beta);
}
