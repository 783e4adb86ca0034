# Relay for sandboxes without python3: the same journal and the same lines as the package `relay`, in bash only.
# Arguments: MARK start ID SPEC | follow ID OUT ERR | claim ID | kill ID | forget ID…
printf '\n:: %s\n' "$1"
shift
unset SANDYARD_RELAY
verb=$1 id=$2
base=/tmp/.sandyard
folder=$base/commands/$id
spare=/dev/shm/.sandyard/commands/$id # for the end of a command when the disk is full

claim() {
  mkdir -p $base/commands 2>/dev/null
  chmod 1777 $base $base/commands 2>/dev/null
  mkdir "$folder" 2>/dev/null
}

alive() { [ -s "$folder/lock" ] && kill -0 "$(cat "$folder/lock")" 2>/dev/null; }

size() { if [ -f "$1" ]; then wc -c <"$1"; else echo 0; fi; }

keep() {
  printf '%s' "$1" >"$folder/exit.new" && mv "$folder/exit.new" "$folder/exit" && return
  mkdir -p "$spare" && printf '%s' "$1" >"$spare/exit.new" && mv "$spare/exit.new" "$spare/exit"
} 2>/dev/null

run() {
  set -m
  ${SANDYARD_CWD:+cd "$SANDYARD_CWD"} || exit 1
  local limit=$SANDYARD_TIMEOUT self=$BASHPID reason=exited began child timer code ms
  unset SANDYARD_CWD SANDYARD_TIMEOUT
  began=$(date +%s%N)
  /bin/bash -l -c 'source "$0"' "$folder/command" >>"$folder/out" 2>>"$folder/err" </dev/null &
  child=$!
  end() {
    reason=$1
    kill -TERM -- -$child
    kill -CONT -- -$child
    (sleep 3; kill -KILL -- -$child) &
  } 2>/dev/null
  trap 'end killed' TERM
  trap 'end timed_out' USR1
  if [ "$limit" != 0 ]; then (sleep "$limit"; kill -USR1 $self) & timer=$!; fi
  while true; do
    wait $child; code=$?
    kill -0 $child 2>/dev/null || break
  done
  trap '' USR1 TERM
  wait $child; code=$?
  [ -n "$timer" ] && kill -KILL -- -$timer 2>/dev/null
  ms=$((($(date +%s%N) - began) / 1000000))
  sleep 0.1
  local out err result
  out=$(size "$folder/out") err=$(size "$folder/err")
  result="{\"reason\":\"$reason\",\"code\":$code,\"signal\":null,\"ms\":$ms"
  result="$result,\"out\":$out,\"out_kept\":$out,\"err\":$err,\"err_kept\":$err}"
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    keep "$result" && return
    rm -f "$folder/command"
    sleep 0.5
  done
}

start() {
  if [ -n "$SANDYARD_CWD" ] && ! [ -d "$SANDYARD_CWD" ]; then
    rm -f "$1"
    printf ':f cwd %s\n' "$(printf 'No such directory' | base64)"
    return
  fi
  if ! claim; then
    rm -f "$1"
    if [ -d "$folder" ]; then echo ':x'; follow 0 0; else printf ':f full %s\n' "$(printf 'No space left on device' | base64)"; fi
    return
  fi
  mv "$1" "$folder/command"
  : >>"$folder/out"; : >>"$folder/err"
  (echo $BASHPID >"$folder/lock"; run) >/dev/null 2>&1 &
  echo ":s $!"
  follow 0 0
}

tell() {
  local offset=$3 left count
  left=$(($(size "$folder/$2") - offset))
  while [ "$left" -gt 0 ]; do
    count=$((left > 49152 ? 49152 : left))
    printf ':%s %s %s\n' "$1" "$offset" "$(tail -c +$((offset + 1)) "$folder/$2" | head -c $count | base64 | tr -d '\n')"
    offset=$((offset + count)) left=$((left - count))
  done
  told=$offset
}

follow() {
  local out=$1 err=$2 ended running missing=0 ticks=0 told
  while true; do
    if ! [ -d "$folder" ]; then echo ':e {"reason":"not_started"}'; return; fi
    if alive; then running=1 missing=0; else running= missing=$((missing + 1)); fi
    ended=$(cat "$folder/exit" 2>/dev/null || cat "$spare/exit" 2>/dev/null)
    tell 1 out "$out"; out=$told
    tell 2 err "$err"; err=$told
    if [ -n "$ended" ]; then echo ":e $ended"; return; fi
    if [ -e "$folder/claimed" ]; then echo ':e {"reason":"not_started"}'; return; fi
    if [ $missing -gt 10 ]; then
      if [ -s "$folder/lock" ]; then echo ':e {"reason":"lost"}'; else echo ':e {"reason":"not_started"}'; fi
      return
    fi
    ticks=$((ticks + 1))
    if [ $ticks -gt 3000 ]; then echo ':a'; return; fi
    [ $((ticks % 50)) = 0 ] && echo ':h'
    sleep 0.2
  done
}

case $verb in
  start) start "$3" ;;
  follow) follow "$3" "$4" ;;
  claim) if claim; then : >"$folder/claimed"; echo ':r yes'; else echo ':r no'; fi ;;
  kill) if alive && ! [ -f "$folder/exit" ]; then kill -TERM "$(cat "$folder/lock")"; echo ':r yes'; else echo ':r no'; fi ;;
  forget)
    shift
    for id; do rm -rf "$base/commands/$id" "/dev/shm/.sandyard/commands/$id"; done
    echo ':r yes' ;;
esac
