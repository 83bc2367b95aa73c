/* libprepage-agent.so: what enters an observed program.
 *
 * ld.so loads it before all else (LD_AUDIT, rtld-audit(7)) and tells it of every library before that is relocated. It logs
 * the names that the program looks up and the files that it reads (calls.c, reads.c, log.c), registers mappings so that each
 * page's first touch can be seen (arm.c), and goes along with execs (exec.c). It has no libc, no thread-local data, allocates
 * nothing, and leaves errno alone.
 *
 * The program is to find nothing changed. The variables that brought the agent are taken out of the environment before the
 * program's own code runs. No descriptor stays open. Where anything is unusual (no log, another debugger, a sandbox), it
 * steps back in silence and the program runs as without it. */
#include "agent.h"

enum { LAV = 2, LA_ACT_CONSISTENT = 0, LA_ACT_DELETE = 2, BASE = 0 };

static int begun, ready, running, too_old;
/* Whether ld.so closes objects to unmap them, or since the process ends: only then it says so before the first. */
static int unmaps, ends;
/* The first arguments that the kernel gave, where nothing but the agent audits and the program's libraries are being mapped. */
static char **argv_alone;
static const struct link_map *program, *libc;
static char library[AT_PATH_MAX];

/* ---- the environment ---- */

static void wipe(char *text)
{
    while (*text)
        *text++ = 0;
}

/* Whether `audit`, the value of LD_AUDIT, ends with the agent; cuts it off there and keeps it. */
static int cut_agent(char *audit)
{
    size_t len = length(audit), at = len;
    while (at && audit[at - 1] != ':')
        at--;
    if (len - at >= sizeof library)
        return 0;
    append(library, audit + at);
    wipe(audit + (at ? at - 1 : 0));
    return at != 0;
}

/* Takes what was added out of the environment at `envp`: two strings always, so that the freed places make one entry of
 * the auxiliary vector behind it. Some programs look for that vector behind the environment's end, and ld.so's
 * pointer to its old beginning stays right. */
static void clean(char **envp, int *is_alone)
{
    char **to = envp, **from = envp;
    *is_alone = 1;
    for (; *from; from++) {
        if (starts(*from, "PREPAGE_AGENT=") || starts(*from, "PREPAGE_AGENT_EVEN=")) {
            wipe(*from);
            continue;
        }
        if (starts(*from, "LD_AUDIT=")) {
            if (!cut_agent(*from + 9)) {
                wipe(*from);
                continue;
            }
            *is_alone = 0;
        }
        *to++ = *from;
    }
    if (from - to != 2) /* not what prepage made: leave no gap in the middle, at least */
        while (to < from)
            *to++ = NULL;
    else {
        to[0] = NULL;
        to[1] = (char *)AT_IGNORE;
        to[2] = NULL;
    }
}

/* The receiver of descriptors has the log's secret for a name: the fourth part of the variable. */
static void find_receiver(const char *variable, int arms)
{
    char name[64], *to = append(name, "prepage-");
    for (int colons = 0; colons < 3; variable++)
        colons += *variable == ':';
    while (*variable != ':' && to < name + sizeof name - 1)
        *to++ = *variable++;
    *to = 0;
    arm_allow(name, arms);
}

/* Reads and cleans the stack that the kernel made, which ld.so knows. */
static void begin(const struct link_map *maps)
{
    uintptr_t *stack = NULL;
    begun = 1;
    /* A program may hold a copy of this variable (node does), which has no value yet. */
    for (; maps && !stack; maps = maps->l_next) {
        uintptr_t end = object_symbol(maps, "__libc_stack_end");
        stack = end ? *(uintptr_t **)end : NULL;
    }
    if (!stack || stack[0] > 1 << 24 || stack[stack[0] + 1])
        return;
    char **envp = (char **)stack + stack[0] + 2, **auxv = envp;
    const char *variable = NULL;
    for (; *auxv; auxv++)
        if (starts(*auxv, "PREPAGE_AGENT="))
            variable = *auxv + 14;
    int arms = 0;
    ready = variable && !too_old && log_open(variable, &arms) && log_is_read();
    if (ready)
        find_receiver(variable, arms);
    int is_alone;
    clean(envp, &is_alone);
    world_read((uintptr_t *)(auxv + 1));
    if (is_alone)
        argv_alone = (char **)stack + 1;
    if (ready)
        log_path(STARTED, arm_begin(), NULL, world.execfn ? world.execfn : "?");
}

/* ---- what ld.so calls ---- */

EXPORT unsigned la_version(unsigned version)
{
    /* Before glibc 2.35 it was 1, and some of the functions were in libpthread: there the agent only cleans up. */
    too_old = version < LAV;
    return too_old ? version : LAV;
}

EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
    (void)cookie, (void)flag;
    if (ready && log_is_read())
        for (const char *at = name; *at; at++)
            if (*at == '/') {
                const char *dir = *name == '/' ? NULL : world_directory(RAW_AT_FDCWD);
                if (dir || *name == '/')
                    log_path(SOUGHT, 0, dir, name);
                if (dir)
                    world_release(RAW_AT_FDCWD);
                break;
            }
    return (char *)name;
}

EXPORT void la_activity(uintptr_t *cookie, unsigned activity)
{
    if (activity == LA_ACT_DELETE)
        ends |= !unmaps;
    unmaps = 0;
    if (activity != LA_ACT_CONSISTENT)
        return;
    /* All of the program's libraries are mapped and relocated; constructors run next, which may open, count or close
     * descriptors. la_preinit comes after those of libraries. */
    if (*cookie == (uintptr_t)program) {
        running = ready;
        argv_alone = NULL;
    }
    if (running)
        arm_end();
}

static int is_libc(const char *path)
{
    const char *name = path;
    for (const char *at = path; *at; at++)
        if (*at == '/')
            name = at + 1;
    return same(name, "libc.so.6");
}

static void look_at(const struct link_map *map, long lmid)
{
    struct extent extent;
    if (lmid == BASE && !libc && is_libc(map->l_name)) {
        struct extent table;
        libc = map;
        world.single_threaded = (const char *)object_variable(program, libc, "__libc_single_threaded");
        if (object_redirect_begin(libc, &table)) {
            exec_install(program, libc, &table, library);
            calls_install(program, libc, &table);
            object_redirect_end(&table);
        }
    }
    /* After that, which goes all over libc's symbols. */
    if (log_is_read() && object_extent(map, map == program, &extent)) {
        if (running)
            arm_begin(); /* la_activity ends it */
        int is_armed = arm(&extent, map == program || map->l_addr == world.loader ? NULL : map);
        struct extent tables[RELOCATIONS_KINDS];
        /* Of what is loaded later the observer hears before it is relocated. */
        int count = is_armed && !running && lmid == BASE ? object_relocations(map, map == program, tables) : 0;
        while (count)
            arm_later(&tables[--count]);
    }
}

EXPORT unsigned la_objopen(struct link_map *map, long lmid, uintptr_t *cookie)
{
    (void)cookie;
    if (!begun) {
        program = map;
        begin(map);
    }
    if (argv_alone && lmid == BASE && map != program && again_is_needed(map)) {
        char **argv = argv_alone, **envp = argv;
        argv_alone = NULL;
        while (*envp++) {
        }
        again_execute(argv, envp);
    }
    if (ready)
        look_at(map, lmid);
    /* Reads symbols: it is seen which pages that touches. */
    if (argv_alone && map == program)
        again_look_at(map);
    /* No function is asked for (la_symbind): where one auditing library is, ld.so 2.36 calls malloc before libc is ready for
     * it, and the heap never grows by brk. */
    return 0;
}

/* At exit, each object is closed. Its cookie is its link_map still, as ld.so made it. */
EXPORT unsigned la_objclose(uintptr_t *cookie)
{
    struct link_map *closed = (struct link_map *)*cookie;
    struct extent extent;
    /* Other threads might close streams meanwhile. */
    if (ready && libc && closed == program && world_has_one_thread() && log_is_read())
        reads_all_streams(libc);
    /* What could not be loaded with all that it needs goes at once, and where it had a namespace of its own nothing else tells of its end. */
    if (running && !ends)
        arm_end();
    if (running && !ends && closed != program && log_last() == TELL && object_extent(closed, 0, &extent)) {
        unmaps = 1;
        touched_tell(extent.start, extent.end);
    }
    return 0;
}

/* ld.so ends auditing libraries behind all others: the destructors of the program and its libraries have run. */
__attribute__((destructor)) static void end(void)
{
    if (ready)
        arm_last_look(1);
}

/* ---- what the compiler may call ---- */

HIDDEN void *memcpy(void *to, const void *from, size_t len)
{
    char *t = to;
    const char *f = from;
    for (; len >= 8; t += 8, f += 8, len -= 8)
        __builtin_memcpy(t, f, 8);
    while (len--)
        *t++ = *f++;
    return to;
}

HIDDEN void *memset(void *to, int value, size_t len)
{
    char *t = to;
    while (len--)
        *t++ = (char)value;
    return to;
}

HIDDEN int memcmp(const void *one, const void *other, size_t len)
{
    const unsigned char *a = one, *b = other;
    for (; len; len--, a++, b++)
        if (*a != *b)
            return *a - *b;
    return 0;
}
