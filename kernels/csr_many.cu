// Y = alpha A X + beta Y for CSR and WIDTH vectors at once, entries split evenly.
//
// Formula: Y[i, c] = alpha sum_{k = indptr[i]}^{indptr[i + 1] - 1} data[k] X[indices[k], c] + beta Y[i, c]
// Shapes: X (n_cols, stride) and Y (n_rows, stride), row-major, of which WIDTH columns are multiplied; indices and data (nnz), aligned
//   to 16 bytes. Piece p has the entries 32 n_batches p .. 32 n_batches (p + 1). `ends` has one bit per entry, set for the last entry
//   of a row. `rows` are the rows with entries; piece_rows (n_pieces) is the position in `rows` of the row in which a piece begins;
//   splits (n_splits, 3): row that spans several pieces, its first piece, its last piece; `empty` are the rows without entries;
//   carries (n_pieces, 2, WIDTH). Y has type SUM unless the macro Y is defined.
// Threads: one group of WIDTH / WORDS threads per piece, with WORDS columns per thread: for each entry, the group loads a row of X
//   with one coalesced load. The entries of a piece are a stream with DEEP loads in flight, across the ends of rows, so that short
//   rows do not stall it. Partial sums of rows that span pieces are carries, which `add_carries` adds in order. The last thread
//   blocks store the rows without entries.
// Deterministic: yes; the result depends on n_batches.
// Needs: sm_70.
// Source: this project's; thread groups that load a row of X as in Yang, Buluc, Owens, Design Principles for Sparse Matrix
//   Multiplication on the GPU, Euro-Par 2018.
#include "types.cuh"

#define THREADS 256
#define BATCH 32
#define BLOCKS 4
#define LANES (WIDTH / WORDS)
#define HELD (BATCH / LANES)
#define DEEP (HELD < 8 ? 8 : HELD)
#ifndef Y
#define Y SUM
#endif

template <int BYTES>
struct Word;
template <>
struct Word<4> {
    typedef int Type;
};
template <>
struct Word<8> {
    typedef int2 Type;
};
template <>
struct Word<16> {
    typedef int4 Type;
};

// Columns of one thread in one row of X.
struct __align__(sizeof(X) * WORDS) Columns {
    X of[WORDS];
};
__device__ __forceinline__ Columns load_columns(const X* place) {
    typedef Word<sizeof(Columns)>::Type Whole;
    Columns columns;
    *reinterpret_cast<Whole*>(&columns) = __ldg(reinterpret_cast<const Whole*>(place));
    return columns;
}

// Load HELD adjacent elements of a stream that is read once.
template <typename E>
__device__ __forceinline__ void load_held(E (&held)[HELD], const E* place) {
    constexpr int AT_ONCE = sizeof(held) >= 16 ? 16 : sizeof(held);
    typedef typename Word<AT_ONCE>::Type Whole;
#pragma unroll
    for (int i = 0; i < int(sizeof(held)) / AT_ONCE; ++i)
        reinterpret_cast<Whole*>(held)[i] = LOAD_ONCE(reinterpret_cast<const Whole*>(place) + i);
}

struct Matrix {
    int64 nnz, n_pieces, n_splits, n_empty, n_batches;
    const INDEX* indices;
    const VALUE* data;
    const unsigned* ends;
    const INDEX* rows;
    const INDEX* piece_rows;
    const INDEX* splits;
    const INDEX* empty;
    SUM* carries;
};

// Epilogue that stores the sums of a row in Y.
struct StoreRows {
    Y* y;
    int64 stride;
    SUM alpha, beta;
    __device__ __forceinline__ void finish(int64 row, int lane, const SUM (&sums)[WORDS]) const {
        Y* place = y + row * stride + lane * WORDS;
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            place[w] = Y(beta == 0 ? alpha * sums[w] : alpha * sums[w] + beta * SUM(place[w]));
    }
};

// State of a group that processes a piece, entry by entry.
template <typename Rows>
struct Walk {
    const Matrix& matrix;
    const Rows& rows;
    const X* x;  // from this thread's first column on
    int64 stride;
    SUM* carries;  // those of the piece
    const INDEX* next;
    INDEX row;
    int lane;
    unsigned group;  // the threads of the group, as a mask
    bool is_open;    // the row began in an earlier piece
    SUM sums[WORDS];

    __device__ __forceinline__ void carry(int which) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) carries[which * WIDTH + lane * WORDS + w] = sums[w];
    }
    __device__ __forceinline__ void end_row() {
        if (is_open)
            carry(0);
        else
            rows.finish(row, lane, sums);
        is_open = false;
        row = *next++;
#pragma unroll
        for (int w = 0; w < WORDS; ++w) sums[w] = 0;
    }
    // Add n entries: BATCH, or fewer at the end of the matrix.
    template <bool IS_WHOLE>
    __device__ __forceinline__ void add(const INDEX (&indices)[HELD], const VALUE (&values)[HELD], unsigned ends, int n) {
#pragma unroll 1
        for (int begin = 0; begin < BATCH; begin += DEEP) {
            Columns taken[DEEP];
#pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                const int e = begin + d;
                const INDEX column = __shfl_sync(group, indices[d % HELD], e / HELD, LANES);
                if (IS_WHOLE || e < n) taken[d] = load_columns(x + int64(column) * stride);
            }
#pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                const int e = begin + d;
                const VALUE value = PATTERN ? VALUE(1) : __shfl_sync(group, values[d % HELD], e / HELD, LANES);
                if (IS_WHOLE || e < n) {
#pragma unroll
                    for (int w = 0; w < WORDS; ++w) sums[w] += contribute(value, taken[d].of[w]);
                    if (ends >> e & 1) end_row();
                }
            }
        }
    }
};

template <typename Rows>
__device__ __forceinline__ void multiply(const Matrix& matrix, const Rows& rows, const X* x, int64 stride) {
    const int lane = threadIdx.x % LANES, in_warp = threadIdx.x % 32;
    const int64 piece = (int64(blockIdx.x) * THREADS + threadIdx.x) / LANES;
    if (piece >= matrix.n_pieces) return;
    const int64 first = piece * matrix.n_batches * BATCH;
    const int64 last = min(first + matrix.n_batches * BATCH, matrix.nnz);
    const unsigned group = LANES == 32 ? 0xffffffffu : ((1u << LANES % 32) - 1) << (in_warp / LANES * LANES);
    const INDEX* own_rows = matrix.rows + matrix.piece_rows[piece];
    Walk<Rows> walk{matrix, rows, x + lane * WORDS, stride, matrix.carries + piece * 2 * WIDTH, own_rows + 1, *own_rows, lane, group,
                    first > 0 && !(matrix.ends[(first - 1) / 32] >> 31 & 1), {}};
    INDEX indices[HELD], indices_next[HELD];
    VALUE values[HELD], values_next[HELD];
    unsigned ends, ends_next;
    int64 begin = first;
    const int64 whole = first + (last - first) / BATCH * BATCH;
    if (begin < whole) {
        load_held(indices_next, matrix.indices + begin + lane * HELD);
        if (!PATTERN) load_held(values_next, matrix.data + begin + lane * HELD);
        ends_next = matrix.ends[begin / BATCH];
    }
    while (begin < whole) {
#pragma unroll
        for (int h = 0; h < HELD; ++h) indices[h] = indices_next[h], values[h] = PATTERN ? VALUE(1) : values_next[h];
        ends = ends_next;
        begin += BATCH;
        if (begin < whole) {
            load_held(indices_next, matrix.indices + begin + lane * HELD);
            if (!PATTERN) load_held(values_next, matrix.data + begin + lane * HELD);
            ends_next = matrix.ends[begin / BATCH];
        }
        walk.template add<true>(indices, values, ends, BATCH);
    }
    if (begin < last) {
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const int64 place = begin + lane * HELD + h;
            indices[h] = place < last ? matrix.indices[place] : 0;
            values[h] = PATTERN || place >= last ? VALUE(1) : matrix.data[place];
        }
        walk.template add<false>(indices, values, matrix.ends[begin / BATCH], int(last - begin));
    }
    if (!(matrix.ends[(last - 1) / 32] >> ((last - 1) % 32) & 1)) walk.carry(walk.is_open ? 0 : 1);
}

// Finish the rows without entries.
template <typename Rows>
__device__ __forceinline__ void finish_empty(const Matrix& matrix, const Rows& rows, int64 first_block) {
    const int lane = threadIdx.x % LANES;
    const SUM none[WORDS] = {};
    const int64 stride = (gridDim.x - first_block) * (THREADS / LANES);
    for (int64 k = ((blockIdx.x - first_block) * THREADS + threadIdx.x) / LANES; k < matrix.n_empty; k += stride)
        rows.finish(matrix.empty[k], lane, none);
}

// Finish the rows that span several pieces: add the carries of these pieces in order. carries[p][1] is the sum of a row that begins
// in piece p, carries[p][0] that of a row that began earlier.
template <typename Rows>
__device__ __forceinline__ void finish_splits(const Matrix& matrix, const Rows& rows) {
    const int lane = threadIdx.x % LANES;
    const int64 split = (int64(blockIdx.x) * THREADS + threadIdx.x) / LANES;
    if (split >= matrix.n_splits) return;
    const INDEX row = matrix.splits[3 * split], first = matrix.splits[3 * split + 1], last = matrix.splits[3 * split + 2];
    const SUM* carries = matrix.carries + lane * WORDS;
    SUM sums[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; ++w) sums[w] = carries[(int64(first) * 2 + 1) * WIDTH + w];
#pragma unroll 8
    for (INDEX piece = first + 1; piece <= last; ++piece)
#pragma unroll
        for (int w = 0; w < WORDS; ++w) sums[w] += carries[int64(piece) * 2 * WIDTH + w];
    rows.finish(row, lane, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
csr_many(Matrix matrix, int64 n_piece_blocks, const X* __restrict__ x, Y* y, int64 stride, SUM alpha, SUM beta) {
    const StoreRows rows{y, stride, alpha, beta};
    if (blockIdx.x < n_piece_blocks)
        multiply(matrix, rows, x, stride);
    else
        finish_empty(matrix, rows, n_piece_blocks);
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_carries(Matrix matrix, Y* y, int64 stride, SUM alpha, SUM beta) {
    finish_splits(matrix, StoreRows{y, stride, alpha, beta});
}
