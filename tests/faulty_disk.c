/* A disk that fails on demand, for processes that are started with LD_PRELOAD set to this library.

   FAULTY_DISK names a file of rules, one a line: a call (`open`, `read`, `write`, `sync`, or its own name, as `fsync`), an
   error number, and a part of the paths that are meant. It is read at every call, so that a disk may fail and come back
   under a running process. Only opening for writing counts as `open`. Special error numbers:

   EINTR   meets every second call, as signals would;
   -1      reads and writes half of what is asked for;
   1000+n  cuts the power at the nth such call: the file system loses what it has not synced yet, and is gone;
   2000+n  fails the nth such call with EIO, and no other;
   3000+n  kills the process at the nth such call, which is not made. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* 0, or the error that a call on this path meets. By system calls of its own, which meet nothing. */
static int fault(const char *call, const char *name_of_call, const char *path) {
  char rules[4096], *line, *rest = rules;
  const char *name = getenv("FAULTY_DISK");
  int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  long length = syscall(SYS_read, file, rules, sizeof rules - 1);
  syscall(SYS_close, file);
  rules[length > 0 ? length : 0] = 0;
  while ((line = strsep(&rest, "\n"))) {
    char meant[16], part[1024];
    int error;
    if (sscanf(line, "%15s %d %1023[^\n]", meant, &error, part) == 3 && strstr(path, part) &&
        (!strcmp(meant, call) || !strcmp(meant, name_of_call)))
      return error;
  }
  return 0;
}

#define HALF -1
#define POWER_CUT 1000
#define ONCE 2000
#define KILLED 3000
#define FS_IOC_GOINGDOWN _IOR('X', 125, unsigned)

static int fault_of(const char *call, const char *name, int descriptor) {
  static unsigned calls;
  char link[64], path[4096];
  int before = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  int error = fault(call, name, path);
  if (error) calls++;
  if (error == EINTR && calls % 2) error = 0;
  if (error > KILLED) {
    if (calls == error - KILLED) kill(getpid(), SIGKILL);
    error = 0;
  } else if (error > ONCE) {
    error = calls == error - ONCE ? EIO : 0;
  } else if (error > POWER_CUT) {
    unsigned without_flushing = 2;
    if (calls == error - POWER_CUT) syscall(SYS_ioctl, descriptor, FS_IOC_GOINGDOWN, &without_flushing);
    error = 0;
  }
  errno = error > 0 ? error : before;
  return error;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

#define ON_DESCRIPTOR(call, result, name, parameters, arguments)       \
  result name parameters {                                            \
    static result(*next) parameters;                                  \
    if (!next) next = NEXT(result(*) parameters, #name);              \
    return fault_of(call, #name, descriptor) > 0 ? -1 : next arguments; \
  }

#define ON_BYTES(call, name, parameters, arguments)                    \
  ssize_t name parameters {                                           \
    static ssize_t (*next) parameters;                                \
    int error = fault_of(call, #name, descriptor);                    \
    if (!next) next = NEXT(ssize_t(*) parameters, #name);             \
    if (error == HALF) size = (size + 1) / 2;                         \
    return error > 0 ? -1 : next arguments;                           \
  }

ON_DESCRIPTOR("sync", int, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR("sync", int, fdatasync, (int descriptor), (descriptor))
ON_DESCRIPTOR("write", int, ftruncate64, (int descriptor, off64_t length), (descriptor, length))
ON_BYTES("read", read, (int descriptor, void *to, size_t size), (descriptor, to, size))
ON_BYTES("read", pread64, (int descriptor, void *to, size_t size, off64_t at), (descriptor, to, size, at))
ON_BYTES("write", write, (int descriptor, const void *from, size_t size), (descriptor, from, size))
ON_BYTES("write", pwrite64, (int descriptor, const void *from, size_t size, off64_t at), (descriptor, from, size, at))

int open64(const char *path, int flags, ...) {
  static int (*next)(const char *, int, ...);
  va_list more;
  va_start(more, flags);
  int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
  va_end(more);
  if (!next) next = NEXT(int (*)(const char *, int, ...), "open64");
  int error = flags & (O_WRONLY | O_RDWR | O_CREAT) ? fault("open", "open64", path) : 0;
  if (error <= 0) return next(path, flags, mode);
  errno = error;
  return -1;
}
