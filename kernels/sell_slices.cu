// Build the layout sell-slices from CSR; described in mgspmv/kernels/layout.py, read by rank_slices.cu.
//
// Formula: none; each entry (row, column, value) of CSR is written to a place in its slice.
// Shapes: CSR is processed in pieces of rows first_row .. first_row + n_rows, where first_row is a multiple of 32. Entry k of row
//   32 s + l is written to 32 (slice_starts[s] + k) + l; padding has column n_cols and value 0.
// Threads: one thread per row.
// Deterministic: yes.
// Needs: sm_70.
// Source: sliced ELLPACK, Monakov, Lokhmotov, Avetisyan, HiPEAC 2010.
typedef long long int64;

extern "C" __global__ void __launch_bounds__(1024)
lay_out_rows(int64 first_row, int64 n_rows, int64 n_cols, const OFFSET* indptr, const int* indices, const VALUE* data,
             const unsigned* slice_starts, int* columns, VALUE* values) {
    const int64 own = int64(blockIdx.x) * 1024 + threadIdx.x, row = first_row + own;
    if (own >= (n_rows + 31) / 32 * 32) return;
    const int64 begin = slice_starts[row / 32], width = slice_starts[row / 32 + 1] - begin, origin = indptr[0];
    const int64 first = own < n_rows ? indptr[own] - origin : 0, last = own < n_rows ? indptr[own + 1] - origin : 0;
    for (int64 k = 0; k < width; ++k) {
        const int64 place = 32 * (begin + k) + row % 32;
        const bool is_there = first + k < last;
        columns[place] = is_there ? indices[first + k] : int(n_cols);
        if (!PATTERN) values[place] = is_there ? data[first + k] : VALUE(0);
    }
}
