package media

import "strings"

// Prefix is the URL prefix of blobs: /media/<shard>/<name>.<encoding>.
const Prefix = "/media/"

// contentTypes has the media type of each encoding.
var contentTypes = map[string]string{
	"alaw": "audio/x-alaw-basic",
	"pcm":  "audio/pcm",
}

const (
	maxNameLength  = 255 // the limit of common file systems
	nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
)

// Path is the path of a blob: a shard, a slash, a name and the extension of the
// encoding. A Path from ParsePath cannot leave the directory it is opened in, and
// cannot name a file of the store itself: those begin with a dot.
type Path string

// ParsePath validates a path. Shard and name consist of letters, digits, _ and
// -. Nothing is decoded or cleaned.
func ParsePath(s string) (Path, bool) {
	shard, file, _ := strings.Cut(s, "/")
	name, extension, _ := strings.Cut(file, ".")
	_, known := contentTypes[extension]
	if !known || !isName(shard) || !isName(name) || len(file) > maxNameLength {
		return "", false
	}
	return Path(s), true
}

// parseURLPath validates the path of a URL in its encoded form.
func parseURLPath(s string) (Path, bool) {
	path, hasPrefix := strings.CutPrefix(s, Prefix)
	p, ok := ParsePath(path)
	return p, ok && hasPrefix
}

func (p Path) split() (shard, file string) {
	shard, file, _ = strings.Cut(string(p), "/")
	return shard, file
}

func (p Path) contentType() string {
	_, extension, _ := strings.Cut(string(p), ".")
	return contentTypes[extension]
}

func isName(s string) bool {
	return s != "" && len(s) <= maxNameLength && strings.TrimLeft(s, nameCharacters) == ""
}
