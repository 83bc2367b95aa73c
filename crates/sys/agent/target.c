/* Which programs take the agent.
 *
 * ld.so complains on stderr about an auditing library that it cannot load. So the agent goes along only with a program that
 * surely loads it: an ELF file for this machine with this process's own ld.so, or a script for one, without rights of its
 * own or of the process's, from where the same library can be read and executed, that no debugger watches, under the
 * observer's own seccomp filters. */
#include "agent.h"

static const char *loader, *library;
static struct raw_stat library_stat;

int target_prepare(const struct link_map *program, const char *path)
{
    const Elf64_Phdr *phdr = (const Elf64_Phdr *)world.phdr;
    for (uintptr_t i = 0; phdr && i < world.phdrs; i++)
        if (phdr[i].p_type == PT_INTERP)
            loader = (const char *)(program->l_addr + phdr[i].p_vaddr);
    library = path;
    return loader && *path == '/' && !raw_stat_of(RAW_AT_FDCWD, path, &library_stat);
}

/* Opened, for a sandbox (Landlock) or its mode may allow less than to look at it. access(2) leaves out capabilities, which
 * another user than root loses by the exec. */
static int library_in_reach(void)
{
    struct raw_stat stat;
    long filesystem[15]; /* struct statfs: flags are word 10 */
    long fd = RAW3(__NR_faccessat, RAW_AT_FDCWD, library, 4 /* R_OK */) ? -1 : raw_open(library);
    if (fd < 0)
        return 0;
    int same_file = !raw_stat_of((int)fd, "", &stat) && raw_is_same(&stat, &library_stat);
    int executable = !RAW2(__NR_fstatfs, fd, filesystem) && !(filesystem[10] & 8 /* ST_NOEXEC */);
    RAW1(__NR_close, fd);
    return same_file && executable;
}

/* The program will be told AT_SECURE: ld.so ignores LD_AUDIT for it. */
static int has_rights(void)
{
    return RAW1(__NR_getuid, 0) != RAW1(__NR_geteuid, 0) || RAW1(__NR_getgid, 0) != RAW1(__NR_getegid, 0);
}

enum { HEAD = 256, SCRIPTS_DEEP = 4 }; /* as much and as deep as the kernel looks */

static const char *interpreter(char *line)
{
    while (*line == ' ' || *line == '\t')
        line++;
    char *end = line;
    while (*end && *end != ' ' && *end != '\t' && *end != '\n')
        end++;
    *end = 0;
    return line;
}

/* Other formats, which an interpreter may be registered for, have some zero in their first bytes. */
static int is_text(const char *head, long len)
{
    for (long i = 0; i < len && i < 128; i++)
        if (!head[i])
            return 0;
    return 1;
}

/* Where `fd` is a script, `then` is what to look at next, in `head`. */
static enum carrying look_at(long fd, int depth, char head[HEAD], const char **then)
{
    struct raw_stat stat;
    char interpreted_by[128];
    if (raw_stat_of((int)fd, "", &stat) || (stat.mode & RAW_S_IFMT) != RAW_S_IFREG)
        return NOT_FOUND;
    if (stat.mode & (RAW_S_ISUID | RAW_S_ISGID) ||
        RAW4(__NR_fgetxattr, fd, "security.capability", 0, 0) >= 0)
        return RIGHTS;
    long got = RAW4(__NR_pread64, fd, head, HEAD - 1, 0);
    if (got < 4)
        return NOT_DYNAMIC;
    head[got] = 0;
    if (head[0] == '#' && head[1] == '!') {
        if (depth < SCRIPTS_DEEP)
            *then = interpreter(head + 2);
        return NOT_DYNAMIC;
    }
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)head;
    if (!depth && is_text(head, got))
        /* execvp, posix_spawnp and shells hand it to the shell. */
        *then = "/bin/sh";
    if (got < (long)sizeof *elf || __builtin_memcmp(head, ELFMAG, SELFMAG))
        return NOT_DYNAMIC;
#if defined(__x86_64__)
    enum { MACHINE = EM_X86_64 };
#else
    enum { MACHINE = EM_AARCH64 };
#endif
    if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_machine != MACHINE || elf->e_phentsize != sizeof(Elf64_Phdr))
        return OTHER_LOADER;
    for (int i = 0; i < elf->e_phnum && i < 64; i++) {
        Elf64_Phdr phdr;
        if (RAW4(__NR_pread64, fd, &phdr, sizeof phdr, elf->e_phoff + (uint64_t)i * sizeof phdr) != sizeof phdr)
            return NOT_DYNAMIC;
        if (phdr.p_type != PT_INTERP)
            continue;
        if (!phdr.p_filesz || phdr.p_filesz > sizeof interpreted_by ||
            RAW4(__NR_pread64, fd, interpreted_by, phdr.p_filesz, phdr.p_offset) != (long)phdr.p_filesz)
            return OTHER_LOADER;
        interpreted_by[phdr.p_filesz - 1] = 0;
        return same(interpreted_by, loader) ? CARRIED : OTHER_LOADER;
    }
    return NOT_DYNAMIC;
}

static enum carrying look(const char *path, long fd, int moves)
{
    char head[HEAD];
    for (int depth = 0;; depth++) {
        const char *then = NULL;
        if (path && moves && *path != '/')
            return RELATIVE;
        /* What may be executed but not read goes by an ld.so that nobody can look for. */
        if (path && (fd = raw_open(path)) < 0)
            return RAW3(__NR_faccessat, RAW_AT_FDCWD, path, 1 /* X_OK */) ? NOT_FOUND : RIGHTS;
        enum carrying found = look_at(fd, depth, head, &then);
        if (path)
            RAW1(__NR_close, fd);
        if (!then)
            return found;
        path = then;
    }
}

enum carrying target_takes(const char *path, int fd, int moves)
{
    uint64_t before;
    int blocks = raw_block_signals(&before);
    enum carrying found = look(path, fd, moves);
    if (found == CARRIED && has_rights())
        found = RIGHTS;
    if (found == CARRIED && !library_in_reach())
        found = LIBRARY_OUT_OF_REACH;
    if (found == CARRIED) {
        struct onlookers onlookers = world_onlookers();
        if (onlookers.traced)
            found = TRACED;
        else if (onlookers.filters != world.filters)
            found = SANDBOXED;
    }
    if (blocks)
        raw_restore_signals(&before);
    return found;
}
