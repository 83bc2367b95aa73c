/* What the agent knows of its process, and how it finds out without asking twice. */
#include "agent.h"

struct world world;

/* The number behind `name` where `line` of a status file begins with that, else what it was. */
static long status_number(const char *line, const char *name, long before)
{
    if (!starts(line, name))
        return before;
    const char *at = line + length(name);
    while (*at == '\t' || *at == ' ')
        at++;
    return (long)number(&at, 10);
}

/* Read in pieces, for stacks may be small. Where it cannot be read, a tracer of an unknown number looks on. */
struct onlookers world_onlookers(void)
{
    struct onlookers found = {0, 0, 0};
    char piece[128], line[48], path[64];
    long fd = raw_open("/proc/self/status"), got = 0, filters = 0, mode = 0, tracer = -1, threads = 0;
    size_t len = 0;
    while (fd >= 0 && (got = RAW3(__NR_read, fd, piece, sizeof piece)) > 0)
        for (long i = 0; i < got; i++) {
            if (piece[i] != '\n') {
                if (len < sizeof line - 1)
                    line[len++] = piece[i];
                continue;
            }
            line[len] = 0;
            len = 0;
            tracer = status_number(line, "TracerPid:", tracer);
            mode = status_number(line, "Seccomp:", mode);
            filters = status_number(line, "Seccomp_filters:", filters);
            threads = status_number(line, "Threads:", threads);
        }
    if (fd >= 0)
        RAW1(__NR_close, fd);
    found.filters = filters || !mode ? (int)filters : 1;
    found.threads = (int)threads;
    if (tracer) {
        /* The observer's own visit is no debugger. */
        char *end = append_number(append(path, "/proc/"), (uint64_t)world.observer);
        append_number(append(end, "/task/"), (uint64_t)tracer);
        found.traced = RAW3(__NR_faccessat, RAW_AT_FDCWD, path, 0) != 0;
    }
    return found;
}

/* The vDSO's clock: no system call. */
static uintptr_t vdso_clock(uintptr_t base)
{
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)base;
    const Elf64_Phdr *phdr = (const Elf64_Phdr *)(base + elf->e_phoff);
    struct link_map map = {.l_addr = base, .l_name = "", .l_ld = NULL};
    for (int i = 0; i < elf->e_phnum; i++) {
        if (phdr[i].p_type == PT_LOAD && !phdr[i].p_offset)
            map.l_addr = base - phdr[i].p_vaddr;
        if (phdr[i].p_type == PT_DYNAMIC)
            map.l_ld = (Elf64_Dyn *)(base + phdr[i].p_offset);
    }
#if defined(__x86_64__)
    return map.l_ld ? object_symbol(&map, "__vdso_clock_gettime") : 0;
#else
    return map.l_ld ? object_symbol(&map, "__kernel_clock_gettime") : 0;
#endif
}

void world_read(const uintptr_t *auxv)
{
    world.pid = RAW1(__NR_getpid, 0);
    for (; auxv[0] != AT_NULL; auxv += 2)
        switch (auxv[0]) {
        case AT_SYSINFO_EHDR:
            world.clock = (long (*)(int, long *))vdso_clock(auxv[1]);
            break;
        case AT_EXECFN:
            world.execfn = (const char *)auxv[1];
            break;
        case AT_BASE:
            world.loader = auxv[1];
            break;
        case AT_PHDR:
            world.phdr = auxv[1];
            break;
        case AT_PHNUM:
            world.phdrs = auxv[1];
            break;
        }
}

int world_has_one_thread(void)
{
    return world.single_threaded && *world.single_threaded;
}

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t world_now(void)
{
    long now[2] = {0, 0};
    if (world.clock)
        world.clock(1, now);
    else if (!world.sandboxed)
        RAW2(__NR_clock_gettime, 1, now);
    return (uint64_t)now[0] * 1000000000 + (uint64_t)now[1];
}

/* [0] is the current directory, of which the kernel is asked each time: others change it unseen, as threads do while a name is looked
 * up, those with a directory of their own, and children. [1] is the one that was last given by descriptor. A lock that
 * is taken means that the name is counted as missed, not that anybody waits: the holder may be the code that a signal
 * interrupted, or a child of vfork that was killed. */
static struct directory {
    int busy, fd;
    struct raw_stat stat;
    char path[AT_PATH_MAX];
} directories[2];

static int directory_by_descriptor(struct directory *dir, int fd)
{
    struct raw_stat stat;
    char link[40];
    if (raw_stat_of(fd, "", &stat))
        return 0;
    if (dir->fd == fd && raw_is_same(&stat, &dir->stat))
        return dir->path[0] == '/';
    append_number(append(link, "/proc/self/fd/"), (uint64_t)fd);
    long len = RAW4(__NR_readlinkat, RAW_AT_FDCWD, link, dir->path, sizeof dir->path - 1);
    dir->path[len > 0 ? len : 0] = 0;
    dir->fd = fd;
    dir->stat = stat;
    /* Another thread may have given the number to another one meanwhile. */
    if (raw_stat_of(fd, "", &stat) || !raw_is_same(&stat, &dir->stat)) {
        dir->fd = -1;
        return 0;
    }
    return dir->path[0] == '/';
}

const char *world_directory(int fd)
{
    struct directory *dir = &directories[fd != RAW_AT_FDCWD];
    if (world.sandboxed || __atomic_exchange_n(&dir->busy, 1, __ATOMIC_ACQUIRE))
        return NULL;
    int is_known = fd == RAW_AT_FDCWD ? RAW2(__NR_getcwd, dir->path, sizeof dir->path) > 0 && dir->path[0] == '/'
                                      : directory_by_descriptor(dir, fd);
    if (is_known)
        return dir->path;
    world_release(fd);
    return NULL;
}

void world_release(int fd)
{
    __atomic_store_n(&directories[fd != RAW_AT_FDCWD].busy, 0, __ATOMIC_RELEASE);
}
