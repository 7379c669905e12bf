// y = alpha A x + beta y for CSR, work split evenly over nonzeros and row ends (merge path), by segmented scan.
//
// Formula and shapes: as in csr_scalar.cu; chunk c has the row ends row_starts[c] .. row_starts[c + 1] and the nonzeros
//   nonzero_starts[c] .. nonzero_starts[c + 1], together ITEMS, whatever the row lengths.
// Threads: one thread block per chunk. It loads products and row ends into shared memory; each thread finds its
//   ITEMS_PER_THREAD items by a search along its diagonal and processes them in order: a nonzero is added, a row end stores the
//   sum. Sums that cross threads are joined by a segmented scan. The carry of a chunk is its sum of the row open at its end.
//   Carries are added afterwards by `add_carries` or, with LOOK_BACK 1, by the chunk in which the row ends, which waits for the
//   carries of that row. This cannot deadlock: a chunk publishes its own carry before it waits, and waits only for thread
//   blocks of smaller blockIdx, which the hardware starts no later. LOOK_BACK is for products so short that a second launch
//   takes longer than the waits.
// Deterministic: yes.
// Needs: sm_70; 23 KiB of shared memory in float32, 38 KiB in float64 and fixed point.
// Source: Merrill and Garland, Merge-based Parallel Sparse Matrix-Vector Multiplication, SC 2016; for carries
//   Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVIDIA NVR-2016-002, 2016.
#include "segments.cuh"

#ifndef LOOK_BACK
#define LOOK_BACK 0
#endif
#define WORDS int(sizeof(SUM) / 4)

typedef unsigned long long uint64;

#if LOOK_BACK
#define CARRIES volatile uint64* carries
#else
#define CARRIES int64 *carry_rows, SUM *carry_sums
#endif

// A carry in memory is WORDS words, which are 0 until it is published. Each word holds 32 bits of the sum and a flag, and is written
// and read in one access that bypasses the L1 cache, so that no fence is needed: a fence would evict x from L1.
union Carry {
    SUM sum;
    unsigned parts[WORDS];
};

__device__ __forceinline__ void publish_carry(volatile uint64* carries, int chunk, SUM sum) {
    Carry carry;
    carry.sum = sum;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) carries[int64(chunk) * WORDS + w] = uint64(carry.parts[w]) << 32 | 1;
}

// Wait for the carry of a chunk and take it. Each carry is taken once, so that its words can be reset to 0 for the next launch.
__device__ __forceinline__ SUM take_carry(volatile uint64* carries, int chunk) {
    Carry carry;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        volatile uint64* place = carries + int64(chunk) * WORDS + w;
        uint64 word = *place;
        while (word == 0) word = *place;
        *place = 0;
        carry.parts[w] = unsigned(word >> 32);
    }
    return carry.sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
csr_split(const int64* row_starts, const int64* nonzero_starts, const OFFSET* __restrict__ indptr,
          const INDEX* __restrict__ indices, const VALUE* __restrict__ data, const X* __restrict__ x, SUM* y, SUM alpha,
          SUM beta, CARRIES) {
    __shared__ SUM products[ITEMS], totals[ITEMS];
    __shared__ int ends[ITEMS];
    const int64 first_row = row_starts[blockIdx.x], first = nonzero_starts[blockIdx.x];
    const int n_ends = int(row_starts[blockIdx.x + 1] - first_row);
    const int n_nonzeros = int(nonzero_starts[blockIdx.x + 1] - first);
    // Indices are clamped instead of guarded by branches, so that all loads of a thread are in flight together.
    const OFFSET end = __ldg(indptr + first_row + min(int(threadIdx.x) + 1, n_ends));
    if (n_nonzeros > 0) {
        VALUE values[ITEMS_PER_THREAD];
        INDEX columns[ITEMS_PER_THREAD];
#pragma unroll
        for (int n = 0; n < ITEMS_PER_THREAD; ++n) {
            const int k = min(n * THREADS + int(threadIdx.x), n_nonzeros - 1);
            columns[n] = LOAD_ONCE(indices + first + k);
            values[n] = stream_value(data, first + k);
        }
#pragma unroll
        for (int n = 0; n < ITEMS_PER_THREAD; ++n)
            products[n * THREADS + threadIdx.x] = contribute(values[n], __ldg(x + columns[n]));
    }
    ends[threadIdx.x] = int(int64(end) - first);
    for (int i = THREADS + threadIdx.x; i < n_ends; i += THREADS)
        ends[i] = int(int64(__ldg(indptr + first_row + i + 1)) - first);
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
#if LOOK_BACK
    const int chunk = int(blockIdx.x);
    if (threadIdx.x == THREADS - 1 && chunk + 1 < gridDim.x) publish_carry(carries, chunk, scanned);
    const bool has_many = chunk > 1 && row_starts[chunk - 1] == first_row;
#endif
    const SUM before = take_from_before(scanned);
    if (i > own) totals[own] = before + totals[own];
    __syncthreads();
    for (int n = threadIdx.x + LOOK_BACK; n < n_ends; n += THREADS) store_row(y, first_row + n, alpha, totals[n], beta);
#if LOOK_BACK
    if (n_ends == 0) return;
    SUM carried = 0;
    if (has_many) {
        for (int c = chunk - 1 - int(threadIdx.x); c >= 0 && row_starts[c + 1] == first_row; c -= THREADS)
            carried += take_carry(carries, c);
        products[threadIdx.x] = carried;
        for (int distance = THREADS / 2; distance > 0; distance /= 2) {
            __syncthreads();
            if (threadIdx.x < distance) products[threadIdx.x] += products[threadIdx.x + distance];
        }
        if (threadIdx.x == 0) carried = products[0];
    } else if (threadIdx.x == 0 && chunk > 0) {
        carried = take_carry(carries, chunk - 1);
    }
    if (threadIdx.x == 0) store_row(y, first_row, alpha, carried + totals[0], beta);
#else
    if (threadIdx.x == THREADS - 1) {
        carry_rows[blockIdx.x] = first_row + n_ends;
        carry_sums[blockIdx.x] = scanned;
    }
#endif
}
