#!/usr/bin/env bash
# Builds the container image from a release archive, without Go and without other
# images. Run it in the directory of the unpacked archive:
#
#   deploy/docker/build-from-binary.sh telapi:0.9.20
#
# BUILD is the command that builds an image; "docker build" by default.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 TAG" >&2; exit 2; }
certificates=${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
for file in telapi LICENSE NOTICE THIRD_PARTY_LICENSES "$certificates"; do
	[ -f "$file" ] || { echo "$file is missing: run this in the directory of an unpacked release archive, with ca-certificates installed" >&2; exit 1; }
done
read -r -a build <<<"${BUILD:-docker build}"

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir -m 755 "$context/empty"
install -m 755 telapi "$context"
install -m 644 LICENSE NOTICE THIRD_PARTY_LICENSES "$context"
install -m 644 "$certificates" "$context/ca-certificates.crt"
"${build[@]}" --file "$(dirname "${BASH_SOURCE[0]}")/Dockerfile" --target from-binary --tag "$1" "$context"
