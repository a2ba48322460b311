/* A wall clock that is wrong, and can be stepped under a running process: for LD_PRELOAD.

   STEPPED_CLOCK names a file that holds how far the clock is ahead: milliseconds, as a 64-bit integer of this machine. It
   is mapped once, so that a step costs the process nothing. The monotonic clock stays as it is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead(void) {
  static int64_t none;
  static volatile int64_t *offset;
  if (!offset) {
    const char *name = getenv("STEPPED_CLOCK");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) syscall(SYS_close, file);
    offset = mapped == MAP_FAILED ? &none : mapped;
  }
  return *offset;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = NEXT(int (*)(clockid_t, struct timespec *), "clock_gettime");
  int failed = next(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t milliseconds = ahead();
    now->tv_sec += milliseconds / 1000;
    now->tv_nsec += milliseconds % 1000 * 1000000;
    if (now->tv_nsec >= 1000000000) now->tv_sec++, now->tv_nsec -= 1000000000;
    if (now->tv_nsec < 0) now->tv_sec--, now->tv_nsec += 1000000000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}
