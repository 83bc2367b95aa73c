/* What a compiler is given to start on: the headers and the first functions of a program. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry { char *word; uint32_t hash; unsigned count; };
struct table { struct entry *entries; size_t capacity, used; };

uint32_t hash_of(const char *word)
{
    uint32_t hash = 2166136261u;
    for (; *word; word++)
        hash = (hash ^ (unsigned char)*word) * 16777619u;
    return hash;
}

struct entry *find(struct table *table, const char *word, uint32_t hash)
{
    size_t at = hash & (table->capacity - 1);
    while (table->entries[at].word && (table->entries[at].hash != hash || strcmp(table->entries[at].word, word)))
        at = (at + 1) & (table->capacity - 1);
    return &table->entries[at];
}

int by_count(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->count < y->count) - (x->count > y->count);
}
