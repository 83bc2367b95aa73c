// Touches pages of a file that UMap maps, in a given order, and prints pages a second: `umap_walk FILE ORDER`, where ORDER
// holds the numbers of the pages, 8 bytes each.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "umap/umap.h"

int main(int count, char** words) {
    if (count != 3) return 2;
    int file = open(words[1], O_RDONLY), order = open(words[2], O_RDONLY);
    struct stat facts;
    if (file < 0 || order < 0 || fstat(order, &facts) != 0) return perror("umap_walk"), 1;
    std::vector<uint64_t> pages(facts.st_size / 8);
    if (read(order, pages.data(), facts.st_size) != facts.st_size) return perror("umap_walk"), 1;
    if (fstat(file, &facts) != 0) return perror("umap_walk"), 1;
    void* at = umap(nullptr, facts.st_size, PROT_READ, UMAP_PRIVATE, file, 0);
    if (at == UMAP_FAILED) return perror("umap"), 1;
    const volatile uint8_t* bytes = static_cast<const uint8_t*>(at);
    uint64_t sum = 0;
    auto began = std::chrono::steady_clock::now();
    for (uint64_t page : pages)
        for (int line = 0; line < 64; line++) sum += bytes[page * 4096 + line * 64];
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("%f\n", pages.size() / took.count());
    uunmap(at, facts.st_size);
    return sum == 0;
}
