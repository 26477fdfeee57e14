#!/usr/bin/env bash
# Runs one step of a longer command and prints its name and duration.
#
#   scripts/step.sh "go vet" go vet ./...
#
# The exit code is the step's.
set -euo pipefail

if [ $# -lt 2 ]; then
	echo "usage: $0 NAME COMMAND [ARGUMENT…]" >&2
	exit 2
fi

name=$1
shift
printf '==> %s\n' "$name"
started=$SECONDS
status=0
"$@" || status=$?
if [ "$status" -eq 0 ]; then
	printf '    %s: ok in %d s\n' "$name" $((SECONDS - started))
else
	printf '    %s: FAILED (exit code %d) after %d s\n' "$name" "$status" $((SECONDS - started)) >&2
fi
exit "$status"
