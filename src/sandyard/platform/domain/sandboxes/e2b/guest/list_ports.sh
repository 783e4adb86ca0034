# Print the listening sockets, then which process has which socket, then the command lines of the processes.
# Reads the kernel's tables with programs that every template has. The owner of a socket is known only for processes of
# the same user, and unknown if `ls` or `head` is missing; ports are listed anyway.
exec 2>/dev/null
grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6
echo ::files
ls -l /proc/[0-9]*/fd | grep -e '^/proc/' -e 'socket:'
echo ::lines
head -v -c 400 /proc/[0-9]*/cmdline
exit 0
