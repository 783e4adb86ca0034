# Run a program of which the source is given. Prints `:n` if there is no python3.
command -v python3 >/dev/null 2>&1 || { printf '\n:: @MARK@\n:n\n'; exit 0; }
exec python3 -I -S -c '@INSTALL@' @PATH@ @MARK@ @ARGUMENTS@
