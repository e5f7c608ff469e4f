// count.c: owns what a launch asked of the card: instructions by class, bytes and 32-byte sectors by space and by allocation, waves of shared memory,
// kept by kernel and by launch, and told as JSON. Workers count apart; what they counted is added up when the launch has ended.
#define _GNU_SOURCE
#include "fakecuda.h"

enum { SECTOR = 5 };                                 // 32 bytes

// ---- allocations that a launch touches

fc_use *fc_use_at(fc_launch *l, uint64_t address)
{
    for (fc_use *u = l->uses; u; u = u->next) if (address - u->lo < u->bytes) return u;
    drv_range *r = drv_mem_find(address);
    if (!r) return NULL;
    fc_use *u = calloc(1, sizeof *u);
    fc_range *c = r->core;
    if (!u) drv_missing("memory for counters");
    *u = (fc_use){.lo = r->lo, .bytes = r->bytes, .core = c, .range = r, .next = l->uses};
    u->watched = fc_opt.init || c->init || (fc_opt.nc && r->bytes <= (uint64_t)1 << 31);
    if (fc_opt.count) u->chunks = calloc((r->bytes >> FC_CHUNK) + 2, sizeof *u->chunks);
    if (fc_opt.count && !u->chunks) drv_missing("memory for counters");
    pthread_mutex_lock(&l->grid->lock);
    if (fc_opt.nc && u->watched && c->launch != l->number) {                     // what earlier launches wrote is no matter
        if (!c->written) c->written = malloc(r->bytes / 8 + 1);
        if (!c->written) drv_missing("memory for nccheck");
        memset(c->written, 0, r->bytes / 8 + 1);
        c->launch = l->number;
    }
    pthread_mutex_unlock(&l->grid->lock);
    return l->uses = u;
}

static void use_free(fc_use *u)
{
    for (uint64_t i = 0; u->chunks && i < (u->bytes >> FC_CHUNK) + 2; i++) free(u->chunks[i]);
    free(u->chunks);
    free(u);
}

void fc_uses_free(fc_launch *l)
{
    while (l->uses) {
        fc_use *next = l->uses->next;
        use_free(l->uses);
        l->uses = next;
    }
}

// ---- sectors

// Bits of one word of the marks: word k has sectors 64 k to 64 k + 63, from the allocation's first on.
static inline void mark_word(fc_use *u, uint64_t k, uint64_t bits)
{
    uint64_t **chunk = &u->chunks[k / FC_CHUNK_WORDS];
    if (!*chunk && (*chunk = calloc(FC_CHUNK_WORDS, sizeof **chunk)) == NULL) drv_missing("memory for counters");
    (*chunk)[k % FC_CHUNK_WORDS] |= bits;
}

static inline uint64_t sector_of(const fc_use *u, uint64_t address) { return (address >> SECTOR) - (u->lo >> SECTOR); }

// Every step-th sector from the first to the last; step is a power of 2, 32 at most.
static void mark_stretch(fc_use *u, uint64_t first, uint64_t last, uint64_t step)
{
    uint64_t pattern = (~(uint64_t)0 / ((1ull << step) - 1)) << (first & (step - 1));
    for (uint64_t k = first >> 6; k <= last >> 6; k++) {
        uint64_t bits = pattern;
        if (k == first >> 6) bits &= ~(uint64_t)0 << (first & 63);
        if (k == last >> 6) bits &= ~(uint64_t)0 >> (63 - (last & 63));
        mark_word(u, k, bits);
    }
}

// Neighbouring lanes mostly mark the same word.
static inline void mark_lanes(fc_use *u, const fc_span *s, uint32_t lanes)
{
    uint64_t word = sector_of(u, s->at[0]) >> 6, bits = 0;
    for (uint32_t left = lanes; left; left &= left - 1) {
        uint64_t k = sector_of(u, s->at[__builtin_ctz(left)]);
        if (k >> 6 != word) {
            mark_word(u, word, bits);
            word = k >> 6;
            bits = 0;
        }
        bits |= (uint64_t)1 << (k & 63);
    }
    mark_word(u, word, bits);
}

// Lanes whose sector no lane before them has. An aligned access lies in one sector. Most requests rise from lane to lane: then a look back is enough.
static inline __attribute__((always_inline)) uint32_t fresh_lanes(const fc_span *s)
{
    uint64_t k[32], falls = 0;
    uint32_t fresh = 1, same[32] = {0};
    for (int i = 0; i < 32; i++) k[i] = s->at[i] >> SECTOR;
    for (int i = 1; i < 32; i++) falls |= (k[i] - k[i - 1]) >> 63;
    if (!falls) {
        for (int i = 1; i < 32; i++) fresh |= (uint32_t)(k[i] != k[i - 1]) << i;
        return fresh;
    }
    for (int i = 0; i < 31; i++) for (int j = 0; j < 32; j++) same[j] |= k[j] == k[i] && j > i;
    for (int i = 1; i < 32; i++) fresh |= (same[i] ^ 1) << i;
    return fresh;
}
FC_CLONES static uint32_t new_sectors(const fc_span *s) { return fresh_lanes(s); }

// Those within 64 sectors of the first are the bits of one word, which comes to lie across two of the marks.
static inline __attribute__((always_inline)) uint64_t near_sectors(const fc_span *s, fc_use *u, uint64_t first)
{
    uint64_t bits = 0, base = s->lo >> SECTOR;
    for (int i = 0; i < 32; i++) bits |= (uint64_t)1 << ((s->at[i] >> SECTOR) - base);
    mark_word(u, first >> 6, bits << (first & 63));
    if (first & 63 && bits >> (64 - (first & 63))) mark_word(u, (first >> 6) + 1, bits >> (64 - (first & 63)));
    return (uint64_t)__builtin_popcountll(bits);
}

FC_CLONES static uint64_t scattered_sectors(const fc_span *s, fc_use *u, uint64_t first, uint64_t last)
{
    if (last - first < 64) return near_sectors(s, u, first);
    uint32_t fresh = fresh_lanes(s);
    mark_lanes(u, s, fresh);
    return (uint64_t)__builtin_popcount(fresh);
}

static uint64_t span_sectors(const fc_span *s, fc_use *u)
{
    uint64_t first = sector_of(u, s->lo), last = sector_of(u, s->hi + s->bytes - 1), step = s->at[1] - s->at[0];
    if (first == last) mark_word(u, first >> 6, (uint64_t)1 << (first & 63));
    else if (s->shape == FC_STRAIGHT || (s->shape == FC_RISING && step <= 32)) mark_stretch(u, first, last, 1);
    else if (s->shape == FC_RISING && !(step & (step - 1)) && step <= 1024) {
        mark_stretch(u, first, last, step >> SECTOR);
        return 32;
    } else return scattered_sectors(s, u, first, last);
    return last - first + 1;
}

static inline void add_traffic(fc_traffic *t, uint64_t bytes, uint64_t sectors, bool write)
{
    t->requests++;
    if (write) t->written += bytes, t->sectors_written += sectors;
    else t->read += bytes, t->sectors_read += sectors;
}

// A request that lies in one allocation.
void fc_count_global(fc_traffic *t, fc_use *u, const fc_span *s, uint64_t bytes, bool write)
{
    uint64_t n = u->chunks ? span_sectors(s, u) : 0;
    add_traffic(t, bytes, n, write);
    add_traffic(&u->traffic, bytes, n, write);
}

// One whose lanes may go to several. parts: how many bytes each lane moves, where that is not the same for all.
void fc_count_lanes(fc_launch *l, fc_traffic *t, const fc_span *s, const uint8_t *parts, bool write)
{
    uint64_t bytes = 0;
    uint32_t fresh = fc_opt.count ? new_sectors(s) : 0;
    fc_use *touched[32];
    int n = 0;
    for (int i = 0; i < 32; i++) {
        uint64_t own = !(s->mask >> i & 1) ? 0 : parts ? parts[i] : s->bytes;
        if (!own && !(fresh >> i & 1)) continue;
        fc_use *u = fc_use_at(l, s->at[i]);
        int k = 0;
        while (k < n && touched[k] != u) k++;
        if (k == n) touched[n++] = u, u->traffic.requests++;
        if (write) u->traffic.written += own, u->traffic.sectors_written += fresh >> i & 1;
        else u->traffic.read += own, u->traffic.sectors_read += fresh >> i & 1;
        if (fresh >> i & 1) mark_lanes(u, s, 1u << i);
        bytes += own;
    }
    add_traffic(t, bytes, (uint64_t)__builtin_popcount(fresh), write);
}

// Local memory is laid out so that one word of all lanes of a warp lies side by side: a sector has that of eight lanes.
static uint64_t local_sectors(const fc_span *s)
{
    uint64_t n = 0;
    for (int i = 0; i < 32; i++) {
        bool fresh = s->mask >> i & 1;
        for (int j = i & ~7; fresh && j < i; j++) fresh = !(s->mask >> j & 1) || s->at[j] / 4 != s->at[i] / 4;
        n += fresh;
    }
    return n * (s->bytes < 4 ? 1 : s->bytes / 4);
}

void fc_count_local(fc_traffic *t, const fc_span *s, bool write)
{
    add_traffic(t, (uint64_t)fc_lanes(s->mask) * s->bytes, fc_opt.count ? local_sectors(s) : 0, write);
}

// ---- shared memory: 32 banks of 4 bytes serve one word each; wider requests go by halves and quarters of a warp, and use banks by pairs and fours

static uint32_t most_words(const uint64_t *at, uint32_t mask, int shift, uint32_t banks)
{
    uint64_t unit[32][32];
    uint8_t n[32] = {0};
    uint32_t most = 0;
    for (uint32_t left = mask; left; left &= left - 1) {
        uint64_t u = at[__builtin_ctz(left)] >> shift;
        uint32_t bank = (uint32_t)u & (banks - 1), k = 0;
        while (k < n[bank] && unit[bank][k] != u) k++;
        if (k < n[bank]) continue;
        unit[bank][n[bank]++] = u;
        if (n[bank] > most) most = n[bank];
    }
    return most;
}

// One wave where all banks are different, or all words lie so near that no two can share a bank.
static uint32_t phase_waves(const uint64_t *at, uint32_t mask, int shift, uint32_t banks)
{
    uint64_t low = ~(uint64_t)0, high = 0;
    uint32_t used = 0, lanes = 0;
    for (uint32_t left = mask; left; left &= left - 1, lanes++) {
        uint64_t u = at[__builtin_ctz(left)] >> shift;
        used |= 1u << (u & (banks - 1));
        low = u < low ? u : low;
        high = u > high ? u : high;
    }
    if (high - low < banks || (uint32_t)__builtin_popcount(used) == lanes) return mask != 0;
    return most_words(at, mask, shift, banks);
}

// A whole warp: no two lanes of one phase at one bank. Banks and phases make 32 together, whatever the width.
FC_CLONES static bool no_conflict(const fc_span *s, int shift, uint32_t banks)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < 32; i++) used |= 1u << (((uint32_t)s->at[i] >> shift & (banks - 1)) + (i & ~(banks - 1)));
    return used == 0xffffffffu;
}

static uint64_t waves(const fc_span *s)
{
    int shift = s->bytes >= 16 ? 4 : s->bytes == 8 ? 3 : 2;
    uint32_t lanes = 128u >> shift, n = 0;
    bool all = s->mask == 0xffffffffu;
    if (all && (s->shape == FC_STRAIGHT || s->shape == FC_SAME)) return 32 / lanes;
    if (lanes == 32 && (s->hi >> shift) - (s->lo >> shift) < 32) return 1;
    if (all && no_conflict(s, shift, lanes)) return 32 / lanes;
    for (uint32_t from = 0; from < 32; from += lanes) n += phase_waves(s->at, s->mask & (uint32_t)(((uint64_t)1 << lanes) - 1) << from, shift, lanes);
    return n;
}

void fc_count_shared(fc_traffic *t, const fc_span *s, bool write)
{
    add_traffic(t, (uint64_t)fc_lanes(s->mask) * s->bytes, fc_opt.count ? waves(s) : 0, write);
}

// ---- records

typedef struct part { uint64_t serial, bytes, distinct; fc_traffic traffic; struct part *next; } part;      // of one allocation
typedef struct record {
    char kernel[512];
    uint64_t number, launches, distinct;
    unsigned grid[3], block[3], shared;
    fc_counts c;
    part *parts;
    struct record *next;
} record;
static record *kernels, *launches, **last_launch = &launches;
static uint64_t kept, left_out;

static void *made(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p) drv_missing("memory for counters");
    return p;
}

static void drop_records(record **list)
{
    while (*list) {
        record *r = *list;
        *list = r->next;
        while (r->parts) {
            part *next = r->parts->next;
            free(r->parts);
            r->parts = next;
        }
        free(r);
    }
}

void fc_count_add(uint64_t *to, const uint64_t *from, size_t bytes) { for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] += from[i]; }
#define ADD(to, from) fc_count_add((uint64_t *)(to), (const uint64_t *)(from), sizeof *(to))

// Instructions of a run ran as often as the run; copies that were taken out ran with the instruction that counts for them.
static void add_instructions(const fc_launch *l, fc_counts *c)
{
    const fc_kernel *k = l->kernel;
    for (size_t i = 0; i < k->n; i++) {
        fc_tally *t = &l->tally[i];
        for (size_t j = i; t->runs && j < i + k->code[i].run; j++) l->tally[j].hits += t->runs, l->tally[j].lanes += t->run_lanes;
        int cls = k->code[i].row->cls;
        c->warp_insns[cls] += t->hits;
        c->thread_insns[cls] += t->lanes;
        c->warp_insns[FC_move] += t->hits * (uint64_t)k->notes[i].moves;
        c->thread_insns[FC_move] += t->lanes * (uint64_t)k->notes[i].moves;
    }
}

static part *part_of(record *r, uint64_t serial, uint64_t bytes)
{
    part **p = &r->parts;
    while (*p && (*p)->serial < serial) p = &(*p)->next;
    if (*p && (*p)->serial == serial) return *p;
    part *new = made(sizeof *new);
    *new = (part){.serial = serial, .bytes = bytes, .next = *p};
    return *p = new;
}

// Sectors that any worker has marked, each once. The other workers' marks go into this one's.
static uint64_t distinct(fc_use *u, fc_launch *const *workers, int from, int n)
{
    uint64_t count = 0, size = (u->bytes >> FC_CHUNK) + 2;
    for (int k = from; u->chunks && k < n; k++)
        for (fc_use *o = workers[k]->uses; o; o = o->next) {
            if (o->range != u->range) continue;
            for (uint64_t i = 0; i < size; i++) {
                if (o->chunks[i] && !u->chunks[i]) u->chunks[i] = o->chunks[i], o->chunks[i] = NULL;
                else if (o->chunks[i]) for (int j = 0; j < FC_CHUNK_WORDS; j++) u->chunks[i][j] |= o->chunks[i][j];
            }
        }
    for (uint64_t i = 0; u->chunks && i < size; i++)
        for (int j = 0; u->chunks[i] && j < FC_CHUNK_WORDS; j++) count += (uint64_t)__builtin_popcountll(u->chunks[i][j]);
    return count;
}

static bool seen_before(const fc_use *u, fc_launch *const *workers, int k)
{
    while (k-- > 0) for (const fc_use *o = workers[k]->uses; o; o = o->next) if (o->range == u->range) return true;
    return false;
}

static void add_uses(record *r, fc_launch *const *workers, int n)
{
    for (int k = 0; k < n; k++)
        for (fc_use *u = workers[k]->uses; u; u = u->next) {
            part *p = part_of(r, u->range->serial, u->bytes);
            ADD(&p->traffic, &u->traffic);
            ADD(&u->core->traffic, &u->traffic);
            if (!seen_before(u, workers, k)) p->distinct = distinct(u, workers, k + 1, n);
        }
    for (part *p = r->parts; p; p = p->next) r->distinct += p->distinct;
}

static void add_record(record *to, const record *from)
{
    ADD(&to->c, &from->c);
    to->launches += from->launches;
    to->distinct += from->distinct;
    for (const part *p = from->parts; p; p = p->next) {
        part *q = part_of(to, p->serial, p->bytes);
        ADD(&q->traffic, &p->traffic);
        q->distinct += p->distinct;
    }
}

static record *kernel_record(const char *name)
{
    record **r = &kernels;
    while (*r && strcmp((*r)->kernel, name)) r = &(*r)->next;
    if (!*r) {
        *r = made(sizeof **r);
        snprintf((*r)->kernel, sizeof (*r)->kernel, "%s", name);
    }
    return *r;
}

void fc_count_launch(fc_launch *const *workers, int n)
{
    const drv_op *op = workers[0]->op;
    record *r = made(sizeof *r);
    snprintf(r->kernel, sizeof r->kernel, "%s", workers[0]->kernel->name);
    r->number = workers[0]->number;
    r->launches = 1;
    r->shared = op->shared;
    memcpy(r->grid, op->grid, sizeof r->grid);
    memcpy(r->block, op->block, sizeof r->block);
    for (int i = 0; i < n; i++) {
        ADD(&r->c, &workers[i]->c);
        add_instructions(workers[i], &r->c);
    }
    add_uses(r, workers, n);
    add_record(kernel_record(r->kernel), r);
    if (kept < fc_opt.launches) {
        kept++;
        *last_launch = r;
        last_launch = &r->next;
        return;
    }
    left_out++;
    drop_records(&r);
}

// ---- JSON

#define U(v) ((unsigned long long)(v))

static void tell_classes(FILE *f, const char *name, const uint64_t *n)
{
    static const char *const names[] = {
#define FC_NAME(name) #name,
        FC_CLASSES(FC_NAME)
#undef FC_NAME
    };
    fprintf(f, ",\n   \"%s\": {", name);
    for (int i = 0; i < FC_NCLASS; i++) fprintf(f, "%s\"%s\": %llu", i ? ", " : "", names[i], U(n[i]));
    fprintf(f, "}");
}

static void tell_traffic(FILE *f, const fc_traffic *t, const char *unit)
{
    fprintf(f, "\"requests\": %llu, \"bytes_read\": %llu, \"bytes_written\": %llu, \"%s_read\": %llu, \"%s_written\": %llu", U(t->requests), U(t->read), U(t->written),
            unit, U(t->sectors_read), unit, U(t->sectors_written));
}

static void tell_space(FILE *f, const char *name, const fc_traffic *t, const char *unit)
{
    fprintf(f, ",\n   \"%s\": {", name);
    tell_traffic(f, t, unit);
    fprintf(f, "}");
}

static void tell_parts(FILE *f, const part *p)
{
    fprintf(f, ",\n   \"allocations\": [");
    for (const part *first = p; p; p = p->next) {
        fprintf(f, "%s\n    {\"serial\": %llu, \"bytes\": %llu, ", p == first ? "" : ",", U(p->serial), U(p->bytes));
        tell_traffic(f, &p->traffic, "sectors");
        fprintf(f, ", \"distinct_sectors\": %llu}", U(p->distinct));
    }
    fprintf(f, "]");
}

static void tell_record(FILE *f, const record *r, bool launch)
{
    fprintf(f, "  {\"kernel\": \"%s\", ", r->kernel);
    if (launch) fprintf(f, "\"launch\": %llu, \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"dynamic_shared\": %u", U(r->number), r->grid[0], r->grid[1], r->grid[2],
                        r->block[0], r->block[1], r->block[2], r->shared);
    else fprintf(f, "\"launches\": %llu", U(r->launches));
    fprintf(f, ", \"mma\": %llu, \"barriers\": %llu, \"distinct_sectors\": %llu", U(r->c.mma), U(r->c.barriers), U(r->distinct));
    tell_space(f, "global", &r->c.global, "sectors");
    tell_space(f, "constant", &r->c.constant, "sectors");
    tell_space(f, "local", &r->c.local, "sectors");
    tell_space(f, "shared", &r->c.shared, "waves");
    tell_classes(f, "warp_instructions", r->c.warp_insns);
    tell_classes(f, "thread_instructions", r->c.thread_insns);
    tell_parts(f, r->parts);
    fprintf(f, "}");
}

static void tell_records(FILE *f, const char *name, const record *r, bool launch)
{
    fprintf(f, "\"%s\": [\n", name);
    for (; r; r = r->next) {
        tell_record(f, r, launch);
        fprintf(f, r->next ? ",\n" : "\n");
    }
    fprintf(f, "]");
}

char *core_counters_json(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "{");
    tell_records(f, "kernels", kernels, false);
    fprintf(f, ",\n");
    tell_records(f, "launches", launches, true);
    fprintf(f, ",\n\"launches_left_out\": %llu,\n\"allocations\": [\n", U(left_out));
    for (size_t i = 0; i < drv.mem.nlive; i++) {
        const drv_range *r = drv.mem.live[i];
        fprintf(f, "  {\"serial\": %llu, \"bytes\": %llu, ", U(r->serial), U(r->bytes));
        tell_traffic(f, &((const fc_range *)r->core)->traffic, "sectors");
        fprintf(f, "}%s\n", i + 1 < drv.mem.nlive ? "," : "");
    }
    fprintf(f, "]}\n");
    fclose(f);
    return text;
}

void core_counters_reset(void)
{
    drop_records(&kernels);
    drop_records(&launches);
    last_launch = &launches;
    kept = left_out = 0;
    for (size_t i = 0; i < drv.mem.nlive; i++) ((fc_range *)drv.mem.live[i]->core)->traffic = (fc_traffic){0};
}
