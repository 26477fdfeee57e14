#!/usr/bin/env bash
# Runs one step of a longer command and prints one line: its name, duration and CPU
# time. While it runs, prints the progress: every 30 s, or in place on a terminal.
#
#   scripts/step.sh "go vet" go vet ./...
#
# Prints the command's output only if it fails. Output lines that start with "… " are
# its progress. The exit code is the step's.
set -euo pipefail

if [ $# -lt 2 ]; then
	echo "usage: $0 NAME COMMAND [ARGUMENT…]" >&2
	exit 2
fi

name=$1
shift
log=$(mktemp)
times=$(mktemp)

# progress: print the time, and the last progress line of the command.
progress() {
	printf '… %s: %d s%s' "$name" "$SECONDS" "$(grep '^… ' "$log" | tail -n 1 | sed 's/^… /, /')"
}

# pause SECONDS: like sleep, but without a process that would outlive the step and keep
# its output open.
exec {silence}<> <(:)
pause() {
	read -r -t "$1" -u "$silence" || true
}

watch() {
	while true; do
		if [ -t 1 ]; then
			pause 1
			printf '\r\033[K%s' "$(progress | cut -c "1-$(tput cols)")"
		else
			pause 30
			printf '%s\n' "$(progress)"
		fi
	done
}

# The command runs in the foreground, so that Ctrl-C reaches it.
SECONDS=0
watch &
watcher=$!
# shellcheck disable=SC2064 # now: the values don't change
trap "kill $watcher 2>/dev/null || true; rm -f '$log' '$times'" EXIT
status=0
"$@" >"$log" 2>&1 || status=$?
took=$SECONDS
kill "$watcher" 2>/dev/null || true
wait "$watcher" 2>/dev/null || true

# The second line of times is the CPU time of the commands: 0m1.5s 0m0.2s.
times >"$times" # not in a subshell, which would have its own
cpu=$(awk 'NR == 2 { gsub("s", ""); for (i = 1; i <= 2; i++) { split($i, t, "m"); sum += 60 * t[1] + t[2] }; printf "%.0f", sum }' "$times")
[ ! -t 1 ] || printf '\r\033[K'
if [ "$status" -eq 0 ]; then
	printf '%s: ok in %d s, CPU %d s%s\n' "$name" "$took" "$cpu" "$(grep '^… ' "$log" | tail -n 1 | sed 's/^… / (/; s/$/)/')"
else
	grep -v '^… ' "$log" || true
	printf '%s: FAILED (exit code %d) after %d s\n' "$name" "$status" "$took"
fi
exit "$status"
