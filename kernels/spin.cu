// Keeps the device busy for so many clock cycles, so that what is enqueued behind it is there when its turn comes: the
// time between two events around a launch is then that of the kernel, without the host's time to launch it.
//
// Threads: one.
// Deterministic: it computes nothing.
// Needs: sm_70; no shared memory.
extern "C" __global__ void spin(long long cycles) {
    const long long began = clock64();
    while (clock64() - began < cycles) {
    }
}
