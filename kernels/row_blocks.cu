// Makes row blocks of CSR: mgspmv/kernels/row_blocks.py says what they are, rank_blocks.cu reads them.
//
// Shapes: CSR comes in pieces of rows, which are taken in the order of their places: row q of that order has place places[q]
//   and the entries row_starts[q] .. row_starts[q + 1] of that order, which are entries jumps[q] + k of the piece's CSR. Block b
//   has the rows of places b height .. (b + 1) height; cell cell_starts[b] + w holds its entries in the 2^shifts[b] columns from
//   w 2^shifts[b] on, each counted by a word of shared memory.
// Threads: in count_cells and place_entries a thread block takes ENTRIES entries of one block (jobs job_starts[b] .. b + 1, from
//   row first_rows[b] on) and asks the counter of each cell once. In sort_tiles a thread block takes TILE entries of a cell.
// Deterministic: which entries a cell has, yes; their order in it, no. Sums over them are sums of integers.
// Needs: sm_70; 64 KiB of shared memory.
// Source: this project's; windows of columns that a cache holds: Lakhotia, Kannan, Prasanna, USENIX ATC 2018.
typedef long long int64;

#define THREADS 1024
#define ENTRIES_PER_THREAD 7  // odd, so that neighbours scanning their own hit different banks
#define ENTRIES (THREADS * ENTRIES_PER_THREAD)
#define ROW_BITS 15
#define CHUNK 128
#define SORT_THREADS 512
#define SORTED_PER_THREAD 16
#define TILE (SORT_THREADS * SORTED_PER_THREAD)
#define BUCKET_BITS 11
#define BUCKETS (1 << BUCKET_BITS)
#define FULL 0xffffffffu

// The last of starts[0] .. starts[n - 1], which ascend from 0, that is at most `place`.
__device__ __forceinline__ int64 find_last(const int64* starts, int64 n, int64 place) {
    int64 low = 0, high = n;
    while (high - low > 1) {
        const int64 middle = (low + high) / 2;
        if (starts[middle] <= place) low = middle;
        else high = middle;
    }
    return low;
}

// Replaces each of the ENTRIES values by the largest up to it.
__device__ __forceinline__ void scan_max(int* values) {
    __shared__ int warp_max[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int* own = values + threadIdx.x * ENTRIES_PER_THREAD;
    for (int k = 1; k < ENTRIES_PER_THREAD; ++k) own[k] = max(own[k], own[k - 1]);
    int largest = own[ENTRIES_PER_THREAD - 1];
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(FULL, largest, distance);
        if (lane >= distance) largest = max(largest, before);
    }
    if (lane == 31) warp_max[warp] = largest;
    int carried = __shfl_up_sync(FULL, largest, 1);
    if (lane == 0) carried = 0;
    __syncthreads();
    for (int w = 0; w < warp; ++w) carried = max(carried, warp_max[w]);
    for (int k = 0; k < ENTRIES_PER_THREAD; ++k) own[k] = max(own[k], carried);
}

template <bool PLACE>
__device__ __forceinline__ void
take_entries(int n_blocks, const int64* job_starts, const int64* first_rows, const int64* row_starts, const int64* jumps,
             const int* places, const INDEX* __restrict__ indices, const VALUE* data, const INDEX* __restrict__ column_places,
             int height, const int* shifts, const int64* cell_starts, unsigned* counters, const int64* chunk_starts,
             unsigned* entries, VALUE* values) {
    extern __shared__ int rows[];  // ENTRIES, then a counter for each window of the block
    unsigned* windows = reinterpret_cast<unsigned*>(rows + ENTRIES);
    __shared__ int64 shared_block, bounds[2];
    if (threadIdx.x == 0) shared_block = find_last(job_starts, n_blocks, blockIdx.x);
    for (int k = threadIdx.x; k < ENTRIES; k += THREADS) rows[k] = 0;
    __syncthreads();
    const int64 block = shared_block, begin_row = first_rows[block], n_rows = first_rows[block + 1] - begin_row;
    const int64 begin = row_starts[begin_row] + (blockIdx.x - job_starts[block]) * ENTRIES;
    const int n = int(min(int64(ENTRIES), row_starts[begin_row + n_rows] - begin)), shift = shifts[block];
    const int64 cell = cell_starts[block];
    const int n_windows = int(cell_starts[block + 1] - cell);
    for (int w = threadIdx.x; w < n_windows; w += THREADS) windows[w] = 0;
    if (threadIdx.x < 2)
        bounds[threadIdx.x] = begin_row + find_last(row_starts + begin_row, n_rows, threadIdx.x ? begin + n - 1 : begin);
    __syncthreads();
    const int64 first_row = bounds[0];
    for (int64 row = first_row + 1 + threadIdx.x; row <= bounds[1]; row += THREADS)
        atomicMax(rows + (row_starts[row] - begin), int(row - first_row));
    __syncthreads();
    scan_max(rows);
    __syncthreads();
    unsigned columns[ENTRIES_PER_THREAD];
#pragma unroll
    for (int i = 0; i < ENTRIES_PER_THREAD; ++i) {
        const int k = i * THREADS + threadIdx.x;
        if (k < n) {
            const INDEX source = __ldcs(indices + jumps[first_row + rows[k]] + begin + k);
            columns[i] = unsigned(column_places ? __ldg(column_places + source) : source);
            atomicAdd(windows + (columns[i] >> shift), 1u);
        }
    }
    __syncthreads();
    for (int w = threadIdx.x; w < n_windows; w += THREADS) {
        const unsigned count = windows[w];
        if (count) windows[w] = atomicAdd(counters + cell + w, count);
    }
    if (!PLACE) return;
    __syncthreads();
    const int64 origin = chunk_starts[cell] * CHUNK;
#pragma unroll
    for (int i = 0; i < ENTRIES_PER_THREAD; ++i) {
        const int k = i * THREADS + threadIdx.x;
        if (k < n) {
            const int64 row = first_row + rows[k], slot = origin + atomicAdd(windows + (columns[i] >> shift), 1u);
            entries[slot] = (columns[i] & ((1u << shift) - 1)) << ROW_BITS | unsigned(places[row] - block * height);
            if (!PATTERN) values[slot] = data[jumps[row] + begin + k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
count_cells(int n_blocks, const int64* job_starts, const int64* first_rows, const int64* row_starts, const int64* jumps,
            const int* places, const INDEX* indices, const INDEX* column_places, int height, const int* shifts,
            const int64* cell_starts, unsigned* counters) {
    take_entries<false>(n_blocks, job_starts, first_rows, row_starts, jumps, places, indices, nullptr, column_places, height,
                        shifts, cell_starts, counters, nullptr, nullptr, nullptr);
}

// counters[c]: the slot after the last one taken of cell c, counted from the first slot of its block.
extern "C" __global__ void __launch_bounds__(THREADS)
place_entries(int n_blocks, const int64* job_starts, const int64* first_rows, const int64* row_starts, const int64* jumps,
              const int* places, const INDEX* indices, const VALUE* data, const INDEX* column_places, int height,
              const int* shifts, const int64* cell_starts, unsigned* counters, const int64* chunk_starts, unsigned* entries,
              VALUE* values) {
    take_entries<true>(n_blocks, job_starts, first_rows, row_starts, jumps, places, indices, data, column_places, height,
                       shifts, cell_starts, counters, chunk_starts, entries, values);
}

// Sorts each tile of a cell by column, to 2^BUCKET_BITS parts of the cell's window; fills the cell's last chunk up with entries
// of the row `height`, which is none; and lays each chunk out so that a warp which reads four neighbouring entries a lane has
// 32 neighbours in sorted order at a time.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
sort_tiles(int64 n_cells, const int64* tile_starts, const int64* chunk_starts, const unsigned* counts, int n_blocks,
           const int64* cell_starts, const int* shifts, int height, unsigned* entries, VALUE* values, unsigned* chunk_columns) {
    extern __shared__ double room[];  // TILE entries, or values
    __shared__ int positions[BUCKETS], warp_sums[SORT_THREADS / 32];
    __shared__ int64 shared_cell, shared_block;
    if (threadIdx.x == 0) {
        shared_cell = find_last(tile_starts, n_cells, blockIdx.x);
        shared_block = find_last(cell_starts, n_blocks, shared_cell);
    }
    for (int b = threadIdx.x; b < BUCKETS; b += SORT_THREADS) positions[b] = 0;
    __syncthreads();
    const int64 cell = shared_cell, block = shared_block;
    const int bits = shifts[block], shift = ROW_BITS + max(0, bits - BUCKET_BITS);
    const int64 begin = (int64(blockIdx.x) - tile_starts[cell]) * TILE, first = chunk_starts[cell] * CHUNK + begin;
    const int n = int(min(int64(TILE), int64(counts[cell]) - begin)), padded = (n + CHUNK - 1) / CHUNK * CHUNK;
    unsigned own[SORTED_PER_THREAD];
    int target[SORTED_PER_THREAD];
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i) {
        const int k = i * SORT_THREADS + threadIdx.x;
        if (k < n) {
            own[i] = entries[first + k];
            atomicAdd(positions + (own[i] >> shift), 1);
        }
    }
    __syncthreads();
    int sizes[BUCKETS / SORT_THREADS], sum = 0;
    for (int i = 0; i < BUCKETS / SORT_THREADS; ++i) sum += sizes[i] = positions[threadIdx.x * (BUCKETS / SORT_THREADS) + i];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int scanned = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(FULL, scanned, distance);
        if (lane >= distance) scanned += before;
    }
    if (lane == 31) warp_sums[warp] = scanned;
    __syncthreads();
    int before = scanned - sum;
    for (int w = 0; w < warp; ++w) before += warp_sums[w];
    for (int i = 0; i < BUCKETS / SORT_THREADS; ++i) {
        positions[threadIdx.x * (BUCKETS / SORT_THREADS) + i] = before;
        before += sizes[i];
    }
    __syncthreads();
    unsigned* sorted = reinterpret_cast<unsigned*>(room);
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i)
        if (i * SORT_THREADS + threadIdx.x < n) {
            target[i] = atomicAdd(positions + (own[i] >> shift), 1);
            sorted[target[i]] = own[i];
        }
    __syncthreads();
    for (int k = threadIdx.x; k < padded; k += SORT_THREADS) {
        const int from = k / CHUNK * CHUNK + k % 4 * 32 + k % CHUNK / 4;
        entries[first + k] = from < n ? sorted[from] : unsigned(height);
        if (k % CHUNK == 0) chunk_columns[(first + k) / CHUNK] = unsigned(cell - cell_starts[block]) << bits;
    }
    if (PATTERN) return;
    VALUE own_values[SORTED_PER_THREAD];
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i) {
        const int k = i * SORT_THREADS + threadIdx.x;
        if (k < n) own_values[i] = values[first + k];
    }
    __syncthreads();
    VALUE* sorted_values = reinterpret_cast<VALUE*>(room);
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i)
        if (i * SORT_THREADS + threadIdx.x < n) sorted_values[target[i]] = own_values[i];
    __syncthreads();
    for (int k = threadIdx.x; k < padded; k += SORT_THREADS) {
        const int from = k / CHUNK * CHUNK + k % 4 * 32 + k % CHUNK / 4;
        values[first + k] = from < n ? sorted_values[from] : VALUE(0);
    }
}
