//go:build !linux

package media

import (
	"errors"
	"io/fs"
	"time"
)

// accessTime falls back to the modification time: the oldest blob is evicted
// first.
func accessTime(info fs.FileInfo) time.Time { return info.ModTime() }

func (d dirFD) renameNew(string, dirFD, string) error { return errors.ErrUnsupported }
