/* System calls, made directly: errno belongs to the program. */
#pragma once
#include <asm/unistd.h>
#include <stdint.h>

#if defined(__x86_64__)
static inline long raw(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* What glibc has for the calling thread's identity; a child of vfork has its parent's. */
static inline void *raw_thread(void)
{
    void *self;
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
}
#elif defined(__aarch64__)
static inline long raw(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

static inline void *raw_thread(void)
{
    void *self;
    __asm__("mrs %0, tpidr_el0" : "=r"(self));
    return self;
}
#else
#error "the agent knows x86-64 and arm64"
#endif

#define RAW1(number, a) raw(number, (long)(a), 0, 0, 0, 0, 0)
#define RAW2(number, a, b) raw(number, (long)(a), (long)(b), 0, 0, 0, 0)
#define RAW3(number, a, b, c) raw(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define RAW4(number, a, b, c, d) raw(number, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define RAW6(number, a, b, c, d, e, f) \
    raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* The kernel's values; equal on both machines where they are not chosen here. */
enum {
    RAW_AT_FDCWD = -100,
    RAW_O_RDWR = 02,
    RAW_O_NOCTTY = 0400,
    RAW_O_NONBLOCK = 04000,
    RAW_O_CLOEXEC = 02000000,
#if defined(__x86_64__)
    RAW_O_DIRECT = 040000,
#else
    RAW_O_DIRECT = 0200000,
#endif
    RAW_PROT_READ = 1,
    RAW_PROT_WRITE = 2,
    RAW_MAP_SHARED = 1,
    RAW_MAP_PRIVATE = 2,
    RAW_MAP_FIXED = 16,
    RAW_MAP_ANONYMOUS = 32,
    RAW_MADV_DONTNEED = 4,
    RAW_MADV_REMOVE = 9,
    RAW_MADV_DONTDUMP = 16,
    RAW_ENOENT = 2,
    RAW_ENOEXEC = 8,
    RAW_EACCES = 13,
    RAW_EBUSY = 16,
    RAW_RLIMIT_AS = 9,
    RAW_SIG_BLOCK = 0,
    RAW_SIG_SETMASK = 2,
};

/* struct statx, as far as it is looked at. */
struct raw_stat {
    uint32_t mask, block_size;
    uint64_t attributes;
    uint32_t links, uid, gid;
    uint16_t mode, pad;
    uint64_t inode;
    int64_t size;
    uint64_t rest[10];
    uint32_t rdevice[2], device_major, device_minor;
    uint64_t more[14];
};
_Static_assert(sizeof(struct raw_stat) == 256, "the kernel's layout");
enum { RAW_S_IFMT = 0170000, RAW_S_IFREG = 0100000, RAW_S_ISUID = 04000, RAW_S_ISGID = 02000 };

static inline long raw_open(const char *path)
{
    return RAW4(__NR_openat, RAW_AT_FDCWD, path, RAW_O_CLOEXEC | RAW_O_NONBLOCK | RAW_O_NOCTTY, 0);
}

/* Of an open file, where `path` is "", no server is asked: a read of it need not ask either. stat(2) of a descriptor has no such way. */
static inline long raw_stat_of(int dir, const char *path, struct raw_stat *stat)
{
    enum { NO_AUTOMOUNT = 0x800, EMPTY_PATH = 0x1000, DONT_SYNC = 0x4000, BASIC_STATS = 0x7ff };
    int flags = *path ? NO_AUTOMOUNT : EMPTY_PATH | DONT_SYNC;
    return raw(__NR_statx, dir, (long)path, flags, BASIC_STATS, (long)stat, 0);
}

/* As st_dev of stat(2) has it. */
static inline uint64_t raw_device(uint64_t major, uint64_t minor)
{
    return (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~(uint64_t)0xff) << 12 | (major & ~(uint64_t)0xfff) << 32;
}

/* A signal's handler that does not come back would leave descriptors behind. Returns whether they are blocked now. */
static inline int raw_block_signals(uint64_t *before)
{
    static const uint64_t all = UINT64_MAX;
    return !RAW4(__NR_rt_sigprocmask, RAW_SIG_BLOCK, &all, before, sizeof all);
}

static inline void raw_restore_signals(const uint64_t *before)
{
    RAW4(__NR_rt_sigprocmask, RAW_SIG_SETMASK, before, 0, sizeof *before);
}

static inline int raw_is_same(const struct raw_stat *one, const struct raw_stat *other)
{
    return one->device_major == other->device_major && one->device_minor == other->device_minor && one->inode == other->inode;
}
