// PageRank step on entries in coordinate format in two kernels: first products, then update, next z and the sums that the next step
// needs.
//
// Formula, vectors, types: as in rank_steps.cuh. Products of floats are rounded to multiples of product_unit.
// Shapes: rows, columns and values (nnz), rows ascending. sums (n_rows + 1) are those of rows, followed by 1 if a product was invalid
//   (too large or NaN); all are 0 between steps.
// Threads: of `add_entries`, one per ITEMS consecutive entries. It adds up those of the same row; sums that cross threads of a warp
//   are joined by a segmented scan, so that a warp adds once to its first row and to its last one, and stores the others, which no other
//   warp has. Of `step` and `residual`, threads take rows in turn.
// Deterministic: yes; sums are of integers. Compiled without contraction: in exact fixed point bit-identical to the CPU kernels.
// Needs: sm_70.
// Source: Bell and Garland, NVIDIA NVR-2008-004, 2008 (segmented reduction of COO); Blelloch et al. 1993; fused with the PageRank step here.
#define THREADS 256
#include "rank_steps.cuh"

#define ITEMS 8
#define ALL 0xffffffffu

struct Entries {
    int64 nnz;
    const int* rows;
    const int* columns;
    const VALUE* values;
    uint64* sums;
};

// Elements of ITEMS consecutive entries.
template <typename Element>
struct alignas(16) Items {
    Element own[ITEMS];
    // Read them from `first` on; beyond the last entry, that of the last again. In words of 16 bytes if is_whole.
    __device__ __forceinline__ void read(const Element* __restrict__ place, int64 first, int64 nnz, bool is_whole) {
        if (is_whole) {
#pragma unroll
            for (int w = 0; w < int(sizeof(own) / 16); ++w)
                reinterpret_cast<uint4*>(own)[w] = __ldg(reinterpret_cast<const uint4*>(place + first) + w);
        } else {
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) own[k] = __ldg(place + min(first + k, nnz - 1));
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
add_entries(Entries entries, Run run) {
    const int64 own = int64(blockIdx.x) * THREADS + threadIdx.x, first = own * ITEMS, nnz = entries.nnz;
    const int lane = threadIdx.x % 32;
    if (run.state[3] || (own - lane) * ITEMS >= nnz) return;  // whole warps
    const Z* z = run.read[run.state[2] & 1];
    const float scale = float(1.0 / run.product_unit);
    const uint64 places = uint64(entries.rows) | uint64(entries.columns) | uint64(entries.values);
    const bool is_whole = places % 16 == 0 && first + ITEMS <= nnz;
    Items<int> rows, columns;
    Items<VALUE> values;
    columns.read(entries.columns, first, nnz, is_whole);
    rows.read(entries.rows, first, nnz, is_whole);
    if (!PATTERN) values.read(entries.values, first, nnz, is_whole);
    Z gathered[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) gathered[k] = __ldg(z + columns.own[k]);

    uint64 sum = 0, first_sum = 0;
    bool has_end = false, is_right = true;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (k > 0 && rows.own[k] != rows.own[k - 1]) {
            if (has_end) entries.sums[rows.own[k - 1]] = sum;
            else first_sum = sum, has_end = true;
            sum = 0;
        }
        const uint64 product = round_product(PATTERN ? VALUE(1) : values.own[k], gathered[k], scale, is_right);
        if (first + k < nnz) sum += product;
    }
    if (!is_right) entries.sums[run.n_rows] = 1;

    // The last row of a thread may continue in the next ones: a lane gets the sum of those before it that end in the same row.
    const int row = rows.own[ITEMS - 1];
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint64 before = __shfl_up_sync(ALL, sum, distance);
        const int row_before = __shfl_up_sync(ALL, row, distance);
        if (lane >= distance && row_before == row) sum += before;
    }
    const uint64 before = __shfl_up_sync(ALL, sum, 1);
    const int row_before = __shfl_up_sync(ALL, row, 1), row_after = __shfl_down_sync(ALL, rows.own[0], 1);
    const int first_row = __shfl_sync(ALL, rows.own[0], 0), last_row = __shfl_sync(ALL, row, 31);
    const auto add = [&](int place, uint64 own) {  // other warps add to the first row and to the last one
        if (place == first_row || place == last_row) atomicAdd(entries.sums + place, own);
        else entries.sums[place] = own;
    };
    if (has_end) add(rows.own[0], first_sum + (lane > 0 && row_before == rows.own[0] ? before : 0));
    if (lane == 31 || row_after != row) add(row, sum);
}

// Finish the rows from the sums of their products, which become 0.
template <typename Rows>
__device__ __forceinline__ void finish_rows(const Entries& entries, Rows& rows) {
    const int64 n_rows = rows.run.n_rows, own = int64(blockIdx.x) * THREADS + threadIdx.x;
    for (int64 row = own; row < n_rows; row += int64(gridDim.x) * THREADS) {
        const typename Rows::Loaded old = rows.load(row);
        const int64 sum = int64(entries.sums[row]);
        entries.sums[row] = 0;
        rows.finish(row, old, double(sum) * rows.run.product_unit);
    }
    if (own == 0 && entries.sums[n_rows]) {
        rows.count_wrong();
        entries.sums[n_rows] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
step(Entries entries, Run run) {
    if (run.state[3]) return;
    StepRows rows(run);
    finish_rows(entries, rows);
    rows.end();
}

extern "C" __global__ void __launch_bounds__(THREADS)
residual(Entries entries, Run run, double mass, double value_rounding, double* out) {
    ResidualRows rows{run, Rest(run, mass), value_rounding, out};
    finish_rows(entries, rows);
}
