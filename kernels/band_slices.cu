// Split the rows of a matrix into entries next to the diagonal, in slices, and the others, in CSR; described in
// mgspmv/kernels/band_slices.py, read by rank_blocks.cu.
//
// Formula: none; each entry (row, column, value) of CSR is written to one of both.
// Shapes: slice s has rows 32 s .. 32 s + 32. Entries 2 k and 2 k + 1 of the band in row 32 s + l are the halves of word
//   32 (starts[s] + k) + l, unless starts[s] + k is starts[s + 1] or more. A step is the place of a column in z less that of the row,
//   first_place + row. In CSR, row r begins at far_starts[r].
// Threads: one warp per slice.
// Deterministic: yes.
// Needs: sm_70.
// Source: sliced ELLPACK, Monakov, Lokhmotov, Avetisyan, HiPEAC 2010; the split is this project's.
typedef long long int64;

#define FULL 0xffffffffu
#define SLICE 32
#define WARPS 8
#define NO_STEPS 0x80008000u  // a word of two places that have no entry

struct Rows {
    int64 n_rows;
    const int64* starts;  // (n_rows + 1)
    const int* indices;
    const VALUE* data;
    const int* column_places;  // null if columns are places
    int64 first_place;
};

// Bits first .. last - 1 of a word.
__device__ __forceinline__ unsigned make_mask(int first, int last) {
    return first >= last ? 0u : (last < 32 ? (1u << last) - 1 : FULL) & ~((1u << first) - 1);
}

// A slice: each lane has the entries start .. end of a row, counted from the slice's first one.
struct Slice {
    int64 first_row, begin;
    int start, end, last;
    __device__ __forceinline__ Slice(const Rows& rows, int64 slice) : first_row(slice * SLICE) {
        const int64 row = first_row + threadIdx.x % 32;
        const int64 own = rows.starts[min(row, rows.n_rows)], next = rows.starts[min(row + 1, rows.n_rows)];
        begin = __shfl_sync(FULL, own, 0);
        start = int(own - begin), end = int(next - begin), last = __shfl_sync(FULL, end, 31);
        begin -= rows.starts[0];
    }
    // Call visit(entry, lane of its row, first entry of that row, entries of the band in that row before it, whether it is one, its step)
    // for all entries, by all lanes; return the number of entries of the band in the lane's row.
    template <typename Visit>
    __device__ __forceinline__ int visit(const Rows& rows, Visit visit) const {
        const int lane = threadIdx.x % 32, first_place = int(rows.first_place + first_row);
        const int* indices = rows.indices + begin;
        int n_inside = 0;
        for (int first = 0; first < last; first += 32) {
            const int entry = first + lane;
            int column = entry < last ? __ldcs(indices + entry) : 0;
            if (entry < last && rows.column_places) column = __ldg(rows.column_places + column);
            int own = 0;
            for (int half = 16; half > 0; half /= 2) own += __shfl_sync(FULL, start, own + half) <= entry ? half : 0;
            const int row_start = __shfl_sync(FULL, start, own), step = column - (first_place + own);
            const bool is_inside = entry < last && step > -BAND && step < BAND;
            const unsigned inside = __ballot_sync(FULL, is_inside);
            const int before = __shfl_sync(FULL, n_inside, own) + __popc(inside & make_mask(max(row_start - first, 0), lane));
            visit(entry, own, row_start, before, is_inside, step);
            n_inside += __popc(inside & make_mask(max(start - first, 0), min(max(end - first, 0), 32)));
        }
        return n_inside;
    }
};

// Find the number of words of each slice, at least half of whose places have entries, and of entries of each row that are in none.
extern "C" __global__ void __launch_bounds__(SLICE * WARPS)
measure_slices(Rows rows, unsigned* n_words, int* n_far) {
    const int64 slice = int64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (slice * SLICE >= rows.n_rows) return;
    const Slice own(rows, slice);
    const int n_inside = own.visit(rows, [](int, int, int, int, bool, int) {});
    int words = 0;
    while (__popc(__ballot_sync(FULL, n_inside > 2 * words)) + __popc(__ballot_sync(FULL, n_inside > 2 * words + 1)) >= SLICE) ++words;
    if (threadIdx.x % 32 == 0) n_words[slice] = unsigned(words);
    const int64 row = own.first_row + threadIdx.x % 32;
    if (row < rows.n_rows) n_far[row] = own.end - own.start - min(n_inside, 2 * words);
}

// Write each entry to its place, in the slices or in CSR.
extern "C" __global__ void __launch_bounds__(SLICE * WARPS)
split_rows(Rows rows, const unsigned* starts, unsigned* words, VALUE* values, const int64* far_starts, int* far_indices, VALUE* far_data) {
    const int64 slice = int64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (slice * SLICE >= rows.n_rows) return;
    const Slice own(rows, slice);
    const int64 own_far = far_starts[min(own.first_row + threadIdx.x % 32, rows.n_rows)], first_far = __shfl_sync(FULL, own_far, 0);
    const int far_start = int(own_far - first_far), width = 2 * int(starts[slice + 1] - starts[slice]);
    const int64 first = SLICE * int64(starts[slice]);
    for (int k = threadIdx.x % 32; k < SLICE * width / 2; k += 32) words[first + k] = NO_STEPS;
    __syncwarp();
    short* steps = reinterpret_cast<short*>(words);
    own.visit(rows, [&](int entry, int lane, int row_start, int before, bool is_inside, int step) {
        const int row_far = __shfl_sync(FULL, far_start, lane);
        if (entry >= own.last) return;
        if (is_inside && before < width) {
            const int64 place = 2 * (first + SLICE * (before / 2) + lane) + before % 2;
            steps[place] = static_cast<short>(step);
            if (!PATTERN) values[place] = rows.data[own.begin + entry];
        } else {
            const int64 place = first_far + row_far + (entry - row_start) - min(before, width);
            far_indices[place] = rows.indices[own.begin + entry];
            if (!PATTERN) far_data[place] = rows.data[own.begin + entry];
        }
    });
}
