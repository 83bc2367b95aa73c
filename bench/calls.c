/* What a system call takes, in nanoseconds: one that does nothing, and one that looks a name up. Of each the median of many short turns, which what else
 * the machine does holds up only in part. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 4001, CALLS = 100 };

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_value(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(void)
{
    static double taken[TURNS];
    struct stat found;
    for (int kind = 0; kind < 2; kind++) {
        for (int turn = 0; turn < TURNS; turn++) {
            double began = now_ns();
            for (int call = 0; call < CALLS; call++)
                if (kind == 0)
                    syscall(SYS_getppid);
                else
                    stat("/", &found);
            taken[turn] = (now_ns() - began) / CALLS;
        }
        qsort(taken, TURNS, sizeof *taken, by_value);
        printf("%.1f\n", taken[TURNS / 2]);
    }
    return 0;
}
