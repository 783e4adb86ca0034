#!/usr/bin/env bash
# Stage these paths.
# Arguments: folder path...
. ./enter_checkout.sh
g add -A -- "$@"
