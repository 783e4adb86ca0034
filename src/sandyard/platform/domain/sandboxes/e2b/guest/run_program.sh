# Run a program and print its output as base64, then its exit code.
# $SANDYARD_MARK marks the start and end of the output, because a login shell's profile may print something before it.
# The argv is a list of fields that end with NUL: directory, seconds, bytes, number of variables, the variables, the
# words. The variables are passed this way because a profile could change those that the SDK sets.
set +eu
m=$SANDYARD_MARK
no() { printf '\n:%s !%s\n' "$m" "$1"; exit 0; }
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || no bash
for p in base64 head; do type -P "$p" >/dev/null || no "$p"; done
if [ -n "$SANDYARD_FILE" ]; then mapfile -d '' -t a <"$SANDYARD_FILE"; rm -f -- "$SANDYARD_FILE"
else mapfile -d '' -t a < <(printf %s "$SANDYARD_ARGV" | base64 -d); fi
unset SANDYARD_MARK SANDYARD_FILE SANDYARD_ARGV
((${#a[@]} >= 5 + a[3])) || no argv
[ -z "${a[0]}" ] || cd -- "${a[0]}" 2>/dev/null || no cwd
((a[3])) && export "${a[@]:4:a[3]}"
c=("${a[@]:4+a[3]}")
type -P timeout >/dev/null && c=(timeout -k 3 "${a[1]}" "${c[@]}")
printf '\n:%s\n' "$m" >&2
printf '\n:%s\n' "$m"
"${c[@]}" </dev/null | head -c "${a[2]}" | base64
printf '\n:%s %s\n' "$m" "${PIPESTATUS[0]}"
