// Digests of vectors, by which devices know that they hold what others sent.
//
// Formula: sum += sum of mix(words[k] + (k + 1) G) modulo 2^64; mix and G as in mgspmv/exchange/digests.py.
// Shapes: words (n), of WORD unsigned | uint64; sum (1), 0 at first.
// Threads: a grid of any size; each thread takes every so many words, a thread block adds by shuffles and in shared memory, and
//   adds to the sum by an atomic. Integers, which no order changes.
// Deterministic: yes, with the number of the host.
// Needs: sm_70.
// Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014, for mix and G.
#define THREADS 256

typedef long long int64;
typedef unsigned long long uint64;

__device__ __forceinline__ uint64 mix(uint64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}

extern "C" __global__ void __launch_bounds__(THREADS) digest(int64 n, const WORD* __restrict__ words, uint64* sum) {
    __shared__ uint64 all[THREADS / 32];
    uint64 own = 0;
    for (int64 k = int64(blockIdx.x) * THREADS + threadIdx.x; k < n; k += int64(gridDim.x) * THREADS)
        own += mix(uint64(words[k]) + (uint64(k) + 1) * 0x9E3779B97F4A7C15ull);
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < THREADS / 32; ++w) own += all[w];
    atomicAdd(sum, own);
}
