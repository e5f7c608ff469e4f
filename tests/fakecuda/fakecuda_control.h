// fakecuda_control.h: what the emulated card exports beside the driver's calls. Tests find these by dlsym in libcuda.so.1.
#ifndef FAKECUDA_CONTROL_H
#define FAKECUDA_CONTROL_H
#pragma GCC visibility push(default)

// Sets a field of the card or of the interpreter: 1 done, 0 no such field, -1 bad value. The fields are listed in README.md beside this file.
int fakecuda_set(const char *key, const char *value);

// Back to a fresh program: nothing allocated, nothing initialised, the fields as the environment sets them. Contexts of other threads die.
void fakecuda_reset(void);

// Reports of the checks since the last clear. check: "memcheck", "initcheck", "racecheck", "synccheck", "launch", ... or NULL for all.
long fakecuda_reports(const char *check);
const char *fakecuda_report(long i);                 // the text of the i-th, or NULL; valid until the next report
void fakecuda_reports_clear(void);

// What the program has not given back: allocations, pinned memory, streams, events, modules, graphs. Each is also a report of "leakcheck".
long fakecuda_leaks(void);

// Counters of all launches since the last reset as JSON; the caller frees the text.
char *fakecuda_counters(void);
void fakecuda_counters_reset(void);
unsigned long long fakecuda_launches(void);

#pragma GCC visibility pop
#endif
