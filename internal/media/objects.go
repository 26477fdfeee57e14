package media

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/media/fastlane"
)

// forever: what is stored under a path is named after all that it was made of.
const forever = "private, max-age=31536000, immutable"

// describe sets what every answer with an object carries.
func (o *Object) describe(h http.Header, p Path) {
	h.Set("Content-Type", p.contentType())
	h.Set("Cache-Control", forever)
	h.Set("Etag", o.ETag)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", o.Modified.UTC().Format(http.TimeFormat))
	h.Set("X-Content-Type-Options", "nosniff")
}

func (s *Service) get(x *httpserve.Response, r *http.Request, p Path) error {
	o, err := s.store.Open(p)
	if errors.Is(err, ErrNoObject) {
		return notFound()
	}
	if err != nil {
		return err
	}
	defer o.Close()
	extendDeadline(x, o.Size)
	// Ranges are defined for GET alone, one of a unit we do not know is none, and
	// the last 0 bytes are no byte; ServeContent sees none of this so.
	if unit, ranges, _ := strings.Cut(r.Header.Get("Range"), "="); r.Method == http.MethodHead || !strings.EqualFold(unit, "bytes") {
		r.Header.Del("Range")
	} else {
		r.Header.Set("Range", "bytes="+withoutEmpty(ranges, o.Size))
	}
	o.describe(x.Header(), p)
	http.ServeContent(x, r, "", o.Modified, o.File)
	return nil
}

// withoutEmpty puts ranges that begin behind the end in place of empty ones.
func withoutEmpty(ranges string, size int64) string {
	list := strings.Split(ranges, ",")
	for i, one := range list {
		if last, ok := strings.CutPrefix(strings.TrimSpace(one), "-"); ok && last != "" && strings.Trim(last, "0") == "" {
			list[i] = strconv.FormatInt(size, 10) + "-"
		}
	}
	return strings.Join(list, ",")
}

// load brings an object into memory, with the header that get gives it.
func (s *Service) load(path string, limit int64) (fastlane.Object, bool) {
	p, ok := parseURLPath(path)
	if !ok {
		return fastlane.Object{}, false
	}
	o, err := s.store.Open(p)
	if err != nil {
		return fastlane.Object{}, false
	}
	if o.Size > limit {
		o.Close()
		return fastlane.Object{}, false
	}
	object := fastlane.Object{Header: http.Header{}, File: o.File, Size: o.Size}
	o.describe(object.Header, p)
	return object, true
}

func (s *Service) put(x *httpserve.Response, r *http.Request, p Path) error {
	switch size := r.ContentLength; {
	case size < 0, size == 0 && r.Header.Get("Content-Length") == "":
		x.Header().Set("Connection", "close") // how much is there to skip?
		return fault.New(fault.LengthRequired, "Say in Content-Length how long the object is.")
	case size > s.o.MaxObjectBytes:
		return fault.New(fault.PayloadTooLarge, "An object has %d bytes at the most.", s.o.MaxObjectBytes)
	case r.Header.Get("Content-Range") != "":
		return fault.New(fault.Validation, "An object is stored whole: send it without Content-Range.")
	}
	extendDeadline(x, r.ContentLength)
	body := &upload{Reader: r.Body}
	created, err := s.store.Put(p, body, r.ContentLength, preconditions(r.Header))
	switch {
	case body.err != nil:
		return fault.New(fault.Validation, "The body ended before Content-Length was reached, or came too slowly; nothing was stored.").WithCause(body.err)
	case errors.Is(err, ErrOccupied):
		return fault.New(fault.PathOccupied, "A link, a folder or another file that is no object lies in this object's place; nothing was stored. Remove it from the media root.").WithCause(err)
	case full(err):
		return fault.New(fault.StorageFull, "There is no room for this object; nothing was stored.").WithCause(err)
	case err != nil:
		return err
	}
	s.metrics.received.Add(float64(r.ContentLength))
	if created {
		x.WriteHeader(http.StatusCreated)
	} else {
		x.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// upload tells a body that broke off from a disk that did.
type upload struct {
	io.Reader
	err error
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

func (s *Service) delete(x *httpserve.Response, r *http.Request, p Path) error {
	err := s.store.Delete(p, preconditions(r.Header))
	if errors.Is(err, ErrNoObject) {
		return notFound()
	}
	if err == nil {
		x.WriteHeader(http.StatusNoContent)
	}
	return err
}

// contentErrors are the errors that http.ServeContent sends as plain text.
var contentErrors = map[int]*fault.Error{
	http.StatusPreconditionFailed:           fault.New(fault.PreconditionFailed, "What is stored is not what the request's conditions ask for; nothing was done."),
	http.StatusRequestedRangeNotSatisfiable: fault.New(fault.RangeUnsatisfiable, "No byte of the object lies in the range asked for."),
}

// preconditions are those of a request for a change.
func preconditions(h http.Header) Condition {
	if h["If-Match"] == nil && h["If-None-Match"] == nil && h["If-Unmodified-Since"] == nil {
		return nil
	}
	return func(current fs.FileInfo) error {
		among := func(name, tag string) bool {
			list := strings.Split(strings.Join(h[name], ","), ",")
			return current != nil && slices.ContainsFunc(list, func(s string) bool { s = strings.TrimSpace(s); return s == "*" || s == tag })
		}
		var tag string
		if current != nil {
			tag = etag(current)
		}
		ok := true
		if h["If-Match"] != nil {
			ok = among("If-Match", tag)
		} else if since, err := http.ParseTime(h.Get("If-Unmodified-Since")); err == nil && current != nil {
			ok = !current.ModTime().Truncate(time.Second).After(since)
		}
		if !ok || among("If-None-Match", tag) || among("If-None-Match", "W/"+tag) {
			return contentErrors[http.StatusPreconditionFailed]
		}
		return nil
	}
}

// Bounds of a listing.
const (
	listedByDefault = 1000
	maxListed       = 10_000
)

// list answers with one object per line, in order of path, for whoever compares
// the store with what it should hold.
func (s *Service) list(x *httpserve.Response, r *http.Request) error {
	var issues fault.Issues
	query := r.URL.Query()
	after, _ := issues.QueryValue(query, "after")
	limit := listedByDefault
	if text, given := issues.QueryValue(query, "limit"); given {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListed {
			issues.Add("/query/limit", fault.IssueValue, "limit is a whole number from 1 to %d.", maxListed)
		}
	}
	if err := issues.Err(); err != nil {
		return err
	}
	blobs, err := s.store.List(after, limit)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	for _, b := range blobs {
		if err := json.MarshalWrite(&lines, b); err != nil {
			return err
		}
		lines.WriteByte('\n')
	}
	x.WriteBytes(http.StatusOK, "application/x-ndjson", lines.Bytes())
	return nil
}
