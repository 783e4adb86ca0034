"""The relay: a program that starts a command in a sandbox, stores its output in a journal, and forwards it as it arrives.

    python3 -I -S … MARK start [SPEC FILE] | follow ID OUT ERR | claim ID | kill ID | forget ID…

Standard library only, Python 3.6 or newer, and few imports, because it starts for every command. For the same reason
`guest_sources` joins these modules into one file: each must import the others with `from … import`, and no two may
define the same name.

The journal of a command is the directory `commands/ID`. Creating the directory claims the command, which can happen
only once. It contains `lock` (held by the relay while it lives, with its pid once the command is about to start), `out`
and `err` (the output), `exit` (the result, written atomically) and `claimed` (created by a caller who wants to make
sure that the command never starts).

The relay prints lines: `:s PID` started, `:x` was started before, `:1 OFFSET BASE64` and `:2 …` output,
`:b STREAM END BASE` output to fetch from the journal (the stream's file has grown to END bytes; BASE is an index into
BASES), `:e JSON` the result, `:h` heartbeat, `:r WORD` an answer, `:f WORD BASE64` a failure, `:a` ask again.
Everything before the line `:: MARK` is output of login shells and is ignored.
"""
