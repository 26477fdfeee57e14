#!/usr/bin/env bash
# Runs go test. Packages that fail are tested a second time, one after the other: on a
# machine that is busy with other work, a server that a test has started can take longer
# than the test waits for it. A package fails if it fails twice, crashes or has a data race.
# One that fails only once is listed at the end, with its failure above: fix it.
#
#   scripts/gotest.sh [FLAG…] -- PACKAGE…
set -euo pipefail

flags=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
if [ $# -lt 2 ]; then
	echo "usage: $0 [FLAG…] -- PACKAGE…" >&2
	exit 2
fi
shift

output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
go test "${flags[@]}" "$@" | tee "$output" || status=$?
[ "$status" -ne 0 ] || exit 0

# Lines such as "FAIL telapi/internal/kv 1.2s", not "FAIL telapi/internal/kv [build failed]".
mapfile -t failed < <(awk '$1 == "FAIL" && NF == 3 && $3 !~ /^\[/ { print $2 }' "$output" | sort -u)
if [ ${#failed[@]} -eq 0 ] || grep -qE '^[[:space:]]*(WARNING: DATA RACE|panic: |fatal error: )|\[(build|setup) failed\]$' "$output"; then
	exit "$status"
fi
printf '\nTesting again, one after the other: %s\n' "${failed[*]}"
go test "${flags[@]}" -p 1 -count=1 "${failed[@]}"
printf '\nUNSTABLE: passed only when tested again (the failure is above): %s\n' "${failed[*]}"
