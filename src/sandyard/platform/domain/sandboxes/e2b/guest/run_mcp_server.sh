# Run an MCP server for an agent, and record its exit status and the end of its standard error if it exits by itself.
# Arguments: RECORD COMMAND [ARG…]. Writes RECORD.stderr, then RECORD.status. An earlier record is removed.
# The server has the agent's standard input and output. This program keeps both open, so that the agent notices the end
# of the server only after it was recorded. A server that the agent has stopped, by a signal or by closing its input, is
# not recorded.
record=$1 path=$PATH
shift
PATH=/usr/local/bin:/usr/bin:/bin # the server's own PATH may lack the programs used here
umask_before=$(umask)
umask 077
if ! { mkdir -p -- "${record%/*}" && rm -f -- "$record.status" "$record.stderr" && : >"$record.stderr" &&
  type -P tee tail mv sleep; } >/dev/null 2>&1; then
  PATH=$path
  umask "$umask_before"
  exec -- "$@"
fi

# It ignores signals to read everything that the server still prints, and SIGPIPE in case the agent stops reading.
collect() {
  trap '' HUP INT PIPE QUIT TERM
  exec 3<&- >/dev/null
  tee /dev/fd/5 5>&1 >&2 2>/dev/null | tail -c 8192 >"$record.stderr"
}

run() {
  trap - INT QUIT # a shell ignores them in its background processes
  umask "$umask_before"
  PATH=$path
  if ! type -P -- "$1" >/dev/null; then
    printf '%s: command not found\n' "$1" >&2
    exit 127
  fi
  exec -- "$@"
}

exec 3<&0
exec 4> >(collect)
collector=$!
run "$@" <&3 3<&- 2>&4 4>&- &
server=$!
exec 4>&-
stopped=
for signal in HUP INT QUIT TERM; do
  # shellcheck disable=SC2064
  trap "stopped=1; kill -$signal $server 2>/dev/null" "$signal"
done
while true; do
  wait "$server"
  kill -0 "$server" 2>/dev/null || break
done
wait "$server"
status=$?
if [ -z "$stopped" ]; then
  IFS= read -r -t 0.1 -n 1 -u 3 _
  [ $? = 1 ] && stopped=1 # the end of the input; unread input is 0, an open input more than 128
fi
if [ -z "$stopped" ]; then
  for _ in {1..10}; do # processes that the server leaves behind may keep its standard error open
    kill -0 "$collector" 2>/dev/null || break
    sleep 0.1
  done
  printf '%s\n' "$status" >"$record.new" && mv -f -- "$record.new" "$record.status"
fi 2>/dev/null
exit "$status"
