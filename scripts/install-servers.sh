#!/usr/bin/env bash
# Installs the servers and programs that tests start, if they are missing.
#
#   scripts/install-servers.sh test            install what `make test` needs (root or sudo)
#   scripts/install-servers.sh check           install what `make check` needs, too
#   scripts/install-servers.sh check --list    only list what is missing
#
# It doesn't start or enable services, doesn't create a default PostgreSQL cluster,
# and restores the files that it changes temporarily. Package lists are updated only
# if the present ones don't work.
#
# Exit code: 0 all installed, 1 something is missing, 2 wrong usage.
set -euo pipefail

case "${1:-} ${2:-}" in
'test ' | 'test --list' | 'check ' | 'check --list') ;;
*)
	echo "usage: $0 test|check [--list]" >&2
	exit 2
	;;
esac

# One line per program, or package of Python: its name, the Debian package, the package's
# systemd unit (-: none), and a directory outside PATH in which the program may be.
test='
redis-server  redis-server  redis-server.service
initdb        postgresql    postgresql.service    /usr/lib/postgresql/*/bin
node          nodejs        -
npm           npm           -
chromium      chromium      -
strace        strace        -
sox           sox           -
espeak-ng     espeak-ng     -
curl          curl          -
python3       python3       -
redis         python3-redis -                     /usr/lib/python3/dist-packages
'
# gcc is for the race detector.
check='
gcc           gcc           -
nginx         nginx-light   nginx.service         /usr/sbin
haproxy       haproxy       haproxy.service       /usr/sbin
faketime      faketime      -
podman        podman        podman.socket
buildah       buildah       -
runc          runc          -                     /usr/sbin
promtool      prometheus    prometheus.service
turnserver    coturn        coturn.service
sipp          sip-tester    -
baresip       baresip       -
'
servers=$test
[ "$1" = test ] || servers+=$check

policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.conf

# installed PROGRAM GLOB: is the program on PATH or in a directory that matches?
installed() {
	command -v "$1" >/dev/null && return
	[ -n "$2" ] && compgen -G "$2/$1" >/dev/null
}

packages=() units=()
while read -r program package unit folder; do
	[ -n "$program" ] || continue
	if ! installed "$program" "$folder"; then
		packages+=("$package")
		units+=("$unit")
	fi
done <<<"$servers"

[ ${#packages[@]} -gt 0 ] || exit 0

# fail REASON: print the missing packages and the command that installs them.
fail() {
	cat >&2 <<-TEXT
		$1
		Missing packages: ${packages[*]}
		Install them with: sudo apt-get update && sudo apt-get install --yes --no-install-recommends ${packages[*]}
	TEXT
	exit 1
}

[ -z "${2:-}" ] || fail 'Tests need servers that are not installed.'

command -v apt-get >/dev/null || fail 'Tests need servers that are not installed, and apt-get is not available. The names below are Debian packages.'
if [ "$(id -u)" -ne 0 ]; then
	# sudo can ask for a password only on a terminal.
	if command -v sudo >/dev/null && { [ -t 0 ] || sudo --non-interactive true 2>/dev/null; }; then
		exec sudo -- "$BASH" "$0" "$1"
	fi
	fail 'Tests need servers that are not installed, and this user is neither root nor allowed to use sudo.'
fi

# Files that are replaced during the installation and restored at its end.
backups=$(mktemp -d)
replaced=()
restore() {
	local file
	for file in "${replaced[@]}"; do
		if [ -e "$backups$file" ]; then
			cp --preserve=all "$backups$file" "$file"
		else
			rm -f "$file"
		fi
	done
	rm -rf "$backups"
}
trap restore EXIT

# back_up FILE: save a file that is about to be replaced.
back_up() {
	if [ -e "$1" ]; then
		mkdir -p "$backups$(dirname "$1")"
		cp --preserve=all "$1" "$backups$1"
	fi
	replaced+=("$1")
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

# add PACKAGE…: package lists may be missing (nothing found) or stale (downloads fail).
add() {
	apt --simulate install "$@" >/dev/null 2>&1 || apt update
	apt install "$@" || { apt update && apt install "$@"; }
}

echo "Installing ${packages[*]}"

# Exit code 101 means that Debian's maintainer scripts must not start services.
back_up "$policy"
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

if [[ " ${packages[*]} " == *' postgresql '* ]]; then
	add postgresql-common
	back_up "$clusters"
	echo 'create_main_cluster = false' >>"$clusters"
fi
add "${packages[@]}"

if command -v systemctl >/dev/null; then
	systemctl --quiet disable "${units[@]}" 2>/dev/null || true
fi
