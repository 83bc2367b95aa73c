/* What the files of the agent share. See audit.c for what the agent is. */
#pragma once
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#include "raw.h"

#define AT_PATH_MAX 4096
#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))

/* ---- log.c: records in memory shared with the observer; crates/sys/src/agent/record.rs reads them ---- */

enum kind {
    STARTED = 1, /* the program; detail: enum arming */
    LOOKED_UP,   /* stat, access, readlink, chdir … */
    OPENED,
    STREAMED, /* fopen: what is read of it is told when it seeks, at fclose and exit */
    LISTED,   /* opendir */
    SOUGHT,   /* a place where ld.so looks for a library */
    EXECUTED, /* detail: enum carrying */
    READ,     /* device, inode, offset, bytes */
    MAPPED,   /* the file of what the process tells next */
    TOUCHED,  /* device, inode, runs of pages */
    TOLD,     /* all that was touched, by a process that ends or executes another program */
    GOES_ON,  /* that could not be executed: the process touches more */
};

/* Whether the agent goes along with an exec. record.rs knows the order. */
enum carrying {
    CARRIED,
    NOT_FOUND,
    RIGHTS,
    NOT_DYNAMIC,
    OTHER_LOADER,
    LIBRARY_OUT_OF_REACH,
    TRACED,
    SANDBOXED,
    TOO_LARGE,
    RELATIVE,
    STATIC_TLS,
    SEVERAL_THREADS,
    ENVIRONMENT
};

/* Whether the mappings of a program are registered. */
enum arming { ARMED, REFUSED_BY_KERNEL, NOT_ASKED };

/* 1:PID:FD:TOKEN:FILTERS:ARM, see crates/sys/src/agent/log.rs. Says whether to register mappings. */
HIDDEN int log_open(const char *variable, int *arms);
/* Whether somebody still observes this process. */
HIDDEN int log_is_observed(void);
/* Whether somebody still reads and there is room: otherwise nothing is worth doing. Counts what is dropped for want of room. */
HIDDEN int log_is_read(void);
/* What the observer wants of a process before its page table goes: to be told what it has touched, unless that would fill the log, or to look
 * at it. */
enum last { NOTHING, WAIT, TELL, TELL_AND_WAIT };
/* TELL_AND_WAIT is TELL here. */
HIDDEN enum last log_last(void);
/* Whether the observer sees what is touched by page tables alone, and no single faults. */
HIDDEN int log_sees_page_tables(void);
/* Whether process 1 of a namespace is to wait in any case: the observer ends with it. */
HIDDEN int log_ends_with_first(void);
HIDDEN void log_path(enum kind kind, unsigned detail, const char *dir, const char *path);
HIDDEN void log_read(const struct raw_stat *stat, uint64_t offset, uint64_t bytes);
/* Pages of a file side by side, and whether their mapping is armed. record.rs knows how they lie in a word. */
struct touched {
    uint64_t page : 40, pages : 23, is_armed : 1;
};
enum { TOUCHED_PAGES_MAX = (1 << 23) - 1 };
HIDDEN void log_touched(uint64_t device, uint64_t inode, const struct touched runs[], size_t count);
HIDDEN void log_told(void);
/* For who has told all and could not execute a program then. */
HIDDEN void log_goes_on(void);
HIDDEN void log_missed(void);
/* Unmaps the log, for who is to count or lock what is mapped. All that comes afterwards counts as dropped. */
HIDDEN void log_leave(void);
/* Marks what cannot be passed on to another process: the value of the variable. */
HIDDEN const char *log_variable(void);

/* ---- world.c: what process this is ---- */

struct world {
    int sandboxed; /* the process id, once it installed a seccomp filter of its own: no call from then on that it did not make */
    int filters;   /* seccomp filters that the observer has, and with it this process */
    int64_t observer;
    int64_t pid; /* of the process that executed the program: forks of it have another */
    const char *execfn;
    const char *single_threaded; /* libc's own note of it */
    uintptr_t phdr, phdrs; /* of the program */
    uintptr_t loader; /* where ld.so is mapped */
    long (*clock)(int, long *);
};
extern HIDDEN struct world world;
HIDDEN void world_read(const uintptr_t *auxv);
HIDDEN uint64_t world_now(void);
HIDDEN int world_has_one_thread(void);
/* Whether a debugger or strace looks on, as may be where nobody can tell, how many seccomp filters there are, and how many threads. */
struct onlookers {
    int traced, filters, threads;
};
HIDDEN struct onlookers world_onlookers(void);
/* The directory that `fd` (AT_FDCWD: the current one) names, or NULL. Release with world_release. */
HIDDEN const char *world_directory(int fd);
HIDDEN void world_release(int fd);

/* ---- object.c: loaded objects ---- */

struct link_map { /* the public part, <link.h> */
    uintptr_t l_addr;
    char *l_name;
    Elf64_Dyn *l_ld;
    struct link_map *l_next, *l_prev;
};
struct extent {
    uintptr_t start, end;
};
HIDDEN int object_extent(const struct link_map *map, int is_program, struct extent *extent);
/* What is mapped from the file of the library `map` in one piece, the first such piece from its program header `at` on, which becomes the one behind.
 * Returns 0 where there is none any more. */
HIDDEN int object_piece(const struct link_map *map, uintptr_t *at, struct extent *piece);
/* The pages of `map` that hold nothing but a large table of relocations, which ld.so reads from its beginning to its end. Returns how many tables
 * there are. */
enum { RELOCATIONS_KINDS = 3 };
HIDDEN int object_relocations(const struct link_map *map, int is_program, struct extent pages[RELOCATIONS_KINDS]);
/* Touches what ld.so has read of a library when it has mapped it: the head, the dynamic section and the table of symbols' hashes. */
HIDDEN void object_touch(const struct link_map *map);
/* The next thread-local variable of others that `map` names, from its symbol `at` on, which becomes the one behind; or NULL. */
HIDDEN const char *object_names_tls(const struct link_map *map, size_t *at);
/* How much static thread-local memory `map`, not the program, will ask for, which names these `count` variables of others. */
HIDDEN size_t object_static_tls(const struct link_map *map, const char *const names[], size_t count);
HIDDEN uintptr_t object_symbol(const struct link_map *map, const char *name);
HIDDEN uintptr_t object_variable(const struct link_map *program, const struct link_map *libc, const char *name);
/* Makes everybody who binds a function of `map` get another: ld.so finds it in the symbol table, which is this process's
 * own copy. Between begin, which says where that table is, and end. Returns the function, 0 where there is none. */
HIDDEN int object_redirect_begin(const struct link_map *map, struct extent *table);
HIDDEN uintptr_t object_redirect(const struct link_map *map, const struct extent *table, const char *name, uintptr_t to);
HIDDEN void object_redirect_end(const struct extent *table);

/* ---- arm.c: exact first touches ---- */

HIDDEN void arm_allow(const char *receiver, int arms);
HIDDEN enum arming arm_begin(void);
/* `loaded`: the library there, unless that has been used already. Returns whether all of it is registered with this process's descriptor. */
HIDDEN int arm(const struct extent *extent, const struct link_map *loaded);
/* Leaves the armed `pages`, all of which ld.so will read in their order, unregistered until arm_end. */
HIDDEN void arm_later(const struct extent *pages);
HIDDEN void arm_end(void);
/* Whether an observer wants mappings registered, and may have them. */
HIDDEN int arm_is_wanted(void);
/* Registers what the program itself has mapped now, and tells the observer. */
HIDDEN void arm_one(const struct extent *extent);
/* Does what the observer wants before what is mapped goes; where it cannot be told, it is waited for. `at_exit`: the program's destructors have
 * run. Returns whether all was told. */
HIDDEN int arm_last_look(int at_exit);

/* ---- touched.c: what was touched ---- */

/* Logs the pages between `start` and `end` that are mapped and of files. Returns whether that could be. */
HIDDEN int touched_tell(uintptr_t start, uintptr_t end);
/* Opens what tells which pages are mapped, this process's pagemap: a descriptor, or less than 0. */
HIDDEN long touched_open(void);
/* Unmaps the pages of files at `extent`, but for private copies: the next touch maps each again, and shows. Returns whether the kernel tells
 * which these are. */
HIDDEN int touched_forget(long pagemap, const struct extent *extent);

/* ---- again.c: programs that do not start with the agent ---- */

/* To be called for the program before its libraries. */
HIDDEN void again_look_at(const struct link_map *program);
/* Whether it is time to, with the library `map` that was mapped now. */
HIDDEN int again_is_needed(const struct link_map *map);
/* Executes this process's program from its beginning. Returns where that fails. */
HIDDEN void again_execute(char *const argv[], char *const environment[]);

/* ---- calls.c, reads.c, exec.c, target.c: what stands before functions of libc ---- */

HIDDEN void calls_install(const struct link_map *program, const struct link_map *libc, const struct extent *table);
/* `bytes` from `offset` (-1: where the descriptor stands) on are read. */
HIDDEN void reads_at(int fd, int64_t offset, uint64_t bytes);
/* Tells what was read of a stream until now. It seeks next, as fseek(3) numbers the ways to, or is closed. */
enum { STREAM_CLOSES = -1, STREAM_SET, STREAM_CURRENT, STREAM_END };
HIDDEN void reads_stream(const void *file, int64_t offset, int whence);
HIDDEN void reads_all_streams(const struct link_map *libc);
/* `library` is the agent's own path, by which children load it. */
HIDDEN int target_prepare(const struct link_map *program, const char *library);
/* `path`, or NULL for the file `fd`. `moves`: the child may change its directory first. */
HIDDEN enum carrying target_takes(const char *path, int fd, int moves);
/* What is lent to functions of libc: for who may leave them. */
HIDDEN void exec_take_back(void);
HIDDEN void exec_install(const struct link_map *program, const struct link_map *libc, const struct extent *table,
                         const char *library);

/* ---- small pieces ---- */

static inline uintptr_t page_down(uintptr_t address)
{
    return address & ~(uintptr_t)4095;
}

static inline uintptr_t page_up(uintptr_t address)
{
    return page_down(address + 4095);
}

static inline size_t length(const char *text)
{
    size_t len = 0;
    while (text[len])
        len++;
    return len;
}

static inline int starts(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

static inline int same(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* Whether a pointer that the program passes may be looked at: a null pointer gets its EFAULT from the kernel. */
static inline int plausible(const void *pointer)
{
    return (uintptr_t)pointer >= 65536 && (uintptr_t)pointer >> 56 == 0;
}

static inline uint64_t number(const char **text, unsigned base)
{
    uint64_t value = 0;
    for (;; (*text)++) {
        char c = **text;
        unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 99;
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

static inline char *append(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    *to = 0;
    return to;
}

static inline char *append_number(char *to, uint64_t value)
{
    char digits[24];
    int at = 0;
    do
        digits[at++] = (char)('0' + value % 10);
    while (value /= 10);
    while (at)
        *to++ = digits[--at];
    *to = 0;
    return to;
}
