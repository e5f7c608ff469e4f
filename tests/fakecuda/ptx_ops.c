// ptx_ops.c: owns the table of exact spellings: the rows that the exec_*.c files give, found by a hash. There is no near match.
#include "fakecuda.h"

enum { SLOTS = 4096 };
static const fc_row *slots[SLOTS];

static uint32_t hash(const char *s)
{
    uint32_t h = 2166136261u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

static const fc_row **place(const char *spelling)
{
    uint32_t i = hash(spelling) % SLOTS;
    while (slots[i] && strcmp(slots[i]->spelling, spelling)) i = (i + 1) % SLOTS;
    return &slots[i];
}

__attribute__((constructor)) static void fill(void)
{
    const fc_table *tables[] = {&fc_alu_rows, &fc_float_rows, &fc_mem_rows, &fc_atom_rows, &fc_warp_rows, &fc_flow_rows};
    for (int t = 0; t < 6; t++) for (size_t i = 0; i < tables[t]->n; i++) *place(tables[t]->rows[i].spelling) = &tables[t]->rows[i];
}

const fc_row *fc_find_row(const char *spelling) { return *place(spelling); }
