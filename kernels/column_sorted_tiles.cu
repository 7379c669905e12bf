// y = alpha A x + beta y for column-sorted-tiles: entries sorted by column, no two entries of a tile in the same row.
//
// Formula: as in csr_scalar.cu.
// Shapes: described in mgspmv/kernels/column_sorted_tiles.py. x is in the order of the format's columns. Item i is {block, first
//   tile, last tile + 1, slice}; the longest items come first. Place p is row rows[p], or a copy of a long row, where rows[p] < 0;
//   split row k has places split_places[2 k] .. split_places[2 k + 1].
// Threads: in column_sorted_tiles, one thread block per item. The sums, one per place of the block, are in shared memory; warps
//   take chunks in turn, and all warps synchronize between tiles, so that no two threads add to the same sum at the same time. A
//   block with one item and no copies stores its rows. Otherwise each item stores its sums in a slice, and `finish` adds the slices
//   of a block, with four threads per 16 bytes of sums. `add_copies` runs one thread block per split row. The thread blocks after
//   the items store the rows without entries.
// Deterministic: yes; a row is added in the order of tiles, slices and copies.
// Needs: sm_70; 63 KiB of shared memory.
// Source: this project's; entries of many rows sorted by column as in Lakhotia, Kannan, Prasanna, USENIX ATC 2018.
#include "types.cuh"

#define THREADS 512
#define RESIDENT 2  // thread blocks per multiprocessor: three would leave too few registers
#define WARPS (THREADS / 32)
#define LANE_ENTRIES (16 / int(sizeof(VALUE)))  // entries of a chunk per lane: 16 bytes of values
#define CHUNK (32 * LANE_ENTRIES)
#define EMPTY_ROWS 4096  // rows without entries per thread block
#define FINISH_THREADS 256
#define SLICE_LANES 4
#define PLACES (16 / int(sizeof(SUM)))
#define ROW_BITS 14
#define NO_ROW ((1u << ROW_BITS) - 1)

// Share of a chunk of one lane: its entries lane, lane + 32, ...
struct Part {
    alignas(16) VALUE values[LANE_ENTRIES];
    alignas(16) unsigned entries[LANE_ENTRIES];
    unsigned column;
};

// Load N elements as one word of 8 or 16 bytes, to which they are aligned.
template <typename T, int N>
__device__ __forceinline__ void load_once(const T* place, T* own) {
    if (N * sizeof(T) == 8) *reinterpret_cast<uint2*>(own) = LOAD_ONCE(reinterpret_cast<const uint2*>(place));
    else *reinterpret_cast<uint4*>(own) = LOAD_ONCE(reinterpret_cast<const uint4*>(place));
}

__device__ __forceinline__ void load_part(const unsigned* entries, const VALUE* values, const unsigned* columns, Part& part) {
    load_once<unsigned, LANE_ENTRIES>(entries, part.entries);
    if (!PATTERN) load_once<VALUE, LANE_ENTRIES>(values, part.values);
    part.column = __ldg(columns);
}

// Gather the elements of x of a part's entries; padding reads the column that its chunk is relative to.
__device__ __forceinline__ void gather(const Part& part, const VALUE* x, VALUE* taken) {
#pragma unroll
    for (int k = 0; k < LANE_ENTRIES; ++k) taken[k] = __ldg(x + (part.column + (part.entries[k] >> ROW_BITS)));
}

__device__ __forceinline__ void add_part(const Part& part, const VALUE* taken, SUM* sums) {
    SUM before[LANE_ENTRIES];
#pragma unroll
    for (int k = 0; k < LANE_ENTRIES; ++k) {
        const unsigned row = part.entries[k] & NO_ROW;
        if (row != NO_ROW) before[k] = sums[row];
    }
#pragma unroll
    for (int k = 0; k < LANE_ENTRIES; ++k) {
        const unsigned row = part.entries[k] & NO_ROW;
        if (row != NO_ROW) sums[row] = before[k] + contribute(part.values[k], taken[k]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
column_sorted_tiles(int64 n_items, const int64* __restrict__ items, const int64* __restrict__ tile_starts, int64 n_places, int64 n_empty, int height,
          const unsigned* __restrict__ entries, const unsigned* __restrict__ columns, const VALUE* __restrict__ values,
          const int* __restrict__ rows, const VALUE* __restrict__ x, SUM* y, SUM alpha, SUM beta, SUM* slices) {
    extern __shared__ double room[];
    SUM* sums = reinterpret_cast<SUM*>(room);
    if (blockIdx.x >= n_items) {
        const int64 first = (blockIdx.x - n_items) * EMPTY_ROWS;
        for (int64 k = first + threadIdx.x; k < min(first + EMPTY_ROWS, n_empty); k += THREADS)
            store_row(y, LOAD_ONCE(rows + n_places + k), alpha, 0, beta);
        return;
    }
    const int64* item = items + 4 * int64(blockIdx.x);
    const int64 first_place = item[0] * height, slice = item[3], begin = tile_starts[item[1]];
    const int64* ends = tile_starts + item[1] + 1;  // ends of the tiles
    const int n = int(min(int64(height), n_places - first_place)), n_tiles = int(item[2] - item[1]);
    const int n_chunks = int(ends[n_tiles - 1] - begin);
    int chunk = threadIdx.x / 32, tile = 0, tile_end = int(ends[0] - begin);
    int64 next_end = ends[min(1, n_tiles - 1)];  // prefetched one tile ahead
    entries += begin * CHUNK + threadIdx.x * LANE_ENTRIES;
    values += PATTERN ? 0 : begin * CHUNK + threadIdx.x * LANE_ENTRIES;
    columns += begin + chunk;
    // Software pipeline over three chunks: one is added, x is gathered for the next, and the one after that is loaded.
    Part part, next, last;
    VALUE taken[LANE_ENTRIES], taken_next[LANE_ENTRIES];
    if (chunk < n_chunks) load_part(entries, values, columns, part);
    if (chunk + WARPS < n_chunks) load_part(entries + WARPS * CHUNK, values + WARPS * CHUNK, columns + WARPS, next);
    for (int place = threadIdx.x; place < n; place += THREADS) sums[place] = 0;
    if (chunk < n_chunks) gather(part, x, taken);
    __syncthreads();
    for (; chunk < n_chunks; chunk += WARPS) {
        entries += WARPS * CHUNK, values += WARPS * CHUNK, columns += WARPS;
        if (chunk + 2 * WARPS < n_chunks) load_part(entries + WARPS * CHUNK, values + WARPS * CHUNK, columns + WARPS, last);
        if (chunk + WARPS < n_chunks) gather(next, x, taken_next);
        while (chunk >= tile_end) {
            __syncthreads();
            tile_end = int(next_end - begin);
            next_end = ends[min(++tile + 1, n_tiles - 1)];
        }
        add_part(part, taken, sums);
        part = next, next = last;
#pragma unroll
        for (int k = 0; k < LANE_ENTRIES; ++k) taken[k] = taken_next[k];
    }
    for (; tile < n_tiles; ++tile) __syncthreads();
    if (slice >= 0) {
        for (int place = threadIdx.x; place < n; place += THREADS) slices[slice * height + place] = sums[place];
    } else {
        for (int place = threadIdx.x; place < n; place += THREADS)
            store_row(y, LOAD_ONCE(rows + first_place + place), alpha, sums[place], beta);
    }
}

struct alignas(16) Sums {
    SUM of[PLACES];
};

// out[k] = x[order[k]].
extern "C" __global__ void __launch_bounds__(THREADS)
permute(int64 n, const int* __restrict__ order, const VALUE* __restrict__ x, VALUE* out) {
    const int64 k = int64(blockIdx.x) * THREADS + threadIdx.x;
    if (k < n) out[k] = __ldg(x + LOAD_ONCE(order + k));
}

// Add the slices of block blockIdx.y, PLACES places per thread. Thread l of SLICE_LANES adds slices l, l + SLICE_LANES, ...; then the
// threads' sums are added as a tree.
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
finish(int64 n_places, int height, const int64* __restrict__ slice_starts, const SUM* __restrict__ slices,
       const int* __restrict__ rows, SUM* copies, SUM* y, SUM alpha, SUM beta) {
    __shared__ Sums partial[SLICE_LANES][FINISH_THREADS / SLICE_LANES];
    const int column = threadIdx.x % (FINISH_THREADS / SLICE_LANES), lane = threadIdx.x / (FINISH_THREADS / SLICE_LANES);
    const int local = (blockIdx.x * (FINISH_THREADS / SLICE_LANES) + column) * PLACES;
    const int64 end = slice_starts[blockIdx.y + 1];
    Sums own = {};
    if (local < height) {
#pragma unroll 4
        for (int64 slice = slice_starts[blockIdx.y] + lane; slice < end; slice += SLICE_LANES) {
            const Sums more = *reinterpret_cast<const Sums*>(slices + slice * height + local);
            for (int k = 0; k < PLACES; ++k) own.of[k] += more.of[k];
        }
    }
    partial[lane][column] = own;
    for (int distance = SLICE_LANES / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (lane < distance)
            for (int k = 0; k < PLACES; ++k) partial[lane][column].of[k] += partial[lane + distance][column].of[k];
    }
    const int64 first = int64(blockIdx.y) * height + local;
    if (lane > 0 || local >= height) return;
    for (int k = 0; k < PLACES; ++k)
        if (first + k < n_places) {
            const int row = rows[first + k];
            if (row < 0) copies[first + k] = partial[0][column].of[k];
            else store_row(y, row, alpha, partial[0][column].of[k], beta);
        }
}

// Add the copies of a split row. Thread l of n adds copies l, l + n, ...; then the threads' sums are added as a tree.
extern "C" __global__ void __launch_bounds__(1024)
add_copies(const int* __restrict__ split_rows, const int64* __restrict__ split_places, const SUM* __restrict__ copies, SUM* y,
           SUM alpha, SUM beta) {
    __shared__ SUM partial[1024];
    const int64 end = split_places[2 * blockIdx.x + 1];
    SUM sum = 0;
#pragma unroll 4
    for (int64 place = split_places[2 * blockIdx.x] + threadIdx.x; place < end; place += blockDim.x) sum += __ldg(copies + place);
    partial[threadIdx.x] = sum;
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance) partial[threadIdx.x] += partial[threadIdx.x + distance];
    }
    if (threadIdx.x == 0) store_row(y, split_rows[blockIdx.x], alpha, partial[0], beta);
}
