// deny CALL... -- CMD: runs CMD with a seccomp filter that refuses these system calls (EPERM), as containers and
// hardened kernels do.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; int number; } calls[] = {
    {"perf_event_open", SYS_perf_event_open},
    {"prctl", SYS_prctl},
    {"ptrace", SYS_ptrace},
    {"userfaultfd", SYS_userfaultfd},
};

int main(int argc, char **argv) {
    struct sock_filter filter[2 * 8 + 2];
    unsigned short len = 0;
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--"); at++) {
        size_t call = 0;
        while (call < sizeof calls / sizeof *calls && strcmp(calls[call].name, argv[at])) call++;
        if (call == sizeof calls / sizeof *calls || len > 2 * 7) {
            fprintf(stderr, "deny: no such call: %s\n", argv[at]);
            return 125;
        }
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[call].number, 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (at + 1 >= argc) {
        fprintf(stderr, "usage: deny CALL... -- CMD\n");
        return 125;
    }
    struct sock_fprog program = {len, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("deny");
        return 125;
    }
    execvp(argv[at + 1], argv + at + 1);
    perror(argv[at + 1]);
    return 127;
}
