# Print the records of MCP servers that have exited (run_mcp_server.sh): name, exit status and the end of the standard
# error, each followed by NUL. Arguments: FOLDER NAME…
folder=$1
shift
for name; do
  [ -f "$folder/$name.status" ] || continue
  printf '%s\0' "$name"
  head -c 20 -- "$folder/$name.status" | tr -d '\0'
  printf '\0'
  [ -f "$folder/$name.stderr" ] && tail -c 8192 -- "$folder/$name.stderr" | tr -d '\0'
  printf '\0'
done 2>/dev/null
exit 0
