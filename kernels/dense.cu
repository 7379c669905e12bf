// y = A x + b for a dense A: one thread per row, one thread block per row, or tiles over a grid.
//
// Formula: y[i] = sum_j A[i][j] x[j] + b[i]; b may be null.
// Shapes: A (n_rows, n_cols) row-major, x (n_cols), b and y (n_rows).
// Threads:
//   dense_rows   thread i adds row i in the order of columns; neighboring threads read addresses one row apart.
//   dense_block  one thread block per row; thread t adds columns t, t + 256, ...; then a tree in shared memory.
//   dense_tiles  one thread block per tile of T = 64 rows and Z = 1024 columns, with that part of x in shared memory. Each
//                warp sums rows of the tile, with 32 lanes and shuffles; `add_tiles` adds the tiles of a row in order. It
//                fills the device if there are few rows and many columns.
// Deterministic: yes.
// Needs: sm_70; shared memory: dense_block 2 KiB, dense_tiles 4 KiB in float32 and 8 KiB in float64.
// Source: Bell and Garland 2008 and Harris 2007 for the reductions; tiles as for GEMV in Abdelfattah, Keyes, Ltaief,
//   KBLAS: An Optimized Library for Dense Matrix-Vector Multiplication on GPU Accelerators, ACM TOMS 42(3), 2016.
#include "types.cuh"

#define THREADS 256
#define T 64
#define Z 1024

extern "C" __global__ void dense_rows(int64 n_rows, int64 n_cols, const VALUE* A, const VALUE* x, const VALUE* b,
                                      VALUE* y) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    VALUE sum = 0;
    for (int64 j = 0; j < n_cols; ++j) sum += __ldg(A + row * n_cols + j) * __ldg(x + j);
    y[row] = b ? sum + b[row] : sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dense_block(int64 n_cols, const VALUE* __restrict__ A, const VALUE* __restrict__ x, const VALUE* b, VALUE* y) {
    __shared__ VALUE sums[THREADS];
    const int64 row = blockIdx.x;
    VALUE sum = 0;
#pragma unroll 4
    for (int64 j = threadIdx.x; j < n_cols; j += THREADS) sum += LOAD_ONCE(A + row * n_cols + j) * __ldg(x + j);
    sums[threadIdx.x] = sum;
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance) sums[threadIdx.x] += sums[threadIdx.x + distance];
    }
    if (threadIdx.x == 0) y[row] = b ? sums[0] + b[row] : sums[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
dense_tiles(int64 n_rows, int64 n_cols, const VALUE* __restrict__ A, const VALUE* __restrict__ x, VALUE* partial) {
    __shared__ VALUE part[Z];
    const int64 column_sorted_tiles = (n_rows + T - 1) / T, tile = blockIdx.x / column_sorted_tiles;
    const int64 first_row = blockIdx.x % column_sorted_tiles * T, first_col = tile * Z;
    const int n = int(min(int64(Z), n_cols - first_col)), lane = threadIdx.x % 32;
    for (int j = threadIdx.x; j < n; j += THREADS) part[j] = x[first_col + j];
    __syncthreads();
    for (int64 row = first_row + threadIdx.x / 32; row < min(first_row + T, n_rows); row += THREADS / 32) {
        VALUE sum = 0;
#pragma unroll 8
        for (int j = lane; j < n; j += 32) sum += LOAD_ONCE(A + row * n_cols + first_col + j) * part[j];
        for (int distance = 16; distance > 0; distance /= 2) sum += SHIFT_DOWN(sum, distance, 32);
        if (lane == 0) partial[tile * n_rows + row] = sum;
    }
}

extern "C" __global__ void add_tiles(int64 n_rows, int64 n_tiles, const VALUE* __restrict__ partial, const VALUE* b,
                                     VALUE* y) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    VALUE sum = 0;
    for (int64 tile = 0; tile < n_tiles; ++tile) sum += LOAD_ONCE(partial + tile * n_rows + row);
    y[row] = b ? sum + b[row] : sum;
}
