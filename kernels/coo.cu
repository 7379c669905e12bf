// y += alpha A x for entries with row numbers, sorted by row, by segmented scan.
//
// Formula: y[rows[k]] += alpha data[k] x[indices[k]] for every k
// Shapes: rows, indices and data (nnz), x (n_cols), y (n_rows). `scale` computes y = beta y first.
// Threads: one thread block per ITEMS consecutive entries, whose products it loads into shared memory; each thread adds
//   ITEMS_PER_THREAD of them and adds the sum of a row to y at the row's end. Sums that cross threads are joined by a segmented
//   scan; sums that cross thread blocks are added afterwards by `add_carries`, without atomics.
// Deterministic: yes.
// Needs: sm_70; 17 KiB of shared memory in float32 with int32 rows, 31 KiB at most.
// Source: Bell and Garland, NVIDIA NVR-2008-004, 2008 (segmented reduction of COO); Blelloch et al. 1993.
#include "segments.cuh"

extern "C" __global__ void scale(int64 n_rows, SUM beta, SUM* y) {
    const int64 row = int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row < n_rows) y[row] = beta == 0 ? SUM(0) : beta * y[row];
}

extern "C" __global__ void __launch_bounds__(THREADS)
coo(int64 nnz, const ROW* __restrict__ rows, const INDEX* __restrict__ indices, const VALUE* __restrict__ data,
    const X* __restrict__ x, SUM* y, SUM alpha, int64* carry_rows, SUM* carry_sums) {
    __shared__ SUM products[ITEMS];
    __shared__ ROW places[ITEMS + 1];
    const int64 first = int64(blockIdx.x) * ITEMS;
    const int n_items = int(min(int64(ITEMS), nnz - first));
#pragma unroll
    for (int n = 0; n < ITEMS_PER_THREAD; ++n) {
        const int k = n * THREADS + threadIdx.x;
        if (k < n_items) {
            products[k] = contribute(stream_value(data, first + k), __ldg(x + LOAD_ONCE(indices + first + k)));
            places[k] = LOAD_ONCE(rows + first + k);
        }
    }
    __syncthreads();

    const int begin = min(int(threadIdx.x) * ITEMS_PER_THREAD, n_items), end = min(begin + ITEMS_PER_THREAD, n_items);
    SUM sum = 0, first_sum = 0;
    int n_ends = 0;
    ROW first_row = 0;
    for (int k = begin; k < end; ++k) {
        sum += products[k];
        if (k + 1 == n_items || places[k + 1] == places[k]) continue;  // the chunk's last row is carried, as it may continue
        if (n_ends++ == 0) {
            first_row = places[k];
            first_sum = sum;
        } else {
            y[places[k]] += alpha * sum;
        }
        sum = 0;
    }
    const SUM scanned = scan_segments(sum, n_ends > 0);
    const SUM carried = take_from_before(scanned);
    if (n_ends > 0) y[first_row] += alpha * (carried + first_sum);
    if (threadIdx.x == THREADS - 1) {
        carry_rows[blockIdx.x] = places[n_items - 1];
        carry_sums[blockIdx.x] = scanned;
    }
}
