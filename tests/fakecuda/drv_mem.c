// drv_mem.c: owns the card's memory: one reserved region of the address space in which a device address is a host address.
// An allocation starts 256 bytes into its own pages, as far from a rounder alignment as the driver's promise allows, and ends before a page
// that nobody may touch. Freed pages become untouchable and their addresses are never given out again, so a late use is always seen.
#define _GNU_SOURCE
#include "driver.h"
#include <errno.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGN = 256 };
#define BIG ((uint64_t)2 << 20)                       // the driver takes memory from the card in pieces of 2 MiB
#define REGION ((uint64_t)1 << 42)
#define POISON_LIMIT ((uint64_t)64 << 20)             // larger allocations stay unwritten: filling them would make their pages real
#define GUARD_LIMIT ((uint64_t)1 << 30)               // beyond this much, changing the pages' protection costs more than it finds

static uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }
static uint64_t taken(uint64_t used, uint64_t small) { return used + round_up(small, BIG); }

uint64_t drv_mem_room(void)
{
    uint64_t all = drv.card.memory, gone = drv.card.reserved + taken(drv.mem.used, drv.mem.used_small);
    return gone < all ? all - gone : 0;
}

// ---- sorted lists of ranges

// The last range that starts at or below the address, or n.
static size_t at_or_below(drv_range **list, size_t n, uint64_t address)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (list[mid]->lo <= address) lo = mid + 1;
        else hi = mid;
    }
    return lo ? lo - 1 : n;
}

static void insert(drv_range ***list, size_t *n, size_t *cap, drv_range *r)
{
    if (*n == *cap) {
        *cap = *cap ? *cap * 2 : 64;
        *list = realloc(*list, *cap * sizeof **list);
        if (!*list) drv_missing("memory for the list of allocations");
    }
    size_t i = at_or_below(*list, *n, r->lo), at = i == *n ? 0 : i + 1;
    memmove(*list + at + 1, *list + at, (*n - at) * sizeof **list);
    (*list)[at] = r;
    ++*n;
}

static drv_range *holder(drv_range **list, size_t n, uint64_t address)
{
    size_t i = at_or_below(list, n, address);
    return i < n && address - list[i]->lo < list[i]->bytes ? list[i] : NULL;
}

drv_range *drv_mem_find(uint64_t address) { return holder(drv.mem.live, drv.mem.nlive, address); }
drv_range *drv_mem_freed(uint64_t address) { return holder(drv.mem.freed, drv.mem.nfreed, address); }

bool drv_mem_inside(uint64_t address, uint64_t bytes)
{
    drv_range *r = drv_mem_find(address);
    return r && bytes <= r->bytes - (address - r->lo);
}

bool drv_mem_pinned(const void *ptr, uint64_t bytes)
{
    drv_range *r = drv_mem_find((uint64_t)(uintptr_t)ptr);
    return r && r->kind != DRV_DEVICE && r->kind != DRV_GLOBAL && drv_mem_inside((uint64_t)(uintptr_t)ptr, bytes);
}

// ---- allocation

static bool reserve(void)
{
    if (drv.mem.base) return true;
    for (uint64_t size = REGION; size >= (uint64_t)1 << 34; size /= 4) {
        void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        drv.mem.base = drv.mem.top = (uint64_t)(uintptr_t)p;
        drv.mem.end = drv.mem.base + size;
        return true;
    }
    return false;
}

// Bytes that no one wrote look like NaN in every width: float, bfloat16, and two of four bytes as e4m3.
static void poison(uint64_t lo, uint64_t bytes)
{
    static const unsigned char nan[4] = {0xc1, 0x7f, 0xc1, 0x7f};
    unsigned char *p = (unsigned char *)(uintptr_t)lo;
    for (uint64_t i = 0; i < bytes; i++) p[i] = nan[i & 3];
}

static void charge(drv_range *r)
{
    if (r->bytes >= BIG / 2) r->charge = round_up(r->bytes, BIG), drv.mem.used += r->charge;
    else r->charge = round_up(r->bytes, 512), drv.mem.used_small += r->charge;
}

static void discharge(const drv_range *r)
{
    if (r->bytes >= BIG / 2) drv.mem.used -= r->charge;
    else drv.mem.used_small -= r->charge;
}

static bool fits(uint64_t bytes)
{
    uint64_t room = drv_mem_room(), small = drv.mem.used_small;
    if (bytes > room) return false;
    uint64_t more = bytes >= BIG / 2 ? round_up(bytes, BIG) : round_up(small + round_up(bytes, 512), BIG) - round_up(small, BIG);
    return more <= room;
}

CUresult drv_mem_alloc(uint64_t bytes, int kind, drv_range **out)
{
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!reserve()) return CUDA_ERROR_OPERATING_SYSTEM;
    if (kind != DRV_PINNED && !fits(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t map = drv.mem.top, span = round_up(bytes + ALIGN, PAGE);
    if (span < bytes || span + PAGE > drv.mem.end - map) return CUDA_ERROR_OUT_OF_MEMORY;
    if (mprotect((void *)(uintptr_t)map, span, PROT_READ | PROT_WRITE)) return CUDA_ERROR_OUT_OF_MEMORY;
    drv.mem.top = map + span + PAGE;
    drv_range *r = calloc(1, sizeof *r);
    if (!r) drv_missing("memory for an allocation's record");
    *r = (drv_range){.lo = map + ALIGN, .bytes = bytes, .map = map, .map_bytes = span, .serial = ++drv.mem.serial, .kind = kind};
    if (bytes <= POISON_LIMIT) poison(map, span);
    if (kind != DRV_PINNED) charge(r);
    insert(&drv.mem.live, &drv.mem.nlive, &drv.mem.live_cap, r);
    core_range_new(r);
    if (!drv.mem.open) drv.mem.open = true;          // so that drv_mem_close shuts the new pages too
    *out = r;
    return CUDA_SUCCESS;
}

drv_range *drv_mem_add_host(void *ptr, uint64_t bytes, int kind)
{
    drv_range *r = calloc(1, sizeof *r);
    if (!r) drv_missing("memory for an allocation's record");
    *r = (drv_range){.lo = (uint64_t)(uintptr_t)ptr, .bytes = bytes, .serial = ++drv.mem.serial, .kind = kind};
    insert(&drv.mem.live, &drv.mem.nlive, &drv.mem.live_cap, r);
    core_range_new(r);
    core_host_wrote(r, r->lo, r->bytes);             // what the program put there before is as good as written
    return r;
}

void drv_mem_free(drv_range *r)
{
    size_t i = at_or_below(drv.mem.live, drv.mem.nlive, r->lo);
    memmove(drv.mem.live + i, drv.mem.live + i + 1, (--drv.mem.nlive - i) * sizeof *drv.mem.live);
    core_range_gone(r);
    if (r->kind != DRV_PINNED && r->kind != DRV_REGISTERED) discharge(r);
    if (!r->map) {
        free(r);
        return;
    }
    void *pages = (void *)(uintptr_t)r->map;         // a fresh mapping gives the pages back to the machine
    if (mmap(pages, r->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        drv_missing("room for another mapping of memory");
    insert(&drv.mem.freed, &drv.mem.nfreed, &drv.mem.freed_cap, r);
}

void drv_mem_reset(void)
{
    while (drv.mem.nlive) drv_mem_free(drv.mem.live[drv.mem.nlive - 1]);
}

// ---- the guard: pages are readable only while the driver works, so that a host's use of a device pointer crashes as it would

static void protect(int flags)
{
    for (size_t i = 0; i < drv.mem.nlive; i++) {
        drv_range *r = drv.mem.live[i];
        if (r->kind == DRV_DEVICE || r->kind == DRV_GLOBAL) mprotect((void *)(uintptr_t)r->map, r->map_bytes, flags);
    }
}

static bool guarded(void) { return drv.card.guard && drv.mem.used + drv.mem.used_small <= GUARD_LIMIT; }

void drv_mem_open(void)
{
    if (drv.mem.open) return;
    drv.mem.open = true;
    if (drv.card.guard) protect(PROT_READ | PROT_WRITE);
}

void drv_mem_close(void)
{
    if (!drv.mem.open || !guarded()) return;
    drv.mem.open = false;
    protect(PROT_NONE);
}

void drv_mem_written(uint64_t address, uint64_t bytes)
{
    drv_range *r = drv_mem_find(address);
    if (r) core_host_wrote(r, address, bytes);
}

// ---- calls

CUresult_CALL cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    drv_range *r = NULL;
    if (!ptr) LEAVE(CUDA_ERROR_INVALID_VALUE);
    drv_mem_open();
    CUresult e = drv_mem_alloc(bytes, DRV_DEVICE, &r);
    if (e == CUDA_SUCCESS) *ptr = r->lo;
    LEAVE(e);
}

// Only the address that an allocation gave can be freed. Freeing waits for all work, as the driver's does.
CUresult_CALL cuMemFree_v2(CUdeviceptr ptr)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    if (!ptr) LEAVE(CUDA_SUCCESS);
    drv_range *r = drv_mem_find(ptr);
    if (!r || r->lo != ptr || r->kind != DRV_DEVICE) {
        bool twice = drv_mem_freed(ptr) != NULL;
        drv_report("memcheck", "cuMemFree of 0x%llx, which %s", ptr, twice ? "was freed before" : "no allocation starts at");
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult e = drv_drain_all();
    drv_mem_free(r);
    LEAVE(e);
}

CUresult_CALL cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(DRV_CTX);
    if (!free_bytes || !total) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *free_bytes = drv_mem_room();
    *total = drv.card.memory;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    (void)flags;
    drv_range *r = NULL;
    if (!ptr) LEAVE(CUDA_ERROR_INVALID_VALUE);
    CUresult e = drv_mem_alloc(bytes, DRV_PINNED, &r);
    if (e != CUDA_SUCCESS) LEAVE(e);
    core_host_wrote(r, r->lo, r->bytes);
    *ptr = (void *)(uintptr_t)r->lo;
    LEAVE(CUDA_SUCCESS);
}

static CUresult host_gone(void *ptr, int kind, CUresult otherwise)
{
    drv_range *r = drv_mem_find((uint64_t)(uintptr_t)ptr);
    if (!r || r->lo != (uint64_t)(uintptr_t)ptr || r->kind != kind) return otherwise;
    if (drv_in_flight(r->lo, r->bytes)) drv_report("memcheck", "pinned memory %p is given back while a queued copy still needs it", ptr);
    CUresult e = drv_drain_all();
    drv_mem_free(r);
    return e;
}

CUresult_CALL cuMemFreeHost(void *ptr) { ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(host_gone(ptr, DRV_PINNED, CUDA_ERROR_INVALID_VALUE)); }

CUresult_CALL cuMemHostUnregister(void *ptr)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    LEAVE(host_gone(ptr, DRV_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

// A part of a registered range cannot be registered again. (On hardware the unit is the page; here it is the byte.)
CUresult_CALL cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    uint64_t lo = (uint64_t)(uintptr_t)ptr;
    (void)flags;
    if (!ptr || !bytes || lo + bytes < lo) LEAVE(CUDA_ERROR_INVALID_VALUE);
    size_t i = at_or_below(drv.mem.live, drv.mem.nlive, lo + bytes - 1);
    if (i < drv.mem.nlive && drv.mem.live[i]->lo + drv.mem.live[i]->bytes > lo) LEAVE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    drv_mem_add_host(ptr, bytes, DRV_REGISTERED);
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuMemHostGetDevicePointer_v2(CUdeviceptr *dev, void *host, unsigned flags)
{
    ENTER(DRV_CTX);
    if (!dev || flags || !drv_mem_pinned(host, 1)) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *dev = (uint64_t)(uintptr_t)host;
    LEAVE(CUDA_SUCCESS);
}
