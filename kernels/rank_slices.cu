// PageRank step on sell-slices in one pass: product, update, next z and the sums that the next step needs.
//
// Formula, vectors, types: as in rank_steps.cuh. Products of floats are added in double, in the order of the row's entries.
// Shapes: entry k of row 32 s + l is at 32 (slice_starts[s] + k) + l; padding has column `none`, where z is 0.
// Threads: one thread per row; warps take slices in turn, so that neighboring warps gather nearby columns at the same time. Each warp
//   prefetches the entries of its next slice.
// Deterministic: yes. Compiled without contraction: in exact fixed point bit-identical to the CPU kernels.
// Needs: sm_70.
// Source: sliced ELLPACK, Monakov, Lokhmotov, Avetisyan, HiPEAC 2010; fused with the PageRank step here.
#define THREADS 256
#define RESIDENT (PATTERN ? 4 : 2)
#include "rank_steps.cuh"

#define AT_ONCE 6

struct Slices {
    int64 n_slices;
    const unsigned* slice_starts;
    const int* columns;
    const VALUE* values;
    int64 none;
};

// Type of the sum of a row, and the term that an entry adds to it.
template <typename A>
struct Sum {
    typedef int64 Type;
};
template <>
struct Sum<float> {
    typedef double Type;
};
__device__ __forceinline__ double contribute(VALUE value, float z) { return PATTERN ? z : float(value * z); }
__device__ __forceinline__ int64 contribute(VALUE, int64 z) { return z; }
__device__ __forceinline__ int64 contribute(VALUE value, double z) { return __double2ll_rn(value * z); }

// First entries of a row, and its vectors' elements that do not depend on the product: prefetched while the previous row is multiplied.
template <typename Rows>
struct Ahead {
    unsigned begin, end;
    int columns[AT_ONCE];
    VALUE values[AT_ONCE];
    typename Rows::Loaded old;

    __device__ __forceinline__ void fetch_bounds(const Slices& slices, int64 slice) {
        if (slice >= slices.n_slices) return;
        begin = __ldg(slices.slice_starts + slice);
        end = __ldg(slices.slice_starts + slice + 1);
    }
    __device__ __forceinline__ void fetch_entries(const Slices& slices, const Rows& rows, int64 slice) {
        const int64 row = 32 * slice + threadIdx.x % 32;
        if (row < rows.run.n_rows) old = rows.load(row);
        if (slice < slices.n_slices) read_entries(slices, rows, begin);
    }
    __device__ __forceinline__ void read_entries(const Slices& slices, const Rows& rows, unsigned first) {
        const int64 place = 32 * int64(first) + threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            columns[n] = first + n < end ? __ldcs(slices.columns + place + 32 * n) : int(slices.none);
            values[n] = PATTERN || first + n >= end ? VALUE(1) : __ldcs(slices.values + place + 32 * n);
        }
    }
};

template <typename Rows>
__device__ __forceinline__ void multiply(const Slices& slices, Rows& rows) {
    const int64 stride = int64(gridDim.x) * (THREADS / 32);
    const Z* z = rows.z();
    int64 slice = int64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    Ahead<Rows> own, next;
    own.fetch_bounds(slices, slice);
    next.fetch_bounds(slices, slice + stride);
    own.fetch_entries(slices, rows, slice);
    for (; slice < slices.n_slices; slice += stride) {
        Z gathered[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) gathered[n] = __ldg(z + own.columns[n]);
        next.fetch_entries(slices, rows, slice + stride);
        Ahead<Rows> after;
        after.fetch_bounds(slices, slice + 2 * stride);
        typename Sum<Z>::Type sum = 0;
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) sum += contribute(own.values[n], gathered[n]);
        for (unsigned k = own.begin + AT_ONCE; k < own.end; k += AT_ONCE) {
            own.read_entries(slices, rows, k);
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) gathered[n] = __ldg(z + own.columns[n]);
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) sum += contribute(own.values[n], gathered[n]);
        }
        const int64 row = 32 * slice + threadIdx.x % 32;
        if (row < rows.run.n_rows) rows.finish(row, own.old, double(sum) * rows.run.product_unit);
        own = next;
        next.begin = after.begin, next.end = after.end;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
step(Slices slices, Run run) {
    if (run.state[3]) return;
    StepRows rows(run);
    multiply(slices, rows);
    rows.end();
}

extern "C" __global__ void __launch_bounds__(THREADS)
residual(Slices slices, Run run, double mass, double value_rounding, double* out) {
    ResidualRows rows{run, Rest(run, mass), value_rounding, out};
    multiply(slices, rows);
}
