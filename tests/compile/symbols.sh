#!/bin/sh
# symbols.sh COMPILER LANGUAGE STANDARD INCLUDE OBJECT SOURCE: what the compiled implementation shows to the linker.
#  - every exported name starts with g3_, and none with g3__
#  - .data and .bss are empty: nothing in it can change (tables of pointers lie in .data.rel.ro); without stb_image, whose
#    tables and settings are its own
#  - it calls nothing that prints, exits or aborts, and nothing with hidden state (rand, strtok, setlocale)
#  - what an option leaves out is really not called: files, threads, the run-time loader
set -u
$1 -x "$2" -std="$3" -O0 -fPIC -DNDEBUG -I"$4" -c "$6" -o "$5" -Wno-unused || exit 1
$1 -x "$2" -std="$3" -O0 -fPIC -DNDEBUG -DGEMMA3_NO_STB_IMAGE -I"$4" -c "$6" -o "$5.own" -Wno-unused || exit 1
bad=0
complain() { if [ -n "$2" ]; then printf '%s:\n%s\n' "$1" "$2"; bad=1; fi; }
complain "exported without the prefix g3_" "$(nm -g --defined-only "$5" | awk '$3 !~ /^g3_[^_]/ { print $3 }')"
complain "sections that should be empty" "$(size -A "$5.own" | awk '($1 ~ /^\.(data|bss|tdata|tbss)(\.|$)/) && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 { print $1, $2 }')"
never='printf|puts|putchar|fprintf|vprintf|vfprintf|fputs|fputc|fwrite|perror|exit|_exit|_Exit|abort|quick_exit|atexit|signal|raise|system'
never="$never|rand|srand|strtok|setlocale|strerror|localtime|gmtime|stdout|stderr|__printf_chk|__fprintf_chk|__vfprintf_chk"
files='f?open(64)?|openat(64)?|p?read(64)?|fread|fgets|f?stat(64)?|opendir|access'
case $6 in
    *no_stdio*)   never="$never|$files" ;;
    *no_threads*) never="$never|pthread_.*|sem_.*" ;;
    *no_cuda*)    never="$never|dlopen|dlsym" ;;
    *no_all*)     never="$never|$files|pthread_.*|sem_.*|dlopen|dlsym" ;;
esac
complain "calls what it must not" "$(nm -u "$5" | awk '{ print $NF }' | sed 's/@.*//' | grep -xE "$never")"
exit $bad
