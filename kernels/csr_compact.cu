// y = alpha A x + beta y for CSR with columns of 16 bits, work split evenly over nonzeros, by segmented scan.
//
// Formula: as in csr_scalar.cu
// Shapes: nonzeros are counted in steps of 512. steps (n_steps + 2) has the number of rows that ended before each step, of
//   those with entries, and the column that `near` is relative to in it. near (nnz) has columns; in steps whose base is
//   negative `indices` (nnz) has them. marks (n_steps 32): bit j of lane l is set if entry 16 l + j of the step is the last of
//   its row; the high half counts the row ends in lanes before. Row pointers are not read.
//   Thread block b has the rows from cuts[b] on: the first that begins in its steps, or in rows of thousands of entries the one
//   that continues at its first step. rows (n_filled) has the rows with entries, or is null if all have some; empty (n_empty) the
//   others. indices, near and data are aligned to 16 bytes.
// Threads: each warp has n_own steps in a row; the last one of a thread block has one less, but also finishes the last row.
//   While a warp computes a step, the next one is copied to shared memory. Lane l adds entries 16 l .. 16 l + 15 of a step in
//   order, from one row end to the next; sums that cross lanes are joined by a segmented scan, those that cross steps in
//   order, and those that cross warps when all have ended. Row sums are stored coalesced. The sum of a row that continues after
//   a thread block is its carry, which `add_carries` adds afterwards. Thread blocks from n_blocks on store rows without entries.
// Deterministic: yes; the result depends on n_own.
// Needs: sm_70; 50 KiB of shared memory in float32, 41 KiB in float64. Copies are asynchronous from sm_80 on.
// Source: Blelloch, Heroux, Zagha, Segmented Operations for Sparse Matrix Computation on Vector Multiprocessors, CMU-CS-93-173,
//   1993; bits for row ends as in Liu and Vinter, CSR5: An Efficient Storage Format for Cross-Platform Sparse Matrix-Vector
//   Multiplication, ICS 2015, but the entries stay in the order of CSR; blocks that begin with rows as in Greathouse and Daga,
//   SC 2014; 16-bit columns as in Kourtis, Goumas, Koziris, Optimizing Sparse Matrix-Vector Multiplication Using Index and Value
//   Compression, CF 2008.
#include "segments.cuh"

#define LANES 32
#define RUN 16
#define STEP (LANES * RUN)
#define MIN_BLOCKS ((sizeof(SUM) == 4 ? 24 : 16) / WARPS)

typedef unsigned short COLUMN;

struct __align__(2 * sizeof(OFFSET)) Step {
    OFFSET row, base;
};

struct Cut {
    int64 begin, row;
};

#define VALUE_BYTES (PATTERN ? 0 : sizeof(VALUE))
#define ROOM_BYTES (VALUE_BYTES > sizeof(SUM) ? VALUE_BYTES : sizeof(SUM))

// What a step reads, in shared memory; row sums take the place of the values.
struct __align__(16) Stage {
    int4 values[ROOM_BYTES * STEP / 16];
    int4 columns[sizeof(COLUMN) * STEP / 16];
    unsigned marks[LANES];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define IS_ASYNC 1
typedef unsigned Place;  // in shared memory
__device__ __forceinline__ Place find_place(void* pointer) { return unsigned(__cvta_generic_to_shared(pointer)); }
#else
#define IS_ASYNC 0
typedef char* Place;
__device__ __forceinline__ Place find_place(void* pointer) { return static_cast<char*>(pointer); }
#endif

// Copy 16 bytes to shared memory, AT bytes after both places, without waiting where the hardware can.
template <int AT>
__device__ __forceinline__ void copy_async(Place to, const char* from) {
#if IS_ASYNC
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(from), "n"(AT));
#else
    *reinterpret_cast<int4*>(to + AT) = LOAD_ONCE(reinterpret_cast<const int4*>(from + AT));
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if IS_ASYNC
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The entries of a lane in an array of a step. In shared memory, chunks of 16 bytes are permuted so that lanes that read theirs
// meet different banks: chunk c of lane l is at l CHUNKS + (c ^ spread(l)).
template <typename T>
struct Entries {
    static constexpr int CHUNKS = RUN * sizeof(T) / 16, SPAN = 16 * LANES;
    T element[RUN];

    static __device__ __forceinline__ int spread(int lane) { return lane * CHUNKS / 8 & (CHUNKS - 1); }

    // Place of the chunk that a lane copies first; it copies every 32nd from there on.
    static __device__ __forceinline__ int find_first(int lane) { return lane ^ spread(lane / CHUNKS); }

    // Copy the entries of all lanes of a full step.
    static __device__ __forceinline__ void copy(Place to, const char* from, int lane) {
        // With 8 chunks a lane, every other one of those that a lane copies is permuted otherwise by 4.
        const Place odd = CHUNKS == 8 ? to + ((find_first(lane) ^ 4) - find_first(lane)) * 16 : to;
        copy_async<0>(to, from);
        copy_async<SPAN>(odd, from);
        if (CHUNKS > 2) {
            copy_async<2 * SPAN>(to, from);
            copy_async<3 * SPAN>(odd, from);
        }
        if (CHUNKS > 4) {
            copy_async<4 * SPAN>(to, from);
            copy_async<5 * SPAN>(odd, from);
            copy_async<6 * SPAN>(to, from);
            copy_async<7 * SPAN>(odd, from);
        }
    }

    // Copy the n entries of the last step, and zeros.
    static __device__ __forceinline__ void copy_part(int4* to, const T* from, int n, int lane) {
#pragma unroll 1
        for (int k = lane; k < STEP; k += LANES) {
            const int owner = k / RUN, chunk = k % RUN * int(sizeof(T)) / 16;
            T* own = reinterpret_cast<T*>(to + owner * CHUNKS + (chunk ^ spread(owner)));
            own[k % (16 / sizeof(T))] = k < n ? from[k] : T(0);
        }
    }

    __device__ __forceinline__ Entries(const int4* from, int lane) {
        int4 chunks[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) chunks[c] = from[lane * CHUNKS + (c ^ spread(lane))];
        memcpy(element, chunks, sizeof(element));
    }
};

extern "C" __global__ void __launch_bounds__(WARPS* LANES, MIN_BLOCKS)
csr_compact(int64 n_blocks, int n_own, int64 nnz, const Cut* __restrict__ cuts, const Step* __restrict__ steps,
            const unsigned* __restrict__ marks, const COLUMN* __restrict__ near, const INDEX* __restrict__ indices,
            const VALUE* __restrict__ data, const ROW* __restrict__ rows, int64 n_empty, const ROW* __restrict__ empty,
            const X* __restrict__ x, SUM* y, SUM alpha, SUM beta, SUM* carries) {
    extern __shared__ __align__(16) char room[];
    __shared__ SUM heads[WARPS], tails[WARPS];
    __shared__ int64 head_rows[WARPS];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    if (blockIdx.x >= n_blocks) {
        const int64 n_threads = (gridDim.x - n_blocks) * blockDim.x;
        for (int64 i = (blockIdx.x - n_blocks) * blockDim.x + threadIdx.x; i < n_empty; i += n_threads)
            store_row(y, empty[i], alpha, SUM(0), beta);
        return;
    }
    const int64 first = int64(blockIdx.x) * (WARPS * n_own - 1), begin = first + warp * n_own;
    steps += begin;
    marks += begin * LANES;
    indices += begin * STEP;
    near += begin * STEP;
    if (!PATTERN) data += begin * STEP;
    const int n_left = int(max(int64(0), min(nnz - begin * STEP, int64(1) << 30)));
    int n_steps = min(n_own, (n_left + STEP - 1) / STEP);
    Stage* stages = reinterpret_cast<Stage*>(room) + 2 * warp;

    Place to_values = find_place(stages[0].values + Entries<VALUE>::find_first(lane));
    Place to_columns = find_place(stages[0].columns + Entries<COLUMN>::find_first(lane));
    Place to_marks = find_place(stages[0].marks + 4 * lane);
    const char* from_values = reinterpret_cast<const char*>(data) + 16 * lane;
    const char* from_columns = reinterpret_cast<const char*>(near) + 16 * lane;
    const char* from_marks = reinterpret_cast<const char*>(marks + 4 * lane);
    int turn = sizeof(Stage);
    HIDE(from_values);
    HIDE(from_columns);
    HIDE(from_marks);
    auto load = [&](int s) {
        if (n_left - s * STEP >= STEP) {
            if (!PATTERN) Entries<VALUE>::copy(to_values, from_values, lane);
            Entries<COLUMN>::copy(to_columns, from_columns, lane);
        } else {
            if (!PATTERN) Entries<VALUE>::copy_part(stages[s % 2].values, data + s * STEP, n_left - s * STEP, lane);
            Entries<COLUMN>::copy_part(stages[s % 2].columns, near + s * STEP, n_left - s * STEP, lane);
        }
        if (lane < LANES / 4) copy_async<0>(to_marks, from_marks);
        to_values += turn;
        to_columns += turn;
        to_marks += turn;
        turn = -turn;
        from_values += STEP * sizeof(VALUE);
        from_columns += STEP * sizeof(COLUMN);
        from_marks += LANES * sizeof(unsigned);
    };
    if (n_steps > 0) load(0);
    const Cut from = cuts[blockIdx.x], to = cuts[blockIdx.x + 1];
    if (warp == WARPS - 1) n_steps = int(max(int64(0), (to.begin + STEP - 1) / STEP - begin));
    Step current = {0, 0}, next = {0, 0};
    if (n_steps > 0) {
        current = steps[0];
        next = steps[1];
    }
    int64 head_row = -1;  // first own row that ends in the warp's steps; its sum may lack what warps before have of it
    SUM carry = 0, head = 0;
#pragma unroll 1
    for (int s = 0; s < n_steps; ++s) {
        wait_for_copies();
        SYNC_LANES();
        Step after = next;
        if (s + 1 < n_steps) {
            load(s + 1);
            after = steps[s + 2];
        }
        Stage& own = stages[s % 2];
        const unsigned mark = own.marks[lane];
        SUM term[RUN];
        if (current.base < 0) {
            const Entries<VALUE> value(own.values, lane);
            const INDEX* column = indices + s * STEP + lane * RUN;
            const int n_there = n_left - s * STEP - lane * RUN;
#pragma unroll
            for (int j = 0; j < RUN; ++j)
                term[j] = contribute(PATTERN ? VALUE(1) : value.element[j], __ldg(x + (j < n_there ? column[j] : 0)));
        } else {
            const X* origin = x + current.base;
            HIDE(origin);
            const Entries<COLUMN> column(own.columns, lane);
            X own_x[RUN];
#pragma unroll
            for (int j = 0; j < RUN; ++j) own_x[j] = __ldg(origin + column.element[j]);
            const Entries<VALUE> value(own.values, lane);
#pragma unroll
            for (int j = 0; j < RUN; ++j) term[j] = contribute(PATTERN ? VALUE(1) : value.element[j], own_x[j]);
        }
        SYNC_LANES();
        SUM *const totals = reinterpret_cast<SUM*>(own.values), *const place = totals + (mark >> 16), *next_place = place;
        SUM sum = 0;
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            sum += term[j];
            if (mark >> j & 1) {
                *next_place++ = sum;
                sum = 0;
            }
        }
        // Lanes from the last one with a row end on, up to this one, are of one row.
        const bool has_end = (mark & 0xffff) != 0;
        const unsigned with_end = BALLOT(has_end), until = with_end & (2u << lane) - 1;
        const int n_open = until == 0 ? lane : lane - (31 - __clz(until));
#pragma unroll
        for (int distance = 1; distance < LANES; distance *= 2) {
            const SUM other = SHIFT_UP(sum, distance);
            if (distance <= n_open) sum = other + sum;
        }
        SUM open = SHIFT_UP(sum, 1);
        if (lane == 0) open = 0;
        if ((with_end & (1u << lane) - 1) == 0) open = carry + open;
        const SUM last = FROM_LANE(sum, LANES - 1);
        carry = with_end == 0 ? carry + last : last;
        if (has_end) *place = open + *place;
        SYNC_LANES();
        int i = int(max(OFFSET(0), OFFSET(from.row) - current.row));
        const int n_done = int(min(next.row, OFFSET(to.row)) - current.row);
        if (head_row < 0 && i < n_done) {
            head = totals[i];
            head_row = current.row + i++;
        }
        if (rows) {
            for (i += lane; i < n_done; i += LANES) store_row(y, rows[current.row + i], alpha, totals[i], beta);
        } else {
            SUM* own_y = y + current.row;
            for (i += lane; i < n_done; i += LANES) store_row(own_y, i, alpha, totals[i], beta);
        }
        current = next;
        next = after;
    }
    wait_for_copies();  // of a warp without steps
    if (lane == 0) {
        heads[warp] = head;
        head_rows[warp] = head_row;
        tails[warp] = carry;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    carry = 0;
    // Warps before the one with the first own entry have none.
    for (int w = int(from.begin / STEP - first) / n_own; w < WARPS; ++w) {
        if (head_rows[w] >= 0) {
            store_row(y, rows ? int64(rows[head_rows[w]]) : head_rows[w], alpha, carry + heads[w], beta);
            carry = tails[w];
        } else {
            carry += tails[w];
        }
    }
    if (carries) carries[blockIdx.x] = carry;
}
