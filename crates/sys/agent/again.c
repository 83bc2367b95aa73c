/* Executing the program once more, without the agent.
 *
 * ld.so lays out static thread-local memory when it has mapped all of the program's libraries; with an auditing library
 * before it maps them. Theirs has to fit into what is set aside for dlopen then, some 1,700 bytes, else the program does not
 * start: "cannot allocate memory in static TLS block". A sanitizer needs 50 to 800 KB, jemalloc 3. More can be set aside by
 * a tunable (glibc.rtld.optional_static_tls), but every thread's stack has so much less then, and small ones are refused.
 *
 * So a program whose libraries need much is given back before they are relocated, when nothing of its own has run. */
#include "agent.h"

/* glibc sets aside 2 * 144 bytes more for the agent (elf/dl-tls.c: LIBC_IE_TLS, OTHER_IE_TLS), which needs none; libc's own 144
 * go into that, and libgomp's. Above it, dlopen has less left than without the agent. Among 400 libraries of a desktop, but for
 * sanitizers and malloc replacements have more than 144 of their own. */
enum { ROOM = 512 };

static size_t needed;
/* Variables of libraries that the program's own code takes for static. More are hardly any program's. */
static const char *named[16];
static size_t names;

void again_look_at(const struct link_map *program)
{
    size_t at = 0;
    const char *name;
    while (names < sizeof named / sizeof *named && (name = object_names_tls(program, &at)))
        named[names++] = name;
}

int again_is_needed(const struct link_map *map)
{
    needed += object_static_tls(map, named, names);
    return needed > ROOM;
}

static int is_script(const char *path)
{
    char head[2] = "";
    long fd = raw_open(path);
    if (fd < 0)
        return 0;
    RAW3(__NR_read, fd, head, sizeof head);
    RAW1(__NR_close, fd);
    return head[0] == '#' && head[1] == '!';
}

/* Without a /proc nobody can tell, and it is what was executed a moment ago. */
static int is_running(const char *path)
{
    struct raw_stat named, running;
    if (raw_stat_of(RAW_AT_FDCWD, path, &named))
        return 0;
    return raw_stat_of(RAW_AT_FDCWD, "/proc/self/exe", &running) || raw_is_same(&named, &running);
}

void again_execute(char *const argv[], char *const environment[])
{
    const char *name = world.execfn;
    if (!name)
        return;
    const char *dir = *name == '/' ? NULL : world_directory(RAW_AT_FDCWD);
    if (log_is_read())
        log_path(EXECUTED, STATIC_TLS, dir, name);
    if (dir)
        world_release(RAW_AT_FDCWD);
    if (is_script(name)) {
        /* The kernel took a first argument away, and put the interpreter, its argument and the script's name before the rest. */
        for (char *const *from = argv + 1; argv[0] && *from; from++)
            if (same(*from, name)) {
                RAW3(__NR_execve, name, from, environment);
                break;
            }
    } else if (is_running(name))
        RAW3(__NR_execve, name, argv, environment);
    /* By a descriptor that is closed, or for an interpreter of another format. */
    RAW3(__NR_execve, "/proc/self/exe", argv, environment);
}
