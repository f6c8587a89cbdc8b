/* A clock that stands still until somebody moves it, for redis-server, Valkey and Python itself.
 *
 *   cc -O2 -shared -fPIC clock.c -o clock.so
 *   LD_PRELOAD=$PWD/clock.so SIM_CLOCK=$PWD/clock.bin SIM_RANDOM=$PWD/random.bin redis-server ...
 *
 * SIM_CLOCK: a file of 16 bytes, mapped and shared: microseconds since the epoch, then microseconds of the monotonic
 * clock. Whoever writes it sets the time; the two may be stepped apart. Other clocks (CPU time, CLOCK_MONOTONIC_RAW)
 * stay real, so a run can still measure itself.
 * SIM_RANDOM: a file that is opened in place of /dev/urandom. A server takes its hash seed from there, and its hash seed
 * decides the order of SCAN, HGETALL and SRANDMEMBER. For the same reason getpid() returns SIM_PID, if that is set.
 *
 * The clocks allocate no memory and look up no symbols, because jemalloc asks for the time before the C library is
 * ready. While the time stands still, the timers of a server do too: end it with SIGKILL, because it looks for SIGTERM
 * in a timer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *clocks;

static long long simulated(int monotonic) {
    if (!clocks) {
        const char *path = getenv("SIM_CLOCK");
        int file = path ? open(path, O_RDONLY) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (mapped == MAP_FAILED) {
            struct timespec real;
            syscall(SYS_clock_gettime, monotonic ? CLOCK_MONOTONIC : CLOCK_REALTIME, &real);
            return real.tv_sec * 1000000LL + real.tv_nsec / 1000;
        }
        clocks = mapped;
    }
    return clocks[monotonic];
}

int clock_gettime(clockid_t id, struct timespec *into) {
    int monotonic = id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME;
    if (!monotonic && id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
        return syscall(SYS_clock_gettime, id, into);
    }
    long long us = simulated(monotonic);
    into->tv_sec = us / 1000000;
    into->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    (void)zone;
    long long us = simulated(0);
    into->tv_sec = us / 1000000;
    into->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *into) {
    time_t seconds = simulated(0) / 1000000;
    if (into) *into = seconds;
    return seconds;
}

FILE *fopen64(const char *restrict path, const char *restrict mode) {
    static FILE *(*real)(const char *, const char *);
    const char *seeded = strcmp(path, "/dev/urandom") ? 0 : getenv("SIM_RANDOM");
    if (!real) real = dlsym(RTLD_NEXT, "fopen64");
    // Valkey reads there the rate of the processor's own counter, and would use that counter as its clock.
    if (!strcmp(path, "/proc/cpuinfo") && getenv("SIM_CLOCK")) return 0;
    return real(seeded ? seeded : path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) { return fopen64(path, mode); }

pid_t getpid(void) {
    const char *fixed = getenv("SIM_PID");
    return fixed ? atoi(fixed) : syscall(SYS_getpid);
}
