// PageRank step of many vectors after the product A z, bit-identical to the CPU's: see mgspmv/kernels/cpu_many.py.
//
// Formula: as in pagerank.cu, for each column c, with alpha_c, m_c and p_c.
// Shapes: x, z and product (n_rows, width), row-major; weight (n_rows). n_d tells what d is: n_rows, one value per row; 1, one value
//   for all rows; 0, d is p. p is base[c], except at `n_patches` positions (row, column), sorted by row; `marks` marks these rows.
//   sums (4, width). The product may be in the same memory as the next z. Types as in pagerank.cu; PRODUCT may also be float.
// Threads: each thread processes one column of rows THREADS / width apart; sums are integers, added in shared memory and by atomics.
//   The float sums of `residual_many` are stored in `out` (gridDim.x, width), for the host to add in a fixed order.
// Deterministic: yes. Compiled without contraction: in exact fixed point the ranks are bit-identical to the CPU kernels'.
// Needs: sm_70.
// Source: as for pagerank.cu.
#define THREADS 256
#include "ranks.cuh"

#define MOST 64

struct Columns {
    double alpha[MOST], alpha_mass[MOST], jump[MOST], base[MOST];
};

struct Terms {
    const double* dangling;
    int64 n_d;
    const unsigned char* marks;  // 1 for rows with patches; null if there are no patches
    const int64* rows;
    const int64* columns;
    const double* weights;
    int64 n_patches;
};

// Term alpha m d + (1 - alpha) p of a row, for one column.
struct Rest {
    const Terms& terms;
    double alpha_mass, jump, base, jumped, same;
    int64 column;
    __device__ __forceinline__ Rest(const Terms& terms, const Columns& columns, int64 c)
        : terms(terms), alpha_mass(columns.alpha_mass[c]), jump(columns.jump[c]), base(columns.base[c]), column(c) {
        jumped = jump * base;
        same = (terms.n_d == 0 ? alpha_mass * base : alpha_mass * terms.dangling[0]) + jumped;
    }
    __device__ __forceinline__ double operator()(int64 row) const {
        if (terms.marks && terms.marks[row]) {
            int64 low = 0, high = terms.n_patches;
            while (low < high) {
                const int64 middle = (low + high) / 2;
                if (terms.rows[middle] < row)
                    low = middle + 1;
                else
                    high = middle;
            }
            for (; low < terms.n_patches && terms.rows[low] == row; ++low)
                if (terms.columns[low] == column) {
                    const double p = terms.weights[low];
                    const double d = terms.n_d == 0 ? p : terms.dangling[terms.n_d > 1 ? row : 0];
                    return alpha_mass * d + jump * p;
                }
        }
        return terms.n_d > 1 ? alpha_mass * terms.dangling[row] + jumped : same;
    }
};

// Add the sums of the threads of each column to the column's sums.
__device__ __forceinline__ void add_columns(const int64 (&own)[4], int64 width, int64* sums) {
    __shared__ int64 all[4][THREADS];
    for (int s = 0; s < 4; ++s) all[s][threadIdx.x] = own[s];
    for (int half = THREADS / 2; half >= width; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            for (int s = 0; s < 4; ++s) {
                const int64 other = all[s][threadIdx.x + half];
                all[s][threadIdx.x] = s == 1 ? max(all[s][threadIdx.x], other) : all[s][threadIdx.x] + other;
            }
    }
    if (threadIdx.x >= width) return;
    for (int s = 0; s < 4; ++s) {
        int64* place = sums + s * width + threadIdx.x;
        const int64 sum = all[s][threadIdx.x];
        if (s == 1)
            atomicMax(place, sum);
        else if (sum != 0)
            atomicAdd(reinterpret_cast<uint64*>(place), uint64(sum));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scale_many(int64 n_rows, int64 width, const RANK* x, const double* weight, double unit, Z* z, int64* sums) {
    const int64 column = threadIdx.x % width, at_once = THREADS / width;
    int64 own[4] = {0, 0, 0, 0};
    for (int64 row = blockIdx.x * at_once + threadIdx.x / width; row < n_rows; row += gridDim.x * at_once) {
        const int64 place = row * width + column;
        finish_row(0.0, double(x[place]), weight[row], 1.0 / unit, z[place], own);
    }
    add_columns(own, width, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
update_many(int64 n_rows, int64 width, const PRODUCT* product, RANK* x, const double* weight, double unit, Z* z, Columns columns,
            Terms terms, int64* sums) {
    const int64 column = threadIdx.x % width, at_once = THREADS / width;
    const Rest rest(terms, columns, column);
    const double alpha = columns.alpha[column];
    int64 own[4] = {0, 0, 0, 0};
    for (int64 row = blockIdx.x * at_once + threadIdx.x / width; row < n_rows; row += gridDim.x * at_once) {
        const int64 place = row * width + column;
        const double sum = double(product[place]), old = double(x[place]);
        const RANK next = RANK(alpha * (sum * unit) + rest(row));
        x[place] = next;
        finish_row(fabs(double(next) - old), double(next), weight[row], 1.0 / unit, z[place], own);
    }
    add_columns(own, width, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
residual_many(int64 n_rows, int64 width, const OFFSET* indptr, const double* product, const double* touched, const RANK* x,
              double value_rounding, double least_rounding, Columns columns, Terms terms, double* out) {
    const int64 column = threadIdx.x % width, at_once = THREADS / width;
    const Rest rest(terms, columns, column);
    const double alpha = columns.alpha[column];
    double total = 0;
    for (int64 row = blockIdx.x * at_once + threadIdx.x / width; row < n_rows; row += gridDim.x * at_once) {
        const int64 place = row * width + column;
        const double scaled = alpha * product[place], rank = double(x[place]), other = rest(row);
        double rounding = 0x1p-53 * ((double(indptr[row + 1] - indptr[row]) + 4.0) * scaled + 4.0 * other + rank);
        if (touched) rounding += value_rounding * scaled + least_rounding * touched[place];
        total += fabs(scaled + other - rank) + rounding;
    }
    __shared__ double all[THREADS];
    all[threadIdx.x] = total;
    for (int half = THREADS / 2; half >= width; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
    }
    if (threadIdx.x < width) out[blockIdx.x * width + threadIdx.x] = all[threadIdx.x];
}
