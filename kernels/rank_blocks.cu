// A step of PageRank on row blocks, in one pass: product, update, next z and the sums that the next step needs.
//
// Formula: as in pagerank.cu. `history` (steps + 1, 4) int64 holds the sums that belong to each x, the first from `start`;
//   `state` is {next item, thread blocks done, steps made, stop: 1 converged, 2 wrong}. A step after the stop does nothing.
// Shapes: all vectors (n_rows) in the order of the places; z (2, n_rows), which take turns; a chunk has 128 entries, each a local
//   row and a column counted from the chunk's; item t is chunks item_bounds[t] .. + 1 of block item_blocks[t], which has
//   item_parts[block] items. Sums of a block of several items meet in `partial`, and who comes last finishes the rows.
// Types: Z is float, in which products are rounded to multiples of product_unit; or, in exact fixed point, int64 for a pattern and
//   double in units of 2^-62 for values. RANK float | double; WEIGHT unsigned | double.
// Threads: a thread block takes items, the longest first, and adds its rows in shared memory as two words, the low one natively.
// Deterministic: yes; sums are of integers. Compiled without contraction: in exact fixed point the bits of the CPU kernels.
// Needs: sm_70; 8 bytes of shared memory for each row of a block.
// Source: Page, Brin, Motwani, Winograd, 1999; row blocks and the sums in two words are this project's.
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif
#include "ranks.cuh"

#define ROW_BITS 15
#define AT_ONCE 4
#define CHUNK_COLUMN(entry) ((entry) >> ROW_BITS)
#define CHUNK_ROW(entry) ((entry) & ((1u << ROW_BITS) - 1))

// Adds a contribution to the two words of a row.
__device__ __forceinline__ void add(unsigned* low, unsigned* high, unsigned low_word, unsigned high_word) {
    const unsigned before = atomicAdd(low, low_word);
    if (before > ~low_word) ++high_word;
    if (high_word) atomicAdd(high, high_word);
}

// value z, rounded once: to 1 / scale for float, to 1 for exact fixed point.
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE value, float z, float scale) {
    const float scaled = (PATTERN ? z : float(value * z)) * scale;
    if (scaled < 2147483648.0f) {
        add(low, high, __float2uint_rn(scaled), 0);
    } else {
        const uint64 wide = __float2ull_rn(scaled);
        add(low, high, unsigned(wide), unsigned(wide >> 32));
    }
}
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE, int64 z, float) {
    add(low, high, unsigned(z), unsigned(uint64(z) >> 32));
}
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, VALUE value, double z, float) {
    const uint64 wide = uint64(__double2ll_rn(value * z));
    add(low, high, unsigned(wide), unsigned(wide >> 32));
}

// Adds chunks begin, begin + stride, .. before end: N of them at a time, so that N index loads and 4 N gathers are in flight.
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

// What a run keeps from step to step: see the head of this file.
struct Run {
    RANK* x;
    const WEIGHT* weight;
    Z* z;
    const double* dangling;
    const double* personalization;
    int64 d_stride, p_stride;
    double alpha, product_unit, per_z_unit, threshold;
    int64 by_largest;  // the change is the largest of a row, not their sum
    int64* state;
    int64* history;
};

struct Blocks {
    int64 n_rows, n_items;
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

// Finishes rows first .. first + n, of which take(row - first) gives the product; loads of AT_ONCE rows a thread are under way.
template <typename Rows, typename Take>
__device__ __forceinline__ void finish(Rows& rows, int64 first, int n, Take take) {
    for (int begin = threadIdx.x; begin < n; begin += AT_ONCE * THREADS) {
        typename Rows::Loaded loaded[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (begin + k * THREADS < n) loaded[k] = rows.load(first + begin + k * THREADS);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (begin + k * THREADS < n) rows.finish(first + begin + k * THREADS, loaded[k], take(begin + k * THREADS));
    }
}

// Finishes every row with its product; of a block of several items, the thread block that comes last does.
template <typename Rows>
__device__ __forceinline__ void multiply(const Blocks& blocks, const Z* z, float scale, int64* next_item, Rows& rows) {
    extern __shared__ unsigned low[];
    unsigned* high = low + blocks.height + 1;
    __shared__ int64 shared_item;
    __shared__ bool is_last;
    const int warp = threadIdx.x / 32;
    for (;;) {
        if (threadIdx.x == 0) shared_item = atomicAdd(reinterpret_cast<uint64*>(next_item), 1ull);
        __syncthreads();
        const int64 item = shared_item;
        if (item >= blocks.n_items) return;
        const int64 begin = blocks.item_bounds[2 * item], end = blocks.item_bounds[2 * item + 1];
        const int block = blocks.item_blocks[item], parts = blocks.item_parts[block];
        const int64 first_row = block * blocks.height;
        const int n = int(min(blocks.height, blocks.n_rows - first_row));
        if (begin == end) {
            finish(rows, first_row, n, [](int) { return int64(0); });
            __syncthreads();
            continue;
        }
        for (int word = threadIdx.x; word < 2 * (blocks.height + 1); word += THREADS) low[word] = 0;
        __syncthreads();
        int64 chunk = begin + warp;
        chunk = add_chunks<2>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high);
        add_chunks<1>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high);
        __syncthreads();
        if (parts > 1) {
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
        } else {
            finish(rows, first_row, n, [&](int row) { return int64(low[row] | uint64(high[row]) << 32); });
        }
        __syncthreads();
    }
}

// The first z, and the sums that belong to the first x.
extern "C" __global__ void __launch_bounds__(THREADS)
start(int64 n_rows, Run run) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    int64 own[4] = {0, 0, 0, 0};
    if (row < n_rows) finish_row(0.0, double(run.x[row]), double(run.weight[row]), run.per_z_unit, run.z + row, own);
    add_sums(own, run.history);
}

// What teleports to a row; of one value for all rows it is computed once.
struct Rest {
    const double *dangling, *personalization;
    int64 d_stride, p_stride;
    double alpha_mass, jump, same;
    __device__ __forceinline__ Rest(const Run& run, double mass)
        : dangling(run.dangling), personalization(run.personalization), d_stride(run.d_stride), p_stride(run.p_stride),
          alpha_mass(run.alpha * mass), jump(1.0 - run.alpha), same(at(0)) {}
    __device__ __forceinline__ double at(int64 row) const {
        return alpha_mass * dangling[row * d_stride] + jump * personalization[row * p_stride];
    }
    __device__ __forceinline__ double operator()(int64 row) const { return d_stride | p_stride ? at(row) : same; }
};

struct StepRows {
    struct Loaded {
        RANK rank;
        WEIGHT weight;
    };
    const Run& run;
    Rest rest;
    Z* z_next;
    int64 own[4];
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row], run.weight[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, int64 product) {
        const RANK rank = RANK(run.alpha * (double(product) * run.product_unit) + rest(row));
        run.x[row] = rank;
        const double change = fabs(double(rank) - double(old.rank));
        finish_row(change, double(rank), double(old.weight), run.per_z_unit, z_next + row, own);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
step(Blocks blocks, Run run) {
    if (run.state[3]) return;
    const int64 made = run.state[2], n_rows = blocks.n_rows;
    int64* sums = run.history + 4 * (made + 1);
    StepRows rows{run, Rest(run, double(sums[2 - 4]) / FIXED_POINT), run.z + (~made & 1) * n_rows, {0, 0, 0, 0}};
    multiply(blocks, run.z + (made & 1) * n_rows, float(1.0 / run.product_unit), run.state, rows);
    add_sums(rows.own, sums);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(reinterpret_cast<uint64*>(run.state + 1), 1ull) == gridDim.x - 1) {
        __threadfence();
        const double change = double(__ldcg(sums + (run.by_largest ? 1 : 0))) / CHANGE_POINT;
        const bool is_wrong = __ldcg(sums + 3) > 0 || run.history[3] > 0;
        run.state[0] = run.state[1] = 0;
        run.state[2] = made + 1;
        run.state[3] = is_wrong ? 2 : change < run.threshold ? 1 : 0;
    }
}

struct ResidualRows {
    struct Loaded {
        RANK rank;
    };
    const Run& run;
    Rest rest;
    double value_rounding;
    double* out;
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, int64 product) {
        const double scaled = run.alpha * (double(product) * run.product_unit), rank = double(old.rank), other = rest(row);
        out[row] = fabs(scaled + other - rank) + 0x1p-53 * (8.0 * scaled + 4.0 * other + rank) + value_rounding * scaled;
    }
};

// out[i] = |alpha (A z + m d) + (1 - alpha) p - x| of row i, and a bound on the rounding of the update and of z, and of the values
// if they were rounded; that of the products is for the caller to add. z is the first of run.z; m in fixed point.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
residual(Blocks blocks, Run run, double mass, double value_rounding, double* out) {
    ResidualRows rows{run, Rest(run, mass), value_rounding, out};
    multiply(blocks, run.z, float(1.0 / run.product_unit), run.state, rows);
}
