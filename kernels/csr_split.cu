// y = alpha A x + beta y for CSR, work split evenly over nonzeros and row ends (merge path), by segmented scan.
//
// Formula and shapes: as in csr_scalar.cu; chunk c has the row ends row_starts[c] .. row_starts[c + 1] and the nonzeros
//   nonzero_starts[c] .. nonzero_starts[c + 1], together ITEMS, however long or short the rows are.
// Threads: a thread block has a chunk: it brings products and row ends into shared memory; each thread finds its ITEMS_PER_THREAD
//   items by a search along its diagonal and walks them: a nonzero is added, a row end stores the sum. Sums that cross
//   threads are joined by a segmented scan, sums that cross chunks by `add_carries` afterwards.
// Deterministic: yes.
// Needs: sm_70; 23 KiB of shared memory in float32, 38 KiB in float64 and fixed point.
// Source: Merrill and Garland, Merge-based Parallel Sparse Matrix-Vector Multiplication, SC 2016.
#include "segments.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
csr_split(const int64* row_starts, const int64* nonzero_starts, const OFFSET* __restrict__ indptr,
          const INDEX* __restrict__ indices, const VALUE* __restrict__ data, const X* __restrict__ x, SUM* y, SUM alpha,
          SUM beta, int64* carry_rows, SUM* carry_sums) {
    __shared__ SUM products[ITEMS], totals[ITEMS];
    __shared__ int ends[ITEMS];
    const int64 first_row = row_starts[blockIdx.x], first = nonzero_starts[blockIdx.x];
    const int n_ends = int(row_starts[blockIdx.x + 1] - first_row);
    const int n_nonzeros = int(nonzero_starts[blockIdx.x + 1] - first);
#pragma unroll
    for (int n = 0; n < ITEMS_PER_THREAD; ++n) {
        const int k = n * THREADS + threadIdx.x;
        if (k < n_nonzeros)
            products[k] = contribute(stream_value(data, first + k), __ldg(x + LOAD_ONCE(indices + first + k)));
    }
    for (int i = threadIdx.x; i < n_ends; i += THREADS) ends[i] = int(int64(__ldg(indptr + first_row + i + 1)) - first);
    __syncthreads();

    const int diagonal = min(int(threadIdx.x) * ITEMS_PER_THREAD, n_ends + n_nonzeros);
    int i = max(0, diagonal - n_nonzeros), past = min(diagonal, n_ends);
    while (i < past) {
        const int middle = (i + past) / 2;
        if (ends[middle] < diagonal - middle) i = middle + 1;
        else past = middle;
    }
    int k = diagonal - i;
    const int own = i;
    SUM sum = 0;
#pragma unroll
    for (int n = 0; n < ITEMS_PER_THREAD; ++n)
        if (diagonal + n < n_ends + n_nonzeros) {
            if (i < n_ends && ends[i] <= k) {
                totals[i++] = sum;
                sum = 0;
            } else {
                sum += products[k++];
            }
        }
    const SUM scanned = scan_segments(sum, i > own);
    const SUM carried = take_from_before(scanned);
    if (i > own) totals[own] = carried + totals[own];
    __syncthreads();
    for (int n = threadIdx.x; n < n_ends; n += THREADS) store_row(y, first_row + n, alpha, totals[n], beta);
    if (threadIdx.x == THREADS - 1) {
        carry_rows[blockIdx.x] = first_row + n_ends;
        carry_sums[blockIdx.x] = scanned;
    }
}
