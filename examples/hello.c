// hello: the smallest chat. Each line typed is a turn; the answer comes word by word; the conversation goes on until Ctrl-D.
//
//     hello build/gemma-3-270m-nf4        any directory with a Gemma 3 as Hugging Face has it, dense or bitsandbytes 4-bit
//
// Shows: one model, one session, one call per turn. Zeros in the descs are the defaults; errors are one sentence in err.text;
// every close accepts NULL. chat.c is the same with everything a terminal user expects.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <stdio.h>

static int print(void *user, const g3_token *t) { (void)user; fwrite(t->text, 1, (size_t)t->size, stdout); return fflush(stdout); }

int main(int argc, char **argv)
{
    g3_error err;
    char line[4096];
    g3_model *m = g3_model_open(&(g3_model_desc){ .path = argc > 1 ? argv[1] : "." }, &err);
    g3_session *s = m ? g3_session_open(m, &(g3_session_desc){ .context = 16384 }, &err) : NULL;
    if (!s) { fprintf(stderr, "%s\n", err.text); g3_model_close(m); return 1; }
    while (fputs("\n> ", stdout), fgets(line, sizeof line, stdin))
        if (g3_chat(s, &(g3_turn){ .text = line, .generate.token_fn = print }, &err) < 0) fprintf(stderr, "%s\n", err.text);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}
