// Entries of generated graphs: how many there are by row, and those of a range of rows.
//
// Formula: entry number e of R-MAT and of uniform graphs is as mgspmv/ingest/generate.py describes it, in integers alone.
// Shapes: count_* add to `buckets`, (2^13), the entries of rows b 2^row_shift .. (b + 1) 2^row_shift; collect_* append to `keys`, after
//   `found` others, (row - first_row) 2^column_bits + column of the entries in rows first_row .. last_row, in no order.
// Threads: a thread makes entries begin + t, begin + t + all threads, ..; a warp asks for the places of its keys at once.
// Deterministic: which keys there are, yes; they are to be sorted.
// Needs: sm_70; 32 KiB of shared memory.
// Source: Chakrabarti, Zhan, Faloutsos, R-MAT, SDM 2004; random words: Steele, Lea, Flood, OOPSLA 2014.
typedef long long int64;
typedef unsigned long long uint64;

#define THREADS 256
#define BUCKETS 8192
#define GOLDEN 0x9E3779B97F4A7C15ull
#define LEVELS_PER_WORD 3
#define LEVEL_BITS 21

struct Rule {
    uint64 key, n;  // of places; vertices
    int64 scale;
    uint64 a, ab, abc;
    int64 is_scrambled;
    uint64 scramble[4];
    int64 is_transposed, drops_loops, is_mirrored;
};

__device__ __forceinline__ uint64 mix(uint64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ uint64 scramble(uint64 x, const Rule& rule) {
    const uint64 mask = rule.n - 1;
    const int half = int(rule.scale + 1) / 2;
    x = (x + rule.scramble[0]) & mask;
    for (int k = 1; k < 4; ++k) {
        x = (x * (rule.scramble[k] | 1)) & mask;
        x ^= x >> half;
    }
    return x;
}

struct Rmat {
    static __device__ __forceinline__ void make(const Rule& rule, uint64 e, uint64& row, uint64& column) {
        const int n_words = int(rule.scale + LEVELS_PER_WORD - 1) / LEVELS_PER_WORD;
        uint64 state = rule.key + e * n_words * GOLDEN;
        row = column = 0;
        for (int w = 0; w < n_words; ++w) {
            state += GOLDEN;
            uint64 word = mix(state);
#pragma unroll
            for (int level = 0; level < LEVELS_PER_WORD; ++level) {
                const uint64 u = word >> (64 - LEVEL_BITS);
                word <<= LEVEL_BITS;
                const uint64 is_lower = u >= rule.ab;
                row = row << 1 | is_lower;
                column = column << 1 | (uint64(u >= rule.a) ^ is_lower ^ uint64(u >= rule.abc));
            }
        }
        const int surplus = LEVELS_PER_WORD * n_words - int(rule.scale);
        row >>= surplus, column >>= surplus;
        if (rule.is_scrambled) row = scramble(row, rule), column = scramble(column, rule);
    }
};

struct Uniform {
    static __device__ __forceinline__ void make(const Rule& rule, uint64 e, uint64& row, uint64& column) {
        row = __umul64hi(mix(rule.key + (2 * e + 1) * GOLDEN), rule.n);
        column = __umul64hi(mix(rule.key + (2 * e + 2) * GOLDEN), rule.n);
    }
};

// Calls take(row, column, is there) for every entry, by all lanes of a warp together.
template <typename Model, typename Take>
__device__ __forceinline__ void each_entry(const Rule& rule, int64 begin, int64 end, Take take) {
    const int64 stride = int64(gridDim.x) * THREADS;
    for (int64 first = begin + int64(blockIdx.x) * THREADS; first < end; first += stride) {
        const int64 e = first + threadIdx.x;
        uint64 row, column;
        Model::make(rule, uint64(e), row, column);
        const bool is_loop = row == column, is_there = e < end && !(is_loop && rule.drops_loops);
        const uint64 i = rule.is_transposed ? column : row, j = rule.is_transposed ? row : column;
        take(i, j, is_there);
        if (rule.is_mirrored) take(j, i, is_there && !is_loop);
    }
}

template <typename Model>
__device__ __forceinline__ void count(const Rule& rule, int64 begin, int64 end, int64 row_shift, uint64* buckets) {
    __shared__ unsigned own[BUCKETS];
    for (int b = threadIdx.x; b < BUCKETS; b += THREADS) own[b] = 0;
    __syncthreads();
    each_entry<Model>(rule, begin, end, [&](uint64 row, uint64, bool is_there) {
        if (is_there) atomicAdd(own + (row >> row_shift), 1u);
    });
    __syncthreads();
    for (int b = threadIdx.x; b < BUCKETS; b += THREADS)
        if (own[b]) atomicAdd(buckets + b, uint64(own[b]));
}

template <typename Model>
__device__ __forceinline__ void collect(const Rule& rule, int64 begin, int64 end, uint64 first_row, uint64 last_row,
                                        int64 column_bits, uint64* found, int64* keys) {
    const int lane = threadIdx.x % 32;
    each_entry<Model>(rule, begin, end, [&](uint64 row, uint64 column, bool is_there) {
        const bool is_ours = is_there && row >= first_row && row < last_row;
        const unsigned ours = __ballot_sync(0xffffffffu, is_ours);
        if (!ours) return;
        uint64 place = 0;
        if (lane == 0) place = atomicAdd(found, uint64(__popc(ours)));
        place = __shfl_sync(0xffffffffu, place, 0) + __popc(ours & ((1u << lane) - 1));
        if (is_ours) keys[place] = int64((row - first_row) << column_bits | column);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
count_rmat(Rule rule, int64 begin, int64 end, int64 row_shift, uint64* buckets) {
    count<Rmat>(rule, begin, end, row_shift, buckets);
}
extern "C" __global__ void __launch_bounds__(THREADS)
count_uniform(Rule rule, int64 begin, int64 end, int64 row_shift, uint64* buckets) {
    count<Uniform>(rule, begin, end, row_shift, buckets);
}
extern "C" __global__ void __launch_bounds__(THREADS)
collect_rmat(Rule rule, int64 begin, int64 end, uint64 first_row, uint64 last_row, int64 column_bits, uint64* found, int64* keys) {
    collect<Rmat>(rule, begin, end, first_row, last_row, column_bits, found, keys);
}
extern "C" __global__ void __launch_bounds__(THREADS)
collect_uniform(Rule rule, int64 begin, int64 end, uint64 first_row, uint64 last_row, int64 column_bits, uint64* found, int64* keys) {
    collect<Uniform>(rule, begin, end, first_row, last_row, column_bits, found, keys);
}
