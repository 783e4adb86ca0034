# Kill the children of a process. `timeout` has its own process group with everything it started.
read -r -a c <"/proc/$SANDYARD_PID/task/$SANDYARD_PID/children"
for p in "${c[@]}"; do kill -- "-$p" || kill "$p"; done 2>/dev/null
