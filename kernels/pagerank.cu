// PageRank step after the product A z, bit-identical to the CPU's: see mgspmv/solvers/pagerank.py.
//
// Formula: x' = alpha (A z + m d) + (1 - alpha) p;  z' = x' / w (0 where w = 0); and over the rows, in integers: the sum of
//   |x' - x|, the largest |x' - x|, the sum of x' where w = 0, and the number of invalid ranks (negative, above 2 or NaN).
// Shapes: all vectors (n_rows); `dangling` and `personalization` may hold one value for all rows (stride 0).
//   RANK float | double is the type of x; Z float | double | int64 of z, int64 in units of 2^-62; PRODUCT double | int64 of A z.
// Threads: one thread per row; sums are integers, added by shuffles, in shared memory and by atomics.
// Deterministic: yes. Compiled without contraction: in exact fixed point the ranks are bit-identical to the CPU kernels'.
// Needs: sm_70.
// Source: Page, Brin, Motwani, Winograd, The PageRank Citation Ranking, 1999; the fixed point is this project's.
#define THREADS 256
#include "ranks.cuh"

// Compute z = x / w and the sums of x.
extern "C" __global__ void __launch_bounds__(THREADS)
scale(int64 n_rows, const RANK* x, const double* weight, double unit, Z* z, int64* sums) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    int64 own[4] = {0, 0, 0, 0};
    if (row < n_rows) finish_row(0.0, double(x[row]), weight[row], 1.0 / unit, z[row], own);
    add_sums(own, sums);
}

// Check x and the z that was computed from it: see `check_row`.
extern "C" __global__ void __launch_bounds__(THREADS)
check_rows(int64 n_rows, const RANK* x, const double* weight, double unit, const Z* z, uint64* found) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    uint64 own[3] = {0, 0, 0};
    if (row < n_rows) check_row(double(x[row]), weight[row], 1.0 / unit, &z[row], own);
    add_found(own, found);
}

// Compute x', z' and the sums over the rows.
extern "C" __global__ void __launch_bounds__(THREADS)
update(int64 n_rows, const PRODUCT* product, RANK* x, const double* weight, double unit, Z* z, double alpha,
       double alpha_mass, double jump, const double* dangling, int d_stride, const double* personalization,
       int p_stride, int64* sums) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    int64 own[4] = {0, 0, 0, 0};
    if (row < n_rows) {
        const double rest = alpha_mass * dangling[row * d_stride] + jump * personalization[row * p_stride];
        const double old = double(x[row]);
        const RANK next = RANK(alpha * (double(product[row]) * unit) + rest);
        x[row] = next;
        finish_row(fabs(double(next) - old), double(next), weight[row], 1.0 / unit, z[row], own);
    }
    add_sums(own, sums);
}

// out[i] = |alpha (A z + m d) + (1 - alpha) p - x| of row i, plus a bound on the rounding error of computing it.
// `touched` is the sum of z over the row's columns if values are float32, which may have been rounded; null otherwise.
extern "C" __global__ void __launch_bounds__(THREADS)
residual(int64 n_rows, const OFFSET* indptr, const double* product, const double* touched, const RANK* x, double alpha,
         double alpha_mass, double jump, double value_rounding, double least_rounding, const double* dangling,
         int d_stride, const double* personalization, int p_stride, double* out) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= n_rows) return;
    const double scaled = alpha * product[row], rank = double(x[row]);
    const double rest = alpha_mass * dangling[row * d_stride] + jump * personalization[row * p_stride];
    const double n_entries = double(indptr[row + 1] - indptr[row]);
    double rounding = 0x1p-53 * ((n_entries + 4.0) * scaled + 4.0 * rest + rank);
    if (touched) rounding += value_rounding * scaled + least_rounding * touched[row];
    out[row] = fabs(scaled + rest - rank) + rounding;
}
