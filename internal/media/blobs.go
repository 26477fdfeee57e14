package media

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/media/internal/fastlane"
)

// immutable is the Cache-Control of a blob: its name is a hash of its inputs.
const immutable = "private, max-age=31536000, immutable"

func (b *Blob) setHeader(h http.Header, p Path) {
	h.Set("Content-Type", p.contentType())
	h.Set("Cache-Control", immutable)
	h.Set("Etag", b.ETag)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", b.Modified.UTC().Format(http.TimeFormat))
	h.Set("X-Content-Type-Options", "nosniff")
}

func (s *Service) get(w *httpserve.Response, r *http.Request, p Path) error {
	b, err := s.store.Open(p)
	if err != nil {
		return err
	}
	defer b.Close()
	extendDeadline(w, b.Size)
	// RFC 9110 defines ranges for GET only, and ignores unknown units. A suffix of
	// length 0 is not satisfiable. ServeContent does not implement these rules.
	unit, ranges, _ := strings.Cut(r.Header.Get("Range"), "=")
	if r.Method == http.MethodHead || !strings.EqualFold(unit, "bytes") {
		r.Header.Del("Range")
	} else {
		r.Header.Set("Range", "bytes="+replaceEmptyRanges(ranges, b.Size))
	}
	b.setHeader(w.Header(), p)
	http.ServeContent(w, r, "", b.Modified, b.File)
	return nil
}

// replaceEmptyRanges replaces suffixes of length 0 with a range after the end.
func replaceEmptyRanges(ranges string, size int64) string {
	list := strings.Split(ranges, ",")
	for i, item := range list {
		if suffix, ok := strings.CutPrefix(strings.TrimSpace(item), "-"); ok && suffix != "" && strings.Trim(suffix, "0") == "" {
			list[i] = strconv.FormatInt(size, 10) + "-"
		}
	}
	return strings.Join(list, ",")
}

// load opens a blob for the fast path, with the same header as get.
func (s *Service) load(path string, limit int64) (fastlane.Blob, bool) {
	p, ok := parseURLPath(path)
	if !ok {
		return fastlane.Blob{}, false
	}
	b, err := s.store.Open(p)
	if err != nil {
		return fastlane.Blob{}, false
	}
	if b.Size > limit {
		b.Close()
		return fastlane.Blob{}, false
	}
	blob := fastlane.Blob{Header: http.Header{}, File: b.File, Size: b.Size}
	b.setHeader(blob.Header, p)
	return blob, true
}

func (s *Service) put(w *httpserve.Response, r *http.Request, p Path) error {
	switch size := r.ContentLength; {
	case size < 0, size == 0 && r.Header.Get("Content-Length") == "":
		w.Header().Set("Connection", "close") // the length of the body is unknown
		return fault.New(fault.LengthRequired, "Content-Length is required.")
	case size > s.options.MaxObjectBytes:
		return fault.New(fault.PayloadTooLarge, "A blob must have at most %d bytes.", s.options.MaxObjectBytes)
	case r.Header.Get("Content-Range") != "":
		return fault.New(fault.Validation, "Partial uploads are not supported: remove Content-Range.")
	}
	extendDeadline(w, r.ContentLength)
	created, err := s.store.Put(p, r.Body, r.ContentLength, precondition(r.Header))
	switch {
	case errors.Is(err, errBody):
		return fault.New(fault.Validation, "The body is shorter than Content-Length or was sent too slowly. Nothing was stored.").WithCause(err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.New(fault.StorageFull, "The disk of the media service is full, so the upload of %d bytes was not stored. The operator must set MEDIA_MAX_BYTES below the size of the disk.", r.ContentLength).WithCause(err)
	case err != nil:
		return err
	}
	s.metrics.received.Add(float64(r.ContentLength))
	status := http.StatusNoContent
	if created {
		status = http.StatusCreated
	}
	w.WriteHeader(status)
	return nil
}

func (s *Service) delete(w *httpserve.Response, r *http.Request, p Path) error {
	err := s.store.Delete(p, precondition(r.Header))
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// contentErrors are the errors that http.ServeContent sends as plain text.
var contentErrors = map[int]*fault.Error{
	http.StatusPreconditionFailed:           fault.New(fault.PreconditionFailed, "The stored blob does not match the preconditions of the request. Nothing was changed."),
	http.StatusRequestedRangeNotSatisfiable: fault.New(fault.RangeUnsatisfiable, "The requested range is outside the blob."),
}

// precondition returns the precondition in the header of a PUT or DELETE.
func precondition(h http.Header) Precondition {
	if h["If-Match"] == nil && h["If-None-Match"] == nil && h["If-Unmodified-Since"] == nil {
		return nil
	}
	return func(etag string, modified time.Time) error {
		matches := func(name, tag string) bool {
			list := strings.Split(strings.Join(h[name], ","), ",")
			return etag != "" && slices.ContainsFunc(list, func(item string) bool {
				item = strings.TrimSpace(item)
				return item == "*" || item == tag
			})
		}
		ok := true
		if h["If-Match"] != nil {
			ok = matches("If-Match", etag)
		} else if since, err := http.ParseTime(h.Get("If-Unmodified-Since")); err == nil && etag != "" {
			ok = !modified.Truncate(time.Second).After(since)
		}
		if !ok || matches("If-None-Match", etag) || matches("If-None-Match", "W/"+etag) {
			return contentErrors[http.StatusPreconditionFailed]
		}
		return nil
	}
}

// Limits of a listing.
const (
	defaultListLimit = 1000
	maxListLimit     = 10_000
)

// list sends one JSON object per blob and line, in order of path.
func (s *Service) list(w *httpserve.Response, r *http.Request) error {
	var issues fault.Issues
	query := issues.ParseQuery(r.URL.RawQuery)
	after, _ := issues.QueryValue(query, "after")
	limit := defaultListLimit
	if text, given := issues.QueryValue(query, "limit"); given {
		n, err := strconv.Atoi(text)
		issues.Check(err == nil && n >= 1 && n <= maxListLimit, "/query/limit", fault.IssueValue, "limit must be a whole number from 1 to %d.", maxListLimit)
		limit = n
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
	w.WriteBytes(http.StatusOK, "application/x-ndjson", lines.Bytes())
	return nil
}
