# Run the relay, and install it if its source is given. Prints `:n` if there is no python3, and `:i` if it is not installed.
command -v python3 >/dev/null 2>&1 || { printf '\n:: @MARK@\n:n\n'; exit 0; }
R=@PROGRAM@-$EUID
[ -O $R/main.py ] && exec python3 -I -S $R/main.py @MARK@ @ARGUMENTS@
[ -n "$SANDYARD_RELAY" ] && exec python3 -I -S -c '@INSTALL@' $R @MARK@ @ARGUMENTS@
printf '\n:: @MARK@\n:i\n'
