#!/usr/bin/env bash
# Builds dist/: one archive per architecture with the binary, the docs and deploy,
# a bill of materials for each, and SHA256SUMS. The build is reproducible: the
# same commit and Go version produce the same bytes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(cat VERSION)
if [ -n "$(git status --porcelain)" ]; then
	echo 'The working tree has uncommitted changes: commit or stash them before a release.' >&2
	exit 1
fi
# Every file gets the commit's time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
umask 022

# bill BINARY: its bill of materials as CycloneDX JSON, from the binary's build
# info, so that it always matches the binary.
bill() {
	go version -m "$1" | awk -v version="$version" '
		NR == 1 { go = $2 }
		$1 == "dep" || $1 == "=>" { if ($1 == "=>") n--; name[++n] = $2; at[n] = $3 }
		END {
			printf "{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n"
			printf "\"metadata\":{\"component\":{\"type\":\"application\",\"name\":\"telapi\",\"version\":\"%s\"}},\n\"components\":[\n", version
			printf "{\"type\":\"platform\",\"name\":\"go\",\"version\":\"%s\"}", go
			for (i = 1; i <= n; i++)
				printf ",\n{\"type\":\"library\",\"name\":\"%s\",\"version\":\"%s\",\"purl\":\"pkg:golang/%s@%s\"}", name[i], at[i], name[i], at[i]
			print "\n]}"
		}'
}

rm -rf dist
mkdir dist
for arch in ${RELEASE_ARCHS:-amd64 arm64}; do
	name=telapi-$version-linux-$arch
	tree=dist/$name
	echo "building $name"
	mkdir "$tree"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X telapi/internal/cli.version=$version" -o "$tree/telapi" ./cmd/telapi
	GOARCH=$arch scripts/licenses.sh >"$tree/THIRD_PARTY_LICENSES"
	git archive HEAD README.md CHANGELOG.md LICENSE NOTICE SECURITY.md docs deploy api | tar -x -C "$tree"
	bill "$tree/telapi" >"dist/$name.sbom.json"
	tar --create --directory dist --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--format=gnu "$name" | gzip --no-name -9 >"$tree.tar.gz"
	rm -rf "$tree"
done
(cd dist && sha256sum -- * >SHA256SUMS)
cat dist/SHA256SUMS
