// PageRank step on column-sorted-blocks in one pass: product, update, next z and the sums that the next step needs.
//
// Formula, vectors, types: as in rank_steps.cuh. Products of floats are rounded to multiples of product_unit.
// Shapes: a chunk has 128 entries, each a local row and a column relative to the chunk's column. Item t is chunks
//   item_bounds[t][0] .. item_bounds[t][1] and octets item_bounds[t][2] .. item_bounds[t][3] of block item_blocks[t], which has
//   item_parts[block] items. If a block has several items, their sums are added in `partial`, and the last thread block to finish an
//   item of it finishes the rows. Before, `fill_bins` writes z of the columns of octets to their places in the order of blocks: thread
//   block j takes octets fill_bounds[j][0] .. fill_bounds[j][1] of window fill_windows[j], whose z it holds in shared memory.
//   If BANDED, rows have other entries in slices as well, which are multiplied when the row is finished; see band_slices.cu.
// Threads: each thread block takes items, the longest first, and adds rows in shared memory as two 32-bit words, because atomics
//   on 32 bits of shared memory are native.
// Deterministic: yes; sums are of integers. Compiled without contraction: in exact fixed point bit-identical to the CPU kernels.
// Needs: sm_70; 8 bytes of shared memory per row of a block and of padding; for `fill_bins`, a window of z in shared memory.
// Source: this project's, as are the sums in two words; after Lakhotia, Kannan, Prasanna, USENIX ATC 2018, and, for bins, Beamer,
//   Asanovic, Patterson, IPDPS 2017.
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef RESIDENT
#define RESIDENT 1  // thread blocks of a multiprocessor
#endif
#include "rank_steps.cuh"

#ifdef __CUDA_ARCH__
#define PREFETCH(place) asm volatile("prefetch.global.L2 [%0];" ::"l"(place))
#else
#define PREFETCH(place)
#endif
#define AT_ONCE 3
#define PADDING_ROWS 32  // after those of a block, for entries of padding: one a lane, so that these do not wait for each other
#define ROW_BITS 15
#define CHUNK_COLUMN(entry) ((entry) >> ROW_BITS)
#define CHUNK_ROW(entry) ((entry) & ((1u << ROW_BITS) - 1))
#ifndef BINNED
#define BINNED 0  // whether there are octets
#endif
#ifndef BANDED
#define BANDED 0  // whether entries next to the diagonal are in slices
#endif
#define SLICE 32
#define NO_STEP -32768  // where there is no entry
#define NO_STEPS 0x80008000u  // a word of two
#define WORDS_AT_ONCE 4
#define OCTET 8
#define WINDOW_BITS 14
#define FILL_THREADS (sizeof(Z) == 4 ? 512 : 1024)  // as mgspmv/kernels/bins.py launches it
#define FILL_RESIDENT (sizeof(Z) == 4 ? 3 : 1)
#define SHARE Products<Z>::N  // entries of an octet that a thread reads or writes at once, so that a warp's sectors are whole
#define SHARES (OCTET / SHARE)
#define FILL_AT_ONCE (sizeof(Z) == 4 ? 4 : 8)
#define BINS_AT_ONCE (sizeof(Z) == 4 ? 4 : 2)
#define HIGH_IS_USUAL (sizeof(Z) == 8)  // whether most terms have a high word
#define HIGH_BITS 16
#define LARGE (1ull << (32 + HIGH_BITS))
#define MOST_LARGE 32768  // twice 2^62 / LARGE, which is the most that a sum of ranks of 1 permits

// Contribution to a row, as two words.
struct Term {
    unsigned low, high;
};

// Add terms to the two words of their rows. No atomic waits for one of another term, nor is it in a branch: what has no carry adds 0 to the
// high word of a row of padding, `spare`.
template <int N>
__device__ __forceinline__ void add(unsigned* low, unsigned* high, unsigned spare, const unsigned (&rows)[N], Term (&terms)[N]) {
    unsigned before[N];
#pragma unroll
    for (int k = 0; k < N; ++k) before[k] = atomicAdd(low + rows[k], terms[k].low);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        terms[k].high += before[k] > ~terms[k].low;
        atomicAdd(high + (HIGH_IS_USUAL || terms[k].high ? rows[k] : spare), terms[k].high);
    }
}

// Flag: a product in this thread block was invalid (too large or NaN).
__device__ __forceinline__ int& is_wrong() {
    __shared__ int flag;
    return flag;
}

// Add value z to a row for each entry.
template <int N>
__device__ __forceinline__ void contribute(unsigned* low, unsigned* high, unsigned spare, const unsigned (&rows)[N], const VALUE (&values)[N],
                                           const Z (&z)[N], float scale) {
    Term terms[N];
    bool is_right = true;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const uint64 product = round_product(values[k], z[k], scale, is_right);
        terms[k] = {unsigned(product), unsigned(product >> 32)};
    }
    if (!is_right) is_wrong() = 1;
    add(low, high, spare, rows, terms);
}

// Add chunks begin, begin + stride, .. before end, N at a time, so that N index loads and 4 N gathers are in flight. Return the first
// chunk that was not added.
template <int N>
__device__ __forceinline__ int64 add_chunks(int64 begin, int64 end, int stride, const uint4* __restrict__ entries,
                                            const unsigned* __restrict__ columns, const VALUE* __restrict__ values,
                                            const Z* __restrict__ z, float scale, unsigned* low, unsigned* high, unsigned spare) {
    const int lane = threadIdx.x % 32;
    int64 chunk = begin;
    for (; chunk + (N - 1) * stride < end; chunk += N * stride) {
        unsigned rows[4 * N];
        Z gathered[4 * N];
        VALUE own[4 * N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int64 place = chunk + n * stride;
            const uint4 four = __ldcs(entries + place * 32 + lane);
            const unsigned words[4] = {four.x, four.y, four.z, four.w};
            const Z* window = z + __ldg(columns + place);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                gathered[4 * n + k] = __ldg(window + CHUNK_COLUMN(words[k]));
                rows[4 * n + k] = CHUNK_ROW(words[k]);
                own[4 * n + k] = PATTERN ? VALUE(1) : __ldcs(values + (place * 32 + lane) * 4 + k);
            }
        }
        contribute(low, high, spare, rows, own, gathered, scale);
    }
    return chunk;
}

// Elements that a thread reads or writes at once, and the vector type of their bytes.
template <int BYTES>
struct Word {
    typedef uint4 Type;
};
template <>
struct Word<8> {
    typedef uint2 Type;
};
template <>
struct Word<4> {
    typedef unsigned Type;
};
template <typename Element, int N>
struct alignas(16) Part {
    typedef typename Word<N * int(sizeof(Element))>::Type Words;
    static const int n_words = N * int(sizeof(Element)) / int(sizeof(Words));
    Element own[N];
    __device__ __forceinline__ void read(const Element* place) {
#pragma unroll
        for (int w = 0; w < n_words; ++w) reinterpret_cast<Words*>(own)[w] = __ldcs(reinterpret_cast<const Words*>(place) + w);
    }
};

struct Bins {
    const unsigned short* rows;     // in the order of blocks, as values and products
    const VALUE* values;
    void* products;                 // Z; its low 32 bits if that is int64
    unsigned short* high;           // the next bits of int64
    const unsigned short* columns;  // in the order of windows, as places
    const unsigned* places;         // octet in the order of blocks
    const int* fill_windows;
    const int64* fill_bounds;       // (number of thread blocks of fill_bins, 2)
    uint64* large;                  // (MOST_LARGE, 2) entry, and the part of its int64 product from LARGE on
    unsigned* n_large;              // numbers of these in even and odd steps
    int64 n_columns;
};

// Products of N entries of an octet. If they are int64, 48 bits are stored; the few products that have more are in `large` besides.
template <typename A>
struct Products {
    static const int N = 16 / sizeof(A);
    Part<A, N> own;
    __device__ __forceinline__ void read(const Bins& bins, int64 first) { own.read(static_cast<const A*>(bins.products) + first); }
    __device__ __forceinline__ A get(int k) const { return own.own[k]; }
    __device__ __forceinline__ void set(int k, A z) { own.own[k] = z; }
    __device__ __forceinline__ void write(const Bins& bins, int64 first, unsigned*) const {
        *reinterpret_cast<uint4*>(static_cast<A*>(bins.products) + first) = *reinterpret_cast<const uint4*>(own.own);
    }
};
template <>
struct Products<int64> {
    static const int N = 4;
    Part<unsigned, N> low;
    Part<unsigned short, N> high;
    uint64 beyond;
    int64 whole[N];
    __device__ __forceinline__ void read(const Bins& bins, int64 first) {
        low.read(static_cast<const unsigned*>(bins.products) + first);
        high.read(bins.high + first);
    }
    __device__ __forceinline__ int64 get(int k) const { return int64(low.own[k] | uint64(high.own[k]) << 32); }
    __device__ __forceinline__ void set(int k, int64 z) {
        beyond = k ? beyond | uint64(z) : uint64(z);
        whole[k] = z, low.own[k] = unsigned(z), high.own[k] = static_cast<unsigned short>(uint64(z) >> 32);
    }
    __device__ __forceinline__ void write(const Bins& bins, int64 first, unsigned* n_large) const {
        *reinterpret_cast<uint4*>(static_cast<unsigned*>(bins.products) + first) = *reinterpret_cast<const uint4*>(low.own);
        *reinterpret_cast<uint2*>(bins.high + first) = *reinterpret_cast<const uint2*>(high.own);
        if (beyond < LARGE) return;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (uint64(whole[k]) < LARGE) continue;
            const unsigned place = atomicAdd(n_large, 1u);
            if (place < MOST_LARGE) bins.large[2 * place] = first + k, bins.large[2 * place + 1] = uint64(whole[k]) & ~(LARGE - 1);
        }
    }
};

// Add parts of SHARE binned entries begin, begin + THREADS, .. before end, N at a time. Return the first part that was not added.
template <int N>
__device__ __forceinline__ int64 add_bins(int64 begin, int64 end, const Bins& bins, float scale, unsigned* low, unsigned* high, unsigned spare) {
    int64 part = begin;
    for (; part + (N - 1) * THREADS < end; part += N * THREADS) {
        Part<unsigned short, SHARE> row[N];
        Products<Z> z[N];
        Part<VALUE, SHARE> value[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int64 first = (part + n * THREADS) * SHARE;
            row[n].read(bins.rows + first);
            z[n].read(bins, first);
            if (!PATTERN) value[n].read(bins.values + first);
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
            unsigned rows[SHARE];
            Z gathered[SHARE];
            VALUE own[SHARE];
#pragma unroll
            for (int k = 0; k < SHARE; ++k)
                rows[k] = row[n].own[k], gathered[k] = z[n].get(k), own[k] = PATTERN ? VALUE(1) : value[n].own[k];
            contribute(low, high, spare, rows, own, gathered, scale);
        }
    }
    return part;
}

// Add the products from LARGE on of the entries first .. end.
__device__ __forceinline__ void add_large(const Bins& bins, unsigned n_large, int64 first, int64 end, unsigned* low, unsigned* high,
                                          unsigned spare) {
    if (n_large > MOST_LARGE) is_wrong() = 1;
    for (unsigned k = threadIdx.x; k < min(n_large, MOST_LARGE); k += THREADS) {
        const int64 entry = int64(__ldcg(bins.large + 2 * k));
        if (entry < first || entry >= end) continue;
        const uint64 product = __ldcg(bins.large + 2 * k + 1);
        const unsigned rows[1] = {bins.rows[entry]};
        Term terms[1] = {{unsigned(product), unsigned(product >> 32)}};
        add(low, high, spare, rows, terms);
    }
}

#if BANDED
// Entries of the band; see mgspmv/kernels/band_slices.py.
struct Band {
    const unsigned* starts;
    const unsigned* words;  // two steps in each
    const VALUE* values;
    int64 first_place;
};

// Words of a row, which are read WORDS_AT_ONCE at a time, and before they are needed.
struct BandRow {
    unsigned begin, end;
    unsigned words[WORDS_AT_ONCE];
    VALUE values[2 * WORDS_AT_ONCE];

    __device__ __forceinline__ void read_bounds(const unsigned* starts) { begin = __ldg(starts), end = __ldg(starts + 1); }
    __device__ __forceinline__ void read_words(const Band& band, unsigned first) {
        const int64 place = SLICE * int64(first) + threadIdx.x % SLICE;
        const unsigned* own = band.words + place;
        const int n = int(end - first);
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; ++k) {
            words[k] = k < n ? __ldcs(own + SLICE * k) : NO_STEPS;
            for (int half = 0; half < 2; ++half)
                values[2 * k + half] = PATTERN || k >= n ? VALUE(1) : __ldcs(band.values + 2 * (place + SLICE * k) + half);
        }
    }
    // Read z, where `z` is that of the row.
    __device__ __forceinline__ void gather(const Z* z, Z (&gathered)[2 * WORDS_AT_ONCE]) const {
#pragma unroll
        for (int k = 0; k < 2 * WORDS_AT_ONCE; ++k) {
            const int step = int(words[k / 2] << 16 * (1 - k % 2)) >> 16;
            gathered[k] = step == NO_STEP ? Z(0) : __ldg(z + step);
        }
    }
    __device__ __forceinline__ uint64 add(const Z (&gathered)[2 * WORDS_AT_ONCE], float scale, bool& is_right) const {
        uint64 sum = 0;
#pragma unroll
        for (int k = 0; k < 2 * WORDS_AT_ONCE; ++k) sum += round_product(values[k], gathered[k], scale, is_right);
        return sum;
    }
};

// Rows first .. first + n with entries of the band: each thread has one at a time, and reads what the next one needs meanwhile.
template <typename Rows>
struct BandRows {
    const Band& band;
    Rows& rows;
    const unsigned* starts;  // of the slice of the thread's row
    const Z* z;              // of that row
    float scale;
    int64 first;
    int n;
    BandRow own, next;
    typename Rows::Loaded loaded;

    __device__ __forceinline__ BandRows(const Band& band, Rows& rows, const Z* z, float scale, int64 first, int n)
        : band(band), rows(rows), starts(band.starts + (first + threadIdx.x) / SLICE), z(z + first + threadIdx.x),
          scale(scale), first(first), n(n) {}
    __device__ __forceinline__ void begin() {
        const int row = threadIdx.x;
        if (row >= n) return;
        own.read_bounds(starts);
        if (row + THREADS < n) next.read_bounds(starts + THREADS / SLICE);
        own.read_words(band, own.begin);
        loaded = rows.load(first + row);
    }
    // Finish the rows, whose products are take(row - first) and those of their entries of the band.
    template <typename Take>
    __device__ __forceinline__ void finish(Take take) {
        const double unit = rows.run.product_unit;
        bool is_right = true;
        for (int row = threadIdx.x; row < n; row += THREADS, starts += THREADS / SLICE, z += THREADS) {
            Z gathered[2 * WORDS_AT_ONCE];
            own.gather(z, gathered);
            BandRow after;
            typename Rows::Loaded coming;
            if (row + THREADS < n) {
                next.read_words(band, next.begin);
                coming = rows.load(first + row + THREADS);
            }
            if (row + 2 * THREADS < n) {
                after.read_bounds(starts + 2 * (THREADS / SLICE));
                PREFETCH(z + 2 * THREADS);
            }
            uint64 sum = own.add(gathered, scale, is_right);
            for (unsigned word = own.begin + WORDS_AT_ONCE; word < own.end; word += WORDS_AT_ONCE) {
                own.read_words(band, word);
                own.gather(z, gathered);
                sum += own.add(gathered, scale, is_right);
            }
            rows.finish(first + row, loaded, double(int64(uint64(take(row)) + sum)) * unit);
            own = next, loaded = coming;
            next.begin = after.begin, next.end = after.end;
        }
        if (!is_right) rows.count_wrong();
    }
};
template <typename Rows>
__device__ __forceinline__ void load_rows(const Rows&, int64, int, int, BandRows<Rows>& loaded) {
    loaded.begin();
}
template <typename Rows, typename Take>
__device__ __forceinline__ void finish(Rows&, int64, int, BandRows<Rows>& loaded, Take take) {
    loaded.finish(take);
}
#endif

struct Blocks {
    int64 n_items;
    const uint4* entries;
    const unsigned* columns;
    const VALUE* values;
    const int* item_blocks;
    const int64* item_bounds;  // (n_items, 4)
    const int* item_parts;
    int* parts_done;
    uint64* partial;
    int64 height;
    Bins bins;
#if BANDED
    Band band;
#endif
};

// Load what AT_ONCE of the rows first .. first + n need besides their products, from row `begin` of these on.
template <typename Rows>
__device__ __forceinline__ void load_rows(const Rows& rows, int64 first, int n, int begin, typename Rows::Loaded (&loaded)[AT_ONCE]) {
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        if (begin + k * THREADS < n) loaded[k] = rows.load(first + begin + k * THREADS);
}

// Finish rows first .. first + n, whose products are take(row - first), and of which each thread loaded its first AT_ONCE. The next ones
// are loaded meanwhile.
template <typename Rows, typename Take>
__device__ __forceinline__ void finish(Rows& rows, int64 first, int n, typename Rows::Loaded (&loaded)[AT_ONCE], Take take) {
    const double unit = rows.run.product_unit;
    for (int begin = threadIdx.x; begin < n; begin += AT_ONCE * THREADS) {
        typename Rows::Loaded next[AT_ONCE];
        load_rows(rows, first, n, begin + AT_ONCE * THREADS, next);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int row = begin + k * THREADS;
            if (row < n) rows.finish(first + row, loaded[k], double(take(row)) * unit);
            loaded[k] = next[k];
        }
    }
}

// Multiply and finish all rows. If a block has several items, the thread block that completes the last one finishes its rows.
template <typename Rows>
__device__ __forceinline__ void multiply(const Blocks& blocks, Rows& rows) {
    extern __shared__ unsigned low[];  // 0 wherever no item is being added
    unsigned* high = low + blocks.height + PADDING_ROWS;
    const unsigned spare = unsigned(blocks.height) + threadIdx.x % PADDING_ROWS;
    __shared__ int64 shared_item;
    __shared__ bool is_last;
    const Z* z = rows.z();
    const float scale = float(1.0 / rows.run.product_unit);
    const Bins& bins = blocks.bins;
    const int64 made = rows.run.state[2];
    if (BINNED && bins.n_large && blockIdx.x == 0 && threadIdx.x == 0) bins.n_large[(made + 1) & 1] = 0;
    for (int word = threadIdx.x; word < 2 * (blocks.height + PADDING_ROWS); word += THREADS) low[word] = 0;
    const auto take = [&](int row) {
        const uint64 sum = low[row] | uint64(high[row]) << 32;
        low[row] = high[row] = 0;
        return int64(sum);
    };
    for (;;) {
        if (threadIdx.x == 0) shared_item = atomicAdd(reinterpret_cast<uint64*>(rows.run.state), 1ull), is_wrong() = 0;
        __syncthreads();
        const int64 item = shared_item;
        if (item >= blocks.n_items) return;
        const int64 begin = blocks.item_bounds[4 * item], end = blocks.item_bounds[4 * item + 1];
        const int64 first_octet = BINNED ? blocks.item_bounds[4 * item + 2] : 0, octets_end = BINNED ? blocks.item_bounds[4 * item + 3] : 0;
        const int block = blocks.item_blocks[item], parts = blocks.item_parts[block];
        const int64 first_row = block * blocks.height;
        const int n = int(min(blocks.height, rows.run.n_rows - first_row));
        int64 chunk = begin + threadIdx.x / 32;
        chunk = add_chunks<2>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high, spare);
        add_chunks<1>(chunk, end, THREADS / 32, blocks.entries, blocks.columns, blocks.values, z, scale, low, high, spare);
        if (BINNED) {
            int64 part = first_octet * SHARES + threadIdx.x;
            part = add_bins<BINS_AT_ONCE>(part, octets_end * SHARES, bins, scale, low, high, spare);
            add_bins<1>(part, octets_end * SHARES, bins, scale, low, high, spare);
            if (bins.n_large) add_large(bins, __ldcg(bins.n_large + (made & 1)), first_octet * OCTET, octets_end * OCTET, low, high, spare);
        }
#if BANDED
        BandRows<Rows> loaded(blocks.band, rows, z + blocks.band.first_place, scale, first_row, n);
#else
        typename Rows::Loaded loaded[AT_ONCE];
#endif
        if (parts == 1) load_rows(rows, first_row, n, threadIdx.x, loaded);
        __syncthreads();
        if (threadIdx.x == 0 && is_wrong()) rows.count_wrong();
        if (parts == 1) {
            finish(rows, first_row, n, loaded, take);
        } else {
            for (int row = threadIdx.x; row < n; row += THREADS) {
                const uint64 sum = uint64(take(row));
                if (sum) atomicAdd(blocks.partial + first_row + row, sum);
            }
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) is_last = atomicAdd(blocks.parts_done + block, 1) == parts - 1;
            __syncthreads();
            if (is_last) {
                __threadfence();
                if (threadIdx.x == 0) blocks.parts_done[block] = 0;
                load_rows(rows, first_row, n, threadIdx.x, loaded);
                finish(rows, first_row, n, loaded, [&](int row) {
                    const uint64 sum = __ldcg(blocks.partial + first_row + row);
                    blocks.partial[first_row + row] = 0;
                    return int64(sum);
                });
            }
        }
        __syncthreads();
    }
}

#if BINNED
// Write z of binned entries in the order of blocks.
extern "C" __global__ void __launch_bounds__(FILL_THREADS, FILL_RESIDENT)
fill_bins(Blocks blocks, Run run) {
    if (run.state[3]) return;
    extern __shared__ uint64 room[];
    const Bins& bins = blocks.bins;
    Z* window = reinterpret_cast<Z*>(room);
    const int64 made = run.state[2], first = int64(bins.fill_windows[blockIdx.x]) << WINDOW_BITS;
    const Z* z = run.read[made & 1] + first;
    const int n = int(min(int64(1) << WINDOW_BITS, bins.n_columns - first)), n_words = int(n * sizeof(Z) / 16);
    for (int k = threadIdx.x; k < n_words; k += int(FILL_THREADS))
        reinterpret_cast<uint4*>(window)[k] = __ldg(reinterpret_cast<const uint4*>(z) + k);
    for (int k = int(n_words * 16 / sizeof(Z)) + threadIdx.x; k < n; k += FILL_THREADS) window[k] = __ldg(z + k);
    __syncthreads();
    const int64 last = bins.fill_bounds[2 * blockIdx.x + 1] * SHARES - 1;
    for (int64 part = bins.fill_bounds[2 * blockIdx.x] * SHARES + threadIdx.x; part <= last; part += FILL_AT_ONCE * FILL_THREADS) {
        Part<unsigned short, SHARE> columns[FILL_AT_ONCE];
        unsigned places[FILL_AT_ONCE];
#pragma unroll
        for (int n = 0; n < FILL_AT_ONCE; ++n) {
            const int64 own = min(part + n * FILL_THREADS, last);
            columns[n].read(bins.columns + own * SHARE);
            places[n] = __ldg(bins.places + own / SHARES);
        }
#pragma unroll
        for (int n = 0; n < FILL_AT_ONCE; ++n) {
            const int64 own = part + n * FILL_THREADS;
            Products<Z> found;
#pragma unroll
            for (int k = 0; k < SHARE; ++k) found.set(k, window[columns[n].own[k]]);
            if (own <= last) found.write(bins, int64(places[n]) * OCTET + own % SHARES * SHARE, bins.n_large + (made & 1));
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
step(Blocks blocks, Run run) {
    if (run.state[3]) return;
    StepRows rows(run);
    multiply(blocks, rows);
    rows.end();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
residual(Blocks blocks, Run run, double mass, double value_rounding, double* out) {
    ResidualRows rows{run, Rest(run, mass), value_rounding, out};
    multiply(blocks, rows);
}
