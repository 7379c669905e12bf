// PageRank step on column-sorted-blocks in one pass: product, update, next z and the sums that the next step needs.
//
// Formula, vectors, types: as in rank_steps.cuh. Products of floats are rounded to multiples of product_unit.
// Shapes: a chunk has 128 entries, each a local row and a column relative to the chunk's column. Item t is chunks
//   item_bounds[t][0] .. item_bounds[t][1] of block item_blocks[t], which has item_parts[block] items. If a block has several
//   items, their sums are added in `partial`, and the last thread block to finish an item of it finishes the rows.
// Threads: each thread block takes items, the longest first, and adds rows in shared memory as two 32-bit words, because atomics
//   on 32 bits of shared memory are native.
// Deterministic: yes; sums are of integers. Compiled without contraction: in exact fixed point bit-identical to the CPU kernels.
// Needs: sm_70; 8 bytes of shared memory per row of a block.
// Source: this project's, as are the sums in two words; after Lakhotia, Kannan, Prasanna, USENIX ATC 2018.
#ifndef THREADS
#define THREADS 1024
#endif
#include "rank_steps.cuh"

#define AT_ONCE 4
#define ROW_BITS 15
#define CHUNK_COLUMN(entry) ((entry) >> ROW_BITS)
#define CHUNK_ROW(entry) ((entry) & ((1u << ROW_BITS) - 1))

// Add a contribution to the two words of a row.
__device__ __forceinline__ void add(unsigned* low, unsigned* high, unsigned low_word, unsigned high_word) {
    const unsigned before = atomicAdd(low, low_word);
    if (before > ~low_word) ++high_word;
    if (high_word) atomicAdd(high, high_word);
}

// Flag: a product in this thread block was invalid (too large or NaN).
__device__ __forceinline__ int& is_wrong() {
    __shared__ int flag;
    return flag;
}

// Add value z to a row, rounded once: to a multiple of 1 / scale for float, to an integer for exact fixed point.
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE value, float z, float scale) {
    const float scaled = (PATTERN ? z : float(value * z)) * scale;
    if (scaled < 2147483648.0f) {
        add(low, high, __float2uint_rn(scaled), 0);
    } else if (scaled < 9223372036854775808.0f) {
        const uint64 wide = __float2ull_rn(scaled);
        add(low, high, unsigned(wide), unsigned(wide >> 32));
    } else {
        is_wrong() = 1;
    }
}
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE, int64 z, float) {
    add(low, high, unsigned(z), unsigned(uint64(z) >> 32));
}
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE value, double z, float) {
    const uint64 wide = uint64(__double2ll_rn(value * z));
    add(low, high, unsigned(wide), unsigned(wide >> 32));
}

// Add chunks begin, begin + stride, .. before end, N at a time, so that N index loads and 4 N gathers are in flight. Return the first
// chunk that was not added.
template <int N>
__device__ __forceinline__ int64 add_chunks(int64 begin, int64 end, int stride, const uint4* __restrict__ entries,
                                            const unsigned* __restrict__ columns, const VALUE* __restrict__ values,
                                            const Z* __restrict__ z, float scale, unsigned* low, unsigned* high) {
    const int lane = threadIdx.x % 32;
    int64 chunk = begin;
    for (; chunk + (N - 1) * stride < end; chunk += N * stride) {
        unsigned own[N][4];
        Z gathered[N][4];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int64 place = chunk + n * stride;
            const uint4 four = __ldcs(entries + place * 32 + lane);
            own[n][0] = four.x, own[n][1] = four.y, own[n][2] = four.z, own[n][3] = four.w;
            const Z* window = z + __ldg(columns + place);
#pragma unroll
            for (int k = 0; k < 4; ++k) gathered[n][k] = __ldg(window + CHUNK_COLUMN(own[n][k]));
        }
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const unsigned row = CHUNK_ROW(own[n][k]);
                const VALUE value = PATTERN ? VALUE(1) : __ldcs(values + ((chunk + n * stride) * 32 + lane) * 4 + k);
                contribute(low + row, high + row, value, gathered[n][k], scale);
            }
    }
    return chunk;
}

struct Blocks {
    int64 n_items;
    const uint4* entries;
    const unsigned* columns;
    const VALUE* values;
    const int* item_blocks;
    const int64* item_bounds;  // (n_items, 2)
    const int* item_parts;
    int* parts_done;
    uint64* partial;
    int64 height;
};

// Finish rows first .. first + n, whose products are take(row - first); each thread has the loads of AT_ONCE rows in flight.
template <typename Rows, typename Take>
__device__ __forceinline__ void finish(Rows& rows, int64 first, int n, Take take) {
    const double unit = rows.run.product_unit;
    for (int begin = threadIdx.x; begin < n; begin += AT_ONCE * THREADS) {
        typename Rows::Loaded loaded[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (begin + k * THREADS < n) loaded[k] = rows.load(first + begin + k * THREADS);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int row = begin + k * THREADS;
            if (row < n) rows.finish(first + row, loaded[k], double(take(row)) * unit);
        }
    }
}

// Multiply and finish all rows. If a block has several items, the thread block that completes the last one finishes its rows.
template <typename Rows>
__device__ __forceinline__ void multiply(const Blocks& blocks, Rows& rows) {
    extern __shared__ unsigned low[];
    unsigned* high = low + blocks.height + 1;
    __shared__ int64 shared_item;
    __shared__ bool is_last;
    const Z* z = rows.z();
    const float scale = float(1.0 / rows.run.product_unit);
    for (;;) {
        if (threadIdx.x == 0) shared_item = atomicAdd(reinterpret_cast<uint64*>(rows.run.state), 1ull);
        __syncthreads();
        const int64 item = shared_item;
        if (item >= blocks.n_items) return;
        const int64 begin = blocks.item_bounds[2 * item], end = blocks.item_bounds[2 * item + 1];
        const int block = blocks.item_blocks[item], parts = blocks.item_parts[block];
        const int64 first_row = block * blocks.height;
        const int n = int(min(blocks.height, rows.run.n_rows - first_row));
        if (begin == end) {
            finish(rows, first_row, n, [](int) { return int64(0); });
            __syncthreads();
            continue;
        }
        for (int word = threadIdx.x; word < 2 * (blocks.height + 1); word += THREADS) low[word] = 0;
        if (threadIdx.x == 0) is_wrong() = 0;
        __syncthreads();
        int64 chunk = begin + threadIdx.x / 32;
        chunk = add_chunks<2>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high);
        add_chunks<1>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high);
        __syncthreads();
        if (threadIdx.x == 0 && is_wrong()) rows.count_wrong();
        if (parts == 1) {
            finish(rows, first_row, n, [&](int row) { return int64(low[row] | uint64(high[row]) << 32); });
        } else {
            for (int row = threadIdx.x; row < n; row += THREADS) {
                const uint64 sum = low[row] | uint64(high[row]) << 32;
                if (sum) atomicAdd(blocks.partial + first_row + row, sum);
            }
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) is_last = atomicAdd(blocks.parts_done + block, 1) == parts - 1;
            __syncthreads();
            if (is_last) {
                __threadfence();
                if (threadIdx.x == 0) blocks.parts_done[block] = 0;
                finish(rows, first_row, n, [&](int row) {
                    const uint64 sum = __ldcg(blocks.partial + first_row + row);
                    blocks.partial[first_row + row] = 0;
                    return int64(sum);
                });
            }
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
step(Blocks blocks, Run run) {
    if (run.state[3]) return;
    StepRows rows(run);
    multiply(blocks, rows);
    rows.end();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
residual(Blocks blocks, Run run, double mass, double value_rounding, double* out) {
    ResidualRows rows{run, Rest(run, mass), value_rounding, out};
    multiply(blocks, rows);
}
