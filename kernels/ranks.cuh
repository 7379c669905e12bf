// Update of one row in a PageRank step, from its product, and the sums over rows.
//
// Formula: as in pagerank.cu. RELATIVE 1: the largest change is that of |x' - x| / x', which is 0 where x' is 0 and at most 2.
// Threads: THREADS per thread block, a multiple of 32; each thread adds rows to its own sums, which are added at the end.
// Deterministic: yes; sums are of integers.
// Source: Page, Brin, Motwani, Winograd, The PageRank Citation Ranking, 1999; the fixed point is this project's.
#pragma once

typedef long long int64;
typedef unsigned long long uint64;

#define FIXED_POINT 4611686018427387904.0   // 2^62
#define CHANGE_POINT 2305843009213693952.0  // 2^61

__device__ __forceinline__ void quantize(double value, float* place) { *place = float(value); }
__device__ __forceinline__ void quantize(double value, double* place) { *place = value; }
__device__ __forceinline__ void quantize(double value, int64* place) { *place = __double2ll_rn(value); }
__device__ __forceinline__ int64 round_up_or_down(float value) { return __float2ll_rn(value); }
__device__ __forceinline__ int64 round_up_or_down(double value) { return __double2ll_rn(value); }

// Return the change of a row for the maximum over the rows: absolute, or relative to the new rank.
template <typename Real>
__device__ __forceinline__ int64 measure_row(bool is_right, int64 moved, Real change, Real rank) {
#if RELATIVE
    if (!is_right || !(rank > 0)) return 0;
    const Real part = change / rank;
    return round_up_or_down((part < 2 ? part : Real(2)) * Real(CHANGE_POINT));
#else
    return moved;
#endif
}

// Compute the next z of a row, and add the row to the sums: |x' - x|, its maximum, x' where w = 0, and the number of invalid ranks.
// per_unit: units of z in 1, a power of 2. Computed in type Real.
template <typename Real, typename Weight>
__device__ __forceinline__ void finish_row(Real change, Real rank, Weight weight, Real per_unit, Z& z, int64 (&own)[4]) {
    const bool is_dangling = weight == 0;
    const Real ratio = (is_dangling ? Real(0) : Real(rank / weight)) * per_unit;
    const bool is_right = change <= 2 && rank >= 0 && rank <= 2 && ratio < Real(__int_as_float(0x7f800000));
    const int64 moved = is_right ? round_up_or_down(change * Real(CHANGE_POINT)) : 0;
    own[0] += moved;
    own[1] = max(own[1], measure_row(is_right, moved, change, rank));
    if (is_dangling && is_right) own[2] += round_up_or_down(rank * Real(FIXED_POINT));
    own[3] += !is_right;
    quantize(ratio, &z);
}

// Check a rank and its z: add the rank to own[0], in units of 2^-61, and, if the row is dangling, to own[2], in units of 2^-62; add 1 to
// own[1] if the rank is invalid, or if z is not null and differs from the z that `finish_row` computes.
template <typename Real, typename Weight>
__device__ __forceinline__ void check_row(Real rank, Weight weight, Real per_unit, const Z* z, uint64 (&own)[3]) {
    int64 sums[4] = {0, 0, 0, 0};
    Z made;
    finish_row(Real(0), rank, weight, per_unit, made, sums);
    const bool is_rank = rank >= 0 && rank < 2;
    own[0] += is_rank ? uint64(round_up_or_down(rank * Real(CHANGE_POINT))) : 0;
    own[1] += !is_rank || (z && *z != made);
    own[2] += is_rank ? uint64(sums[2]) : 0;
}

// Add the sums of the threads of a block to `found`.
__device__ __forceinline__ void add_found(uint64 (&own)[3], uint64* found) {
    for (int s = 0; s < 3; ++s) {
        for (int distance = 16; distance > 0; distance /= 2) own[s] += __shfl_down_sync(0xffffffffu, own[s], distance);
        if (threadIdx.x % 32 == 0 && own[s] != 0) atomicAdd(found + s, own[s]);
    }
}

// Add own of the threads of a block to sums: [1] by maximum, the others by addition. Sums of integers do not depend on the order.
__device__ __forceinline__ void add_sums(int64 (&own)[4], int64* sums) {
    __shared__ int64 all[4][THREADS / 32];
    for (int s = 0; s < 4; ++s) {
        for (int distance = 16; distance > 0; distance /= 2) {
            const int64 other = __shfl_down_sync(0xffffffffu, own[s], distance);
            own[s] = s == 1 ? max(own[s], other) : own[s] + other;
        }
        if (threadIdx.x % 32 == 0) all[s][threadIdx.x / 32] = own[s];
    }
    __syncthreads();
    if (threadIdx.x >= 4) return;
    int64 sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) sum = threadIdx.x == 1 ? max(sum, all[1][w]) : sum + all[threadIdx.x][w];
    if (threadIdx.x == 1)
        atomicMax(sums + 1, sum);
    else if (sum != 0)
        atomicAdd(reinterpret_cast<uint64*>(sums + threadIdx.x), uint64(sum));
}
