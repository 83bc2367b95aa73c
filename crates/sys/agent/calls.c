/* What stands before functions of libc that take names or read files.
 *
 * Whoever binds such a function, at the start or by dlsym, gets a stub (object_redirect). The stub saves the arguments,
 * calls `calls_before`, and jumps to the function: no frame stays on the stack while the function runs, so that threads can be
 * cancelled in it, and backtraces are the program's own. What comes of the call is not waited for: a name that does not exist was looked up as
 * well, and how many bytes there are to read is known before. In mmap and sendfile alone there is a frame (`maps`, `sends`): no thread is cancelled
 * there, and only the kernel knows where a file is mapped, or how much a socket takes. */
#include "agent.h"

enum act {
    NAME,      /* argument `path` is a name, relative to the descriptor `dir` if that is not NONE */
    LIST,      /* the directory `path` is a descriptor of */
    READS,     /* fd, buffer, count */
    READS_AT,  /* fd, buffer, count, offset */
    VECTOR,    /* fd, iovec, count */
    VECTOR_AT, /* fd, iovec, count, offset */
    SENDS,     /* out, in, offset or NULL, count */
    COPIES,    /* in, offset or NULL, out, offset, count */
    CLOSES,    /* a stream */
    REOPENS,   /* a name, mode, a stream */
    SEEKS,     /* a stream, offset, whence */
    REWINDS,   /* a stream */
    RETURNS,   /* a stream, one of its positions */
    USES,      /* libc itself reads the files of a set, here in `path` */
    SYSCALL,
    PRCTL,
    JUMPS,
    ENDS,   /* the process, without destructors */
    UNMAPS, /* address, length */
    DROPS,  /* address, length, advice */
    MAPS,   /* address, length, protection, flags, fd, offset */
    COUNTS, /* all that is mapped: to lock it, or against the limits behind the resource `path` */
};
enum { NONE = -1 };

/* What libc reads for its functions, where nothing stands before its calls. */
enum { USERS, GROUPS, ZONE, HOSTS, LOCALES, SETS };
static const char files[SETS][5][32] = {
    [USERS] = {"/etc/nsswitch.conf", "/etc/passwd"},
    [GROUPS] = {"/etc/nsswitch.conf", "/etc/group"},
    [ZONE] = {"/etc/localtime"}, /* where TZ names no other */
    [HOSTS] = {"/etc/nsswitch.conf", "/etc/host.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/gai.conf"},
    [LOCALES] = {"/usr/share/locale/locale.alias"}, /* where the environment names one that is not built in */
};

struct call {
    char name[24];
    uint8_t act, kind;
    int8_t path, dir;
};

static const struct call calls[] = {
    {"open", NAME, OPENED, 0, NONE},
    {"open64", NAME, OPENED, 0, NONE},
    {"__open", NAME, OPENED, 0, NONE},
    {"__open64", NAME, OPENED, 0, NONE},
    {"__open_2", NAME, OPENED, 0, NONE},
    {"__open64_2", NAME, OPENED, 0, NONE},
    {"creat", NAME, LOOKED_UP, 0, NONE},
    {"creat64", NAME, LOOKED_UP, 0, NONE},
    {"openat", NAME, OPENED, 1, 0},
    {"openat64", NAME, OPENED, 1, 0},
    {"__openat_2", NAME, OPENED, 1, 0},
    {"__openat64_2", NAME, OPENED, 1, 0},
    {"fopen", NAME, STREAMED, 0, NONE},
    {"fopen64", NAME, STREAMED, 0, NONE},
    {"freopen", REOPENS, STREAMED, NONE, NONE},
    {"freopen64", REOPENS, STREAMED, NONE, NONE},
    {"fclose", CLOSES, READ, NONE, NONE},
    {"fseek", SEEKS, READ, NONE, NONE},
    {"fseeko", SEEKS, READ, NONE, NONE},
    {"fseeko64", SEEKS, READ, NONE, NONE},
    {"rewind", REWINDS, READ, NONE, NONE},
    {"fsetpos", RETURNS, READ, NONE, NONE},
    {"fsetpos64", RETURNS, READ, NONE, NONE},
    {"stat", NAME, LOOKED_UP, 0, NONE},
    {"stat64", NAME, LOOKED_UP, 0, NONE},
    {"lstat", NAME, LOOKED_UP, 0, NONE},
    {"lstat64", NAME, LOOKED_UP, 0, NONE},
    {"fstatat", NAME, LOOKED_UP, 1, 0},
    {"fstatat64", NAME, LOOKED_UP, 1, 0},
    {"__xstat", NAME, LOOKED_UP, 1, NONE},
    {"__xstat64", NAME, LOOKED_UP, 1, NONE},
    {"__lxstat", NAME, LOOKED_UP, 1, NONE},
    {"__lxstat64", NAME, LOOKED_UP, 1, NONE},
    {"__fxstatat", NAME, LOOKED_UP, 2, 1},
    {"__fxstatat64", NAME, LOOKED_UP, 2, 1},
    {"statx", NAME, LOOKED_UP, 1, 0},
    {"statfs", NAME, LOOKED_UP, 0, NONE},
    {"statfs64", NAME, LOOKED_UP, 0, NONE},
    {"statvfs", NAME, LOOKED_UP, 0, NONE},
    {"statvfs64", NAME, LOOKED_UP, 0, NONE},
    {"access", NAME, LOOKED_UP, 0, NONE},
    {"eaccess", NAME, LOOKED_UP, 0, NONE},
    {"euidaccess", NAME, LOOKED_UP, 0, NONE},
    {"faccessat", NAME, LOOKED_UP, 1, 0},
    {"readlink", NAME, LOOKED_UP, 0, NONE},
    {"__readlink_chk", NAME, LOOKED_UP, 0, NONE},
    {"readlinkat", NAME, LOOKED_UP, 1, 0},
    {"__readlinkat_chk", NAME, LOOKED_UP, 1, 0},
    {"realpath", NAME, LOOKED_UP, 0, NONE},
    {"__realpath_chk", NAME, LOOKED_UP, 0, NONE},
    {"canonicalize_file_name", NAME, LOOKED_UP, 0, NONE},
    {"getxattr", NAME, LOOKED_UP, 0, NONE},
    {"lgetxattr", NAME, LOOKED_UP, 0, NONE},
    {"listxattr", NAME, LOOKED_UP, 0, NONE},
    {"llistxattr", NAME, LOOKED_UP, 0, NONE},
    {"inotify_add_watch", NAME, LOOKED_UP, 1, NONE},
    {"mkdir", NAME, LOOKED_UP, 0, NONE},
    {"mkdirat", NAME, LOOKED_UP, 1, 0},
    {"rmdir", NAME, LOOKED_UP, 0, NONE},
    {"unlink", NAME, LOOKED_UP, 0, NONE},
    {"unlinkat", NAME, LOOKED_UP, 1, 0},
    {"remove", NAME, LOOKED_UP, 0, NONE},
    {"chmod", NAME, LOOKED_UP, 0, NONE},
    {"utimensat", NAME, LOOKED_UP, 1, 0},
    {"chdir", NAME, LOOKED_UP, 0, NONE},
    {"chroot", NAME, LOOKED_UP, 0, NONE},
    {"opendir", NAME, LISTED, 0, NONE},
    {"scandir", NAME, LISTED, 0, NONE},
    {"scandir64", NAME, LISTED, 0, NONE},
    {"fdopendir", LIST, LISTED, 0, NONE},
    {"getdents64", LIST, LISTED, 0, NONE},
    {"read", READS, READ, NONE, NONE},
    {"__read", READS, READ, NONE, NONE},
    {"__read_chk", READS, READ, NONE, NONE},
    {"pread", READS_AT, READ, NONE, NONE},
    {"pread64", READS_AT, READ, NONE, NONE},
    {"__pread64", READS_AT, READ, NONE, NONE},
    {"__pread_chk", READS_AT, READ, NONE, NONE},
    {"__pread64_chk", READS_AT, READ, NONE, NONE},
    {"readv", VECTOR, READ, NONE, NONE},
    {"preadv", VECTOR_AT, READ, NONE, NONE},
    {"preadv64", VECTOR_AT, READ, NONE, NONE},
    {"sendfile", SENDS, READ, NONE, NONE},
    {"sendfile64", SENDS, READ, NONE, NONE},
    {"copy_file_range", COPIES, READ, NONE, NONE},
    {"getpwuid", USES, OPENED, USERS, NONE},
    {"getpwuid_r", USES, OPENED, USERS, NONE},
    {"getpwnam", USES, OPENED, USERS, NONE},
    {"getpwnam_r", USES, OPENED, USERS, NONE},
    {"getgrgid", USES, OPENED, GROUPS, NONE},
    {"getgrgid_r", USES, OPENED, GROUPS, NONE},
    {"getgrnam", USES, OPENED, GROUPS, NONE},
    {"getgrnam_r", USES, OPENED, GROUPS, NONE},
    {"getgrouplist", USES, OPENED, GROUPS, NONE},
    {"initgroups", USES, OPENED, GROUPS, NONE},
    {"tzset", USES, OPENED, ZONE, NONE},
    {"localtime", USES, OPENED, ZONE, NONE},
    {"localtime_r", USES, OPENED, ZONE, NONE},
    {"gmtime", USES, OPENED, ZONE, NONE},
    {"gmtime_r", USES, OPENED, ZONE, NONE},
    {"mktime", USES, OPENED, ZONE, NONE},
    {"timelocal", USES, OPENED, ZONE, NONE},
    {"timegm", USES, OPENED, ZONE, NONE},
    {"ctime", USES, OPENED, ZONE, NONE},
    {"ctime_r", USES, OPENED, ZONE, NONE},
    {"strftime", USES, OPENED, ZONE, NONE},
    {"setlocale", USES, OPENED, LOCALES, NONE},
    {"newlocale", USES, OPENED, LOCALES, NONE},
    {"getaddrinfo", USES, OPENED, HOSTS, NONE},
    {"gethostbyname", USES, OPENED, HOSTS, NONE},
    {"syscall", SYSCALL, 0, NONE, NONE},
    {"prctl", PRCTL, 0, NONE, NONE},
    {"longjmp", JUMPS, 0, NONE, NONE},
    {"_longjmp", JUMPS, 0, NONE, NONE},
    {"siglongjmp", JUMPS, 0, NONE, NONE},
    {"__longjmp_chk", JUMPS, 0, NONE, NONE},
    {"setcontext", JUMPS, 0, NONE, NONE},
    {"swapcontext", JUMPS, 0, NONE, NONE},
    {"_exit", ENDS, 0, NONE, NONE},
    {"_Exit", ENDS, 0, NONE, NONE},
    {"munmap", UNMAPS, 0, NONE, NONE},
    {"mremap", UNMAPS, 0, NONE, NONE},
    {"madvise", DROPS, 0, NONE, NONE},
    {"mmap", MAPS, 0, NONE, NONE},
    {"mmap64", MAPS, 0, NONE, NONE},
    {"mlockall", COUNTS, 0, NONE, NONE},
    {"setrlimit", COUNTS, 0, 0, NONE},
    {"setrlimit64", COUNTS, 0, 0, NONE},
    {"prlimit", COUNTS, 0, 1, NONE},
    {"prlimit64", COUNTS, 0, 1, NONE},
};
enum { CALLS = sizeof calls / sizeof *calls, STUBS = 144, STUB_BYTES = 16 };
_Static_assert(CALLS <= STUBS, "a stub for each");

static uintptr_t functions[STUBS];
/* One function with two names, each. */
static uintptr_t mmap_of_libc, sendfile_of_libc;
static char *const *const *program_environ;
static int used[SETS];
extern HIDDEN char calls_stubs[];

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".hidden calls_stubs\n"
        ".balign 16\n"
        "calls_stubs:\n"
        ".set stub, 0\n"
        ".rept 144\n"
        ".balign 16\n"
        "endbr64\n"
        "pushq $stub\n"
        "jmp calls_common\n"
        ".set stub, stub + 1\n"
        ".endr\n"
        "calls_common:\n"
        ".cfi_startproc\n"
        ".cfi_def_cfa_offset 16\n"
        "push %r10; push %rax; push %r9; push %r8; push %rcx; push %rdx; push %rsi; push %rdi\n"
        ".cfi_adjust_cfa_offset 64\n"
        "mov 64(%rsp), %rdi\n"
        "mov %rsp, %rsi\n"
        "call calls_before\n"
        "mov %rax, 64(%rsp)\n"
        "pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %r8; pop %r9; pop %rax; pop %r10\n"
        ".cfi_adjust_cfa_offset -64\n"
        "pop %r11\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmp *%r11\n"
        ".cfi_endproc\n"
        ".popsection\n");
#else
__asm__(".pushsection .text\n"
        ".hidden calls_stubs\n"
        ".balign 16\n"
        "calls_stubs:\n"
        ".set stub, 0\n"
        ".rept 144\n"
        ".balign 16\n"
        "hint #34\n" /* bti c */
        "mov x16, #stub\n"
        "b calls_common\n"
        ".set stub, stub + 1\n"
        ".endr\n"
        "calls_common:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-96]!\n"
        ".cfi_def_cfa_offset 96\n"
        ".cfi_offset 29, -96\n"
        ".cfi_offset 30, -88\n"
        "stp x0, x1, [sp, #16]\n"
        "stp x2, x3, [sp, #32]\n"
        "stp x4, x5, [sp, #48]\n"
        "stp x6, x7, [sp, #64]\n"
        "str x8, [sp, #80]\n"
        "mov x0, x16\n"
        "add x1, sp, #16\n"
        "bl calls_before\n"
        "mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\n"
        "ldp x2, x3, [sp, #32]\n"
        "ldp x4, x5, [sp, #48]\n"
        "ldp x6, x7, [sp, #64]\n"
        "ldr x8, [sp, #80]\n"
        "ldp x29, x30, [sp], #96\n"
        ".cfi_def_cfa_offset 0\n"
        "br x16\n"
        ".cfi_endproc\n"
        ".popsection\n");
#endif

static void log_descriptor(enum kind kind, int fd)
{
    const char *path = fd >= 0 ? world_directory(fd) : NULL;
    if (!path) {
        log_missed();
        return;
    }
    log_path(kind, 0, NULL, path);
    world_release(fd);
}

static void log_name(enum kind kind, int fd, const char *path)
{
    if (!plausible(path) || !*path)
        return;
    if (*path == '/') {
        log_path(kind, 0, NULL, path);
        return;
    }
    const char *dir = world_directory(fd);
    if (!dir) {
        log_missed();
        return;
    }
    log_path(kind, 0, dir[1] ? dir : "", path);
    world_release(fd);
}

static uint64_t vector_bytes(const uintptr_t *vector, uint64_t count)
{
    uint64_t bytes = 0;
    if (!plausible(vector) || count > 1024)
        return 0;
    for (uint64_t i = 0; i < count; i++)
        bytes += vector[2 * i + 1];
    return bytes;
}

static int64_t offset_at(const long *pointer)
{
    return plausible(pointer) ? *pointer : -1;
}

/* Logs where libc looks for the locales that the environment names and that are not built in. Returns whether there is one. */
static int looks_for_locales(void)
{
    int any = 0;
    for (char *const *variable = program_environ ? *program_environ : NULL; variable && *variable; variable++) {
        const char *value = *variable;
        if (!starts(value, "LANG=") && !starts(value, "LC_"))
            continue;
        while (*value && *value++ != '=') {
        }
        if (!*value || same(value, "C") || same(value, "POSIX"))
            continue;
        if (!any)
            log_path(LOOKED_UP, 0, NULL, "/usr/lib/locale/locale-archive"); /* what there is of it is mapped */
        log_path(LOOKED_UP, 0, "/usr/lib/locale", value);
        any = 1;
    }
    return any;
}

/* Each set once: libc keeps what it read, or has it in memory. */
static void uses(int set)
{
    struct raw_stat stat;
    if (world.sandboxed || __atomic_load_n(&used[set], __ATOMIC_RELAXED) || (set == LOCALES && !looks_for_locales()) ||
        __atomic_exchange_n(&used[set], 1, __ATOMIC_RELAXED))
        return;
    if (set == ZONE && program_environ)
        for (char *const *variable = *program_environ; variable && *variable; variable++)
            if ((*variable)[0] == 'T' && (*variable)[1] == 'Z' && (*variable)[2] == '=')
                return;
    for (unsigned i = 0; i < sizeof files[set] / sizeof *files[set] && files[set][i][0]; i++) {
        log_path(OPENED, 0, NULL, files[set][i]);
        if (!raw_stat_of(RAW_AT_FDCWD, files[set][i], &stat) && (stat.mode & RAW_S_IFMT) == RAW_S_IFREG && stat.size > 0)
            log_read(&stat, 0, (uint64_t)stat.size);
    }
}

/* Whether `number`, prctl or seccomp, would put this process under a filter of its own, or have it answer its system calls itself. With
 * null for a filter it fails: so programs find out whether there are filters. `args`: of that call. */
static int begins_sandbox(long number, const long *args)
{
    enum { SET_SECCOMP = 22, SET_DISPATCH = 59, STRICT = 1, FILTER = 2, SET_STRICT = 0, SET_FILTER = 1, OFF = 0 };
    if (number == __NR_prctl && (int)args[0] == SET_DISPATCH)
        return args[1] != OFF;
    if (number == __NR_prctl)
        return (int)args[0] == SET_SECCOMP && (args[1] == STRICT || (args[1] == FILTER && args[2]));
    return number == __NR_seccomp && (((int)args[0] == SET_STRICT && !(int)args[1]) || ((int)args[0] == SET_FILTER && args[2]));
}

/* The filter does not stand yet: this is the last moment to ask. What is not seen from here on is counted once for all. */
static void sandbox_begins(void)
{
    if (world.sandboxed)
        return;
    if (log_is_read())
        log_missed();
    world.sandboxed = (int)RAW1(__NR_getpid, 0);
}

static void log_syscall(const long *args)
{
    switch (args[0]) {
    case __NR_openat:
#ifdef __NR_openat2
    case __NR_openat2:
#endif
        log_name(OPENED, (int)args[1], (const char *)args[2]);
        break;
#ifdef __NR_open
    case __NR_open:
        log_name(OPENED, RAW_AT_FDCWD, (const char *)args[1]);
        break;
    case __NR_stat:
    case __NR_lstat:
    case __NR_access:
    case __NR_readlink:
        log_name(LOOKED_UP, RAW_AT_FDCWD, (const char *)args[1]);
        break;
#endif
    case __NR_newfstatat:
    case __NR_statx:
    case __NR_faccessat:
#ifdef __NR_faccessat2
    case __NR_faccessat2:
#endif
    case __NR_readlinkat:
        log_name(LOOKED_UP, (int)args[1], (const char *)args[2]);
        break;
    case __NR_getdents64:
        log_descriptor(LISTED, (int)args[1]);
        break;
    case __NR_read:
        reads_at((int)args[1], -1, (uint64_t)args[3]);
        break;
    case __NR_pread64:
        reads_at((int)args[1], args[4], (uint64_t)args[3]);
        break;
    }
}

/* What is asked of the kernel takes some microseconds each time: a program that unmaps all the time is looked at now and then only. `left`: how
 * often. */
static void unmaps(int *left, uintptr_t start, uintptr_t bytes)
{
    uint64_t before;
    if (log_last() != TELL || world.sandboxed || __atomic_load_n(left, __ATOMIC_RELAXED) <= 0 ||
        __atomic_fetch_sub(left, 1, __ATOMIC_RELAXED) <= 0 || !raw_block_signals(&before))
        return;
    touched_tell(start, start + bytes);
    raw_restore_signals(&before);
}

/* Whether `fd` is a regular file, and none of memory: of memory the program may register mappings with a userfaultfd of its own. */
static int is_on_a_disk(int fd)
{
    enum { GET_SEALS = 1034 };
    struct raw_stat stat;
    return RAW2(__NR_fcntl, fd, GET_SEALS) < 0 && !raw_stat_of(fd, "", &stat) && (stat.mode & RAW_S_IFMT) == RAW_S_IFREG;
}

/* Whether what is mapped is of a file, and longer than one page: a fault there is exact without arming. To arm it takes some 20 µs. Shared
 * mappings cannot be armed, mostly. */
static int is_worth_arming(const long *args)
{
    enum { PAGE = 4096, MAPS_MAX = 64 };
    static int count;
    return (args[3] & (RAW_MAP_SHARED | RAW_MAP_PRIVATE | RAW_MAP_ANONYMOUS)) == RAW_MAP_PRIVATE && (int)args[4] >= 0 &&
           (uint64_t)args[1] > PAGE && arm_is_wanted() && __atomic_load_n(&count, __ATOMIC_RELAXED) < MAPS_MAX &&
           is_on_a_disk((int)args[4]) && __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) < MAPS_MAX;
}

/* In the place of mmap: arms what that maps before the program uses it. */
static uintptr_t maps(uintptr_t at, size_t bytes, int protection, int flags, int fd, long offset)
{
    typedef uintptr_t function(uintptr_t, size_t, int, int, int, long);
    uint64_t before;
    uintptr_t mapped = ((function *)mmap_of_libc)(at, bytes, protection, flags, fd, offset);
    if (mapped == (uintptr_t)-1 || !raw_block_signals(&before))
        return mapped;
    arm_one(&(struct extent){mapped, mapped + bytes});
    raw_restore_signals(&before);
    return mapped;
}

/* In the place of sendfile: a socket may take less than there is to send. */
static long sends(int out, int in, const long *offset, size_t bytes)
{
    typedef long function(int, int, const long *, size_t);
    long sent = ((function *)sendfile_of_libc)(out, in, offset, bytes);
    if (sent <= 0 || world.sandboxed)
        return sent;
    long end = offset ? *offset : RAW3(__NR_lseek, in, 0, 1 /* SEEK_CUR */);
    if (end >= sent)
        reads_at(in, end - sent, (uint64_t)sent);
    return sent;
}

/* `args`: a resource, and its new limits. */
static int limits_space(const long *args)
{
    const uint64_t *limits = (const uint64_t *)args[1];
    return args[0] == RAW_RLIMIT_AS && plausible(limits) && *limits != UINT64_MAX;
}

static int syscall_counts(const long *args)
{
    return args[0] == __NR_mlockall || (args[0] == __NR_setrlimit && limits_space(args + 1)) ||
           (args[0] == __NR_prlimit64 && limits_space(args + 2));
}

/* Called by the stubs. Returns where to go on. */
__attribute__((used)) HIDDEN uintptr_t calls_before(unsigned stub, const long *args)
{
    const struct call *call = &calls[stub];
    uintptr_t function = functions[stub];
    if (call->act == JUMPS) {
        exec_take_back();
        return function;
    }
    if (call->act == ENDS) {
        arm_last_look(0);
        return function;
    }
    /* Of memory that is dropped or mapped over hardly any is of files: what allocators do all the time takes nothing from the other. */
    static int unmaps_left = 1024, drops_left = 128;
    if (call->act == UNMAPS)
        unmaps(&unmaps_left, (uintptr_t)args[0], (uintptr_t)args[1]);
    if (call->act == DROPS ? (int)args[2] == RAW_MADV_DONTNEED : call->act == MAPS && args[3] & RAW_MAP_FIXED)
        unmaps(&drops_left, (uintptr_t)args[0], (uintptr_t)args[1]);
    if (call->act == UNMAPS || call->act == DROPS)
        return function;
    if (call->act == MAPS)
        return is_worth_arming(args) ? (uintptr_t)maps : function;
    if (call->act == PRCTL ? begins_sandbox(__NR_prctl, args) : call->act == SYSCALL && begins_sandbox(args[0], args + 1))
        sandbox_begins();
    if (call->act == COUNTS ? call->path == NONE || limits_space(args + call->path)
                            : call->act == SYSCALL && syscall_counts(args))
        log_leave();
    if (!log_is_read())
        return function;
    switch ((enum act)call->act) {
    case NAME:
        log_name(call->kind, call->dir == NONE ? RAW_AT_FDCWD : (int)args[call->dir], (const char *)args[call->path]);
        break;
    case LIST:
        log_descriptor(call->kind, (int)args[call->path]);
        break;
    case READS:
        reads_at((int)args[0], -1, (uint64_t)args[2]);
        break;
    case READS_AT:
        reads_at((int)args[0], args[3], (uint64_t)args[2]);
        break;
    case VECTOR:
        reads_at((int)args[0], -1, vector_bytes((const uintptr_t *)args[1], (uint64_t)args[2]));
        break;
    case VECTOR_AT:
        reads_at((int)args[0], args[3], vector_bytes((const uintptr_t *)args[1], (uint64_t)args[2]));
        break;
    case SENDS:
        return (uintptr_t)sends;
    case COPIES:
        reads_at((int)args[0], offset_at((const long *)args[1]), (uint64_t)args[4]);
        break;
    case CLOSES:
        reads_stream((const void *)args[0], 0, STREAM_CLOSES);
        break;
    case REOPENS:
        reads_stream((const void *)args[2], 0, STREAM_CLOSES);
        log_name(call->kind, RAW_AT_FDCWD, (const char *)args[0]);
        break;
    case SEEKS:
        /* Any other way fails. */
        if ((unsigned)args[2] <= STREAM_END)
            reads_stream((const void *)args[0], args[1], (int)args[2]);
        break;
    case REWINDS:
        reads_stream((const void *)args[0], 0, STREAM_SET);
        break;
    case RETURNS:
        /* What begins an fpos_t. */
        reads_stream((const void *)args[0], offset_at((const long *)args[1]), STREAM_SET);
        break;
    case USES:
        uses(call->path);
        break;
    case SYSCALL:
        log_syscall(args);
        break;
    case PRCTL:
    case JUMPS:
    case ENDS:
    case UNMAPS:
    case DROPS:
    case MAPS:
    case COUNTS:
        break;
    }
    return function;
}

void calls_install(const struct link_map *program, const struct link_map *libc, const struct extent *table)
{
    program_environ = (char *const *const *)object_variable(program, libc, "__environ");
    for (unsigned i = 0; i < CALLS; i++) {
        functions[i] = object_redirect(libc, table, calls[i].name, (uintptr_t)calls_stubs + i * STUB_BYTES);
        if (calls[i].act == MAPS && functions[i])
            mmap_of_libc = functions[i];
        if (calls[i].act == SENDS && functions[i])
            sendfile_of_libc = functions[i];
    }
}
