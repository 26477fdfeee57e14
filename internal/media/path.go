package media

import "strings"

// Prefix is where objects are found: /media/<shard>/<name>.<encoding>.
const Prefix = "/media/"

// contentTypes are the encodings there are, by extension.
var contentTypes = map[string]string{
	"alaw": "audio/x-alaw-basic",
	"pcm":  "audio/pcm",
}

// longestName is what file systems take.
const longestName = 255

// Path names one object: a shard, a slash, a name and the extension of its
// encoding. A Path from ParsePath cannot leave the folder it is opened in, nor
// meet a file of the store's own, whose names begin with a dot.
type Path string

// ParsePath applies the one rule for paths, the same for server and client: shard
// and name are letters, digits, _ and -, and nothing is decoded or cleaned.
func ParsePath(s string) (Path, bool) {
	shard, file, _ := strings.Cut(s, "/")
	name, extension, _ := strings.Cut(file, ".")
	_, known := contentTypes[extension]
	if !known || !plain(shard) || !plain(name) || len(file) > longestName {
		return "", false
	}
	return Path(s), true
}

// parseURLPath is ParsePath for the path of a URL as it was sent.
func parseURLPath(s string) (Path, bool) {
	rest, ok := strings.CutPrefix(s, Prefix)
	if !ok {
		return "", false
	}
	return ParsePath(rest)
}

func (p Path) split() (shard, file string) {
	shard, file, _ = strings.Cut(string(p), "/")
	return shard, file
}

func (p Path) contentType() string {
	_, extension, _ := strings.Cut(string(p), ".")
	return contentTypes[extension]
}

func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return s != "" && len(s) <= longestName
}
