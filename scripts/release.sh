#!/usr/bin/env bash
# Builds dist/:
#
#   telapi-VERSION-linux-ARCH.tar.gz   binary, docs, deploy, manual pages, completions
#   telapi_VERSION_ARCH.deb            the same as a Debian package
#   telapi-sdk-VERSION.tgz             the browser SDK as an npm package
#   telapi-chart-VERSION.tgz           the Helm chart
#   *.sbom.json                        bills of materials (CycloneDX)
#   RELEASE_NOTES.md                   the version's section of CHANGELOG.md
#   SHA256SUMS, SHA256SUMS.sig         checksums, and their signature
#
# The build is reproducible: the same commit, Go and Node versions produce the same
# bytes, except for the signature.
#
# RELEASE_SIGNING_KEY  a private key in PEM, for example from
#                      openssl ecparam -name prime256v1 -genkey -noout
# RELEASE_ARCHS        architectures (default: amd64 arm64)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(cat VERSION)
if [ -n "$(git status --porcelain)" ]; then
	echo 'The working tree has uncommitted changes: commit or stash them before a release.' >&2
	exit 1
fi
# Every file gets the commit's time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH CGO_ENABLED=0 GOOS=linux LC_ALL=C
umask 022

# build ARCH FILE: the binary.
build() {
	GOARCH=$1 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$2" ./cmd/telapi
}

# archive DIRECTORY NAME: a compressed archive of dist/NAME, or of another directory.
archive() {
	tar --create --directory "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--mode=u+w,go-w --format=gnu --dereference "$2" | gzip --no-name -9
}

# bill BINARY: its bill of materials. The Go modules are those in the binary's build
# info, so that they always match. There are no npm packages in it.
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

# package TREE ARCH: the Debian package of an unpacked archive.
package() {
	local root share
	root=$work/root-$2 share=$work/root-$2/usr/share
	install -D -m 755 "$1/telapi" "$root/usr/bin/telapi"
	mkdir -p "$share/man/man1" "$share/doc/telapi" "$root/usr/lib/systemd/system"
	for unit in deploy/systemd/*.service; do
		sed 's|/usr/local/bin/|/usr/bin/|' "$unit" >"$root/usr/lib/systemd/system/${unit##*/}"
	done
	cp "$1"/man/* "$share/man/man1"
	gzip --no-name -9 "$share"/man/man1/*
	install -D -m 644 "$1/completions/telapi.bash" "$share/bash-completion/completions/telapi"
	install -D -m 644 "$1/completions/telapi.zsh" "$share/zsh/vendor-completions/_telapi"
	install -D -m 644 "$1/completions/telapi.fish" "$share/fish/vendor_completions.d/telapi.fish"
	cp -r deploy/debian/copyright "$1"/{NOTICE,THIRD_PARTY_LICENSES,README.md,CHANGELOG.md,docs,deploy,api} "$share/doc/telapi"
	find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	ROOT=$root ARCH=$2 VERSION=$version MAINTAINER=$(git log -1 --format='%an <%ae>') \
		"$nfpm" package --config deploy/debian/nfpm.yaml --packager deb --target "dist/telapi_${version}_$2.deb"
}

rm -rf dist
mkdir dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nfpm=$work/nfpm
GOBIN=$work GOOS='' go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4

echo 'generating manual pages and completions'
mkdir "$work/man" "$work/completions"
GOOS='' build '' "$work/telapi"
GOOS='' go run -buildvcs=false -tags manpages -ldflags "-X main.version=$version" ./cmd/telapi "$work/man"
for shell in bash zsh fish; do
	"$work/telapi" completion "$shell" >"$work/completions/telapi.$shell"
done

for arch in ${RELEASE_ARCHS:-amd64 arm64}; do
	name=telapi-$version-linux-$arch
	tree=dist/$name
	echo "building $name"
	mkdir "$tree"
	build "$arch" "$tree/telapi"
	git archive HEAD README.md CHANGELOG.md LICENSE NOTICE SECURITY.md docs deploy api | tar -x -C "$tree"
	cp -r "$work/man" "$work/completions" "$tree"
	GOARCH=$arch scripts/licenses.sh >"$tree/THIRD_PARTY_LICENSES"
	bill "$tree/telapi" >"dist/$name.sbom.json"
	archive dist "$name" >"$tree.tar.gz"
	package "$tree" "$arch"
	rm -rf "$tree"
done

echo "building telapi-sdk-$version"
make -s sdk/js/node_modules/.package-lock.json
npm --prefix sdk/js run --silent build
(cd sdk/js && npm pack --silent --pack-destination ../../dist >/dev/null)
cat >"dist/telapi-sdk-$version.sbom.json" <<-JSON
	{"bomFormat":"CycloneDX","specVersion":"1.5","version":1,
	"metadata":{"component":{"type":"library","name":"@telapi/sdk","version":"$version","purl":"pkg:npm/%40telapi/sdk@$version"}},
	"components":[]}
JSON

archive deploy/helm telapi >"dist/telapi-chart-$version.tgz"

awk -v heading="## $version" 'index($0, "## ") == 1 { on = index($0, heading) == 1 } on' CHANGELOG.md >dist/RELEASE_NOTES.md
[ -s dist/RELEASE_NOTES.md ] || { echo "CHANGELOG.md has no section for $version" >&2; exit 1; }

(cd dist && sha256sum -- * >SHA256SUMS)
if [ -n "${RELEASE_SIGNING_KEY:-}" ]; then
	openssl dgst -sha256 -sign <(printf '%s\n' "$RELEASE_SIGNING_KEY") dist/SHA256SUMS | base64 --wrap=0 >dist/SHA256SUMS.sig
else
	echo 'SHA256SUMS is not signed: set RELEASE_SIGNING_KEY to sign it.'
fi
cat dist/SHA256SUMS
