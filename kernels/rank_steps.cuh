// A run of PageRank steps that the host only begins: scalars and the stop are on the device.
//
// Formula: as in pagerank.cu. `history` (n_kept, 4) int64 holds the sums that belong to each x, the first from `start`, in turn;
//   `state` is {next item, thread blocks done, steps made, stop: 1 converged, 2 wrong}. A step after the stop does nothing.
// Shapes: all vectors (n_rows), in the order of the format; the two z take turns, and z[n_rows] is 0 in both.
// Types: RANK float | double is of x; Z float of z, or, in exact fixed point, int64 for a pattern and double in units of 2^-62 for
//   values; WEIGHT unsigned | double. Float ranks with a float z are finished in float.
// Source: Page, Brin, Motwani, Winograd, The PageRank Citation Ranking, 1999.
#pragma once
#include "ranks.cuh"

template <typename A, typename B>
struct Computed {
    typedef double Type;
};
template <>
struct Computed<float, float> {
    typedef float Type;
};
typedef Computed<RANK, Z>::Type Real;

struct Run {
    RANK* x;
    const WEIGHT* weight;
    Z* z;
    const double* dangling;
    const double* personalization;
    int64 n_rows, z_stride, d_stride, p_stride;
    double alpha, product_unit, per_z_unit, threshold;
    int64 by_largest;  // the change is the largest of a row, not their sum
    int64* state;
    int64* history;
    int64 n_kept;
    __device__ __forceinline__ int64* sums(int64 step) const { return history + 4 * (step % n_kept); }
};

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

// Finishes rows of a step: load what is known before the product, then finish with the product.
struct StepRows {
    struct Loaded {
        RANK rank;
        WEIGHT weight;
    };
    const Run& run;
    Rest rest;
    Z* z_next;
    int64 own[4];
    __device__ __forceinline__ explicit StepRows(const Run& run)
        : run(run), rest(run, double(run.sums(run.state[2])[2]) / FIXED_POINT),
          z_next(run.z + (~run.state[2] & 1) * run.z_stride), own{0, 0, 0, 0} {}
    __device__ __forceinline__ const Z* z() const { return run.z + (run.state[2] & 1) * run.z_stride; }
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row], run.weight[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, double product) {
        const RANK rank = RANK(run.alpha * product + rest(row));
        run.x[row] = rank;
        const Real moved = Real(rank) - Real(old.rank), change = moved < 0 ? -moved : moved;
        finish_row<Real>(change, Real(rank), old.weight, Real(run.per_z_unit), z_next + row, own);
    }
    __device__ __forceinline__ void count_wrong() { ++own[3]; }
    // Ends the step; called by all threads of all thread blocks, the last of which judges.
    __device__ __forceinline__ void end() {
        const int64 made = run.state[2];
        int64* sums = run.sums(made + 1);
        add_sums(own, sums);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(reinterpret_cast<uint64*>(run.state + 1), 1ull) == gridDim.x - 1) {
            __threadfence();
            const double change = double(__ldcg(sums + (run.by_largest ? 1 : 0))) / CHANGE_POINT;
            const bool is_wrong = __ldcg(sums + 3) > 0 || run.sums(made)[3] > 0;
            for (int s = 0; s < 4; ++s) run.sums(made + 2)[s] = 0;
            run.state[0] = run.state[1] = 0;
            run.state[2] = made + 1;
            run.state[3] = is_wrong ? 2 : change < run.threshold ? 1 : 0;
        }
    }
};

// out[i] = |alpha (A z + m d) + (1 - alpha) p - x| of row i, and a bound on the rounding of the update and of z, and of the values
// if they were rounded; that of the products is for the caller to add. z is in fixed point, m is mass.
struct ResidualRows {
    struct Loaded {
        RANK rank;
    };
    const Run& run;
    Rest rest;
    double value_rounding;
    double* out;
    __device__ __forceinline__ const Z* z() const { return run.z; }
    __device__ __forceinline__ void count_wrong() const {}
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, double product) {
        const double scaled = run.alpha * product, rank = double(old.rank), other = rest(row);
        out[row] = fabs(scaled + other - rank) + 0x1p-53 * (8.0 * scaled + 4.0 * other + rank) + value_rounding * scaled;
    }
};

// The first z, and the sums that belong to the first x.
extern "C" __global__ void __launch_bounds__(THREADS)
start(Run run) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    int64 own[4] = {0, 0, 0, 0};
    if (row < run.n_rows)
        finish_row<Real>(Real(0), Real(run.x[row]), run.weight[row], Real(run.per_z_unit), run.z + row, own);
    add_sums(own, run.history);
}
