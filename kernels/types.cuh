// The types of one specialisation and what all kernels do with them.
//
// A module is compiled for one specialisation, by -D:
//   VALUE    float | double       the matrix' values, which data points to (a pattern has none)
//   X        default VALUE        x
//   SUM      default VALUE        sums, alpha, beta and y; int64 for fixed point
//   INDEX    int | int64          column indices
//   OFFSET   int | int64          row pointers: int while there are fewer than 2^31 nonzeros
//   PATTERN  0 | 1                1: every entry is 1 and data is not read
//   EXACT    default 0            1: SUM is int64 and each product is rounded to it once, to nearest even
// It is compiled without contraction (--fmad=false), so that a product has the bits of its CPU twin.
#pragma once

typedef long long int64;

#ifndef X
#define X VALUE
#endif
#ifndef SUM
#define SUM VALUE
#endif
#ifndef EXACT
#define EXACT 0
#endif

#if defined(__HIP_PLATFORM_AMD__)
#define WAVEFRONT 64
#define SHIFT_DOWN(value, distance, width) __shfl_down(value, distance, width)
#define SHIFT_UP(value, distance) __shfl_up(value, distance)
#define SYNC_LANES() __builtin_amdgcn_wave_barrier()
#define LOAD_ONCE(place) __builtin_nontemporal_load(place)
#else
#define WAVEFRONT 32
#define SHIFT_DOWN(value, distance, width) __shfl_down_sync(0xffffffffu, value, distance, width)
#define SHIFT_UP(value, distance) __shfl_up_sync(0xffffffffu, value, distance)
#define SYNC_LANES() __syncwarp()
// A coalesced stream that is read once should not push x out of the caches.
#define LOAD_ONCE(place) __ldcs(place)
#endif

// What an entry of value `value` adds to the sum of its row.
__device__ __forceinline__ SUM contribute(VALUE value, X xj) {
#if PATTERN
    return SUM(xj);
#elif EXACT
    return __double2ll_rn(value * xj);
#else
    return SUM(value * xj);
#endif
}

// The value of entry k, read once in a coalesced stream; nothing is read of a pattern.
__device__ __forceinline__ VALUE stream_value(const VALUE* data, int64 k) {
    return PATTERN ? VALUE(1) : LOAD_ONCE(data + k);
}

// The value of entry k; nothing is read of a pattern.
__device__ __forceinline__ VALUE read_value(const VALUE* data, int64 k) { return PATTERN ? VALUE(1) : __ldg(data + k); }

// y[row] = alpha sum + beta y[row]; y is not read when beta is 0.
__device__ __forceinline__ void store_row(SUM* y, int64 row, SUM alpha, SUM sum, SUM beta) {
    y[row] = beta == 0 ? alpha * sum : alpha * sum + beta * y[row];
}
