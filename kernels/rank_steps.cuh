// A run of PageRank steps that the host only begins: scalars and the stop are on the device.
//
// Formula: as in pagerank.cu. `history` (n_kept, 4) int64 holds the sums that belong to each x, the first from `start`, in turn;
//   `state` is {next item, thread blocks done, steps made, stop: 1 converged, 2 wrong or given up}. A step after the stop does nothing.
// Shapes: vectors of the rows (n_rows), in the order of the format; two z (n_columns + 1) take turns, the last of each is 0.
//   The first n_sent rows are columns too. The rows of a device may be in pieces, of which each has a Run of its own, and of which
//   the last to be multiplied judges. Rows of one device of several have a slice of z, which ends with their sums, `shared`; the
//   slices are exchanged between the last `step` and `join`, which judges. Where all rows are here there is no `join`. Devices
//   that write into each other's memory do so in `step`, row by row, and `meet` then takes the place of exchange and `join`.
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
    const Z* read[2];  // z of even steps and of odd ones
    Z* write[2];       // the part of the next z that has these rows
    int64* shared[2];  // of the slices that even steps read and odd ones: the sums at their end; null where all rows are here
    const double* dangling;
    const double* personalization;
    int64 n_rows, n_sent, d_stride, p_stride;
    double alpha, product_unit, per_z_unit, threshold;
    int64 by_largest;  // the change is the largest of a row, not their sum
    int64 judges;      // whether a step of these rows ends the step of all
    int64* state;
    int64* history;
    int64 n_kept;
    int64 n_others;                // devices that get each next z of these rows as it is made
    Z* const* write_there[2];      // as `write`, in their memory
    __device__ __forceinline__ int64* sums(int64 step) const { return history + 4 * (step % n_kept); }
    // Where these rows add to the sums of x after so many steps.
    __device__ __forceinline__ int64* own_sums(int64 made) const { return shared[0] ? shared[made & 1] : sums(made); }
};

// Notes that so many steps were made, and whether the run stops; called by one thread when their sums are whole.
__device__ __forceinline__ void judge(const Run& run, int64 made) {
    const int64* sums = run.sums(made);
    const double change = double(__ldcg(sums + (run.by_largest ? 1 : 0))) / CHANGE_POINT;
    const bool is_first = made == 0, is_wrong = __ldcg(sums + 3) > 0 || (!is_first && run.sums(made - 1)[3] > 0);
    for (int s = 0; s < 4; ++s) run.sums(made + 1)[s] = 0;
    run.state[2] = made;
    run.state[3] = is_first ? 0 : is_wrong ? 2 : change < run.threshold ? 1 : 0;
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

// Finishes rows of a step: load what is known before the product, then finish with the product.
struct StepRows {
    struct Loaded {
        RANK rank;
        WEIGHT weight;
    };
    const Run& run;
    Rest rest;
    Z* z_next;
    Z* const* there;
    int64 own[4];
    __device__ __forceinline__ explicit StepRows(const Run& run)
        : run(run), rest(run, double(run.sums(run.state[2])[2]) / FIXED_POINT),
          z_next(run.write[run.state[2] & 1]), there(run.write_there[run.state[2] & 1]), own{0, 0, 0, 0} {}
    __device__ __forceinline__ const Z* z() const { return run.read[run.state[2] & 1]; }
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row], run.weight[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, double product) {
        const RANK rank = RANK(run.alpha * product + rest(row));
        run.x[row] = rank;
        const Real moved = Real(rank) - Real(old.rank), change = moved < 0 ? -moved : moved;
        Z next;
        finish_row<Real>(change, Real(rank), old.weight, Real(run.per_z_unit), next, own);
        if (row < run.n_sent) {
            z_next[row] = next;
#pragma unroll 1
            for (int k = 0; k < run.n_others; ++k) there[k][row] = next;
        }
    }
    __device__ __forceinline__ void count_wrong() { ++own[3]; }
    // Ends the step of these rows; called by all threads of all thread blocks.
    __device__ __forceinline__ void end() {
        const int64 made = run.state[2] + 1;
        add_sums(own, run.own_sums(made));
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(reinterpret_cast<uint64*>(run.state + 1), 1ull) == gridDim.x - 1) {
            __threadfence();
            run.state[0] = run.state[1] = 0;
            if (run.judges) judge(run, made);
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
    __device__ __forceinline__ const Z* z() const { return run.read[0]; }
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
    if (row < run.n_rows) {
        Z first;
        finish_row<Real>(Real(0), Real(run.x[row]), run.weight[row], Real(run.per_z_unit), first, own);
        if (row < run.n_sent) run.write[1][row] = first;
    }
    add_sums(own, run.own_sums(0));
}

// Looks at the ranks after the last step, and at the z that was made of them: see `check_row`.
extern "C" __global__ void __launch_bounds__(THREADS)
check_rows(Run run, uint64* found) {
    const int64 row = int64(blockIdx.x) * THREADS + threadIdx.x;
    uint64 own[3] = {0, 0, 0};
    if (row < run.n_rows) {
        const Z* made = run.write[(run.state[2] + 1) & 1];
        check_row<Real>(Real(run.x[row]), run.weight[row], Real(run.per_z_unit), row < run.n_sent ? made + row : nullptr, own);
    }
    add_found(own, found);
}

// Adds the sums that the slices of all devices brought, and ends the step; called by all threads, 4 or more, of the only block.
__device__ __forceinline__ void add_slices(const Run& run, int64 made, int64 n_devices, const int64* tails) {
    const int s = threadIdx.x;
    if (s < 4) {
        int64 sum = 0;
        for (int64 d = 0; d < n_devices; ++d) {
            const int64 other = __ldcg(reinterpret_cast<const int64*>(run.read[made & 1] + tails[d]) + s);
            sum = s == 1 ? max(sum, other) : sum + other;
        }
        run.sums(made)[s] = sum;
        run.own_sums(made + 1)[s] = 0;
    }
    __threadfence();
    __syncthreads();
    if (s == 0) judge(run, made);
}

// Ends a step whose slices were exchanged, the first time those of the first x.
extern "C" __global__ void join(Run run, int64 n_devices, const int64* tails) {
    if (!run.state[3]) add_slices(run, run.state[2] + 1, n_devices, tails);
}

// Where devices that write into each other's memory meet.
struct Meeting {
    int64 rank, round;
    const volatile int64* flags;      // of this device: the last round in which each of the others came
    volatile int64* const* flag_of;   // on each device, the flag of this one
    volatile int64* const* sums_of[2];  // on each device, the sums of this one in the slices of even z and of odd ones
    const volatile int* is_given_up;  // on the host
};

// Ends a step whose slices every device wrote into the memory of all: tells the others so, with the sums of these rows, and waits
// until they did. One block, of a thread for each device or more.
extern "C" __global__ void meet(Run run, int64 n_devices, const int64* tails, Meeting meeting) {
    if (run.state[3]) return;
    const int64 made = run.state[2] + 1;
    const int other = threadIdx.x;
    int is_given_up = 0;
    if (other < n_devices && other != meeting.rank) {
        volatile int64* place = meeting.sums_of[made & 1][other];
        for (int s = 0; s < 4; ++s) place[s] = __ldcg(run.own_sums(made) + s);
        __threadfence_system();
        *meeting.flag_of[other] = meeting.round;
        for (unsigned looks = 1; meeting.flags[other] < meeting.round && !is_given_up; ++looks)
            if (looks % 64 == 0) is_given_up = *meeting.is_given_up;
        __threadfence_system();
    }
    if (!__syncthreads_or(is_given_up))
        add_slices(run, made, n_devices, tails);
    else if (threadIdx.x == 0)
        run.state[3] = 2;
}
