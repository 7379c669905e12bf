// y = alpha A x + beta y for CSR, several threads per row, reduced by shuffles.
//
// Formula and shapes: as in csr_scalar.cu; indices and data are aligned to 16 bytes.
// Threads: one thread block per rows_per_block rows, whose entries are contiguous in memory.
//   Staged, if these entries fit in TILE elements: all threads load them into shared memory with loads of 16 bytes, which are
//     coalesced for any row length; then one group of STAGED_LANES threads sums each row. The rows of a warp are consecutive,
//     so that on stencils and bands it reads nearby elements of x.
//   In place, otherwise: one group of LANES threads sums each row from global memory.
//   Lane l of T adds entries l, l + T, ... of its row; the lanes' sums are added as a tree by shuffles.
//   T is 1, 2, 4, 8, 16 or 32 (or 64 on hardware with wavefronts of 64): in place, the largest power of two <= nnz / n_rows;
//   staged, the largest for which the thread block has enough threads.
// Deterministic: yes; the result depends on rows_per_block, LANES and STAGED_LANES.
// Needs: sm_70; 24 KiB of shared memory in float32, 32 KiB in float64, 40 KiB with int64 indices.
// Source: Bell and Garland, NVIDIA NVR-2008-004, 2008 ("vector"); lanes by nnz / n_rows as in AMD lab notes, Sparse
//   matrix vector multiplication, part 1, 2023; staging as in Greathouse and Daga, Efficient Sparse Matrix-Vector
//   Multiplication on GPUs using the CSR Storage Format, SC 2014 ("CSR-Stream"), but x is read row by row after staging.
#include "types.cuh"

#define THREADS 256
#define TILE 2048
#define MAX_ROWS 1024
#define FOURS (TILE / (4 * THREADS))

template <typename E>
struct __align__(16) Four {
    E element[4];
};

// Load four adjacent elements, 16 bytes per load; `place` is aligned to 16 bytes.
template <typename E>
__device__ __forceinline__ Four<E> load_four(const E* place) {
    Four<E> four;
#pragma unroll
    for (int i = 0; i < int(sizeof(four) / sizeof(int4)); ++i)
        reinterpret_cast<int4*>(&four)[i] = LOAD_ONCE(reinterpret_cast<const int4*>(place) + i);
    return four;
}

// Load four adjacent elements of which the first n exist; the others are 0.
template <typename E>
__device__ __forceinline__ Four<E> load_part(const E* place, int64 n) {
    if (n >= 4) return load_four(place);
    Four<E> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.element[i] = i < n ? place[i] : E(0);
    return four;
}

// Return the sum of the lanes of a row, in lane 0.
template <int WIDTH>
__device__ __forceinline__ SUM add_lanes(SUM sum) {
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) sum += SHIFT_DOWN(sum, distance, WIDTH);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, sizeof(VALUE) == 4 || PATTERN ? 8 : 6)
csr_vector(int64 n_rows, int64 nnz, int rows_per_block, const OFFSET* __restrict__ indptr,
           const INDEX* __restrict__ indices, const VALUE* __restrict__ data, const X* __restrict__ x, SUM* y, SUM alpha,
           SUM beta) {
    static_assert(LANES <= WAVEFRONT && STAGED_LANES <= WAVEFRONT, "the lanes of a row are of one wavefront");
    __shared__ __align__(16) INDEX columns[TILE];
    __shared__ __align__(16) VALUE values[PATTERN ? 4 : TILE];
    __shared__ int starts[MAX_ROWS + 1];
    const int64 first = int64(blockIdx.x) * rows_per_block;
    const int n_own = int(min(int64(rows_per_block), n_rows - first)), thread = threadIdx.x;
    indptr += first;
    y += first;
    const OFFSET base = __ldg(indptr) & ~OFFSET(3), end = __ldg(indptr + n_own);

    if (end - base > TILE) {
        const int group = thread / LANES, lane = thread % LANES;
        for (int r = group; r - group < n_own; r += THREADS / LANES) {
            SUM sum = 0;
            if (r < n_own) {
                const OFFSET stop = __ldg(indptr + r + 1);
                for (OFFSET k = __ldg(indptr + r) + lane; k < stop; k += LANES)
                    sum += contribute(stream_value(data, k), __ldg(x + LOAD_ONCE(indices + k)));
            }
            sum = add_lanes<LANES>(sum);
            if (lane == 0 && r < n_own) store_row(y, r, alpha, sum, beta);
        }
        return;
    }

    const int n = int(end - base);
    indices += base;
    if (!PATTERN) data += base;
    const int64 n_left = nnz - base;
    Four<INDEX> column[FOURS];
    Four<VALUE> value[FOURS];
#pragma unroll
    for (int i = 0; i < FOURS; ++i) {
        const int k = 4 * (i * THREADS + thread);
        if (k >= n) continue;
        column[i] = load_part(indices + k, n_left - k);
        if (!PATTERN) value[i] = load_part(data + k, n_left - k);
    }
#pragma unroll 2
    for (int r = thread; r <= n_own; r += THREADS) starts[r] = int(__ldg(indptr + r) - base);
#pragma unroll
    for (int i = 0; i < FOURS; ++i) {
        const int k = 4 * (i * THREADS + thread);
        if (k >= n) continue;
        *reinterpret_cast<Four<INDEX>*>(columns + k) = column[i];
        if (!PATTERN) *reinterpret_cast<Four<VALUE>*>(values + k) = value[i];
    }
    __syncthreads();

    const int group = thread / STAGED_LANES, lane = thread % STAGED_LANES;
#pragma unroll 1
    for (int r = group; r - group < n_own; r += THREADS / STAGED_LANES) {
        SUM sum = 0;
        if (r < n_own) {
            const int stop = starts[r + 1];
#pragma unroll 4
            for (int k = starts[r] + lane; k < stop; k += STAGED_LANES)
                sum += contribute(PATTERN ? VALUE(1) : values[k], __ldg(x + columns[k]));
        }
        sum = add_lanes<STAGED_LANES>(sum);
        if (lane == 0 && r < n_own) store_row(y, r, alpha, sum, beta);
    }
}
