#!/usr/bin/env bash
# Builds dist/: one archive per architecture with the binary, the docs and the
# files of deploy, each with its bill of materials, and SHA256SUMS over all. The
# same commit and Go version give the same bytes, wherever and whenever it runs.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(cat VERSION)
# Every file is as old as the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
umask 022

rm -rf dist
mkdir dist
for arch in amd64 arm64; do
	name=telapi-$version-linux-$arch
	tree=dist/$name
	echo "building $name"
	mkdir "$tree"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X telapi/internal/cli.version=$version" -o "$tree/telapi" ./cmd/telapi
	git archive HEAD README.md CHANGELOG.md docs deploy api | tar -x -C "$tree"
	go run scripts/sbom.go "$tree/telapi" "$version" >"dist/$name.sbom.json"
	tar --create --directory dist --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--format=gnu "$name" | gzip --no-name -9 >"$tree.tar.gz"
	rm -rf "$tree"
done
(cd dist && sha256sum -- * >SHA256SUMS)
cat dist/SHA256SUMS
