// Sort entries into CSR: number ids, pack (row, column) into keys, and, of sorted keys, merge duplicates and unpack;
//   described in mgspmv/kernels/entry_sorting.py, which sorts the keys.
//
// Formula: key = row << bits | column. An entry is kept if its key differs from the one before (merges) and it is not on the diagonal
//   (drops_loops). Kept entry k goes to place places[k] - 1, where `places` are inclusive sums of `flags`; with sums its value is the
//   sum of the values of its key, in the order of the source.
// Shapes: n ids or keys; n_rows rows; nnz columns. order[k] is the number of sorted entry k in the source; null for none.
// Threads: one thread per id, key, row or column.
// Deterministic: yes; counts are sums of integers, and each sum of values has one thread.
// Needs: sm_70.
// Source: this project's; sums of columns in double-double arithmetic by Knuth's two-sum (The Art of Computer Programming, 4.2.2).
typedef long long int64;
typedef unsigned long long uint64;

#define OWN(n) const int64 k = int64(blockIdx.x) * blockDim.x + threadIdx.x; if (k >= n) return

extern "C" __global__ void mark_ids(int64 n, const ID* ids, int* seen) {
    OWN(n);
    if (seen[ids[k]] == 0) seen[ids[k]] = 1;
}

// Write each seen id to its number; `numbers` are inclusive sums of `seen`.
extern "C" __global__ void list_ids(int64 n, const int* numbers, int64* ids) {
    OWN(n);
    const int before = k ? numbers[k - 1] : 0;
    if (numbers[k] != before) ids[before] = k;
}

// Write each distinct id of sorted ones to its number; `numbers` are inclusive sums of the flags of first ids.
extern "C" __global__ void list_distinct(int64 n, const int64* sorted, const int* numbers, int64* ids) {
    OWN(n);
    const int before = k ? numbers[k - 1] : 0;
    if (numbers[k] != before) ids[before] = sorted[k];
}

// Find the number of each id among the known ones, which ascend, by bisection.
extern "C" __global__ void find_numbers(int64 n, const ID* ids, int64 n_known, const int64* known, int* numbers) {
    OWN(n);
    int64 low = 0, high = n_known;
    while (low < high) {
        const int64 middle = (low + high) / 2;
        if (known[middle] < int64(ids[k])) low = middle + 1;
        else high = middle;
    }
    numbers[k] = int(low);
}

// Put rows (is_row) or columns into keys; table[id] is the number of an id, plus `one`; null if ids are numbers.
extern "C" __global__ void put_numbers(int64 n, const ID* ids, const int* table, int one, int bits, int is_row, uint64* keys) {
    OWN(n);
    const uint64 number = table ? uint64(table[ids[k]] - one) : uint64(ids[k]);
    keys[k] = is_row ? number << bits : keys[k] | number;
}

extern "C" __global__ void flag_entries(int64 n, const uint64* keys, int bits, int merges, int drops_loops, int* flags) {
    OWN(n);
    const uint64 key = keys[k];
    const bool is_repeated = merges && k && keys[k - 1] == key;
    const bool is_loop = drops_loops && key >> bits == (key & ((uint64(1) << bits) - 1));
    flags[k] = !is_repeated && !is_loop;
}

// Point each row, from first_row on, to its first kept entry, by bisection.
extern "C" __global__ void point_rows(int64 n_rows, int64 first_row, int64 n, const uint64* keys, int bits, const int* places,
                                      int64* indptr) {
    OWN(n_rows + 1);
    int64 low = 0, high = n;
    while (low < high) {
        const int64 middle = (low + high) / 2;
        if (int64(keys[middle] >> bits) < first_row + k) low = middle + 1;
        else high = middle;
    }
    indptr[k] = low ? int64(places[low - 1]) : 0;
}

// `failed` becomes 1 if a sum of integers does not fit into int64.
extern "C" __global__ void put_entries(int64 n, const uint64* keys, int bits, const int* places, const int64* order,
                                       const VALUE* values, int sums, int* indices, VALUE* data, int* failed) {
    OWN(n);
    const int place = places[k];
    if (place == (k ? places[k - 1] : 0)) return;
    const uint64 key = keys[k];
    indices[place - 1] = int(key & ((uint64(1) << bits) - 1));
    if (!values) return;
    VALUE sum = values[order[k]];
    if (sums) {
        for (int64 other = k + 1; other < n && keys[other] == key; ++other) {
            const VALUE value = values[order[other]];
            if (VALUE(0.5) == VALUE(0)) {  // integers
                const int64 room = value > 0 ? 0x7fffffffffffffffLL - int64(value) : -0x7fffffffffffffffLL - 1 - int64(value);
                if (value > 0 ? sum > room : sum < room) *failed = 1;
            }
            sum += value;
        }
    }
    data[place - 1] = sum;
}

// Count the values that are NaN or infinite.
extern "C" __global__ void count_infinite(int64 n, const VALUE* data, uint64* count) {
    OWN(n);
    if (!isfinite(double(data[k]))) atomicAdd(count, uint64(1));
}

extern "C" __global__ void count_columns(int64 n, const int* indices, uint64* degree) {
    OWN(n);
    atomicAdd(degree + indices[k], uint64(1));
}

// Put columns, and rows below them, into keys of the transpose.
extern "C" __global__ void turn_keys(int64 n_rows, const int64* indptr, const int* indices, int bits, uint64* keys) {
    OWN(n_rows);
    for (int64 entry = indptr[k]; entry < indptr[k + 1]; ++entry) keys[entry] = uint64(indices[entry]) << bits | uint64(k);
}

// Sum the values of each column, whose entries begin at starts[k] of `order`, in the order of rows; into two parts if
// `rest` is not null.
extern "C" __global__ void sum_columns(int64 n_cols, const int64* starts, const int64* order, const VALUE* data, double* weight, double* rest) {
    OWN(n_cols);
    double high = 0, low = 0;
    for (int64 entry = starts[k]; entry < starts[k + 1]; ++entry) {
        const double value = double(data[order[entry]]), total = high + value, part = total - high;
        low += (high - (total - part)) + (value - part);
        high = total;
    }
    weight[k] = rest ? high : high + low;
    if (rest) rest[k] = low;
}
