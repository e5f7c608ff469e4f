// drv_registers.c: owns how many registers a kernel takes, which no PTX says. With the field registers=ptxas the toolkit's assembler is asked
// (PTXAS, or ptxas on the path) as a module loads; with registers=FILE the log of `ptxas -v` is read from there. Otherwise, and for kernels the
// log does not name, it is estimated from how many values live at once (ptx_live.c).
#define _GNU_SOURCE
#include "driver.h"
#include <unistd.h>

static char source[256];

int drv_registers_set(const char *value)
{
    if (strlen(value) >= sizeof source) return -1;
    snprintf(source, sizeof source, "%s", strcmp(value, "estimate") ? value : "");
    return 1;
}

// Registers are given by eights, and launch bounds make the assembler spill rather than take more than they leave room for.
static int estimate(CUfunction f)
{
    int n = (core_registers(f) + 7) / 8 * 8, most = f->max_threads ? 65536 / f->max_threads / 8 * 8 : 255;
    if (n < 16) n = 16;
    if (n > most) n = most;
    return n < 255 ? n : 255;
}

// One line names the kernel ("Compiling entry function 'k' for 'sm_89'"), a later one says "Used 40 registers".
static void read_log(FILE *f, CUmodule m)
{
    char line[1024], name[512] = "";
    while (fgets(line, sizeof line, f)) {
        int n;
        const char *p;
        if ((p = strstr(line, "entry function '")) != NULL) sscanf(p, "entry function '%127[^']", name);
        if ((p = strstr(line, "Used ")) == NULL || sscanf(p, "Used %d registers", &n) != 1 || !*name) continue;
        drv_registers *r = realloc(m->registers, (m->nregisters + 1) * sizeof *r);
        if (!r) drv_missing("memory for the table of registers");
        m->registers = r;
        snprintf(r[m->nregisters].name, sizeof r->name, "%s", name);
        r[m->nregisters++].count = n;
        *name = 0;
    }
}

static void ask_ptxas(CUmodule m, const char *ptx)
{
    char path[] = "/tmp/fakecuda-XXXXXX", command[512];
    const char *tool = getenv("PTXAS");
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f || fputs(ptx, f) < 0 || fclose(f)) drv_missing("a temporary file for ptxas");
    snprintf(command, sizeof command, "%s -v -arch=sm_%d %s -o /dev/null 2>&1", tool ? tool : "ptxas", drv.card.cc, path);
    FILE *log = popen(command, "r");
    if (log) read_log(log, m), pclose(log);
    unlink(path);
    if (!m->nregisters) drv_missing("registers=ptxas where ptxas does not run or does not take the module");
}

void drv_registers_load(CUmodule m, const char *ptx)
{
    if (!*source) return;
    if (!strcmp(source, "ptxas")) {
        ask_ptxas(m, ptx);
        return;
    }
    FILE *f = fopen(source, "r");
    if (!f) drv_missing(source);
    read_log(f, m);
    fclose(f);
}

int drv_registers_of(CUfunction f)
{
    const CUmodule m = f->module;
    for (size_t i = 0; i < m->nregisters; i++) if (!strcmp(m->registers[i].name, f->name)) return m->registers[i].count;
    return estimate(f);
}
