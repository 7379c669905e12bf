// Build the layout column-sorted-blocks from CSR; described in mgspmv/kernels/column_sorted_blocks.py, read by rank_blocks.cu.
//
// Formula: none; each entry (row, column, value) of CSR is written to a slot of its block's cell.
// Shapes: CSR is processed in pieces of rows, sorted by place. Row q of a piece in that order has place places[q] and entries
//   row_starts[q] .. row_starts[q + 1]; entry k of these is entry jumps[q] + k of the piece's CSR. Block b has the rows at places
//   b height .. (b + 1) height. Cell cell_starts[b] + w holds the entries of block b in the 2^shifts[b] columns from w 2^shifts[b]
//   on; each cell of a block is counted in one word of shared memory. A cell of fewer than `least` entries is binned if the block
//   and all later ones have windows of 2^WINDOW_BITS columns, and these cells begin at first_bin: it has no chunks
//   but octets, whose local rows are in the order of blocks, and columns in the order of windows (see mgspmv/kernels/bins.py).
// Threads: in cut_jobs, one per job; in count_cells and place_entries, one thread block per job: entries begins[j] .. ends[j] (at
//   most ENTRIES) of block blocks[j], the first of which is in row rows[j]. It updates the global counter of each cell once. In
//   cut_cells, each thread block processes an equal share of the cells; in sort_tiles, one tile of a cell; in survey, one row per
//   thread at a time; in measure_rows and start_rows, ROWS_MEASURED rows; in key_rows and place_rows, PART_ROWS rows; in scan_keys,
//   one key.
//   count_cells stores the places of the columns in `found` for place_entries, unless `found` is null.
// Deterministic: the set of entries of a cell, yes; their order in the cell, no. Their sums are sums of integers, which do not
//   depend on the order.
// Needs: sm_70; 60 or 92 KiB of shared memory, depending on ENTRIES_PER_THREAD.
// Source: this project's; column windows that fit in a cache as in Lakhotia, Kannan, Prasanna, USENIX ATC 2018.
typedef long long int64;

#define THREADS 1024
#define AT_ONCE (ENTRIES_PER_THREAD % 5 ? ENTRIES_PER_THREAD : 5)  // entries of a thread whose loads do not wait for each other
#define ENTRIES (THREADS * ENTRIES_PER_THREAD)  // ENTRIES_PER_THREAD is odd, so that scanning threads hit different banks
#define ROW_BITS 15
#define CHUNK 128
#define OCTET 8
#define WINDOW_BITS 14
#define RATES 7
#define KEPT_SECTORS 4400.0f  // in the L1 cache of an H100, which the sums of a block share
#define SORT_THREADS 512
#define SORTED_PER_THREAD 16
#define TILE (SORT_THREADS * SORTED_PER_THREAD)
#define BUCKET_BITS 11
#define BUCKETS (1 << BUCKET_BITS)
#define COUNT(n, size) (((n) + int64(size) - 1) / (size))  // parts of `size` in n, rounded up
#define KEYS 256  // of rows: a class of lengths, for columns and for others
#define LENGTH_CLASSES (KEYS / 2)
#define PLACE_THREADS 96
#define ROWS_PER_THREAD 32
#define PART_ROWS (PLACE_THREADS * ROWS_PER_THREAD)
#define ROWS_AT_ONCE 4
#define ROWS_MEASURED (ROWS_AT_ONCE * THREADS)
#define COUNTS_STRIDE (PLACE_THREADS + 2)  // an odd number of words, so that threads with different keys use different banks
#define BINNED 0x80000000u
#ifndef MOST_SLOTS
#define MOST_SLOTS BINNED  // slots of a block from which they are not counted from its first one, as a word could not hold their number
#endif
#define FULL 0xffffffffu

// Return the largest value of a warp in all of its lanes.
__device__ __forceinline__ int find_largest(int value) {
    for (int distance = 16; distance > 0; distance /= 2) value = max(value, __shfl_xor_sync(FULL, value, distance));
    return value;
}

// Replace each of the ENTRIES values by the maximum of the values up to it.
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

// Expected sectors of a window, of z of 4 (0) or 8 (1) bytes, that n entries read in this many tiles.
__device__ __forceinline__ float count_sectors(unsigned n, int64 n_tiles, int is_double) {
    const float all = float(n_tiles * ((1 << WINDOW_BITS) * (4 << is_double) / 32));
    return all * (1.0f - expf(-float(n) / all));
}

// Sectors read where those of the dense cells are `held` in all, of which KEPT_SECTORS stay in the L1 cache from tile to tile.
__device__ __forceinline__ float keep_some(float once, float each_time, float held) {
    return once + (1.0f - fminf(1.0f, KEPT_SECTORS / held)) * (each_time - once);
}

struct Jobs {
    const int* blocks;
    const int64 *begins, *ends, *rows;
    int64 n_rows;
    const int64* row_starts;
    const int64* jumps;  // null if places are in the order of CSR
    const int* places;   // null if row q has place q
};

struct Cells {
    const int* column_places;
    int64 height;
    const int* shifts;
    const int64* starts;
    int64 first_bin, least;
};

// Binned cells; see mgspmv/kernels/bins.py.
struct Bins {
    const unsigned* counts;     // entries of each cell from first_bin on
    const unsigned* by_block;   // first octet of each of these in the order of blocks
    const unsigned* by_window;  // first octet of each of these in the order of windows
    unsigned short* rows;
    unsigned short* columns;
    unsigned* places;
    VALUE* values;
    int64 unit;                 // entries that those of a cell are padded to a multiple of
};

template <bool PLACE>
__device__ __forceinline__ void
take_entries(const Jobs& jobs, const Cells& cells, const int* __restrict__ indices, int* found, const VALUE* data,
             unsigned* counters, const int64* chunk_starts, unsigned* entries, VALUE* values, const Bins& bins) {
    extern __shared__ int rows[];  // ENTRIES, then a counter for each window of the block
    unsigned* windows = reinterpret_cast<unsigned*>(rows + ENTRIES);
    const int block = jobs.blocks[blockIdx.x];
    const int64 begin = jobs.begins[blockIdx.x], end = jobs.ends[blockIdx.x], first_row = jobs.rows[blockIdx.x];
    const int64 cell = cells.starts[block];
    const int n = int(end - begin), shift = cells.shifts[block], n_windows = int(cells.starts[block + 1] - cell);
    for (int k = threadIdx.x; k < ENTRIES; k += THREADS) rows[k] = 0;
    for (int w = threadIdx.x; w < n_windows; w += THREADS) windows[w] = 0;
    __syncthreads();
    for (int64 row = first_row + 1 + threadIdx.x; row < jobs.n_rows && jobs.row_starts[row] < end; row += THREADS)
        atomicMax(rows + (jobs.row_starts[row] - begin), int(row - first_row));
    __syncthreads();
    scan_max(rows);
    __syncthreads();
    unsigned columns[ENTRIES_PER_THREAD];
#pragma unroll
    for (int first = 0; first < ENTRIES_PER_THREAD; first += AT_ONCE) {
        int64 places[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = (first + i) * THREADS + threadIdx.x;
            places[i] = begin + min(k, n - 1);
            if (!(PLACE && found) && jobs.jumps) places[i] += jobs.jumps[first_row + rows[k]];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) columns[first + i] = unsigned(__ldcs((PLACE && found ? found : indices) + places[i]));
        if (PLACE && found) continue;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (cells.column_places) columns[first + i] = unsigned(__ldg(cells.column_places + columns[first + i]));
    }
#pragma unroll
    for (int i = 0; i < ENTRIES_PER_THREAD; ++i) {
        const int k = i * THREADS + threadIdx.x;
        if (k >= n) break;
        if (!PLACE && found) __stcs(found + begin + k, int(columns[i]));
        atomicAdd(windows + (columns[i] >> shift), 1u);
    }
    __syncthreads();
    const int64 first_chunk = PLACE ? chunk_starts[cell] : 0;
    const bool is_short = PLACE && (chunk_starts[cell + n_windows] - first_chunk) * CHUNK < MOST_SLOTS;
    for (int w = threadIdx.x; w < n_windows; w += THREADS) {
        const unsigned count = windows[w];
        if (!count) continue;
        const unsigned taken = atomicAdd(counters + cell + w, count);
        if (!PLACE) continue;
        const int64 own = cell + w - cells.first_bin;
        const bool is_binned = own >= 0 && bins.counts[own] < cells.least;
        windows[w] = taken + (is_binned ? BINNED : is_short ? unsigned(chunk_starts[cell + w] - first_chunk) * CHUNK : 0);
    }
    if (!PLACE) return;
    __syncthreads();
#pragma unroll
    for (int first = 0; first < ENTRIES_PER_THREAD; first += AT_ONCE) {
        unsigned numbers[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if ((first + i) * THREADS + threadIdx.x < n) numbers[i] = atomicAdd(windows + (columns[first + i] >> shift), 1u);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = (first + i) * THREADS + threadIdx.x;
            if (k >= n) break;
            const unsigned window = columns[first + i] >> shift, number = numbers[i];
            const unsigned column = columns[first + i] & ((1u << shift) - 1);
            const int64 row = first_row + rows[k];
            const unsigned local_row = unsigned((jobs.places ? __ldg(jobs.places + row) : row) - block * cells.height);
            const VALUE value = PATTERN ? VALUE(1) : data[(jobs.jumps ? jobs.jumps[row] : 0) + begin + k];
            if (number >= BINNED) {
                const int64 own = cell + window - cells.first_bin;
                const unsigned by_block = __ldg(bins.by_block + own), by_window = __ldg(bins.by_window + own);
                const unsigned in_cell = number - BINNED;
                const int64 slot = int64(by_block) * OCTET + in_cell;
                bins.rows[slot] = static_cast<unsigned short>(local_row);
                bins.columns[int64(by_window) * OCTET + in_cell] = static_cast<unsigned short>(column);
                if (in_cell % unsigned(bins.unit) == 0)
                    for (unsigned octet = in_cell / OCTET; octet < (in_cell + unsigned(bins.unit)) / OCTET; ++octet)
                        bins.places[by_window + octet] = by_block + octet;
                if (!PATTERN) bins.values[slot] = value;
            } else {
                const int64 slot = (is_short ? first_chunk : __ldg(chunk_starts + cell + window)) * CHUNK + number;
                entries[slot] = column << ROW_BITS | local_row;
                if (!PATTERN) values[slot] = value;
            }
        }
    }
}

// Count the entries of each cell.
extern "C" __global__ void __launch_bounds__(THREADS)
count_cells(Jobs jobs, Cells cells, const int* indices, int* found, unsigned* counters) {
    take_entries<false>(jobs, cells, indices, found, nullptr, counters, nullptr, nullptr, nullptr, Bins{});
}

// Write each entry to a slot of its cell. counters[c]: number of entries of cell c that have a slot already.
extern "C" __global__ void __launch_bounds__(THREADS)
place_entries(Jobs jobs, Cells cells, const int* indices, int* found, const VALUE* data, unsigned* counters,
              const int64* chunk_starts, unsigned* entries, VALUE* values, Bins bins) {
    take_entries<true>(jobs, cells, indices, found, data, counters, chunk_starts, entries, values, bins);
}

// Replace the value of each thread by the sum over the threads before it; return the sum over all threads.
__device__ __forceinline__ int64 scan_sums(int64& value) {
    __shared__ int64 warp_sums[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64 sums = value;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int64 before = __shfl_up_sync(FULL, sums, distance);
        if (lane >= distance) sums += before;
    }
    __syncthreads();  // before warp_sums of the previous call is overwritten
    if (lane == 31) warp_sums[warp] = sums;
    __syncthreads();
    int64 warps = warp_sums[lane];
    for (int distance = 1; distance < 32; distance *= 2) {
        const int64 before = __shfl_up_sync(FULL, warps, distance);
        if (lane >= distance) warps += before;
    }
    const int64 before = __shfl_sync(FULL, warps, max(warp - 1, 0));
    value = sums - value + (warp ? before : 0);
    return __shfl_sync(FULL, warps, 31);
}

// Return the last of n parts that begins at `place` or before.
__device__ __forceinline__ int find_last(int64 place, const int64* __restrict__ starts, int64 n) {
    int64 part = 0;
    for (int64 after = n; after - part > 1;) {
        const int64 middle = (part + after) / 2;
        if (starts[middle] <= place) part = middle;
        else after = middle;
    }
    return int(part);
}

// Cut blocks into jobs of at most `size` entries: block b has entries block_starts[b] .. block_starts[b + 1] and jobs job_starts[b] ..
// job_starts[b + 1].
extern "C" __global__ void __launch_bounds__(256)
cut_jobs(int64 n_jobs, int64 size, int64 n_blocks, const int64* __restrict__ block_starts, const int64* __restrict__ job_starts,
         int64 n_rows, const int64* __restrict__ row_starts, int* blocks, int64* begins, int64* ends, int64* rows) {
    const int64 job = int64(blockIdx.x) * 256 + threadIdx.x;
    if (job >= n_jobs) return;
    const int block = find_last(job, job_starts, n_blocks);
    const int64 begin = block_starts[block] + (job - job_starts[block]) * size;
    blocks[job] = block, begins[job] = begin, ends[job] = min(begin + size, block_starts[block + 1]);
    rows[job] = find_last(begin, row_starts, n_rows);
}

// Find the number of chunks and of tiles before each cell, and the cell and block of each tile; binned cells
// have none. chunks_found[b] is the first chunk of block b of the n_starts - 1 blocks; the last two elements are the total numbers of
// chunks and of tiles.
extern "C" __global__ void __launch_bounds__(THREADS)
cut_cells(int64 n_cells, int64 n_starts, const unsigned* __restrict__ counts, const int64* __restrict__ cell_starts,
          int64 first_bin, int64 least, int64* chunk_starts, int64* tile_starts, int* tile_cells, int* tile_blocks, int64* chunks_found) {
    const int64 begin = n_cells * blockIdx.x / gridDim.x, end = n_cells * (blockIdx.x + 1) / gridDim.x;
    int64 chunks = 0, tiles = 0;
    for (int64 cell = threadIdx.x; cell < begin; cell += THREADS) {
        const int64 count = cell >= first_bin && counts[cell] < least ? 0 : counts[cell];
        chunks += COUNT(count, CHUNK), tiles += COUNT(count, TILE);
    }
    int64 chunks_before = scan_sums(chunks), tiles_before = scan_sums(tiles);
    for (int64 first = begin; first < end; first += THREADS) {
        const int64 cell = first + threadIdx.x;
        const int64 count = cell < end && (cell < first_bin || counts[cell] >= least) ? counts[cell] : 0;
        const int64 n_tiles = COUNT(count, TILE);
        chunks = COUNT(count, CHUNK), tiles = n_tiles;
        const int64 all_chunks = scan_sums(chunks), all_tiles = scan_sums(tiles);
        chunks += chunks_before, tiles += tiles_before;
        if (cell < end) chunk_starts[cell] = chunks, tile_starts[cell] = tiles;
        if (n_tiles) {
            const int block = find_last(cell, cell_starts, n_starts - 1);
            for (int64 k = 0; k < n_tiles; ++k) tile_cells[tiles + k] = int(cell), tile_blocks[tiles + k] = block;
        }
        chunks_before += all_chunks, tiles_before += all_tiles;
    }
    const bool is_last = blockIdx.x == gridDim.x - 1;
    if (is_last && threadIdx.x == 0) {
        chunk_starts[n_cells] = chunks_before, tile_starts[n_cells] = tiles_before;
        chunks_found[n_starts] = tiles_before;
    }
    __syncthreads();
    for (int64 b = threadIdx.x; b < n_starts; b += THREADS) {
        const int64 cell = cell_starts[b];
        if (begin <= cell && cell < end + is_last) chunks_found[b] = chunk_starts[cell];
    }
}

// Count the octets of n_blocks * n_windows cells, each in the order of blocks and of windows, after a 0; cells of `least` entries or
// more have none. Those of a cell are padded to a multiple of `unit` entries.
extern "C" __global__ void __launch_bounds__(256)
count_octets(int64 n_blocks, int64 n_windows, int64 least, int64 unit, const unsigned* __restrict__ counts, unsigned* by_block,
             unsigned* by_window) {
    const int64 cell = int64(blockIdx.x) * 256 + threadIdx.x;
    if (cell >= n_blocks * n_windows) return;
    if (cell == 0) by_block[0] = by_window[0] = 0;
    const int64 count = counts[cell], octets = count < least ? COUNT(count, unit) * unit / OCTET : 0;
    by_block[1 + cell] = unsigned(octets);
    by_window[1 + cell % n_windows * n_blocks + cell / n_windows] = unsigned(octets);
}

// Write the rows of n octets of padding: n_rows rows from `height` on in turn, each for half an octet.
extern "C" __global__ void __launch_bounds__(256)
pad_octets(int64 n, int64 height, int64 n_rows, unsigned short* rows) {
    const int64 octet = int64(blockIdx.x) * 256 + threadIdx.x;
    if (octet >= n) return;
    for (int half = 0; half < 2; ++half)
        reinterpret_cast<unsigned long long*>(rows)[2 * octet + half] =
            (unsigned long long)(height + (2 * octet + half) % n_rows) * 0x0001000100010001ull;
}

// Rate the cells of one block, of 2^WINDOW_BITS columns each, for the choice between bins and wide cells of 2^wide_shifts[b] columns; wide
// cell wide_starts[b] + w gets the sum of their counts. Adds to found: entries of cells of fewer than `least` entries; cells that have
// entries; those of at least `least`; and, for z of 4 and of 8 bytes, the expected sectors of z that these read, and that all wide
// cells do.
extern "C" __global__ void __launch_bounds__(256)
rate_cells(int64 n_windows, const int* __restrict__ wide_shifts, const int64* __restrict__ wide_starts,
           const unsigned* __restrict__ counts, int64 least, unsigned* wide_counts, unsigned long long* found) {
    unsigned long long own[RATES] = {};
    const int64 first_wide = wide_starts[blockIdx.x], n_wide = wide_starts[blockIdx.x + 1] - first_wide;
    const int bits = wide_shifts[blockIdx.x] - WINDOW_BITS;
    const unsigned* narrow = counts + blockIdx.x * n_windows;
    for (int64 w = threadIdx.x; w < n_wide; w += 256) {
        const int64 begin = w << bits, end = min(n_windows, (w + 1) << bits);
        int64 all = 0;
        float dense_once[2] = {};
        for (int64 cell = begin; cell < end; ++cell) {
            const unsigned n = narrow[cell];
            all += n;
            if (n >= least)
                for (int s = 0; s < 2; ++s) dense_once[s] += count_sectors(n, 1, s);
        }
        for (int64 cell = begin; cell < end; ++cell) {
            const unsigned n = narrow[cell];
            if (n == 0) continue;
            const bool is_dense = n >= least;
            own[0] += is_dense ? 0 : n, own[1] += 1, own[2] += is_dense;
            for (int s = 0; s < 2; ++s) {
                const float once = count_sectors(n, 1, s), wide = count_sectors(n, COUNT(all, TILE), s);
                if (is_dense) own[3 + s] += __float2ull_rn(keep_some(once, count_sectors(n, COUNT(n, TILE), s), once));
                own[5 + s] += __float2ull_rn(is_dense ? keep_some(once, wide, dense_once[s]) : wide);
            }
        }
        wide_counts[first_wide + w] = unsigned(all);
    }
    for (int r = 0; r < RATES; ++r) {
        for (int distance = 16; distance > 0; distance /= 2) own[r] += __shfl_down_sync(FULL, own[r], distance);
        if (threadIdx.x % 32 == 0 && own[r]) atomicAdd(found + r, own[r]);
    }
}

// Return the number, in sorted order, of the entry at position k of a tile.
__device__ __forceinline__ int find_source(int k, bool is_near) {
    return is_near ? k : k / CHUNK * CHUNK + k % 4 * 32 + k % CHUNK / 4;
}

// Sort each tile of a cell by column, into 2^BUCKET_BITS buckets of the cell's window; pad the cell's last chunk with entries of
// rows from `height` on, which do not exist, another one for each lane; and interleave each chunk, so that a warp whose lanes each
// load four adjacent entries processes 32 entries at a time that are adjacent in sorted order. If rows are near, adjacent entries have
// the same rows: a chunk is not interleaved, and a warp adds to more rows at a time.
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 3)
sort_tiles(const int* tile_cells, const int* tile_blocks, const int64* tile_starts, const int64* chunk_starts,
           const unsigned* counts, Cells cells, int64 is_near, unsigned* entries, VALUE* values, unsigned* chunk_columns) {
    extern __shared__ double room[];  // TILE entries, or values
    __shared__ int positions[BUCKETS], warp_sums[SORT_THREADS / 32];
    for (int b = threadIdx.x; b < BUCKETS; b += SORT_THREADS) positions[b] = 0;
    __syncthreads();
    const int64 cell = tile_cells[blockIdx.x];
    const int block = tile_blocks[blockIdx.x], bits = cells.shifts[block];
    const int shift = ROW_BITS + max(0, bits - BUCKET_BITS);
    const int64 begin = (int64(blockIdx.x) - tile_starts[cell]) * TILE, first = chunk_starts[cell] * CHUNK + begin;
    const int n = int(min(int64(TILE), int64(counts[cell]) - begin)), padded = (n + CHUNK - 1) / CHUNK * CHUNK;
    unsigned own[SORTED_PER_THREAD];
    int target[SORTED_PER_THREAD];
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i) {
        const int k = i * SORT_THREADS + threadIdx.x;
        own[i] = k < n ? entries[first + k] : 0;
    }
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i)
        if (i * SORT_THREADS + threadIdx.x < n) atomicAdd(positions + (own[i] >> shift), 1);
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
        if (i * SORT_THREADS + threadIdx.x < n) target[i] = atomicAdd(positions + (own[i] >> shift), 1);
#pragma unroll
    for (int i = 0; i < SORTED_PER_THREAD; ++i)
        if (i * SORT_THREADS + threadIdx.x < n) sorted[target[i]] = own[i];
    __syncthreads();
    for (int k = threadIdx.x; k < padded; k += SORT_THREADS) {
        const int from = find_source(k, is_near);
        entries[first + k] = from < n ? sorted[from] : unsigned(cells.height) + k % CHUNK / 4;
        if (k % CHUNK == 0) chunk_columns[(first + k) / CHUNK] = unsigned(cell - cells.starts[block]) << bits;
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
        const int from = find_source(k, is_near);
        values[first + k] = from < n ? sorted_values[from] : VALUE(0);
    }
}

// Survey rows for the choice of a layout. Adds to found: the longest row (by maximum); the places of sell-slices, divided by 32; and,
// of n_samples of the n_entries in `indices`, which begin at entry first_entry, the numbers less than `reach` and `band` columns from the
// diagonal; and the rows up to the last one that has entries (by maximum).
// row_offset is the global number of row 0.
extern "C" __global__ void __launch_bounds__(256)
survey(int64 n_rows, int64 row_offset, const int64* indptr, int64 first_entry, int64 n_entries, const int* indices, int64 n_samples, int64 reach,
       int64 band, int64* found) {
    const int64 first = int64(blockIdx.x) * 256 + threadIdx.x, stride = int64(gridDim.x) * 256;
    int longest = 0, n_near = 0, n_in_band = 0;
    int64 n_places = 0, n_filled = 0;
    for (int64 row = first; row - first % 32 < n_rows; row += stride) {
        const int length = row < n_rows ? int(indptr[row + 1] - indptr[row]) : 0, width = find_largest(length);
        longest = max(longest, length);
        n_places += width;
        if (length) n_filled = row + 1;
    }
    for (int64 sample = first; sample < n_samples; sample += stride) {
        const int64 k = sample * n_entries / n_samples;
        int64 low = 0, high = n_rows;  // binary search for the row of entry first_entry + k
        while (high - low > 1) {
            const int64 middle = (low + high) / 2;
            if (indptr[middle] <= first_entry + k) low = middle;
            else high = middle;
        }
        const int64 distance = indices[k] - (row_offset + low);
        n_near += distance > -reach && distance < reach;
        n_in_band += distance > -band && distance < band;
    }
    int64 own[5] = {longest, n_places, n_near, n_in_band, n_filled};
    for (int s = 0; s < 5; ++s) {
        const bool is_largest = s == 0 || s == 4;
        for (int distance = 16; distance > 0 && s != 1; distance /= 2) {  // s = 1: n_places is the same in all lanes
            const int64 other = __shfl_down_sync(FULL, own[s], distance);
            own[s] = is_largest ? max(own[s], other) : own[s] + other;
        }
        if (threadIdx.x % 32) continue;
        if (is_largest) atomicMax(found + s, own[s]);
        else atomicAdd(reinterpret_cast<unsigned long long*>(found + s), (unsigned long long)own[s]);
    }
}

// Return the class of a row's length: lengths below 64 are classes, and from there on each eighth of a power of 2, up to the last one.
__device__ __forceinline__ int classify(int length) {
    if (length < 64) return length;
    const int bits = 31 - __clz(length);
    return min(LENGTH_CLASSES - 1, 64 + 8 * (bits - 6) + (length >> (bits - 3)) % 8);
}

// Key of each row for a sort by classes of lengths, the longest first: rows that are columns before the others, whose degree, in eight
// bytes of an integer or a double, is 0. counts[key][part]: rows of a key in each part of PART_ROWS rows, which a thread block has; they
// are added to totals[key].
extern "C" __global__ void __launch_bounds__(KEYS)
key_rows(int64 n_rows, const int64* __restrict__ indptr, const int64* __restrict__ degree, unsigned char* keys, unsigned* counts,
         unsigned long long* totals) {
    __shared__ unsigned own[KEYS];
    own[threadIdx.x] = 0;
    __syncthreads();
    const int64 first = int64(blockIdx.x) * PART_ROWS, end = min(first + PART_ROWS, n_rows);
    for (int64 row = first + threadIdx.x; row < end; row += KEYS) {
        const int key = (degree[row] != 0 ? KEYS / 2 : KEYS) - 1 - classify(int(indptr[row + 1] - indptr[row]));
        keys[row] = static_cast<unsigned char>(key);
        atomicAdd(own + key, 1u);
    }
    __syncthreads();
    counts[int64(threadIdx.x) * gridDim.x + blockIdx.x] = own[threadIdx.x];
    if (own[threadIdx.x]) atomicAdd(totals + threadIdx.x, (unsigned long long)own[threadIdx.x]);
}

// Replace the counts of each key, which a thread block has, by the rows before those of a key and part. first_places[0] and
// first_places[KEYS + 1] are the places of the first columns of this piece of the rows and of the next one.
extern "C" __global__ void __launch_bounds__(THREADS)
scan_keys(int64 n_parts, const unsigned long long* totals, unsigned* counts, unsigned long long* first_places) {
    const int key = blockIdx.x;
    int64 rows = int(threadIdx.x) < key ? int64(totals[threadIdx.x]) : 0;
    int64 before = scan_sums(rows);
    if (key == KEYS / 2 && threadIdx.x == 0) first_places[KEYS + 1] = first_places[0] + (unsigned long long)before;  // rows that are columns
    for (int64 first = 0; first < n_parts; first += THREADS) {
        const int64 part = first + threadIdx.x;
        unsigned* own = counts + key * n_parts + part;
        rows = part < n_parts ? *own : 0;
        const int64 all = scan_sums(rows);
        if (part < n_parts) *own = unsigned(before + rows);
        before += all;
    }
}

// Store the row at each place of a piece of n_rows rows that begins at row `first`, and the place of each row, from *first_place on: rows
// are sorted by key, equal ones in their order. starts[key][part]: rows before those of a key and part. A thread has ROWS_PER_THREAD
// consecutive rows, and counts[key][thread] are those of a key that are before them in the part.
extern "C" __global__ void __launch_bounds__(PLACE_THREADS)
place_rows(int64 n_rows, int64 first, const unsigned char* __restrict__ keys, const unsigned* __restrict__ starts,
           const unsigned long long* first_place, int* by_place, int* places) {
    extern __shared__ unsigned words[];
    unsigned short* counts = reinterpret_cast<unsigned short*>(words);
    __shared__ int own_starts[KEYS];
    const int64 first_own = int64(blockIdx.x) * PART_ROWS;
    const int n = int(min(int64(PART_ROWS), n_rows - first_own)), begin = threadIdx.x * ROWS_PER_THREAD;
    for (int w = threadIdx.x; w < KEYS * COUNTS_STRIDE / 2; w += PLACE_THREADS) words[w] = 0;
    for (int key = threadIdx.x; key < KEYS; key += PLACE_THREADS) own_starts[key] = int(starts[int64(key) * gridDim.x + blockIdx.x]);
    __syncthreads();
    for (int k = begin; k < min(begin + ROWS_PER_THREAD, n); ++k) ++counts[keys[first_own + k] * COUNTS_STRIDE + threadIdx.x];
    __syncthreads();
    for (int key = threadIdx.x; key < KEYS; key += PLACE_THREADS) {
        unsigned short* of_key = counts + key * COUNTS_STRIDE;
        unsigned before = 0;
        for (int thread = 0; thread < PLACE_THREADS; ++thread) {
            const unsigned own = of_key[thread];
            of_key[thread] = static_cast<unsigned short>(before);
            before += own;
        }
    }
    __syncthreads();
    int own_places[ROWS_PER_THREAD];
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
        if (begin + i >= n) break;
        const int key = keys[first_own + begin + i];
        own_places[i] = own_starts[key] + counts[key * COUNTS_STRIDE + threadIdx.x]++;
    }
    __syncthreads();  // places take the room of counts, to be written in the order of rows
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i)
        if (begin + i < n) words[threadIdx.x * (ROWS_PER_THREAD + 1) + i] = unsigned(own_places[i]);
    __syncthreads();
    for (int k = threadIdx.x; k < n; k += PLACE_THREADS) {
        const int place = int(words[k + k / ROWS_PER_THREAD]);
        const int64 row = first + first_own + k;
        by_place[first + place] = int(row);
        places[row] = int(*first_place) + place;
    }
}

// Number of entries before the row at each place of a part of ROWS_MEASURED rows, and of the part, in sums; and, unless `jumps` is null,
// from these to the row's first entry in CSR. `order` has the row at each place, null if that is the place. n_filled is increased to the
// places up to the last row that has entries.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
measure_rows(int64 n_rows, const int64* __restrict__ indptr, const int* __restrict__ order, int64* starts, int64* jumps, int64* sums, int64* n_filled) {
    __shared__ int64 shared_last;
    if (threadIdx.x == 0) shared_last = 0;
    __syncthreads();
    const int64 first = int64(blockIdx.x) * ROWS_MEASURED + threadIdx.x;
    int64 begins[ROWS_AT_ONCE], before = 0, last = 0;
    int lengths[ROWS_AT_ONCE];
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        const int64 k = first + i * THREADS;
        begins[i] = 0, lengths[i] = 0;
        if (k >= n_rows) continue;
        const int64 row = order ? order[k] : k;
        begins[i] = indptr[row], lengths[i] = int(indptr[row + 1] - begins[i]);
        if (lengths[i]) last = k + 1;
    }
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        int64 own = lengths[i];
        const int64 k = first + i * THREADS, all = scan_sums(own);
        if (k < n_rows) starts[k] = before + own;
        if (k < n_rows && jumps) jumps[k] = begins[i] - indptr[0] - (before + own);
        before += all;
    }
    atomicMax(&shared_last, last);
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = before, atomicMax(n_filled, shared_last);
}

// Add the entries of the parts before to `starts` of measure_rows, whose grid is the same, and take them from `jumps`; add the last element.
extern "C" __global__ void __launch_bounds__(THREADS)
start_rows(int64 n_rows, const int64* __restrict__ sums, int64* starts, int64* jumps) {
    int64 own = 0;
    for (int64 part = threadIdx.x; part < blockIdx.x; part += THREADS) own += sums[part];
    const int64 before = scan_sums(own);
    for (int i = threadIdx.x; i < ROWS_MEASURED; i += THREADS) {
        const int64 k = int64(blockIdx.x) * ROWS_MEASURED + i;
        if (k >= n_rows) break;
        starts[k] += before;
        if (jumps) jumps[k] -= before;
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) starts[n_rows] = before + sums[blockIdx.x];
}
