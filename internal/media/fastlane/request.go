package fastlane

import (
	"bytes"
	"strconv"
)

// verdict is what the lane makes of the bytes at the start of a request.
type verdict int

const (
	partial verdict = iota // well-formed so far, but its head is not complete
	plain                  // a GET of the one form that the lane answers
	upload                 // a PUT of the one form that the lane gives the handler itself
	framed                 // not for the lane, but it is known where the request ends
	foreign                // anything else
)

// request is a complete head.
type request struct {
	head int    // bytes up to and including the empty line
	body int64  // bytes that follow
	path []byte // of a plain request or an upload
}

// shortest is how many bytes net/http awaits of a request that is not the first
// of its connection before it looks at them.
const shortest = 4

// parse reads the head of a request line by line in the strictest form that
// HTTP/1.1 has. Where that is not met it does not guess: a head is not foreign
// only if every reader of HTTP finds the same lines and the same body.
func parse(b []byte) (r request, v verdict) {
	if len(b) < shortest {
		return r, partial
	}
	line, rest, v := cutLine(b)
	if v != framed {
		return r, v
	}
	if r.path, v = requestLine(line); v == foreign {
		return r, foreign
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
		kind, value := field(line)
		switch kind {
		case harmless:
		case ofRead:
			if v == upload {
				v = framed
			}
		case ofUpload:
			if v == plain {
				v = framed
			}
		case host:
			hosts++
			if !all(value, isHost) {
				v = framed
			}
		case connection:
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				v = framed
			}
		case contentLength:
			lengths++
			n, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil || value[0] == '+' {
				return r, foreign
			}
			if r.body = int64(n); v == plain {
				v = framed
			}
		case other:
			v = framed
		default:
			return r, foreign
		}
	}
	if lengths > 1 {
		return r, foreign
	}
	if hosts != 1 || v == upload && lengths == 0 {
		v = framed
	}
	r.head = len(b) - len(rest)
	return r, v
}

// cutLine returns the first line, framed if it ends with CR LF and holds no
// control character but tabs.
func cutLine(b []byte) (line, rest []byte, v verdict) {
	line, rest, complete := bytes.Cut(b, []byte{'\n'})
	if complete {
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return nil, nil, foreign
		}
		line = line[:len(line)-1]
	} else if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, foreign
		}
	}
	if !complete {
		return nil, nil, partial
	}
	return line, rest, framed
}

// requestLine tells whether the line is of a GET or a PUT with a path of the
// lane's alphabet, in which nothing is encoded and nothing means anything else.
func requestLine(line []byte) (path []byte, v verdict) {
	method, rest, _ := bytes.Cut(line, []byte{' '})
	target, version, found := bytes.Cut(rest, []byte{' '})
	if !found || string(version) != "HTTP/1.1" || len(target) == 0 || !all(method, isToken) {
		return nil, foreign
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

// kind is what the lane knows about a header field.
type kind int

const (
	malformed kind = iota
	harmless       // changes nothing about the answer to a GET of a file
	ofRead         // the same, but net/http changes the header by it
	ofUpload       // changes nothing about how an upload is read
	host
	connection
	contentLength
	other // net/http's to understand
)

func field(line []byte) (k kind, value []byte) {
	name, value, found := bytes.Cut(line, []byte{':'})
	if !found || !all(name, isToken) {
		return malformed, nil
	}
	value = bytes.Trim(value, " \t")
	var lower [len("accept-encoding")]byte // no known name is longer than
	if len(name) > len(lower) {
		if bytes.EqualFold(name, []byte("transfer-encoding")) {
			return malformed, nil // its end is not known from its head
		}
		return other, value
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower[:len(name)]) {
	case "host":
		return host, value
	case "connection":
		return connection, value
	case "content-length":
		return contentLength, value
	case "accept", "accept-charset", "accept-encoding", "accept-language", "baggage", "cache-control",
		"priority", "referer", "traceparent", "tracestate", "user-agent":
		return harmless, value
	case "pragma":
		return ofRead, value
	case "authorization", "content-type":
		return ofUpload, value
	default:
		return other, value
	}
}

// all reports whether b is not empty and each of its bytes is of a class.
func all(b []byte, is func(byte) bool) bool {
	for _, c := range b {
		if !is(c) {
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
