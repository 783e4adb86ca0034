#!/usr/bin/env bash
# Unstage these paths.
# Arguments: folder path...
. ./enter_checkout.sh
g reset -q -- "$@"
