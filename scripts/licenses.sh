#!/usr/bin/env bash
# Prints the licences and notices of all Go modules that the program contains.
#
#   scripts/licenses.sh >THIRD_PARTY_LICENSES
#
# GOARCH selects the architecture. Fails if a module has no licence file.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CGO_ENABLED=0 GOOS=linux LC_ALL=C

# print NAME FILE…: the files under a heading.
print() {
	local name=$1 file
	shift
	[ $# -gt 0 ] || { echo "$name has no licence file" >&2; exit 1; }
	for file; do
		[ -f "$file" ] || continue # the directory LICENSES of the REUSE layout
		printf '%s\n%s: %s\n%s\n\n' "$(printf '=%.0s' {1..80})" "$name" "${file##*/}" "$(printf '=%.0s' {1..80})"
		cat "$file"
		printf '\n'
	done
}

shopt -s nullglob nocaseglob
print "Go $(go env GOVERSION)" "$(go env GOROOT)"/LICENSE
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/telapi | sort -u |
	while read -r path version dir; do
		print "$path $version" "$dir"/{LICENSE,COPYING,NOTICE,PATENTS}* "$dir"/LICENSES/*
	done
