// y = alpha A x + beta y for CSR of dense blocks (register blocking), one warp per block row.
//
// Formula: y[I B + r] = alpha sum_K sum_c data[K][r][c] x[indices[K] B + c] + beta y[...], K of block row I
// Shapes: indptr (n_block_rows + 1), indices (n_blocks), data (n_blocks, B, B) with 0 where the matrix has no entry;
//   x (n_cols), y (n_rows). One index is read per block. For a pattern, data holds the number of entries at each position.
// Threads: the values of a block row are contiguous. The first L lanes of the warp, where L is the largest multiple of B B
//   up to 32, process values lane, lane + L, ..., so that each lane stays at one row and column of the blocks. The sums of
//   the lanes of a row are added in ascending order through shared memory.
// Deterministic: yes.
// Needs: sm_70; 2 KiB of shared memory.
// Source: Im, Yelick, Vuduc, Sparsity: Optimization Framework for Sparse Matrix Kernels, IJHPCA 18(1), 2004; the GPU
//   version is this project's. Values of 0 are skipped, so that padding times an infinite x does not give NaN.
#include "types.cuh"

#define THREADS 256
#define B BLOCK_DIM
#define L (32 / (B * B) * (B * B))

extern "C" __global__ void __launch_bounds__(THREADS)
bsr(int64 n_rows, int64 n_cols, const OFFSET* indptr, const INDEX* __restrict__ indices, const VALUE* __restrict__ data,
    const X* __restrict__ x, SUM* y, SUM alpha, SUM beta) {
    __shared__ volatile SUM sums[THREADS];
    const int lane = threadIdx.x % 32;
    const int64 block_row = (int64(blockIdx.x) * THREADS + threadIdx.x) / 32;
    if (block_row * B >= n_rows) return;
    SUM sum = 0;
    if (lane < L) {
        const int64 start = int64(__ldg(indptr + block_row)), stop = int64(__ldg(indptr + block_row + 1));
        const int c = lane % B;
#pragma unroll 2
        for (int64 block = start + lane / (B * B); block < stop; block += L / (B * B)) {
            const VALUE value = LOAD_ONCE(data + block * (B * B) + lane % (B * B));
            const int64 column = int64(__ldg(indices + block)) * B + c;
            if (value != 0 && column < n_cols) sum += contribute(value, __ldg(x + column));
        }
    }
    sums[threadIdx.x] = sum;
    SYNC_LANES();
    const int64 row = block_row * B + lane;
    if (lane < B && row < n_rows) {
        SUM total = 0;
        for (int block = 0; block < L; block += B * B)
            for (int c = 0; c < B; ++c) total += sums[threadIdx.x - lane + block + lane * B + c];
        store_row(y, row, alpha, total, beta);
    }
}
