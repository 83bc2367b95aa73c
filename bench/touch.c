/* Touches every page of a file once, in an order that looks random, through a mapping: all that this program waits for
   are page faults. With "random" the kernel is asked to read no more than the page. Prints the microseconds it took. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

int main(int count, char **words)
{
    struct stat status;
    int fd = count > 1 ? open(words[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &status) < 0 || status.st_size < 4096) {
        fprintf(stderr, "touch FILE [random]\n");
        return 1;
    }
    unsigned long pages = (unsigned long)status.st_size / 4096;
    volatile char *bytes = mmap(NULL, pages * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED || (count > 2 && madvise((void *)bytes, pages * 4096, MADV_RANDOM) < 0)) {
        perror("touch");
        return 1;
    }
    /* A full cycle through all pages: the step shares no factor with their number. */
    unsigned long step = pages * 5 / 13 | 1, at = 0, sum = 0;
    for (unsigned long a = step, b = pages, rest; ; a = ++step, b = pages) {
        while ((rest = a % b) != 0) { a = b; b = rest; }
        if (b == 1) break;
    }
    double begin = microseconds();
    for (unsigned long nth = 0; nth < pages; nth++, at = (at + step) % pages)
        sum += (unsigned char)bytes[at * 4096];
    printf("%.0f\n", microseconds() - begin);
    return sum == 0;
}
