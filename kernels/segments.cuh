// Segmented sums over the threads of a block, and carries: the sums that cross from one thread block into the next.
//
// Threads: THREADS per thread block, ITEMS_PER_THREAD items per thread; `add_carries` has one thread per carry.
// Deterministic: yes.
// Source: Blelloch, Heroux, Zagha, Segmented Operations for Sparse Matrix Computation on Vector Multiprocessors,
//   CMU-CS-93-173, 1993; carries as in Merrill and Garland, Merge-based Parallel Sparse Matrix-Vector Multiplication, SC 2016.
#pragma once
#include "types.cuh"

#define THREADS 256
#define ITEMS_PER_THREAD 7  // odd, so that neighboring threads reading their items hit different banks
#define ITEMS (THREADS * ITEMS_PER_THREAD)
#define SHORT_SEGMENT 16

// Inclusive segmented scan: sum of `value` from the last thread with a head (or the first thread) up to this one.
__device__ __forceinline__ SUM scan_segments(SUM value, bool is_head) {
    __shared__ SUM warp_sums[THREADS / WAVEFRONT];
    __shared__ bool warp_heads[THREADS / WAVEFRONT];
    const int lane = threadIdx.x % WAVEFRONT, warp = threadIdx.x / WAVEFRONT;
    int has_head = is_head;
#pragma unroll
    for (int distance = 1; distance < WAVEFRONT; distance *= 2) {
        const SUM before = SHIFT_UP(value, distance);
        const int head_before = SHIFT_UP(has_head, distance);
        if (lane >= distance) {
            if (!has_head) value = before + value;
            has_head |= head_before;
        }
    }
    if (lane == WAVEFRONT - 1) {
        warp_sums[warp] = value;
        warp_heads[warp] = has_head;
    }
    __syncthreads();
    SUM carried = 0;
    for (int w = 0; w < warp; ++w) carried = warp_heads[w] ? warp_sums[w] : carried + warp_sums[w];
    return has_head ? value : carried + value;
}

// Return the scan's value of the previous thread; 0 for the first.
__device__ __forceinline__ SUM take_from_before(SUM scanned) {
    __shared__ SUM all[THREADS];
    all[threadIdx.x] = scanned;
    __syncthreads();
    return threadIdx.x == 0 ? SUM(0) : all[threadIdx.x - 1];
}

// y[row] += alpha times the sum of the row's carries, in a fixed order; carries with rows[c] = n_rows are skipped.
// Thread c adds the carries of its row if carry c is the row's first; the whole thread block adds those of rows with many.
extern "C" __global__ void __launch_bounds__(THREADS)
add_carries(int64 n_carries, const int64* rows, const SUM* sums, int64 n_rows, SUM alpha, SUM* y) {
    __shared__ int n_long;
    __shared__ int long_threads[THREADS];
    __shared__ SUM partial[THREADS];
    if (threadIdx.x == 0) n_long = 0;
    __syncthreads();
    const int64 first = int64(blockIdx.x) * THREADS, c = first + threadIdx.x;
    if (c < n_carries && rows[c] < n_rows && (c == 0 || rows[c - 1] != rows[c])) {
        SUM sum = 0;
        int64 next = c;
        while (next < n_carries && next - c <= SHORT_SEGMENT && rows[next] == rows[c]) sum += sums[next++];
        if (next - c <= SHORT_SEGMENT)
            y[rows[c]] += alpha * sum;
        else
            long_threads[atomicAdd(&n_long, 1)] = threadIdx.x;
    }
    __syncthreads();
    for (int i = 0; i < n_long; ++i) {
        const int64 begin = first + long_threads[i], row = rows[begin];
        SUM sum = 0;
        for (int64 next = begin + threadIdx.x; next < n_carries && rows[next] == row; next += THREADS) sum += sums[next];
        partial[threadIdx.x] = sum;
        for (int distance = THREADS / 2; distance > 0; distance /= 2) {
            __syncthreads();
            if (threadIdx.x < distance) partial[threadIdx.x] += partial[threadIdx.x + distance];
        }
        if (threadIdx.x == 0) y[row] += alpha * partial[0];
        __syncthreads();
    }
}
