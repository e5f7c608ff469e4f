#!/usr/bin/env python3
# typed.py SCRIPT PROGRAM ARGS...: runs a program on a terminal of its own and types what the script says, one action a line:
#
#     ? TEXT     wait until TEXT appears behind what was waited for last
#     > TEXT     type TEXT and the Enter key; \n within it makes a pasted block
#     ^C, ^D     press it
#     .          wait for the program's end
#
# The terminal is a dumb one, or what TYPED_TERM says. Prints all that the program wrote. Exit status: the program's; 99 when something did not come within LIMIT seconds.
import os, pty, select, signal, sys, time

LIMIT = float(os.environ.get("TYPED_LIMIT", "120"))
seen, mark = b"", 0

def read(fd):                                            # what there is within a moment; False: the program has closed its side
    global seen
    if not select.select([fd], [], [], 0.05)[0]: return True
    try: more = os.read(fd, 65536)
    except OSError: more = b""
    seen += more
    return bool(more)

def give_up(pid, what):
    sys.stdout.buffer.write(seen)
    print("\ntyped.py: %s within %g seconds" % (what, LIMIT))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    sys.exit(99)

pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = os.environ.get("TYPED_TERM", "dumb")
    os.execv(sys.argv[2], sys.argv[2:])
status = None
for line in open(sys.argv[1]):
    line = line.rstrip("\n")
    end = time.time() + LIMIT
    if line.startswith("? "):
        want = line[2:].encode()
        while seen.find(want, mark) < 0:
            if not read(fd) or time.time() > end: give_up(pid, "%r did not appear" % line[2:])
        mark = seen.find(want, mark) + len(want)
    elif line.startswith("> "): os.write(fd, line[2:].replace("\\n", "\n").encode() + b"\n")
    elif line == "^C": os.write(fd, b"\x03")
    elif line == "^D": os.write(fd, b"\x04")
    elif line == ".":
        while read(fd):
            if time.time() > end: give_up(pid, "the program did not end")
        _, status = os.waitpid(pid, 0)
    else: sys.exit("typed.py: what is %r?" % line)
sys.stdout.buffer.write(seen)
if status is None: give_up(pid, "the script ended before the program did, not")
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 98)
