/* Loaded objects: where their file mappings lie, and their symbols. */
#include "agent.h"

/* The program headers of a library, NULL where they are not found. */
static const Elf64_Phdr *headers(const struct link_map *map, uintptr_t *count)
{
    /* An object's first page is its ELF header, unless it asked for another address: then nothing may be mapped there. */
    unsigned char resident;
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)map->l_addr;
    if (!map->l_addr || page_down(map->l_addr) != map->l_addr || RAW3(__NR_mincore, map->l_addr, 4096, &resident))
        return NULL;
    if (__builtin_memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_phentsize != sizeof(Elf64_Phdr) ||
        elf->e_phoff + elf->e_phnum * sizeof(Elf64_Phdr) > 4096)
        return NULL;
    *count = elf->e_phnum;
    return (const Elf64_Phdr *)(map->l_addr + elf->e_phoff);
}

/* What is mapped from the file as `phdr` says. Returns whether anything is. */
static int mapped_by(const struct link_map *map, const Elf64_Phdr *phdr, struct extent *mapped)
{
    mapped->start = page_down(map->l_addr + phdr->p_vaddr);
    mapped->end = page_up(map->l_addr + phdr->p_vaddr + phdr->p_filesz);
    return phdr->p_type == PT_LOAD && phdr->p_filesz;
}

int object_piece(const struct link_map *map, uintptr_t *at, struct extent *piece)
{
    uintptr_t phdrs = 0;
    const Elf64_Phdr *phdr = headers(map, &phdrs);
    while (phdr && *at < phdrs)
        if (mapped_by(map, &phdr[(*at)++], piece))
            return 1;
    return 0;
}

/* The program headers of `map`, which may be the program. */
static const Elf64_Phdr *headers_of(const struct link_map *map, int is_program, uintptr_t *count)
{
    *count = world.phdrs;
    return is_program ? (const Elf64_Phdr *)world.phdr : headers(map, count);
}

/* From the first to the last page that is mapped from the file, read from the program headers. */
int object_extent(const struct link_map *map, int is_program, struct extent *extent)
{
    uintptr_t phdrs, dynamic = 0;
    struct extent piece;
    const Elf64_Phdr *phdr = headers_of(map, is_program, &phdrs);
    extent->start = UINTPTR_MAX;
    extent->end = 0;
    for (uintptr_t i = 0; phdr && i < phdrs; i++) {
        if (phdr[i].p_type == PT_DYNAMIC)
            dynamic = map->l_addr + phdr[i].p_vaddr;
        if (!mapped_by(map, &phdr[i], &piece))
            continue;
        if (piece.start < extent->start)
            extent->start = piece.start;
        if (piece.end > extent->end)
            extent->end = piece.end;
    }
    return extent->start < extent->end && (is_program || dynamic == (uintptr_t)map->l_ld);
}

/* ld.so makes these addresses, but not in every object (the vDSO's section is read-only). */
static uintptr_t address_of(const struct link_map *map, const Elf64_Dyn *dyn)
{
    return dyn->d_un.d_ptr < map->l_addr ? dyn->d_un.d_ptr + map->l_addr : dyn->d_un.d_ptr;
}

/* A table counts only if it lies in one of the pieces that `map` has mapped to be read, whatever its dynamic section says. Whether ld.so reads the table
 * does not matter: it does not in a library that was linked for its place beforehand. Smaller tables are not worth two more mappings. */
int object_relocations(const struct link_map *map, int is_program, struct extent pages[RELOCATIONS_KINDS])
{
    enum { RELR = 36, RELR_BYTES = 35, BYTES_MIN = 32 * 4096 };
    static const unsigned char tags[RELOCATIONS_KINDS][2] = {{DT_RELA, DT_RELASZ}, {RELR, RELR_BYTES}, {DT_JMPREL, DT_PLTRELSZ}};
    uintptr_t tables[RELOCATIONS_KINDS] = {0}, bytes[RELOCATIONS_KINDS] = {0}, phdrs = 0;
    int count = 0, is_any = 0;
    for (const Elf64_Dyn *dyn = map->l_ld; dyn->d_tag != DT_NULL; dyn++)
        for (int kind = 0; kind < RELOCATIONS_KINDS; kind++)
            if (dyn->d_tag == tags[kind][0])
                tables[kind] = address_of(map, dyn);
            else if (dyn->d_tag == tags[kind][1])
                is_any |= (bytes[kind] = dyn->d_un.d_val) >= BYTES_MIN;
    const Elf64_Phdr *phdr = is_any ? headers_of(map, is_program, &phdrs) : NULL;
    for (int kind = 0; phdr && kind < RELOCATIONS_KINDS; kind++)
        for (uintptr_t i = 0; i < phdrs; i++) {
            uintptr_t at = tables[kind] - map->l_addr - phdr[i].p_vaddr;
            if (phdr[i].p_type != PT_LOAD || phdr[i].p_flags & PF_W || at >= phdr[i].p_filesz ||
                bytes[kind] > phdr[i].p_filesz - at)
                continue;
            struct extent *found = &pages[count];
            found->start = page_up(tables[kind]);
            found->end = page_down(tables[kind] + bytes[kind]);
            count += bytes[kind] >= BYTES_MIN && found->end - found->start >= BYTES_MIN;
            break;
        }
    return count;
}

struct tables {
    const uint32_t *hash;
    const Elf64_Sym *symbols;
    const char *strings;
    const uint16_t *versions;
};

static int find_tables(const struct link_map *map, struct tables *found)
{
    *found = (struct tables){0};
    for (const Elf64_Dyn *dyn = map->l_ld; dyn && dyn->d_tag != DT_NULL; dyn++) {
        uintptr_t address = address_of(map, dyn);
        switch (dyn->d_tag) {
        case DT_GNU_HASH:
            found->hash = (const uint32_t *)address;
            break;
        case DT_SYMTAB:
            found->symbols = (const Elf64_Sym *)address;
            break;
        case DT_STRTAB:
            found->strings = (const char *)address;
            break;
        case DT_VERSYM:
            found->versions = (const uint16_t *)address;
            break;
        }
    }
    return found->hash && found->symbols && found->strings;
}

void object_touch(const struct link_map *map)
{
    struct tables tables;
    (void)*(const volatile char *)map->l_addr;
    if (find_tables(map, &tables))
        (void)*(const volatile uint32_t *)tables.hash;
}

/* The entry of a symbol that `map` defines, in its default version; NULL where it defines none. */
static const Elf64_Sym *find(const struct link_map *map, const char *name)
{
    struct tables tables;
    if (!find_tables(map, &tables))
        return NULL;
    const uint32_t *table = tables.hash;
    const uint16_t *versions = tables.versions;
    uint32_t hash = 5381, buckets = table[0], first = table[1];
    for (const char *at = name; *at; at++)
        hash = hash * 33 + (unsigned char)*at;
    const uint32_t *bucket = table + 4 + table[2] * 2, *chain = bucket + buckets;
    uint32_t at = buckets ? bucket[hash % buckets] : 0;
    for (; at >= first && at; at++) {
        const Elf64_Sym *symbol = &tables.symbols[at];
        uint32_t entry = chain[at - first];
        if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && same(tables.strings + symbol->st_name, name) &&
            !(versions && versions[at] & 0x8000) && ELF64_ST_TYPE(symbol->st_info) != STT_GNU_IFUNC)
            return symbol;
        if (entry & 1)
            break;
    }
    return NULL;
}

const char *object_names_tls(const struct link_map *map, size_t *at)
{
    struct tables tables;
    if (!find_tables(map, &tables) || (uintptr_t)tables.strings < (uintptr_t)tables.symbols)
        return NULL;
    /* Symbols of others stand before those in the hash table. Where that is empty, all are: names follow them. */
    size_t all = ((uintptr_t)tables.strings - (uintptr_t)tables.symbols) / sizeof *tables.symbols;
    size_t own = tables.hash[1] > 1 ? tables.hash[1] : all;
    while (*at < own && *at < all) {
        const Elf64_Sym *symbol = &tables.symbols[(*at)++];
        if (ELF64_ST_TYPE(symbol->st_info) == STT_TLS && symbol->st_shndx == SHN_UNDEF)
            return tables.strings + symbol->st_name;
    }
    return NULL;
}

/* What `map` has for thread-local memory, of size 0 where nothing. Some tools (BOLT) put the program headers elsewhere: then they
 * are read from the file. */
static Elf64_Phdr thread_local_part(const struct link_map *map)
{
    uintptr_t count = 0;
    Elf64_Ehdr elf;
    Elf64_Phdr phdr = {0};
    const Elf64_Phdr *known = headers(map, &count);
    for (uintptr_t i = 0; i < count; i++)
        if (known[i].p_type == PT_TLS)
            return known[i];
    long fd = known ? -1 : raw_open(map->l_name);
    if (fd < 0)
        return phdr;
    if (RAW4(__NR_pread64, fd, &elf, sizeof elf, 0) == sizeof elf && !__builtin_memcmp(elf.e_ident, ELFMAG, SELFMAG))
        for (int i = 0; i < elf.e_phnum && phdr.p_type != PT_TLS; i++)
            if (RAW4(__NR_pread64, fd, &phdr, sizeof phdr, elf.e_phoff + (uint64_t)i * sizeof phdr) != sizeof phdr)
                break;
    RAW1(__NR_close, fd);
    return phdr.p_type == PT_TLS ? phdr : (Elf64_Phdr){0};
}

size_t object_static_tls(const struct link_map *map, const char *const names[], size_t count)
{
    uintptr_t flags = 0;
    for (const Elf64_Dyn *dyn = map->l_ld; dyn && dyn->d_tag != DT_NULL; dyn++)
        if (dyn->d_tag == DT_FLAGS)
            flags = dyn->d_un.d_val;
    int is_static = (flags & DF_STATIC_TLS) != 0;
    if (!is_static && !count)
        return 0;
    Elf64_Phdr tls = thread_local_part(map);
    for (size_t i = 0; i < count && tls.p_memsz && !is_static; i++)
        is_static = find(map, names[i]) != NULL;
    uintptr_t align = tls.p_align ? tls.p_align : 1;
    return is_static ? (tls.p_memsz + align - 1) & -align : 0;
}

/* Its address; 0 where `map` defines none. */
uintptr_t object_symbol(const struct link_map *map, const char *name)
{
    const Elf64_Sym *symbol = find(map, name);
    return symbol ? map->l_addr + symbol->st_value : 0;
}

/* A program that names a variable of libc has it in its own data, as ld.so's order of search goes. */
uintptr_t object_variable(const struct link_map *program, const struct link_map *libc, const char *name)
{
    uintptr_t own = object_symbol(program, name);
    return own ? own : object_symbol(libc, name);
}

static long protect(const struct extent *extent, int protection)
{
    return RAW3(__NR_mprotect, extent->start, extent->end - extent->start, protection);
}

int object_redirect_begin(const struct link_map *map, struct extent *table)
{
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)map->l_addr;
    const Elf64_Phdr *phdr = (const Elf64_Phdr *)(map->l_addr + elf->e_phoff);
    struct tables tables;
    if (!find_tables(map, &tables) || (uintptr_t)tables.strings < (uintptr_t)tables.symbols)
        return 0;
    /* Alone, for what lies there may be mapped together with code. */
    table->start = page_down((uintptr_t)tables.symbols);
    table->end = page_up((uintptr_t)tables.strings);
    /* Else with all that has its protection, so that the mapping is not split. */
    for (int i = 0; i < elf->e_phnum; i++)
        if (phdr[i].p_type == PT_LOAD && phdr[i].p_flags == PF_R && !phdr[i].p_offset) {
            table->start = map->l_addr;
            table->end = page_up(map->l_addr + phdr[i].p_filesz);
        }
    return !protect(table, RAW_PROT_READ | RAW_PROT_WRITE);
}

uintptr_t object_redirect(const struct link_map *map, const struct extent *table, const char *name, uintptr_t to)
{
    Elf64_Sym *symbol = (Elf64_Sym *)find(map, name);
    if ((uintptr_t)symbol < table->start || (uintptr_t)symbol >= table->end || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return 0;
    uintptr_t function = map->l_addr + symbol->st_value;
    symbol->st_value = to - map->l_addr;
    return function;
}

void object_redirect_end(const struct extent *table)
{
    protect(table, RAW_PROT_READ);
}
