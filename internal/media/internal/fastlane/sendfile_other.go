//go:build !linux

package fastlane

import (
	"errors"
	"net"
	"os"
)

// Only Linux sends files with sendfile. Other systems send from memory.
type source struct{ *os.File }

func newSource(*os.File) (*source, error) { return nil, errors.ErrUnsupported }

func maxCachedFiles() uint64 { return 0 }

type sender struct{}

func newSender(net.Conn) *sender { return nil }

func (*sender) send([]byte, *source, int64) error { return errNotCached }
