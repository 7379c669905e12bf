// Types of one specialization, and the functions on entries and rows that the product kernels share.
//
// A module is compiled for one specialization, by -D:
//   VALUE    float | double       type of the matrix values in data (a pattern has none)
//   X        default VALUE        type of x
//   SUM      default VALUE        type of sums, alpha, beta and y; int64 for fixed point
//   INDEX    int | int64          type of column indices
//   OFFSET   int | int64          type of row pointers: int for fewer than 2^31 nonzeros
//   PATTERN  0 | 1                1: every entry is 1 and data is not read
//   EXACT    default 0            1: SUM is int64 and each product is rounded to it once, to nearest even
// It is compiled without contraction (--fmad=false), so that products are bit-identical to the CPU reference.
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
#define FROM_LANE(value, lane) __shfl(value, lane, 32)
#define BALLOT(predicate) unsigned(__ballot(predicate) >> (threadIdx.x & 32))
#define SYNC_LANES() __builtin_amdgcn_wave_barrier()
#define HIDE(pointer)
#define LOAD_ONCE(place) __builtin_nontemporal_load(place)
#else
#define WAVEFRONT 32
#define SHIFT_DOWN(value, distance, width) __shfl_down_sync(0xffffffffu, value, distance, width)
#define SHIFT_UP(value, distance) __shfl_up_sync(0xffffffffu, value, distance)
#define FROM_LANE(value, lane) __shfl_sync(0xffffffffu, value, lane)
#define BALLOT(predicate) __ballot_sync(0xffffffffu, predicate)
#define SYNC_LANES() __syncwarp()
// Keep the compiler from taking a pointer apart again.
#define HIDE(pointer) asm("" : "+l"(pointer))
// A coalesced stream that is read once should not push x out of the caches.
#define LOAD_ONCE(place) __ldcs(place)
#endif

// Return the term that an entry adds to the sum of its row.
__device__ __forceinline__ SUM contribute(VALUE value, X xj) {
#if PATTERN
    return SUM(xj);
#elif EXACT
    return __double2ll_rn(value * xj);
#else
    return SUM(value * xj);
#endif
}

// Return the value of entry k, read once in a coalesced stream; 1 for a pattern, without a read.
__device__ __forceinline__ VALUE stream_value(const VALUE* data, int64 k) {
    return PATTERN ? VALUE(1) : LOAD_ONCE(data + k);
}

// Return the value of entry k; 1 for a pattern, without a read.
__device__ __forceinline__ VALUE read_value(const VALUE* data, int64 k) { return PATTERN ? VALUE(1) : __ldg(data + k); }

// y[row] = alpha sum + beta y[row]; y is not read when beta is 0.
__device__ __forceinline__ void store_row(SUM* y, int64 row, SUM alpha, SUM sum, SUM beta) {
    y[row] = beta == 0 ? alpha * sum : alpha * sum + beta * y[row];
}
