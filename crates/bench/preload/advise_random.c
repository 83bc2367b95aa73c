/* Has the kernel read nothing ahead of what a program reads: what `prepage bench sweep` preloads for read-aheads with `:random`.
 *
 * Where $PREPAGE_ADVISE_RANDOM is set, files that the program opens by open(2) and openat(2) get POSIX_FADV_RANDOM, which holds
 * for read(2), and its mappings of files MADV_RANDOM, which holds for page faults. As found stays what ld.so reads before the
 * first constructor and maps by dlopen(3), what is read through streams (fopen(3)), and static and setuid programs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int advises;

static int opened(int directory, const char *path, int flags, va_list rest)
{
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;
    int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    if (advises && fd >= 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* Refused for what is no file: nothing is read ahead there. */
    return fd;
}

#define OPENS(name, parameters, directory)                                                                                   \
    int name parameters                                                                                                      \
    {                                                                                                                        \
        va_list rest;                                                                                                        \
        va_start(rest, flags);                                                                                               \
        int fd = opened(directory, path, flags, rest);                                                                       \
        va_end(rest);                                                                                                        \
        return fd;                                                                                                           \
    }
OPENS(open, (const char *path, int flags, ...), AT_FDCWD)
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD)
OPENS(openat, (int directory, const char *path, int flags, ...), directory)
OPENS(openat64, (int directory, const char *path, int flags, ...), directory)

/* What opens with constant flags becomes where programs are built with _FORTIFY_SOURCE. None of these creates a file. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open(path, flags); }
int __openat_2(int directory, const char *path, int flags) { return openat(directory, path, flags); }
int __openat64_2(int directory, const char *path, int flags) { return openat(directory, path, flags); }

void *mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset)
{
    void *mapped = (void *)syscall(SYS_mmap, at, bytes, access, flags, fd, offset);
    if (advises && mapped != MAP_FAILED && !(flags & MAP_ANONYMOUS))
        madvise(mapped, bytes, MADV_RANDOM);
    return mapped;
}

void *mmap64(void *at, size_t bytes, int access, int flags, int fd, off64_t offset)
{
    return mmap(at, bytes, access, flags, fd, offset);
}

__attribute__((constructor)) static void advise_mapped(void)
{
    FILE *maps = getenv("PREPAGE_ADVISE_RANDOM") ? fopen("/proc/self/maps", "re") : NULL;
    char *line = NULL;
    size_t room = 0;
    unsigned long start, end;
    advises = maps != NULL;
    while (maps && getline(&line, &room, maps) > 0)
        if (strchr(line, '/') && sscanf(line, "%lx-%lx", &start, &end) == 2)
            madvise((void *)start, end - start, MADV_RANDOM);
    free(line);
    if (maps)
        fclose(maps);
}
