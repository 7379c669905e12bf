// Keep the device busy for a number of clock cycles, for timing. Kernels enqueued meanwhile start as soon as it ends, so that
// the time between two events around a launch is that of the kernel, without the host's time to launch it.
//
// Formula and shapes: none; it reads and writes no memory.
// Threads: one.
// Deterministic: yes, as it has no result.
// Needs: sm_70; no shared memory.
// Source: this project's.
extern "C" __global__ void spin(long long cycles) {
    const long long began = clock64();
    while (clock64() - began < cycles) {
    }
}
