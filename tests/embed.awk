# Splices the first file, one C string per line, between the markers of the second: awk -f embed.awk kernels.cuh header.h > new-header.h
# Refuses what would not come back byte for byte from every compiler: tabs, bytes beyond ASCII, trigraphs, very long lines. Run with LC_ALL=C.
function refuse(why) { print FILENAME ":" FNR ": " why > "/dev/stderr"; failed = 1; exit 1 }
FNR == NR {
    if (/\t/) refuse("a tab; write spaces")
    if (/[^ -~]/) refuse("a byte that is not printable ASCII")
    if (/\?\?/) refuse("two question marks could begin a trigraph")
    if (length($0) > 300) refuse("a line of more than 300 bytes")
    gsub(/\\/, "\\\\&")
    gsub(/"/, "\\\\&")
    line[++n] = "\"" $0 "\\n\","
    next
}
/^\/\/>embed/ { print; for (i = 1; i <= n; i++) print line[i]; opened++; skip = 1; next }
/^\/\/<embed/ { closed++; skip = 0 }
!skip
END {
    if (failed) exit 1
    if (opened != 1 || closed != 1 || skip || !n) { print "the header needs one //>embed line before one //<embed line, and the kernel file some text" > "/dev/stderr"; exit 1 }
}
