// spellings.h: reads which instructions a PTX text holds, each in its exact spelling, for the coverage gate and its oracles.
// A spelling is the opcode with its modifiers. What the same spelling does otherwise by its operands is marked behind it: packing and unpacking
// `mov`, a predicate beside a shuffle's result, a thread count of `bar`. Special registers count too: %laneid is as much to get wrong as an opcode.
#ifndef SPELLINGS_H
#define SPELLINGS_H
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef void (*spelling_fn)(const char *spelling, void *user);

static const char *skip_space(const char *p, const char *end) { while (p < end && isspace((unsigned char)*p)) p++; return p; }

// The end of the statement that begins at p: its semicolon, a brace alone, a label's colon, or the end of a comment or directive line.
static const char *statement_end(const char *p, const char *end)
{
    if (*p == '{' || *p == '}') return p + 1;
    if (p + 1 < end && p[0] == '/' && p[1] == '/') { while (p < end && *p != '\n') p++; return p; }
    if (*p == '.') {                                     // to the end of the line, or past an initialiser's semicolon
        const char *line = memchr(p, '\n', (size_t)(end - p)), *semi = memchr(p, ';', (size_t)(end - p));
        if (!line) line = end;
        return semi && semi < line ? semi + 1 : line;
    }
    for (; p < end; p++) {
        if (*p == ';') return p + 1;
        if (*p == ':' && p[1] != ':' && p[-1] != ':') return p + 1;
    }
    return end;
}

static bool is_opcode(char c) { return isalnum((unsigned char)c) || c == '.' || c == '_' || c == ':'; }

// How the operands change the meaning: "" or a mark.
static const char *operand_mark(const char *op, const char *rest, size_t n)
{
    const char *brace = memchr(rest, '{', n), *comma = memchr(rest, ',', n), *bar = memchr(rest, '|', n);
    if (!strncmp(op, "mov.", 4) && brace) return brace < comma ? " to {}" : " from {}";
    if ((!strncmp(op, "shfl.", 5) || !strncmp(op, "match.", 6)) && bar && bar < comma) return " with predicate";
    if (!strcmp(op, "bar.sync") && comma) return " with count";
    if (!strncmp(op, "cp.async.c", 10) && comma && memchr(comma + 1, ',', n - (size_t)(comma + 1 - rest))
        && strchr(strchr(comma + 1, ',') + 1, ',') && strchr(strchr(comma + 1, ',') + 1, ',') < rest + n) return " with source size";
    return "";
}

static void special_registers(const char *p, const char *end, spelling_fn fn, void *user)
{
    static const char *const known[] = { "%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid", "%warpid", "%nwarpid", "%lanemask_", "%clock", "%smid", "%nsmid",
                                         "%gridid", "%dynamic_smem_size", "%total_smem_size", "%globaltimer", "%envreg" };
    char name[64];
    for (; p < end; p++) {
        if (*p != '%') continue;
        size_t n = 1;
        while (p + n < end && (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.')) n++;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (strncmp(p, known[i], strlen(known[i])) || n >= sizeof name) continue;
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            fn(name, user);
        }
        p += n - 1;
    }
}

static void one_statement(const char *p, const char *end, spelling_fn fn, void *user)
{
    char op[128], marked[160];
    size_t n = 0;
    if (*p == '@') {                                     // the guard
        while (p < end && !isspace((unsigned char)*p)) p++;
        p = skip_space(p, end);
    }
    while (p + n < end && is_opcode(p[n])) n++;
    if (!n || n >= sizeof op || !isalpha((unsigned char)*p) || end[-1] == ':') return;          // the last: a label
    snprintf(op, sizeof op, "%.*s", (int)n, p);
    snprintf(marked, sizeof marked, "%s%s", op, operand_mark(op, p + n, (size_t)(end - p) - n));
    fn(marked, user);
    special_registers(p + n, end, fn, user);
}

static void each_spelling(const char *ptx, spelling_fn fn, void *user)
{
    const char *end = ptx + strlen(ptx), *open = strchr(ptx, '{');
    int parens = 0;                                      // a kernel's parameters lie between parentheses and are no statements
    for (const char *p = skip_space(ptx, end); p < end; p = skip_space(p, end)) {
        if (*p == '(') { parens++; p++; continue; }
        if (*p == ')') { parens--; p++; continue; }
        const char *next = statement_end(p, end);
        if (parens <= 0 && open && p > open && *p != '.' && *p != '{' && *p != '}' && *p != '/' && *p != '$') one_statement(p, next, fn, user);
        p = next > p ? next : p + 1;
    }
}
#endif
