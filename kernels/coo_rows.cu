// Expand row pointers to the row of each entry, for the layout coo; described in mgspmv/kernels/layout.py, read by rank_coo.cu.
//
// Formula: rows[k] = r where indptr[r] <= indptr[0] + k < indptr[r + 1]
// Shapes: indptr (n_rows + 1), rows (nnz).
// Threads: one per ITEMS consecutive entries, which searches each row from the last one on, so that neither long nor empty rows make
//   it slow.
// Deterministic: yes.
// Needs: sm_70.
// Source: exponential search, Bentley and Yao, Information Processing Letters 5(3), 1976.
typedef long long int64;

#define THREADS 256
#define ITEMS 8

extern "C" __global__ void __launch_bounds__(THREADS)
expand_rows(int64 n_rows, int64 nnz, const int64* __restrict__ indptr, int* rows) {
    const int64 first = (int64(blockIdx.x) * THREADS + threadIdx.x) * ITEMS, origin = indptr[0];
    int64 row = 0;
    for (int64 k = first; k < min(first + ITEMS, nnz); ++k) {
        int64 step = 1;
        for (; row + step < n_rows && indptr[row + step] <= origin + k; step *= 2) row += step;
        for (; step > 0; step /= 2)
            if (row + step < n_rows && indptr[row + step] <= origin + k) row += step;
        rows[k] = int(row);
    }
}
