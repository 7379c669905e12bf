// Several PageRank steps without the host: scalars and the stop criterion are on the device.
//
// Formula: as in pagerank.cu. `history` (n_kept, 4) int64 is a ring buffer of the sums of each x, beginning with those from `start`.
//   `state` is {next item, thread blocks done, steps made, stop: 0 no, 1 converged, 2 invalid ranks or given up}. After the stop,
//   `step` does nothing.
// Shapes: vectors of the rows (n_rows), in the order of the format. Two z (n_columns + 1) are read and written in turn; the last
//   element of each is 0. The first n_sent rows are also columns. If the rows of a device are in several pieces, each piece has a
//   Run, and the last piece checks the stop criterion. If there are several devices, each writes a slice of z, which ends with the
//   sums over its rows (`shared`); slices are exchanged between the last `step` and `join`, which checks the stop criterion. On one
//   device there is no `join`. Devices that can write to each other's memory send z in `step`, row by row; `meet` then replaces the
//   exchange and `join`.
// Types: RANK float | double is the type of x; Z that of z: float or, in exact fixed point, int64 for a pattern and double in units
//   of 2^-62 for values; WEIGHT unsigned char | unsigned | double. If ranks and z are float, rows are finished in float.
// Threads: of `start` and `check_rows`, which take rows in turn, as many as run at a time, as each thread block adds to the same sums;
//   of `step`, as in the file that includes this one.
// Deterministic: yes; sums are of integers.
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
    const Z* read[2];  // z that even and odd steps read
    Z* write[2];       // slice of the next z for these rows, in even and odd steps
    int64* shared[2];  // sums at the end of the slices that even and odd steps read; null on one device
    const double* dangling;
    const double* personalization;
    int64 n_rows, n_sent, d_stride, p_stride;
    double alpha, product_unit, per_z_unit, threshold;
    int64 by_largest;  // the change is the maximum over the rows, not the sum
    int64 judges;      // the step of these rows completes the step, so that it checks the stop criterion
    int64* state;
    int64* history;
    int64 n_kept;
    int64 n_others;                // devices that z is sent to row by row
    Z* const* write_there[2];      // as `write`, in the memory of those devices
    __device__ __forceinline__ int64* sums(int64 step) const { return history + 4 * (step % n_kept); }
    // Sums of x after `made` steps, to which these rows are added.
    __device__ __forceinline__ int64* own_sums(int64 made) const { return shared[0] ? shared[made & 1] : sums(made); }
};

// Return value z, rounded once: to a multiple of 1 / scale for float, to an integer for exact fixed point.
__device__ __forceinline__ uint64 round_product(VALUE value, float z, float scale, bool& is_right) {
    const float scaled = (PATTERN ? z : float(value * z)) * scale;
    is_right &= scaled < 9223372036854775808.0f;
    return __float2ull_rn(scaled);
}
__device__ __forceinline__ uint64 round_product(VALUE, int64 z, float, bool&) { return uint64(z); }
__device__ __forceinline__ uint64 round_product(VALUE value, double z, float, bool&) { return uint64(__double2ll_rn(value * z)); }

// Record that `made` steps are complete, and whether the run stops; called by one thread once the sums of the last step are complete.
__device__ __forceinline__ void judge(const Run& run, int64 made) {
    const int64* sums = run.sums(made);
    const double change = double(__ldcg(sums + (run.by_largest ? 1 : 0))) / CHANGE_POINT;
    const bool is_first = made == 0, is_wrong = __ldcg(sums + 3) > 0 || (!is_first && run.sums(made - 1)[3] > 0);
    for (int s = 0; s < 4; ++s) run.sums(made + 1)[s] = 0;
    run.state[2] = made;
    run.state[3] = is_first ? 0 : is_wrong ? 2 : change < run.threshold ? 1 : 0;
}

// Term alpha m d + (1 - alpha) p of a row; computed once if it is the same for all rows.
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

// Rows of a step: `load` prefetches the inputs that do not depend on the product, `finish` updates the row from the product.
struct StepRows {
    struct Loaded {
        RANK rank;
        WEIGHT weight;
    };
    // What all rows need, in shared memory, so that it takes no registers while products are added.
    struct Common {
        Rest rest;
        Z* z_next;
        Z* const* there;
    };
    const Run& run;
    Common* common;
    int64 own[4];
    // Called by all threads of a thread block.
    __device__ __forceinline__ explicit StepRows(const Run& run) : run(run), own{0, 0, 0, 0} {
        __shared__ double room[(sizeof(Common) + 7) / 8];
        common = reinterpret_cast<Common*>(room);
        const int64 made = run.state[2];
        if (threadIdx.x == 0)
            *common = {Rest(run, double(run.sums(made)[2]) / FIXED_POINT), run.write[made & 1], run.write_there[made & 1]};
        __syncthreads();
    }
    __device__ __forceinline__ const Z* z() const { return run.read[run.state[2] & 1]; }
    __device__ __forceinline__ Loaded load(int64 row) const { return {run.x[row], run.weight[row]}; }
    __device__ __forceinline__ void finish(int64 row, Loaded old, double product) {
        const RANK rank = RANK(run.alpha * product + common->rest(row));
        run.x[row] = rank;
        const Real moved = Real(rank) - Real(old.rank), change = moved < 0 ? -moved : moved;
        Z next;
        finish_row<Real>(change, Real(rank), old.weight, Real(run.per_z_unit), next, own);
        if (row < run.n_sent) {
            common->z_next[row] = next;
#pragma unroll 1
            for (int k = 0; k < run.n_others; ++k) common->there[k][row] = next;
        }
    }
    __device__ __forceinline__ void count_wrong() { ++own[3]; }
    // End the step of these rows; called by all threads of all thread blocks. The last thread block to arrive resets the counters; the
        // fences make the sums of all thread blocks visible to it.
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

// out[i] = |alpha (A z + m d) + (1 - alpha) p - x| of row i, plus a bound on the rounding error of the update, of z and of rounded
// values; the caller adds the bound for the products. z is in fixed point, m is mass.
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

// Compute the first z, and the sums of the first x, which is the same in all rows if `first_x` is not null.
extern "C" __global__ void __launch_bounds__(THREADS)
start(Run run, const RANK* first_x) {
    int64 own[4] = {0, 0, 0, 0};
    for (int64 row = int64(blockIdx.x) * THREADS + threadIdx.x; row < run.n_rows; row += int64(gridDim.x) * THREADS) {
        Z first;
        if (first_x) run.x[row] = *first_x;
        finish_row<Real>(Real(0), Real(run.x[row]), run.weight[row], Real(run.per_z_unit), first, own);
        if (row < run.n_sent) run.write[1][row] = first;
    }
    add_sums(own, run.own_sums(0));
}

// Check the ranks after the last step and the z that was computed from them: see `check_row`.
extern "C" __global__ void __launch_bounds__(THREADS)
check_rows(Run run, uint64* found) {
    uint64 own[3] = {0, 0, 0};
    for (int64 row = int64(blockIdx.x) * THREADS + threadIdx.x; row < run.n_rows; row += int64(gridDim.x) * THREADS) {
        const Z* made = run.write[(run.state[2] + 1) & 1];
        check_row<Real>(Real(run.x[row]), run.weight[row], Real(run.per_z_unit), row < run.n_sent ? made + row : nullptr, own);
    }
    add_found(own, found);
}

// Add the sums in the slices of all devices, and end the step; called by all threads, at least 4, of a single thread block.
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

// End a step after the exchange of the slices; the first call is for those of the first x.
extern "C" __global__ void join(Run run, int64 n_devices, const int64* tails) {
    if (!run.state[3]) add_slices(run, run.state[2] + 1, n_devices, tails);
}

// Barrier of devices that write to each other's memory.
struct Meeting {
    int64 rank, round;
    const volatile int64* flags;      // on this device: the last round in which each other device arrived
    volatile int64* const* flag_of;   // on each other device: the flag of this device
    volatile int64* const* sums_of[2];  // on each other device: the sums of this device in even and odd z
    const volatile int* is_given_up;  // in host memory, so that the host can end the wait
};

// End a step in which every device wrote its slice to the memory of the others: send them the sums of these rows, then a flag, and
// wait for theirs. One thread block with at least one thread per device. The first fence orders slice and sums before the flag.
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
