package fastlane

import (
	"bytes"
	"strconv"
)

// verdict classifies the bytes at the start of a request.
type verdict int

const (
	partial  verdict = iota // valid so far, but the header is incomplete
	plain                   // a GET that the fast path may serve
	upload                  // a PUT that the fast path may serve
	framed                  // for net/http; the end of the request is known
	unframed                // for net/http; the end of the request is unknown
)

// request is a request with a complete header.
type request struct {
	head int    // length of request line and header, with the empty line
	body int64  // length of the body
	path []byte // if plain or upload
	host []byte // if plain or upload
}

// minRequest is the number of bytes that net/http reads of a later request on a
// connection before it parses the request.
const minRequest = 4

// parse parses request line and header strictly. A request is unframed unless all
// HTTP parsers agree on its lines and its body, which prevents request smuggling.
func parse(b []byte) (r request, v verdict) {
	if len(b) < minRequest {
		return r, partial
	}
	line, rest, v := cutLine(b)
	if v != framed {
		return r, v
	}
	if r.path, v = requestLine(line); v == unframed {
		return r, unframed
	}
	var hosts, lengths int
	for {
		var ended verdict
		if line, rest, ended = cutLine(rest); ended != framed {
			return r, ended
		}
		if len(line) == 0 {
			break
		}
		kind, value := parseField(line)
		switch kind {
		case harmless:
		case harmlessOnGet:
			if v == upload {
				v = framed
			}
		case allowedOnPut:
			if v == plain {
				v = framed
			}
		case hostField:
			hosts++
			r.host = value
			if !all(value, isHost) {
				v = framed
			}
		case connectionField:
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				v = framed
			}
		case contentLengthField:
			lengths++
			n, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil || value[0] == '+' {
				return r, unframed
			}
			if r.body = int64(n); v == plain {
				v = framed
			}
		case otherField:
			v = framed
		default:
			return r, unframed
		}
	}
	if lengths > 1 {
		return r, unframed
	}
	if hosts != 1 || v == upload && lengths == 0 {
		v = framed
	}
	r.head = len(b) - len(rest)
	return r, v
}

// cutLine returns the first line. It is framed if it ends with CR LF and contains
// no control characters except tabs.
func cutLine(b []byte) (line, rest []byte, v verdict) {
	line, rest, complete := bytes.Cut(b, []byte{'\n'})
	if complete {
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return nil, nil, unframed
		}
		line = line[:len(line)-1]
	} else if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, unframed
		}
	}
	if !complete {
		return nil, nil, partial
	}
	return line, rest, framed
}

// requestLine classifies a request line. Paths on the fast path contain no
// characters with an encoding or a special meaning.
func requestLine(line []byte) (path []byte, v verdict) {
	method, rest, _ := bytes.Cut(line, []byte{' '})
	target, version, found := bytes.Cut(rest, []byte{' '})
	if !found || string(version) != "HTTP/1.1" || len(target) == 0 || !all(method, isToken) {
		return nil, unframed
	}
	switch {
	case target[0] != '/' || !all(target, isPath):
		return nil, framed
	case string(method) == "GET":
		return target, plain
	case string(method) == "PUT":
		return target, upload
	}
	return nil, framed
}

type fieldKind int

const (
	malformed     fieldKind = iota
	harmless                // does not affect the response to a GET or PUT
	harmlessOnGet           // does not affect a GET; net/http derives another field from it on a PUT
	allowedOnPut            // the handler of a PUT uses it
	hostField
	connectionField
	contentLengthField
	otherField // for net/http
)

func parseField(line []byte) (kind fieldKind, value []byte) {
	name, value, found := bytes.Cut(line, []byte{':'})
	if !found || !all(name, isToken) {
		return malformed, nil
	}
	value = bytes.Trim(value, " \t")
	var lower [len("accept-encoding")]byte // the longest known name
	if len(name) > len(lower) {
		if bytes.EqualFold(name, []byte("transfer-encoding")) {
			return malformed, nil // the length of the body is unknown
		}
		return otherField, value
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower[:len(name)]) {
	case "host":
		return hostField, value
	case "connection":
		return connectionField, value
	case "content-length":
		return contentLengthField, value
	case "accept", "accept-charset", "accept-encoding", "accept-language", "baggage", "cache-control",
		"priority", "referer", "traceparent", "tracestate", "user-agent":
		return harmless, value
	case "pragma":
		return harmlessOnGet, value
	case "authorization", "content-type":
		return allowedOnPut, value
	default:
		return otherField, value
	}
}

// all reports whether b is not empty and all its bytes are valid.
func all(b []byte, valid func(byte) bool) bool {
	for _, c := range b {
		if !valid(c) {
			return false
		}
	}
	return len(b) > 0
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func isPath(c byte) bool {
	return isAlphanumeric(c) || c == '/' || c == '.' || c == '_' || c == '-'
}

func isHost(c byte) bool {
	return isAlphanumeric(c) || c == '.' || c == ':' || c == '-' || c == '_' || c == '[' || c == ']'
}

func isToken(c byte) bool {
	return isAlphanumeric(c) || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}
