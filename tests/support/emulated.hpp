// CUDA C++ on a processor: the threads of a thread block are fibers of one thread, and thread blocks run one after the other.
//
// Atomics are plain, fences do nothing, and copies are not asynchronous, so races are not found. What is found: wrong
// indices, arguments and sums, barriers that some threads miss, and, with the sanitizers of the compiler, wrong reads.
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <ucontext.h>
#include <vector>

using std::isfinite;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __align__(n) alignas(n)

struct Place3 {
    unsigned x = 0, y = 0, z = 0;
};
static Place3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

// --- fibers ----------------------------------------------------------------------------------------------------------

namespace fibers {

const size_t STACK = 1 << 17;

static long n_releases = 0;

struct Barrier {
    int n_alive = 0, n_here = 0;
    long round = 0;
    void release() {
        if (n_here > 0 && n_here == n_alive) n_here = 0, ++round, ++n_releases;
    }
};

static std::vector<ucontext_t> contexts;
static std::vector<std::array<jmp_buf, 1>> places;  // where threads go on: ucontext would call the system at each switch
static jmp_buf scheduler_place;
static std::vector<char> is_done, shared_memory;
static std::vector<Barrier> warps;
static std::vector<uint64_t> sent;
static char* stacks = nullptr;
static Barrier block;
static unsigned own;
static std::function<void()> body;
static int any;

static void yield() {
    if (!_setjmp(places[own][0])) _longjmp(scheduler_place, 1);
}

// Let a thread run until it waits.
static void resume(unsigned t, bool is_new) {
    own = t, threadIdx.x = t;
    if (_setjmp(scheduler_place)) return;
    if (is_new) setcontext(&contexts[t]);
    _longjmp(places[t][0], 1);
}

static void wait(Barrier& barrier) {
    const long round = barrier.round;
    ++barrier.n_here;
    barrier.release();
    while (barrier.round == round) yield();
}

static void run_thread() {
    body();
    is_done[own] = 1;
    --block.n_alive, block.release();
    --warps[own / 32].n_alive, warps[own / 32].release();
    _longjmp(scheduler_place, 1);
}

static void run_block(unsigned n) {
    if (!stacks) stacks = static_cast<char*>(malloc(1024 * STACK));
    contexts.resize(n), places.resize(n), is_done.assign(n, 0), warps.assign((n + 31) / 32, Barrier()), sent.assign(n, 0);
    block = Barrier(), block.n_alive = n;
    for (unsigned t = 0; t < n; ++t) {
        ++warps[t / 32].n_alive;
        getcontext(&contexts[t]);
        contexts[t].uc_stack.ss_sp = stacks + t * STACK, contexts[t].uc_stack.ss_size = STACK, contexts[t].uc_link = nullptr;
        makecontext(&contexts[t], run_thread, 0);
    }
    bool is_new = true;
    for (unsigned left = n, idle = 0; left; is_new = false) {
        const unsigned before = left;
        const long releases = n_releases;
        for (unsigned t = 0; t < n; ++t) {
            if (is_done[t]) continue;
            resume(t, is_new);
            left -= is_done[t];
        }
        idle = left == before && n_releases == releases ? idle + 1 : 0;
        if (idle > 100000) fprintf(stderr, "threads wait for each other\n"), abort();
    }
}

static void run_grid(unsigned grid, unsigned threads, size_t n_shared, std::function<void()> kernel) {
    shared_memory.resize(n_shared + 64);
    body = kernel, gridDim.x = grid, blockDim.x = threads;
    for (unsigned b = 0; b < grid; ++b) {
        memset(shared_memory.data(), 0xa5, shared_memory.size());
        blockIdx.x = b;
        run_block(threads);
    }
}

static char* find_shared() {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared_memory.data()) + 63) / 64 * 64);
}

template <typename T>
T shuffle(T value, int lane) {
    static_assert(sizeof(T) <= 8, "one word");
    memcpy(&sent[own], &value, sizeof(T));
    wait(warps[own / 32]);
    T found;
    memcpy(&found, &sent[own / 32 * 32 + lane], sizeof(T));
    wait(warps[own / 32]);
    return found;
}

}  // namespace fibers

static void __syncthreads() { fibers::wait(fibers::block); }
static int __syncthreads_or(int own) {
    fibers::any = 0;
    __syncthreads();
    fibers::any |= own;
    __syncthreads();
    const int found = fibers::any;
    __syncthreads();
    return found;
}
static void __syncwarp(unsigned = ~0u) { fibers::wait(fibers::warps[fibers::own / 32]); }
static void __threadfence() {}
static void __threadfence_system() {}
template <typename T>
T __shfl_down_sync(unsigned, T value, int distance) {
    const int lane = threadIdx.x % 32;
    return fibers::shuffle(value, lane + distance < 32 ? lane + distance : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int distance) {
    const int lane = threadIdx.x % 32;
    return fibers::shuffle(value, lane >= distance ? lane - distance : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int bits) { return fibers::shuffle(value, int(threadIdx.x % 32) ^ bits); }
template <typename T>
T __shfl_sync(unsigned, T value, int lane) { return fibers::shuffle(value, lane); }

static unsigned __ballot_sync(unsigned, bool own) {
    const unsigned first = fibers::own / 32 * 32;
    fibers::sent[fibers::own] = own;
    fibers::wait(fibers::warps[fibers::own / 32]);
    unsigned found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= unsigned(fibers::sent[first + lane] & 1) << lane;
    fibers::wait(fibers::warps[fibers::own / 32]);
    return found;
}

// --- memory and numbers ----------------------------------------------------------------------------------------------

template <typename T>
T __ldg(const T* place) { return *place; }
template <typename T>
T __ldcs(const T* place) { return *place; }
template <typename T>
T __ldcg(const T* place) { return *place; }
template <typename T>
void __stcs(T* place, T value) { *place = value; }
template <typename T, typename U>
T atomicAdd(T* place, U value) {
    const T before = *place;
    *place = before + T(value);
    return before;
}
template <typename T, typename U>
T atomicMax(T* place, U value) {
    const T before = *place;
    if (T(value) > before) *place = T(value);
    return before;
}
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) { typedef std::common_type_t<A, B> C; return C(b) < C(a) ? C(b) : C(a); }
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) { typedef std::common_type_t<A, B> C; return C(a) < C(b) ? C(b) : C(a); }
static int __popc(unsigned value) { return __builtin_popcount(value); }
static int __clz(unsigned value) { return value ? __builtin_clz(value) : 32; }
static unsigned __float2uint_rn(float value) { return unsigned(llrintf(value)); }
static unsigned long long __float2ull_rn(float value) { return (unsigned long long)nearbyintf(value); }
static long long __float2ll_rn(float value) { return llrintf(value); }
static long long __double2ll_rn(double value) { return llrint(value); }
static float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
